"""One release of a proven plan."""

import collections.abc
import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One release of a plan.

    Attributes:
        name: what it is for.
        objective: what is released.
        share: its share of the budget.
        clip: whether records outside their bounds are scaled back.
        read: function from nothing to an iterator of what the objective
            accumulates.
        learn: function that takes the release.
    """

    name: str
    objective: object
    share: float
    clip: bool
    read: collections.abc.Callable
    learn: collections.abc.Callable
