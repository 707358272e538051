"""The named experiments of the five papers, and how they are found."""

from keras_fm.lab import known
from keras_fm.lab.engine.job import Series
from keras_fm.lab.reproduce import (
    adlm,
    dpa,
    dpmac,
    functional_net,
    listing,
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
_AXES = {"accuracy": ACCURACY, "epsilon": EPSILON}


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
        facts=listing.chosen_facts(paper, chosen),
        measure=getattr(_MODULES[paper], declared.pop("measure")),
        reads=known.data_of(declared.get("load")),
        load=getattr(sources, declared.pop("load", ""), None),
        **declared,
    )


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
    ['adlm:mnist', 'adlm:mnist-epochs']
    """
    found = known.find_experiments(names)
    return tuple(e for e in EXPERIMENTS if e.name in found)
