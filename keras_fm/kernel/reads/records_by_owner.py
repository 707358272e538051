"""A pass over records in which those of an owner come together."""

import numpy as np

from keras_fm.kernel.reads import columns
from keras_fm.kernel.reads.data_sets import check
from keras_fm.kernel.records import checked_pair, without_tuple


def batches_by_owner(data, owners, batch_size=4096, labelled=True):
    """Yields `(x, y, owners)` batches, all records of an owner in one.

    Args:
        data: `(x, y)`, or x alone if not `labelled`; arrays.
        owners: `(n,)` ids of the records' owners.
        batch_size: int, rows per batch, more if an owner has more.
        labelled: see `batches`.

    Raises:
        ValueError: if `data` is not made of arrays, lengths differ, or ids
            are missing.
    """
    if not labelled:
        data = without_tuple(data)
    if not labelled and columns.are_inputs(data):
        x = columns.arrays(data, "data")
        data = (x, np.zeros(columns.count(x)))
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise ValueError(
            "With `owners`, `data` must be arrays (x, y): the records of an "
            f"owner are brought together. Received: {type(data)}"
        )
    check(data)
    x, y = checked_pair(data)
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
