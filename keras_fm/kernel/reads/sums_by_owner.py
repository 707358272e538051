"""Sums in which an owner of many records counts no more than its bound."""

import numpy as np

from keras_fm.kernel import sums as summation
from keras_fm.kernel.reads import columns


def scaled_by_owner(owners, n, own_sum, scaled):
    """Sum over owners of their records' sums, each scaled back on its own:
    an owner counts no more than its bound, however many records it has, and
    what it counts depends on its own records alone.

    Args:
        owners: `(n,)` ids, see `owner_runs`.
        n: int > 0, number of records.
        own_sum: function from the slice of an owner's records to a tuple of
            arrays.
        scaled: function of these that brings them inside the bound.

    Returns:
        tuple of arrays, summed without losing rounding errors.
    """
    return summation.total(
        scaled(own_sum(part)) for part in owner_runs(owners, n)
    )


def by_unit(query, owners, n, own_sum, scaled):
    """What a batch adds to a query: the sum of its records, or of its owners,
    each scaled back.

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
    """Arrays scaled back so that they, `length` long, stay below `bound` by
    more than the length is wrong; there is no jump at the bound."""
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
            "A grouped objective needs one owner id for each record. "
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
