"""Everything side by side: one data set, every way of training on it.

`Comparison` says what is compared (`comparison.py`), a method is a way of
training (`methods.py`), a run is a method at one epsilon and seed (`task.py`),
which the engine answers and keeps by content (`runs.py`), and what they found
is written as table, plot and TensorBoard files (`outcome.py`, `files.py`).
"""

from keras_fm.lab.compare.comparison import Comparison
from keras_fm.lab.compare.methods import METHODS, Method
from keras_fm.lab.compare.outcome import Outcome, summarise, table
from keras_fm.lab.compare.runs import run
from keras_fm.lab.compare.side_by_side import compare
from keras_fm.lab.engine.workers import RunFailedError

__all__ = [
    "METHODS",
    "Comparison",
    "Method",
    "Outcome",
    "RunFailedError",
    "compare",
    "run",
    "summarise",
    "table",
]
