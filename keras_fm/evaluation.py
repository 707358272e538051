"""Questions about private records: how good a model is, which one is best.

Charged to the ledger that training is charged to; see docs/asking.md.
"""

from keras_fm.asking.choice_query import Choice
from keras_fm.asking.evaluation_query import Evaluation
from keras_fm.asking.intervals import Interval
from keras_fm.asking.parts_by_hash import part_by_hash
from keras_fm.training.private_asking import private_choice, private_evaluate

__all__ = [
    "Choice",
    "Evaluation",
    "Interval",
    "part_by_hash",
    "private_choice",
    "private_evaluate",
]
