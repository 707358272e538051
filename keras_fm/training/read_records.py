"""Data that a fit uses more than once, and batches by owner."""

import numpy as np

from keras_fm.kernel import records
from keras_fm.kernel.access import columns


def check_begins_anew(data):
    """Refuses a function that returns the same iterator at every call: the fit
    needs the records more than once. Uses no records."""
    if not columns.is_function(data):
        return
    found = data()
    if found is data() and iter(found) is found:
        raise ValueError(
            "`data` must start again at every call with the same records, "
            "because they are used more than once. Return a new iterator, as "
            "a generator function does. Received: a function that always "
            f"returns the same {type(found).__name__}"
        )


def batches_by_owner(data, owners, batch_size=4096, labelled=True):
    """Yields `(x, y, owners)` batches with all records of an owner in one.

    Args:
        data: `(x, y)`, or x alone if not `labelled`; arrays.
        owners: `(n,)` ids of the records' owners.
        batch_size: int, rows per batch; more if an owner has more.
        labelled: see `records.batches`.

    Raises:
        ValueError: if `data` is not arrays, lengths differ, or ids are
            missing.
    """
    if not labelled:
        data = records.without_tuple(data)
    if not labelled and columns.are_inputs(data):
        x = columns.arrays(data, "data")
        data = (x, np.zeros(columns.count(x)))
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise ValueError(
            "With `owners`, `data` must be arrays (x, y): the records of an "
            f"owner are brought together. Received: {type(data)}"
        )
    records.check(data)
    x, y = records.checked_pair(data)
    n = columns.count(x)
    owners = columns.owner_ids(owners)
    if owners.shape != (n,) or not n:
        raise ValueError(
            "`owners` must hold one id for each record. Received: "
            f"owners.shape={owners.shape}, {n} records"
        )
    order = np.argsort(owners, kind="stable")
    ordered = owners[order]
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, n)
    cuts, previous = [0], 0
    for end in ends:
        if end - cuts[-1] > batch_size and previous > cuts[-1]:
            cuts.append(previous)
        previous = end
    for start, stop in zip(cuts, [*cuts[1:], n]):
        rows = order[start:stop]
        labels = y[rows] if labelled else None
        yield columns.taken(x, rows), labels, owners[rows]
