"""Average relevance of every feature, as a function of one statistic.

r_i is the layer-wise relevance of record i in a model that is public or was
released before. It is made nonnegative and brought to norm 1, so that every
record counts the same:

    sum_i |r_i| / || |r_i| ||.

A release uses only this sum. AdLM's step 1 has a min-max normalisation in
place of the norm, which bounds a record's sum only by d. The proofs of the
sensitivities are in docs/proofs/relevance.md.
"""

import dataclasses
import math
from functools import partial

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import SumQuery, is_replaced
from keras_fm.kernel.sums import by_unit, inside

BALLS = ("l1", "l2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelevanceQuery(SumQuery):
    """The summed relevance of `num_features` features.

    Args:
        num_features: int d.
        ball: the norm in which every record's relevance has length 1:
            `"l2"` (for Gaussian noise) or `"l1"` (for Laplace noise).
        grouped: `True` if the privacy unit is an owner of several records:
            an owner's sum is scaled back to norm 1.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> objective = RelevanceQuery(num_features=8, ball="l1")
    >>> objective.sensitivity("l1", neighbours="add_remove")
    1.0
    """

    num_features: int
    ball: str = "l2"
    grouped: bool = False

    names = ("relevance",)
    proof = "docs/proofs/relevance.md"

    def __post_init__(self):
        checks.fields(
            self,
            num_features=checks.count,
            ball=partial(checks.one_of, choices=BALLS),
            grouped=checks.flag,
        )

    # Statistics ----------------------------------------------------------

    @property
    def uses(self):
        """Describes in words what a release uses of the records."""
        norm = "L1" if self.ball == "l1" else "L2"
        return (
            f"sum of the records' relevance vectors ({self.num_features}), "
            f"each nonnegative with {norm} norm 1, once"
            + ("; each owner's sum scaled back to that" if self.grouped else "")
        )

    # Bound on one record's part of an entry.
    entry_bounds = (1.0,)

    def accumulate(self, statistics, relevance, owners=None, clip=False):
        """Adds a batch to the statistics.

        Args:
            statistics: the result of `zero()` or of an earlier call.
            relevance: `(n, d)`, any sign and length; a row of zeros counts
                as zero.
            owners: `(n,)` ids, needed if `grouped`: all records of an owner
                in one batch, next to each other.
            clip: ignored; rows are always brought to norm 1.

        Raises:
            ValueError: on NaN or a wrong shape.
        """
        rows = self.normalised(relevance)
        batch = by_unit(
            self,
            owners,
            len(rows),
            lambda part: self._sum(rows[part]),
            lambda own: inside(
                own, *summation.lengths(own[0][None], self.ball), 1.0
            ),
        )
        return (statistics[0] + batch[0],)

    @staticmethod
    def _sum(rows):
        return summation.total(
            (rows[part].sum(axis=0),) for part in summation.chunks(len(rows))
        )

    def normalised(self, relevance):
        """The rows to sum: nonnegative, of norm 1 or 0, float64."""
        rows = np.abs(np.asarray(relevance, dtype=np.float64))
        checks.shape("Relevance", rows.shape, "records", self.num_features)
        largest = rows.max(axis=1, initial=0.0)
        if not np.all(np.isfinite(largest)):
            raise ValueError(
                "Relevance must be finite: at least one record has a NaN or "
                "infinite relevance."
            )
        # First divide by the largest entry, so that squares neither over- nor
        # underflow. Then scale below norm 1 by more than the rounding error.
        rows /= np.where(largest > 0, largest, 1.0)[:, None]
        norms = summation.lengths(rows, self.ball)
        norms = np.where(norms > 0, norms, 1.0) * (1 + 1e-14)
        return rows / norms[:, None]

    # Sensitivity ---------------------------------------------------------

    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of the sum, for rows in the nonnegative unit ball.

        ======== ==== ========== ============
        ball     norm add_remove replace_one
        ======== ==== ========== ============
        `"l1"`   L1   1          2
        `"l1"`   L2   1          sqrt(2)
        `"l2"`   L1   sqrt(d)    sqrt(2 d)
        `"l2"`   L2   1          sqrt(2)
        ======== ==== ========== ============

        For d = 1 it is 1. Rows of records and sums of owners (`grouped`) lie
        in the same set: docs/proofs/relevance.md, proposition 1.

        Args:
            norm: `"l1"` or `"l2"`.
            neighbours: `"add_remove"` or `"replace_one"`.
        """
        replace = is_replaced(norm, neighbours)
        d = self.num_features
        if d == 1:
            return 1.0
        if norm == "l2":
            return math.sqrt(2) if replace else 1.0
        if self.ball == "l1":
            return 2.0 if replace else 1.0
        return math.sqrt(2 * d if replace else d)

    @property
    def shapes(self):
        return ((self.num_features,),)

    # Post-processing -----------------------------------------------------

    @staticmethod
    def shares(relevance, floor):
        """beta_j = d R_j / sum R (AdLM Algorithm 1, line 6), mean 1.

        Args:
            relevance: `(d,)` noisy relevances.
            floor: > 0, replaces smaller relevances: noise must not make a
                share zero or negative.

        Example:

        >>> RelevanceQuery.shares(np.array([3.0, 1.0, -2.0]), 0.5)
        array([2.        , 0.66666667, 0.33333333])
        """
        raised = np.maximum(np.asarray(relevance, np.float64), floor)
        return raised * (raised.size / raised.sum())


@released_as(RelevanceQuery)
class RelevanceRelease(Release):
    """A released `RelevanceQuery`: the summed relevance plus noise."""

    def shares(self):
        """beta_j, mean 1. The floor is the noise's standard deviation, which
        is public.

        Returns:
            `(d,)` array, all entries greater than 0.
        """
        objective = self.query
        floor = math.sqrt(self.mechanism.coordinate_variance(objective.size))
        return objective.shares(self.statistics["relevance"], floor)
