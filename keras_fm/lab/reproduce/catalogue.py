"""The named experiments of the five papers, and how they are found."""

import difflib

from keras_fm.lab import known
from keras_fm.lab.engine import files
from keras_fm.lab.engine.job import Series
from keras_fm.lab.reproduce import (
    adlm,
    dpa,
    dpmac,
    facts,
    functional_net,
    pcdbn,
    sources,
)
from keras_fm.lab.reproduce.experiment import (
    ACCURACY,
    EPSILON,
    Axis,
    Experiment,
)

_MODULES = {
    "dpa": dpa,
    "pcdbn": pcdbn,
    "functional_net": functional_net,
    "adlm": adlm,
    "dpmac": dpmac,
}
# What loaders of `sources` give, where it is not images.
_NEEDS = {None: None} | dict.fromkeys(
    ("printed_windows", "recent_windows", "windows"), "network"
)
_AXES = {"accuracy": ACCURACY, "epsilon": EPSILON}


class UnknownExperimentError(ValueError):
    """A name that is neither a paper, an experiment nor an alias."""


def _experiment(name, declared):
    declared = {k: _settings(v) for k, v in declared.items()}
    paper = name.split(":")[0]
    both = declared.pop("both", {})
    chosen = declared.pop("facts", None)
    return Experiment(
        name=name,
        x=_axis(declared.pop("x")),
        y=_axis(declared.pop("y")),
        series=tuple(Series(**s) for s in declared.pop("series")),
        small={**both, **declared.pop("small", {})},
        full={**both, **declared.pop("full", {})},
        facts=_chosen_facts(paper, chosen),
        measure=getattr(_MODULES[paper], declared.pop("measure")),
        needs=_NEEDS.get(declared.get("load"), "images"),
        load=getattr(sources, declared.pop("load", ""), None),
        **declared,
    )


def _chosen_facts(paper, which):
    """The facts of a paper that an experiment's declaration chooses."""
    if which is None:
        return ()
    which = dict(which)
    with_epochs = which.pop("with_epochs", False)
    found = facts.select(paper, **which)
    return tuple(f for f in found if f.epochs is not None or not with_epochs)


def _axis(value):
    return _AXES[value] if isinstance(value, str) else Axis(**value)


def _settings(value):
    """Lists as tuples: settings are frozen."""
    if isinstance(value, list):
        return tuple(map(_settings, value))
    if isinstance(value, dict):
        return {k: _settings(v) for k, v in value.items()}
    return value


EXPERIMENTS = tuple(
    _experiment(name, d) for name, d in known.experiments().items()
)


def find(names):
    """Experiments of some names, each once, in the order of the catalogue.

    Args:
        names: papers (`"adlm"`), experiments (`"adlm:mnist"`) or figures of
            a paper (`"adlm:figure-4"`), where their number is known. A
            figure of several panels is several experiments.

    Raises:
        UnknownExperimentError: naming what comes near.

    Example:

    >>> [e.name for e in find(["adlm:figure-4"])]
    ['adlm:mnist', 'adlm:mnist-epochs', 'adlm:printed']
    """
    called = {e.name: {e.name, e.paper, *e.aliases} for e in EXPERIMENTS}
    words = set().union(*called.values())
    wanted = [str(name).strip().lower() for name in names]
    for name in wanted:
        if name not in words:
            near = difflib.get_close_matches(name, words, n=6, cutoff=0.5)
            raise UnknownExperimentError(
                f"Unknown experiment {name!r}. Near it are: "
                f"{', '.join(near or sorted(_MODULES))}."
            )
    return tuple(e for e in EXPERIMENTS if called[e.name] & set(wanted))


def catalogue_table():
    """The catalogue as text, one line for each experiment."""
    rows = [
        [
            e.name,
            e.small.get("data", "-"),
            f"{e.minutes:g}",
            str(len(e.facts)),
            " ".join([e.title, *e.aliases]),
        ]
        for e in EXPERIMENTS
    ]
    head = ["experiment", "data", "minutes", "numbers", "what"]
    return "\n".join(
        [
            *files.text_table(head, rows, ("experiment", "data", "what")),
            "",
            "minutes: of the small form, on two cores. numbers: what the paper",
            "prints for it.",
        ]
    )
