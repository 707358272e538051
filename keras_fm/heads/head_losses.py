"""What an output layer predicts: classes, separate labels, or numbers."""

import dataclasses
import math
from collections.abc import Callable

from keras_fm.heads.cross_entropy import CrossEntropyQuery
from keras_fm.heads.gradient_query import BY_FIRST_ROUND
from keras_fm.heads.squared_error import SquaredErrorQuery
from keras_fm.kernel.query import QuadraticQuery


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadLoss:
    """How one kind of targets is learned.

    Attributes:
        predicts: `"classes"`, `"labels"` or `"numbers"`.
        query: class of the query of a single release.
        fields: function to the arguments that the query takes, with or
            without rounds, beside the sizes of the layer.
        rounds: losses that `Rounds` may use, the default first.
        at_zero: loss that one output of zero has, or the largest that it
            can have.
    """

    predicts: str
    query: type[QuadraticQuery]
    fields: Callable = lambda bounds: {}
    rounds: tuple[str, ...]
    at_zero: float


HEAD_LOSSES = {
    "cross_entropy": HeadLoss(
        predicts="classes",
        query=CrossEntropyQuery,
        rounds=(
            BY_FIRST_ROUND,
            "crammer_singer",
            "squared_hinge",
            "cross_entropy",
        ),
        at_zero=math.log(2),
    ),
    "binary_cross_entropy": HeadLoss(
        predicts="labels",
        query=CrossEntropyQuery,
        fields=lambda bounds: {"independent": True},
        rounds=("squared_hinge", "cross_entropy"),
        at_zero=math.log(2),
    ),
    "squared_error": HeadLoss(
        predicts="numbers",
        query=SquaredErrorQuery,
        fields=lambda bounds: {"target_bounds": bounds},
        rounds=("squared_error",),
        # For a target at its bound.
        at_zero=0.5,
    ),
}
