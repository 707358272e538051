"""Sums of a record's patches, by the nearest directions.

A record has whitened patches z at places pi, and there are directions
w_1 ... w_K. The posteriors of a mixture of von Mises-Fisher distributions of
one concentration are

    q_k(z) = exp(tau w_k.z / |z|) / sum_l exp(tau w_l.z / |z|).

A record adds to row k the mean over its places of q_k(z) z / |z|, weighted by
how far a patch is from flat. Its matrix is scaled back to a norm of at most
`clip`. The rows of the sum, scaled to unit length, are the next directions:
soft spherical k-means. The proof is in docs/proofs/patch_moments.md,
proposition 8.
"""

import dataclasses
import math

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import OwnedSumQuery
from keras_fm.kernel.sums import by_unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchClustersQuery(OwnedSumQuery):
    """Sums of whitened patches, by the nearest directions.

    Args:
        directions: int K.
        components: int d, length of a whitened patch.
        clip: C > 0, L2 (Frobenius) bound on one record's part of the sum.
        grouped: `True` if the privacy unit is an owner of several records,
            whose sum is scaled back to the norms that one record may have.
        reach: int >= 0, the number of *other* units whose records may depend
            on one unit's data.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> query = PatchClustersQuery(directions=200, components=48, clip=0.07)
    >>> query.size, query.sensitivity("l2", neighbours="add_remove")
    (9600, 0.07)
    """

    directions: int
    components: int
    clip: float

    names = ("sums",)
    proof_of_one_record = "docs/proofs/patch_moments.md"

    def __post_init__(self):
        self._keep(
            directions=checks.count,
            components=checks.count,
            clip=checks.norm_bound,
        )

    @property
    def shapes(self):
        return ((self.directions, self.components),)

    @property
    def entry_bounds(self):
        """Bound on one privacy unit's part of an entry."""
        return (self.clip,)

    @property
    def uses(self):
        """Describes in words what a release uses of the records."""
        return (
            f"sums of whitened patches of {self.components} components by "
            f"which of {self.directions} directions they are near, averaged "
            "over each record's positions, each record's scaled back to norm "
            f"<= {self.clip:g}, once" + self._unit_in_words()
        )

    def accumulate(self, statistics, sums, owners=None, clip=True):
        """Adds a batch to the statistics.

        Args:
            statistics: the result of `zero()` or of an earlier call.
            sums: `(n, directions, components)`, one matrix per record.
            owners: `(n,)` ids, needed if `grouped`: all records of an owner
                in one batch, next to each other.
            clip: ignored: longer matrices are always scaled back.

        Raises:
            ValueError: on a wrong shape, NaN or infinity. Nothing is added
                then.
        """
        sums = np.asarray(sums)
        if sums.ndim != 3 or sums.shape[1:] != self.shapes[0]:
            raise ValueError(
                "Sums of patches must have shape (records, "
                f"{self.directions}, {self.components}). Received: "
                f"shape={sums.shape}"
            )
        rows = sums.reshape(len(sums), self.size).astype(np.float64)
        if not np.isfinite(rows).all():
            raise ValueError("At least one record's patches are not finite.")
        (batch,) = by_unit(
            self,
            owners,
            len(rows),
            lambda part: (self._sum(rows[part]),),
            self._scaled,
        )
        return (statistics[0] + batch,)

    def _sum(self, rows):
        """The sum of rows, each scaled back, as a matrix."""
        # A row whose squares overflow has infinite length and becomes 0.
        with np.errstate(over="ignore"):
            lengths = summation.lengths(rows)[:, None]
        # Stay below the bound by more than the rounding error of the length;
        # the scale is continuous at the bound.
        bound = self.clip * (1 - 1e-12)
        rows = rows * (bound / np.maximum(lengths, bound))
        (total,) = summation.total(
            (rows[chunk].sum(axis=0),) for chunk in summation.chunks(len(rows))
        )
        return total.reshape(self.shapes[0])

    def _record(self, norm, replace):
        """Sensitivity for one record. In L2 it is C, and 2 C under
        replace_one; in L1 sqrt(K d) times as much. All are attained.

        docs/proofs/patch_moments.md, proposition 8.
        """
        bound = self.clip * (2 if replace else 1)
        return bound * (math.sqrt(self.size) if norm == "l1" else 1)


@released_as(PatchClustersQuery)
class PatchClustersRelease(Release):
    """A released `PatchClustersQuery`."""

    def directions(self, fallback):
        """Rows scaled to unit length; `fallback`'s row for a zero sum."""
        sums = self.statistics["sums"]
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        told = lengths > 0
        return np.where(told, sums / np.where(told, lengths, 1.0), fallback)
