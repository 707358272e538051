"""One release of a proven plan."""

import collections.abc
import dataclasses

from keras_fm.sampling import SamplingPlan


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
        samples: `None` for one read of all records, or the samples of
            several.
        sample: with `samples`: function that takes the mechanism and the
            other arguments of a charge, reads, and returns a release.
    """

    name: str
    objective: object
    share: float
    clip: bool = False
    read: collections.abc.Callable | None = None
    learn: collections.abc.Callable
    samples: SamplingPlan | None = None
    sample: collections.abc.Callable | None = None
