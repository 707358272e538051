"""Sums over records in float64 whose error has a proven bound.

Neighbouring data sets move a sum of real numbers by its sensitivity, and the
sum that a machine computes by a little more: every record takes part in
roundings. Here rows are summed a limited number at a time, from zero, in
whatever order a linear algebra library likes, and these partial sums are added
up with their rounding errors kept (Knuth's two-sum). The error then hardly
grows with the number of additions, and a bound on it enters the scale of the
noise. Proofs: docs/proofs/lattice_noise.md, "The sum that is computed".

Example:

>>> total = CompensatedSum()
>>> for term in (1.0, 1e-20, -1.0):
...     total.add(np.array([term]))
>>> total.value()
array([1.e-20])
"""

import numpy as np

# Rows that are summed at once. More are faster, and cost more noise.
ROWS = 1024
# A release refuses more records: with them grows what rounding may do.
MOST_RECORDS = 2**30
UNIT_ROUNDOFF = 2.0**-53
# What else a record's numbers are rounded by, on the way to the released
# vector; counted out in the proof, 192 at most.
_OTHER_ROUNDINGS = 256


class CompensatedSum:
    """A running sum of arrays as two float64 arrays, sum and correction."""

    def __init__(self):
        self._high = None

    def add(self, terms):
        """Adds an array of the shape of the first one."""
        if self._high is None:
            # A copy, so that no caller holds the total.
            self._high = np.array(terms, np.float64)
            self._low = np.zeros_like(self._high)
            return
        high = self._high + terms
        # What `terms` and the old sum lost: exact, whichever is larger.
        gained = high - self._high
        lost = terms - gained
        gained -= high
        gained += self._high
        lost += gained
        self._low += lost
        self._high = high

    def value(self):
        """The sum, float64; 0 if nothing was added."""
        return 0.0 if self._high is None else self._high + self._low


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


def chunks(count):
    """Slices of at most `ROWS` of `count` rows; one, if there are none."""
    starts = range(0, max(count, 1), ROWS)
    return [slice(start, min(start + ROWS, count)) for start in starts]


def lengths(rows, norm="l2"):
    """Norms of rows `(n, m)`, with a relative error below 2^-47 for any m.

    NumPy adds up contiguous rows pairwise; elsewhere errors grow with m.

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
    """How far a computed statistic is from that of real numbers.

    Args:
        bound: float, bound on the norm of what one privacy unit adds.
        reach: int, how many other units' records depend on one unit.
        grouped: whether units' sums are formed and scaled back first, which
            may treble their errors.

    Returns:
        float, in the norm of `bound`. It also holds what the sensitivity
        itself grows by since norms are only computed, halved.

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
            f"More than {MOST_RECORDS} records: the bound on what rounding "
            "does to their sum does not hold. Nothing was released."
        )
