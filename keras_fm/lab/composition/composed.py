"""One result: an epsilon, the delta at which it holds, and what it is worth."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Composed:
    """An epsilon, and what it is worth.

    Attributes:
        method: name of the method.
        epsilon: float, or `None` where the method does not apply.
        delta: float, the total delta for which epsilon holds; at most the
            target for bounds.
        kind: `"bound"` (proven upper bound) or `"as printed"` (a formula
            of the survey that is no bound).
        note: the choice that was made, or why there is no number.
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
