"""Names that commands list, known without Keras."""

import functools
import json
import pathlib

from keras_fm.lab import environment

# Tests compare these with what they name.
IMAGES = ("digits", "mnist", "fashion_mnist", "usps", "cifar10")
NETWORKS = ("health_network", "health_network_weekly")
_BOTH = ("published", "proven")
# Models that are audited, and which guarantees each has.
AUDITED = {
    "ilm": ("published",),
    "head": _BOTH,
    "adlm": _BOTH,
    "dpa": _BOTH,
    "dpah": _BOTH,
    "pcdbn": _BOTH,
    "pcdbn_te": ("published",),
    "pcdbn_pw": ("published",),
    "dpmac": _BOTH,
    "functional": _BOTH,
    "dp_sgd": _BOTH,
    "jax_privacy": _BOTH,
}


@functools.cache
def methods():
    """Dict from the methods of a comparison to what is said of each."""
    return _json("compare/methods.json")


@functools.cache
def experiments():
    """Dict from the experiments of the papers to what declares them."""
    return _json("reproduce/experiments.json")


def _json(path):
    path = pathlib.Path(__file__).parent / path
    return json.loads(path.read_text(encoding="utf-8"))


def runs_here(packages, backend=None):
    """Whether what a method needs is installed, told without importing it."""
    return backend in (None, environment.backend()[0]) and all(
        map(environment.has, packages)
    )
