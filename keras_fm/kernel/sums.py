"""Sums over records that are exact, or whose error has a proven bound.

Neighbouring data sets move an exact sum by its sensitivity. They move a
computed sum by a little more, because every record takes part in roundings.
Three things keep this small and bounded:

* Rows are summed a limited number at a time, from zero, in any order that a
  linear algebra library likes. Such sums of one batch are added up with their
  rounding errors kept (`CompensatedSum`, Knuth's two-sum).
* The sums of batches are added as integers (`FixedPointSum`). Their order and
  the number of machines make no difference.
* Rows on a grid (`on_grid`) have products that float64 holds exactly. It also
  holds their sums, so that not even the batches make a difference.

The bound enters the scale of the noise. Proofs: docs/proofs/lattice_noise.md,
"The sum that is computed" and "Sums without rounding".

Example:

>>> total = FixedPointSum(1.0, shape=(1,))
>>> for term in (1.0, 2.0**-60, -1.0):
...     total.add(np.array([term]))
>>> total.value() == 2.0**-60
array([ True])
"""

import math

import numpy as np

from keras_fm.kernel.access import columns

# Rows that are summed at once. More would be faster, and cost more noise.
ROWS = 1024
# A release refuses more records, because rounding errors grow with them.
MOST_RECORDS = 2**30
UNIT_ROUNDOFF = 2.0**-53
# Further roundings of a record's numbers on the way to the released vector.
# The proof counts 192 at most.
_OTHER_ROUNDINGS = 256
# For rows on a grid: their bits below the power of two above their bound, and
# how many rows are summed at once. 2 * 20 + 13 bits fit into a float64.
_GRID_BITS = 20
EXACT_ROWS = 2**13
# Bits of a `FixedPointSum` below and above its bound. A sum of
# `MOST_RECORDS` terms of at most twice the bound fits above.
_HIGH_BITS, _LOW_BITS = 30, 60
# Numbers handled at a time, so that they stay in a processor's cache.
_PART = 2**14


class CompensatedSum:
    """A running sum of arrays as two float64 arrays, sum and correction."""

    def __init__(self):
        self._high = None

    def add(self, terms):
        """Adds an array of the shape of the first one."""
        if self._high is None:
            # A copy, so that no caller holds the total.
            self._high = np.array(terms, np.float64, order="C")
            self._low = np.zeros_like(self._high)
            return
        flat = np.ravel(terms)
        high, low = self._high.reshape(-1), self._low.reshape(-1)
        for part in chunks(flat.size, _PART):
            _two_sum(high[part], low[part], flat[part])

    def value(self):
        """The sum, float64; 0 if nothing was added."""
        return 0.0 if self._high is None else self._high + self._low


def _two_sum(high, low, terms):
    """Adds terms to `high`, in place, and the rounding error to `low`."""
    total = high + terms
    # Exact, whichever is larger.
    gained = total - high
    lost = terms - gained
    gained -= total
    gained += high
    lost += gained
    low += lost
    high[...] = total


class FixedPointSum:
    """A running sum of arrays that does not depend on their order.

    Every number is two integers, a whole number of units and a fraction of
    one unit: 90 bits below the bound. Terms are rounded once, when they come
    in. After that nothing is lost: sums of sums are the same in any order.

    Args:
        bound: float > 0, on the size of the entries that one record adds.
        shape: of the arrays.

    Raises:
        ValueError: by `add`, if a sum is too large for `MOST_RECORDS` such
            records.
    """

    def __init__(self, bound, shape):
        self._unit = 2.0 ** (math.frexp(bound)[1] - _HIGH_BITS)
        self._shape, size = tuple(shape), math.prod(shape)
        self._high = np.zeros(size, np.int64)
        self._low = np.zeros(size, np.int64)

    def add(self, terms):
        """Adds an array of this shape."""
        terms = np.asarray(terms, np.float64)
        largest = 2.0**62 * self._unit
        # This is false for NaN, too.
        within = terms.max(initial=0.0) < largest
        if not (within and terms.min(initial=0.0) > -largest):
            raise ValueError("The statistics overflowed; nothing was released.")
        self._check(terms.shape)
        # In Fortran's order, as BLAS gives its results.
        flat = terms.ravel(order="F")
        for part in chunks(flat.size, _PART):
            scaled = flat[part] / self._unit
            high = np.trunc(scaled)
            # Exact: the rest has no digit that the whole did not have.
            scaled -= high
            scaled *= 2.0**_LOW_BITS
            low = np.rint(scaled, out=scaled).astype(np.int64)
            self._take(part, high.astype(np.int64), low)

    def merge(self, other):
        """Adds another sum of arrays of the same shape."""
        if self._unit != other._unit:
            raise ValueError("Sums of different bounds cannot be merged.")
        self._check(other._shape)
        for part in chunks(len(other._high), _PART):
            self._take(part, other._high[part], other._low[part])

    def _check(self, shape):
        if shape != self._shape:
            raise ValueError(
                f"Sums must have one shape. Received: {shape} and {self._shape}"
            )

    def _take(self, part, high, low):
        """Adds integers. Of the many pairs for a number, it keeps the one
        whose fraction is at least 0 and less than 1."""
        own_high, own_low = self._high[part], self._low[part]
        # Not in place yet: `low` may be an array of this sum itself.
        low = own_low + low
        own_high += high
        own_high += low >> _LOW_BITS
        np.bitwise_and(low, 2**_LOW_BITS - 1, out=own_low)
        if np.abs(own_high).max(initial=0) >= 2**62:
            raise ValueError("The statistics overflowed; nothing was released.")

    def integers(self):
        """The two integers of every number, int64 `(2, size)`, in Fortran's
        order. They are as secret as the records."""
        return np.stack([self._high, self._low])

    @classmethod
    def of(cls, bound, shape, integers):
        """The sum from its `integers`, of arrays of a shape.

        Raises:
            ValueError: if these are not such integers.
        """
        if (
            integers.dtype != np.int64
            or integers.shape != (2, math.prod(shape))
            or integers[0].max(initial=0) >= 2**62
            or integers[0].min(initial=0) <= -(2**62)
            or integers[1].min(initial=0) < 0
            or integers[1].max(initial=0) >= 2**_LOW_BITS
        ):
            raise ValueError("These are not the integers of a sum.")
        made = cls(bound, shape)
        made._high[:], made._low[:] = integers
        return made

    def value(self):
        """The sum, float64."""
        found = np.empty(len(self._high))
        for part in chunks(len(found), _PART):
            high, low = self._high[part], self._low[part]
            # The fraction has either sign, so that small sums keep digits.
            carry = low >> (_LOW_BITS - 1)
            fraction = (low - (carry << _LOW_BITS)) / 2.0**_LOW_BITS
            found[part] = ((high + carry) + fraction) * self._unit
        return found.reshape(self._shape, order="F")


def grid_step(bound):
    """The grid step of rows with entries up to `bound`: 2^-20 of the next
    power of two.

    Sums of up to `EXACT_ROWS` products of two such rows are exact in float64,
    in any order, with or without fused operations. They are multiples of the
    product of the steps, at most 2^53 of them.
    """
    return 2.0 ** (math.frexp(bound)[1] - _GRID_BITS)


def on_grid(values, step):
    """Rounds to multiples of `step`, a power of two, in place, towards zero.

    No value becomes larger, so norms stay within their bounds.

    Returns:
        `values`, float64.
    """
    values /= step
    np.trunc(values, out=values)
    values *= step
    return values


def total(parts):
    """Compensated sum of equally long tuples of arrays; a tuple.

    Args:
        parts: iterable of tuples, at least one.
    """
    sums = None
    for part in parts:
        sums = sums or [CompensatedSum() for _ in part]
        for one, terms in zip(sums, part):
            one.add(terms)
    return tuple(one.value() for one in sums)


def scaled_by_owner(owners, n, own_sum, scaled):
    """Sum over owners of their records' sums, each scaled back on its own.
    However many records an owner has, it counts no more than its bound, and
    its part depends on its own records alone.

    Args:
        owners: `(n,)` ids, see `owner_runs`.
        n: int > 0, number of records.
        own_sum: function from the slice of an owner's records to a tuple of
            arrays.
        scaled: function of these that brings them inside the bound.

    Returns:
        tuple of arrays, summed with rounding errors kept.
    """
    return total(scaled(own_sum(part)) for part in owner_runs(owners, n))


def by_unit(query, owners, n, own_sum, scaled):
    """The part that a batch adds to a query: the sum of its records, or of its
    owners, each scaled back.

    Args:
        query: a query, `grouped` or not.
        owners, n, own_sum, scaled: see `scaled_by_owner`; n may be 0.

    Returns:
        tuple of arrays.
    """
    if not n:
        return query.zero()
    if query.grouped:
        return scaled_by_owner(owners, n, own_sum, scaled)
    return own_sum(slice(0, n))


def inside(own, length, bound):
    """Arrays whose joint norm is `length`, scaled back below `bound` by more
    than the error of that norm. There is no jump at the bound."""
    bound *= 1 - 1e-12
    shrink = bound / max(length, bound)
    return tuple(shrink * part for part in own)


def owner_runs(owners, n):
    """Slices of equal neighbouring ids.

    Raises:
        ValueError: if ids are missing, of another length, or come back.
    """
    if owners is None or np.shape(owners) != (n,):
        raise ValueError(
            "A grouped query needs one owner id for each record. "
            f"Received: {np.shape(owners) if owners is not None else None} "
            f"ids, {n} records"
        )
    owners = columns.owner_ids(owners)
    starts = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]][:n])
    if len(starts) != len(np.unique(owners)):
        raise ValueError(
            "Records of one owner must stand next to each other, or the "
            "owner would count more than once."
        )
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], n])]


def chunks(count, size=ROWS):
    """Slices of at most `size` of `count` rows; one slice for no rows."""
    starts = range(0, max(count, 1), size)
    return [slice(start, min(start + size, count)) for start in starts]


def lengths(rows, norm="l2"):
    """Norms of rows `(n, m)`, with a relative error below 2^-47 for any m.

    NumPy adds contiguous rows pairwise. For others the error grows with m.

    Args:
        rows: float64 array `(n, m)`.
        norm: `"l2"` or `"l1"`.
    """
    form = np.abs if norm == "l1" else np.square
    sums = [
        form(rows[part], order="C").sum(axis=1) for part in chunks(len(rows))
    ]
    found = np.concatenate(sums)
    return found if norm == "l1" else np.sqrt(found)


def error_bound(bound, *, reach=0, grouped=False):
    """How far a computed statistic may be from the exact one.

    Args:
        bound: float, bound on the norm of what one privacy unit adds.
        reach: int, how many other units' records depend on one unit.
        grouped: whether units' sums are formed and scaled back first, which
            may treble their errors.

    Returns:
        float, in the norm of `bound`. It includes half of the amount by which
        rounded norms let the sensitivity grow.

    Example:

    >>> 1e-4 < error_bound(1.0) < 2e-4
    True
    """
    roundings = (ROWS + _OTHER_ROUNDINGS) * UNIT_ROUNDOFF
    relative = roundings / (1 - roundings)
    count = (3 if grouped else 1) * MOST_RECORDS + 1 + reach
    # One part in 2^40 for the rounding of this product.
    return bound * relative * count * (1 + 2.0**-40)


def check_count(records):
    """Refuses more records than the bound holds for.

    Raises:
        ValueError: if there are more than `MOST_RECORDS`.
    """
    if records > MOST_RECORDS:
        raise ValueError(
            "The bound on rounding errors of sums holds for at most "
            f"{MOST_RECORDS} records. There are more. Nothing was released."
        )
