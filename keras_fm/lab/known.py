"""Names that commands are given, known without Keras: a wrong one is
answered in a moment."""

import difflib
import functools
import json
import os
import pathlib

# Tests compare these with what they name.
IMAGES = ("digits", "mnist", "fashion_mnist", "usps", "cifar10")
NETWORKS = ("health_network", "health_network_weekly")
FEATURES = ("pixels", "scattering", "scattering_strokes", "patches")


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


def check_dataset(name):
    """Refuses what is neither a data set of images nor a file.

    Raises:
        ValueError: with the words of `keras_fm.datasets.load`.
    """
    if name in IMAGES or not isinstance(name, str):
        return
    if name in NETWORKS:
        raise ValueError(
            f"{name!r} is no data set of images. Behaviour prediction is "
            "compared by `keras-fm reproduce`; see docs/dpa.md."
        )
    if not name.endswith(".npz"):
        raise ValueError(
            f"Unknown data set {name!r}. Known are {sorted(IMAGES)}, or the "
            "path of an .npz file."
        )
    if not os.path.isfile(name):
        raise ValueError(
            f"Cannot load {name!r} as a data set: there is no such file."
        )


def check_comparison(config):
    """Refuses settings of a comparison, as far as no model says more.

    Args:
        config: dict, some fields of a `Comparison`.

    Raises:
        ValueError: if a value is unknown or outside its range.
    """
    # NumPy, too, only where something is to be checked.
    from keras_fm.kernel import checks
    from keras_fm.kernel.budget import Neighbours, PrivacyBudget

    check_dataset(config.get("dataset", IMAGES[0]))
    checks.one_of("features", config.get("features", FEATURES[0]), FEATURES)
    # What is no list of names is for `Comparison` to refuse.
    for name in _listed(config, "methods"):
        if isinstance(name, str) and name not in methods():
            checks.refuse("methods", name, f"some of {tuple(methods())}")
    for epsilon in _listed(config, "epsilons") or (1.0,):
        PrivacyBudget(epsilon, config.get("delta", 0.0))
    Neighbours.of(config.get("neighbours", Neighbours.ADD_REMOVE))
    for name in ("seeds", "epochs", "batch_size"):
        checks.count(name, config.get(name, 1))
    for name in ("hidden", "train_records"):
        checks.natural(name, config.get(name, 0))


def _listed(config, name):
    found = config.get(name)
    return found if isinstance(found, (list, tuple)) else ()


class UnknownExperimentError(ValueError):
    """A name that is neither a paper, an experiment nor an alias."""


def find_experiments(names):
    """The experiments that papers, experiments or figures of papers name.

    Returns:
        tuple of str, each once, in the order of the catalogue.

    Raises:
        UnknownExperimentError: naming what comes near.
    """
    called = {
        name: (name, name.split(":")[0], *declared.get("aliases", ()))
        for name, declared in experiments().items()
    }
    found = set()
    for name in names:
        wanted = str(name).strip().lower()
        mine = {e for e, words in called.items() if wanted in words}
        if not mine:
            raise UnknownExperimentError(_unknown(name, wanted, called))
        found |= mine
    return tuple(e for e in called if e in found)


def _unknown(name, wanted, called):
    papers = [*dict.fromkeys(words[1] for words in called.values())]
    known = [*papers, *called, *(w for c in called.values() for w in c[2:])]
    near = difflib.get_close_matches(wanted, known, n=6, cutoff=0.5)
    near += [k for k in known if k.split(":")[0] == wanted.split(":")[0]]
    near = list(dict.fromkeys(near)) or papers
    return f"Unknown experiment {name!r}. Near it are: {', '.join(near)}."
