"""The five papers' figures and tables as named experiments.

Every experiment has a small form for two CPU cores and a full form of the
paper's size, and draws our numbers beside those that the paper prints.
"""

import importlib

from keras_fm.lab.reproduce import facts

# In `keras_fm.lab`.
_HOMES = {
    "Axis": "reproduce.experiment",
    "EXPERIMENTS": "reproduce.catalogue",
    "Experiment": "reproduce.experiment",
    "Job": "engine.job",
    "Measured": "engine.job",
    "MissingDataError": "reproduce.sources",
    "Outcome": "reproduce.session",
    "Series": "engine.job",
    "UnknownExperimentError": "reproduce.catalogue",
    "catalogue_table": "reproduce.catalogue",
    "find": "reproduce.catalogue",
    "run": "reproduce.session",
    "table": "reproduce.report",
}

__all__ = ["facts", *_HOMES]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"keras_fm.lab.{_HOMES[name]}")
    return getattr(home, name)


def __dir__():
    return sorted({*globals(), *__all__})
