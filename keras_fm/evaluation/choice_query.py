"""The query behind `private_choice`: a score for each of several models.

Every record gives each candidate between 0 and 1 point. Only the winner is
released. The proof is in docs/proofs/evaluation.md.
"""

import dataclasses
from functools import partial

import numpy as np

from keras_fm.evaluation.evaluation_query import GRID, MEANS
from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import SumQuery, reach_in_words


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceQuery(SumQuery):
    """Query for the points that records give to each candidate model.

    Args:
        candidates: int >= 2.
        metric: `"accuracy"`, `"mean_absolute_error"` or
            `"mean_squared_error"`, by which a record gives points.
        low, high: public bounds on targets and predictions, for errors.
        reach: int >= 0, how many other units' records may depend on one
            unit's data, see `keras_fm.Unit`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> query = ChoiceQuery(candidates=5)
    >>> query.sensitivity("range", neighbours="add_remove")
    1.0
    """

    candidates: int
    metric: str = "accuracy"
    low: float = 0.0
    high: float = 1.0
    reach: int = 0

    names = ("chosen",)
    proof = "docs/proofs/evaluation.md"
    entry_bounds = (1.0,)

    def __post_init__(self):
        checks.fields(
            self,
            candidates=partial(checks.integer, at_least=2, at_most=2**20),
            metric=partial(checks.one_of, choices=MEANS),
            low=checks.number,
            high=checks.number,
            reach=checks.natural,
        )
        if not self.low < self.high:
            raise ValueError(
                "`low` must be below `high`. Received: "
                f"low={self.low}, high={self.high}"
            )

    @property
    def uses(self):
        """What a release uses of the records, in words."""
        return (
            f"which of {self.candidates} candidates has the best "
            f"{self.metric}, by at most one point from each record, once"
            + reach_in_words(self.reach)
        )

    @property
    def shapes(self):
        return ((self.candidates,),)

    def accumulate(self, statistics, shares, clip=False):
        """Adds a batch to `statistics`, in place.

        Args:
            statistics: from `zero()` or an earlier call.
            shares: `(n, candidates)`, in [0, 1]: points of each record for
                each candidate, cut to multiples of 2^-20.
            clip: ignored.

        Raises:
            ValueError: on NaN, shares outside [0, 1] or a wrong shape.
        """
        shares = np.array(shares, np.float64)
        checks.shape("Shares", shares.shape, "records", self.candidates)
        checks.all_finite(shares=shares)
        if not np.all((shares >= 0) & (shares <= 1)):
            raise ValueError("Shares must be in [0, 1]. At least one is not.")
        (points,) = statistics
        points += (np.floor(shares / GRID) * GRID).sum(axis=0)
        return (points,)

    def sensitivity(self, norm, *, neighbours):
        """How much the difference of two scores may differ between neighbours.

        1 for add_remove, 2 for replace_one, and 2 more for each unit of
        `reach`: docs/proofs/evaluation.md, proposition 2.

        Args:
            norm: `"range"`.
            neighbours: `"add_remove"`, `"replace_one"` or `"replace_label"`,
                which gets the value of `"replace_one"`.
        """
        checks.one_of("norm", norm, ("range",))
        replace = budget_lib.Neighbours.of(neighbours).replaces
        return (2.0 if replace else 1.0) + 2.0 * self.reach

    def rounding_error(self, norm):
        """0: float64 adds up 2^30 multiples of 2^-20 without error."""
        return 0.0


@released_as(ChoiceQuery)
class Choice(Release):
    """Which candidate won. This is public; by how much is not released.

    Example:

    >>> found = private_choice(models, (x, y), ledger=ledger, share=0.1)
    >>> best = models[found.index]
    """

    @property
    def index(self):
        """int, the index of the chosen candidate."""
        return int(np.argmax(self.statistics["chosen"]))

    def __repr__(self):
        query = self.query
        return (
            f"Private choice: {self.index} of 0 to {query.candidates - 1}, by "
            f"{query.metric} ({type(self.mechanism).__name__}, "
            f"{self.neighbours})"
            + ("" if self.private else "; NOT PRIVATE (seed)")
        )
