"""Counts, sums and sums of squares of columns, which scaling needs.

Let z_j in [-1, 1] be the value of column j of a record, scaled by public
bounds, and p_j be 1 if it is not missing. A record adds

    p_j,    p_j z_j,    p_j (z_j^2 - 1/2)

for every column. Their sums give means and variances. Squares are taken about
1/2, the middle of their range, where one record moves them least. The proof of
the sensitivities is in docs/proofs/column_moments.md.
"""

import dataclasses
import math

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import OwnedSumQuery
from keras_fm.kernel.sums import by_unit

# Weights of counts and squares in the released vector. Up to sqrt(2) a larger
# weight of the squares costs nothing under replace_one.
COUNT_WEIGHT, SQUARE_WEIGHT = math.sqrt(0.5), math.sqrt(2.0)
# Several places of one record are summed in integers, in these steps.
_STEPS = 2.0**20
_MOST_PLACES = 2**22
# The least variance; that of values spread evenly, and how sure it is.
_LEAST_VARIANCE, _VARIANCE, _SURE = 1e-12, 1 / 3, 0.15


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnMomentsQuery(OwnedSumQuery):
    """Counts, sums and sums of squares of columns in [-1, 1].

    Args:
        num_columns: int d.
        missing: whether values may be missing (NaN). Each column then has its
            own count.
        grouped: whether the privacy unit is an owner of several records,
            whose sum is scaled back to the norm that one record may have.
        reach: int >= 0, the most *other* units whose records may depend on one
            unit's data.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> query = ColumnMomentsQuery(num_columns=4)
    >>> query.sensitivity("l2", neighbours="replace_one")
    4.0
    """

    num_columns: int
    missing: bool = False

    names = ("counts", "sums", "squares")
    proof_of_one_record = "docs/proofs/column_moments.md"
    # Largest contributions of one unit to an entry.
    entry_bounds = (1.0, 1.0, 0.5)

    def __post_init__(self):
        self._keep(num_columns=checks.count, missing=checks.flag)

    @property
    def shapes(self):
        d = self.num_columns
        return ((d if self.missing else 1,), (d,), (d,))

    @property
    def uses(self):
        """What a release of this query uses of the records, in words."""
        counted = "present values" if self.missing else "records"
        several = "s" * (self.num_columns > 1)
        return (
            f"number of {counted}, sums and sums of squares of "
            f"{self.num_columns} column{several}, each within public bounds, "
            "once" + self._unit_in_words()
        )

    # Statistics ----------------------------------------------------------

    def accumulate(self, statistics, z, y=None, owners=None, clip=False):
        """Adds a batch to the statistics.

        Args:
            statistics: the result of `zero()` or of an earlier call.
            z: `(n, ..., d)`; values outside [-1, 1] count as its ends. If a
                record has several places, it adds their mean.
            y: ignored.
            owners: `(n,)` ids, needed if `grouped`: all records of an owner
                in one batch, next to each other.
            clip: ignored, see `z`.

        Raises:
            ValueError: on infinity, a wrong shape, or NaN if no value may
                be missing.
        """
        rows = self._rows(z)
        batch = by_unit(
            self,
            owners,
            len(rows[0]),
            lambda part: self._sum(rows, part),
            self._scaled,
        )
        return tuple(s + b for s, b in zip(statistics, batch))

    def _rows(self, z):
        """Contributions of records: counts, values and squares, float64."""
        z, known = checked_columns(z, self.num_columns, self.missing)
        if z.ndim > 2:
            counts, values, squares = _means(z, known)
        else:
            counts, values, squares = known.astype(float), z, z * z
        squares = squares - counts / 2
        return (counts if self.missing else counts[:, :1]), values, squares

    def _sum(self, rows, chosen):
        rows = tuple(part[chosen] for part in rows)
        return summation.total(
            tuple(part[chunk].sum(axis=0) for part in rows)
            for chunk in summation.chunks(len(rows[0]))
        )

    # Sensitivity ---------------------------------------------------------

    def _record(self, norm, replace):
        """Sensitivity of (counts / sqrt(2), sums, sqrt(2) squares).

        One record, d columns; the second line with `missing`:

        ==== ======================= =========================
        norm add_remove              replace_one
        ==== ======================= =========================
        L2   sqrt((3 d + 1) / 2)     2 sqrt(d)
        L2   sqrt(2 d)               2 sqrt(d)
        L1   d (1 + 1 / sqrt(2)) + 1 / sqrt(2), d (9 + 4 sqrt(2)) / (4 sqrt(2))
        L1   d (1 + sqrt(2))         d (9 + 4 sqrt(2)) / (4 sqrt(2))
        ==== ======================= =========================

        docs/proofs/column_moments.md, proposition 1.
        """
        d, count, square = self.num_columns, COUNT_WEIGHT, SQUARE_WEIGHT
        counts = d if self.missing else 1
        if norm == "l2":
            if replace:
                return 2 * math.sqrt(d)
            return math.sqrt(counts * count**2 + d * (1 + square**2 / 4))
        if replace:
            return d * (2 * square + 1) ** 2 / (4 * square)
        return counts * count + d * (1 + square / 2)

    # The vector a mechanism perturbs -------------------------------------

    _weights = (COUNT_WEIGHT, 1.0, SQUARE_WEIGHT)

    def pack(self, statistics, norm):
        """The weighted vector of counts, sums and squares that gets the
        noise."""
        return super().pack(
            [w * np.asarray(s) for w, s in zip(self._weights, statistics)], norm
        )

    def unpack(self, vector, norm):
        """The inverse of `pack`."""
        found = super().unpack(vector, norm)
        return tuple(s / w for w, s in zip(self._weights, found))


def checked_columns(z, num_columns, missing):
    """Values of columns in [-1, 1], 0 if missing, and a mask of the others.

    Raises:
        ValueError: on infinity, a wrong shape, or NaN if no value may be
            missing.
    """
    z = np.asarray(z, np.float64)
    if z.ndim < 2 or z.shape[-1] != num_columns:
        raise ValueError(
            f"Columns must have shape (records, ..., {num_columns}). "
            f"Received: shape={z.shape}"
        )
    known = ~np.isnan(z)
    if np.isinf(z).any() or not (missing or known.all()):
        raise ValueError(
            "Columns must be finite: at least one record has a NaN or an "
            "infinite value. Values that are missing are NaN in a layer "
            'with `missing="mean"`.'
        )
    return np.clip(np.where(known, z, 0.0), -1.0, 1.0), known


def _means(z, known):
    """Means over the places of a record, in integers, so that rounding does not
    grow with their number."""
    places = math.prod(z.shape[1:-1])
    if places > _MOST_PLACES:
        raise ValueError(
            f"A record may have {_MOST_PLACES} places at most. Received: "
            f"{places}"
        )
    shape = (len(z), places, z.shape[-1])
    whole = np.trunc(z.reshape(shape) * _STEPS).astype(np.int64)
    counts = known.reshape(shape).sum(axis=1) / places
    values = whole.sum(axis=1) / _STEPS / places
    squares = (whole * whole).sum(axis=1) / _STEPS**2 / places
    return counts, values, squares


@released_as(ColumnMomentsQuery)
class ColumnMomentsRelease(Release):
    """A released `ColumnMomentsQuery`."""

    def means_and_scales(self):
        """Mean and standard deviation of every column, in units of [-1, 1].

        Moments are weighed against those of values spread evenly over
        [-1, 1]: with noise alone the scale is theirs. A mean that noise hides
        makes its scale larger.

        Returns:
            tuple of arrays `(d,)`; means in [-1, 1], scales > 0.
        """
        counts, sums, squares = self.statistics.values()
        counts = np.maximum(counts, 1.0)
        noise = self.noise_of_means() ** 2
        trust = 1 / (1 + noise / _VARIANCE)
        means = np.clip(trust * sums / counts, -1.0, 1.0)
        found = np.maximum(squares / counts + 0.5 - means**2, _LEAST_VARIANCE)
        error = noise / 2 + 4 * means**2 * noise
        found = (found * _SURE**2 + _VARIANCE * error) / (_SURE**2 + error)
        return means, np.sqrt(found + trust * noise)

    def noise_of_means(self):
        """Standard deviation of the noise on the mean of a column."""
        counts, *_ = self.statistics.values()
        noise = self.mechanism.coordinate_variance(self.query.size)
        return math.sqrt(noise) / np.maximum(counts, 1.0)
