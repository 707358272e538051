"""Noisy histograms of columns over their public ranges, for quantiles.

With z_j in [-1, 1] the value of column j of a record, scaled by public bounds,
a record adds 1 to one of B equal bins of every column. Quantiles are
post-processing of the noisy counts. The proof of the sensitivities is in
docs/proofs/column_moments.md.
"""

import dataclasses
import math
from functools import partial

import numpy as np

from keras_fm.core.column_moments import checked_columns
from keras_fm.kernel import checks
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import OwnedSumQuery
from keras_fm.kernel.sums import by_unit

# A tail within this many standard deviations of its noise counts as empty:
# hardly one of hundreds of empty tails exceeds it.
_MARGIN = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnHistogramQuery(OwnedSumQuery):
    """Counts of columns in equal bins of [-1, 1].

    Args:
        num_columns: int d.
        num_bins: int B >= 2.
        missing: whether values may be missing (NaN); they fall into no bin.
        grouped: whether the privacy unit is an owner of several records,
            whose sum is scaled back to the norm that one record may have.
        reach: int >= 0, the most *other* units whose records may depend on one
            unit's data.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> query = ColumnHistogramQuery(num_columns=4)
    >>> query.sensitivity("l2", neighbours="add_remove")
    2.0
    """

    num_columns: int
    num_bins: int = 256
    missing: bool = False

    names = ("counts",)
    proof_of_one_record = "docs/proofs/column_moments.md"
    # Largest contribution of one unit to an entry.
    entry_bounds = (1.0,)

    def __post_init__(self):
        self._keep(
            num_columns=checks.count,
            num_bins=partial(checks.integer, at_least=2),
            missing=checks.flag,
        )

    @property
    def shapes(self):
        return ((self.num_columns, self.num_bins),)

    @property
    def uses(self):
        """What a release of this query uses of the records, in words."""
        return (
            f"histograms ({self.num_bins} bins within public bounds) of "
            f"{self.num_columns} columns, once" + self._unit_in_words()
        )

    # Statistics ----------------------------------------------------------

    def accumulate(self, statistics, z, y=None, owners=None, clip=False):
        """Adds a batch to the statistics.

        Args:
            statistics: the result of `zero()` or of an earlier call.
            z: `(n, ..., d)`; values outside [-1, 1] count as its ends. If a
                record has several places, each adds its share of 1.
            y: ignored.
            owners: `(n,)` ids, needed if `grouped`: all records of an owner
                in one batch, next to each other.
            clip: ignored, see `z`.

        Raises:
            ValueError: on infinity, a wrong shape, or NaN if no value may be
                missing.
        """
        z, known = checked_columns(z, self.num_columns, self.missing)
        n, d = len(z), self.num_columns
        places = math.prod(z.shape[1:-1])
        bins = np.floor((z + 1) / 2 * self.num_bins).astype(np.int64)
        bins = np.minimum(bins, self.num_bins - 1)
        bins += self.num_bins * np.arange(d)
        # Missing values fall beyond the last bin.
        bins = np.where(known, bins, d * self.num_bins).reshape(n, places * d)

        def counted(part):
            found = np.bincount(
                bins[part].ravel(), minlength=d * self.num_bins + 1
            )
            return (found[:-1].reshape(d, -1) / places,)

        batch = by_unit(self, owners, n, counted, self._scaled)
        return tuple(s + b for s, b in zip(statistics, batch))

    # Sensitivity ---------------------------------------------------------

    def _record(self, norm, replace):
        """Sensitivity of the counts of d columns for one record.

        ==== ========== ===========
        norm add_remove replace_one
        ==== ========== ===========
        L1   d          2 d
        L2   sqrt(d)    sqrt(2 d)
        ==== ========== ===========

        docs/proofs/column_moments.md, proposition 2.
        """
        moved = self.num_columns * (2 if replace else 1)
        return float(moved) if norm == "l1" else math.sqrt(moved)


@released_as(ColumnHistogramQuery)
class ColumnHistogramRelease(Release):
    """A released `ColumnHistogramQuery`: counts plus noise."""

    def range_of(self, lower, upper):
        """Edges that leave shares of `lower` of each column's values below, and
        of `1 - upper` above.

        A tail ends where its noisy count exceeds that share by four deviations
        of its noise, so noise in empty bins does not end a tail. A column in
        which no count stands out keeps [-1, 1].

        Args:
            lower, upper: floats, `0 <= lower < upper <= 1`.

        Returns:
            tuple of arrays `(d,)`, the lower one below the upper one.
        """
        (counts,) = self.statistics.values()
        noise = math.sqrt(self.mechanism.coordinate_variance(self.query.size))
        bins = self.query.num_bins
        total = np.maximum(counts.sum(axis=1, keepdims=True), 0.0)
        margin = _MARGIN * noise * np.sqrt(np.arange(1, bins + 1))

        def first(counts, share):
            tails = np.cumsum(counts, axis=1)
            reached = tails > share * total + margin
            return reached.argmax(axis=1), reached.any(axis=1)

        low, left = first(counts, lower)
        high, right = first(counts[:, ::-1], 1 - upper)
        high = bins - high
        known = left & right & (low < high)
        edges = np.linspace(-1.0, 1.0, bins + 1)
        return (
            edges[np.where(known, low, 0)],
            edges[np.where(known, high, bins)],
        )
