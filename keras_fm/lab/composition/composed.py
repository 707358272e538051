"""One result: an epsilon, its delta, and whether it is a bound."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Composed:
    """The epsilon of one method, and whether it is a bound.

    Attributes:
        method: name of the method.
        epsilon: float, or `None` if the method does not apply.
        delta: float, the total delta at which epsilon holds; for bounds at most
            the target.
        kind: `"bound"` (proven upper bound) or `"as printed"` (a formula
            of the survey that is not a bound).
        note: str, a choice the method made, or why epsilon is `None`.
    """

    method: str
    epsilon: float | None
    delta: float | None
    kind: str
    note: str

    def is_bound(self):
        return self.kind == "bound" and self.epsilon is not None


def bound(method, epsilon, delta, note=""):
    if not math.isfinite(epsilon):
        return none(method, "larger than a float holds")
    return Composed(method, float(epsilon), float(delta), "bound", note)


def none(method, reason, kind="bound"):
    return Composed(method, None, None, kind, f"n/a: {reason}")
