"""The five papers' figures and tables as named experiments.

Every experiment has a small form for two CPU cores and a full form of the
paper's size, and draws our numbers beside those that the paper prints. A name
loads what it stands for: the catalogue is printed without Keras.
"""

import importlib

from keras_fm.lab.reproduce import facts

_HOMES = {
    "Axis": "experiment",
    "EXPERIMENTS": "catalogue",
    "Experiment": "experiment",
    "Job": "job",
    "Measured": "job",
    "MissingDataError": "sources",
    "Outcome": "session",
    "Series": "job",
    "UnknownExperimentError": "known",
    "catalogue_table": "listing",
    "find": "catalogue",
    "run": "session",
    "table": "report",
}
_FOLDERS = {"job": "keras_fm.lab.engine", "known": "keras_fm.lab"}

__all__ = ["facts", *_HOMES]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    folder = _FOLDERS.get(home, __name__)
    return getattr(importlib.import_module(f"{folder}.{home}"), name)


def __dir__():
    return sorted({*globals(), *__all__})
