"""The five papers' figures and tables as named experiments.

Every experiment has a small form for two CPU cores and a full form of the
paper's size, and draws our numbers beside those that the paper prints.
"""

from keras_fm.lab.engine.job import Job, Measured, Series
from keras_fm.lab.known import UnknownExperimentError
from keras_fm.lab.reproduce import facts
from keras_fm.lab.reproduce.catalogue import EXPERIMENTS, find
from keras_fm.lab.reproduce.catalogue import table as catalogue_table
from keras_fm.lab.reproduce.experiment import Axis, Experiment
from keras_fm.lab.reproduce.report import table
from keras_fm.lab.reproduce.session import Outcome, run
from keras_fm.lab.reproduce.sources import MissingDataError

__all__ = [
    "EXPERIMENTS",
    "Axis",
    "Experiment",
    "Job",
    "Measured",
    "MissingDataError",
    "Outcome",
    "Series",
    "UnknownExperimentError",
    "catalogue_table",
    "facts",
    "find",
    "run",
    "table",
]
