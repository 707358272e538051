"""How long the records' coefficients are, as a function of one statistic.

Every record falls into one bin of each column (one column for each clipped
partition); the counts are all that is read. A clip threshold read from noisy
counts is post-processing (DP-MAC Algorithm 2). The proof of the sensitivities
is in docs/proofs/gradient.md.
"""

import dataclasses
import math
from functools import partial

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import SumQuery, is_replaced


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormHistogramQuery(SumQuery):
    """Counts of norms in geometric bins.

    Args:
        num_columns: int K, how many norms a record has.
        low, high: public; the edges of the bins go from `low` to `high` in
            equal ratios. Smaller norms fall into the first bin, larger ones
            into the last.
        num_bins: int >= 2.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> objective = NormHistogramQuery(num_columns=4)
    >>> objective.sensitivity("l2", neighbours="add_remove")
    2.0
    """

    num_columns: int
    low: float = 1e-4
    high: float = 1e3
    num_bins: int = 70

    names = ("counts",)
    proof = "docs/proofs/gradient.md"

    def __post_init__(self):
        checks.fields(
            self,
            num_columns=checks.count,
            num_bins=partial(checks.integer, at_least=2),
            low=checks.norm_bound,
            high=checks.norm_bound,
        )
        if self.low >= self.high:
            raise ValueError(
                "`low` must be below `high`. Received: "
                f"low={self.low}, high={self.high}"
            )

    @property
    def reads(self):
        """What a release reads, in words."""
        return (
            f"histograms ({self.num_columns} x {self.num_bins} bins) of the "
            "norms of the records' coefficients, once"
        )

    @property
    def upper_edges(self):
        """Upper ends of the bins, `(num_bins,)`."""
        return np.geomspace(self.low, self.high, self.num_bins)

    # Statistics ----------------------------------------------------------

    # Bound on what one record adds to an entry.
    entry_bounds = (1.0,)

    def accumulate(self, statistics, norms, clip=False):
        """Adds a batch to `statistics`, in place.

        Args:
            statistics: what `zero()` or an earlier call returned.
            norms: `(n, K)`, nonnegative.
            clip: ignored; every norm falls into a bin.

        Raises:
            ValueError: on NaN, negative norms or a wrong shape.
        """
        norms = np.asarray(norms, np.float64)
        if norms.ndim != 2 or norms.shape[1] != self.num_columns:
            raise ValueError(
                f"Norms must have shape (records, {self.num_columns}). "
                f"Received: shape={norms.shape}"
            )
        if not np.all(norms >= 0):
            raise ValueError("Norms must be numbers of at least 0.")
        (counts,) = statistics
        bins = np.searchsorted(self.upper_edges[:-1], norms)
        for column, found in enumerate(bins.T):
            counts[column] += np.bincount(found, minlength=self.num_bins)
        return (counts,)

    # Sensitivity ---------------------------------------------------------

    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of the counts: one in each of K columns.

        ==== ========== ===========
        norm add_remove replace_one
        ==== ========== ===========
        L1   K          2 K
        L2   sqrt(K)    sqrt(2 K)
        ==== ========== ===========

        docs/proofs/gradient.md, proposition 5.

        Args:
            norm: `"l1"` or `"l2"`.
            neighbours: `"add_remove"` or `"replace_one"`.
        """
        replace = is_replaced(norm, neighbours)
        moved = self.num_columns * (2 if replace else 1)
        return float(moved) if norm == "l1" else math.sqrt(moved)

    def rounding_error(self, norm):
        """0: float64 counts up to 2^53 without error."""
        return 0.0

    @property
    def shapes(self):
        return ((self.num_columns, self.num_bins),)


@released_as(NormHistogramQuery)
class NormHistogramRelease(Release):
    """A released `NormHistogramQuery`: counts plus noise."""

    def quantiles(self, level):
        """The smallest bin edge of each column at or below which a share
        `level` of the (nonnegative) noisy counts lies.

        Args:
            level: float in (0, 1).

        Returns:
            `(K,)` array of edges; post-processing.

        Raises:
            ValueError: if noise hides every count of a column.
        """
        checks.number("level", level, above=0, below=1)
        counts = self.statistics["counts"]
        # Counts that noise alone would give count for nothing.
        stddev = math.sqrt(self.mechanism.coordinate_variance(self.query.size))
        counts = np.where(counts > 2 * stddev, counts, 0.0)
        totals = np.cumsum(counts, axis=1)
        if not np.all(totals[:, -1] > 0):
            raise ValueError(
                "The noise hides the histogram: no count stands out. Give "
                "thresholds as numbers, or the histogram a larger share."
            )
        reached = totals >= level * totals[:, -1:]
        return self.query.upper_edges[reached.argmax(axis=1)]
