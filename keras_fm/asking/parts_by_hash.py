"""Two parts of records, in which a record is by itself alone.

Two data sets that differ in one record then differ in one part only, so two
ledgers, one for each part, do not add up: the larger epsilon holds for all.
"""

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel.reads import columns, placed_records

_KINDS = "biuf"


def part_by_hash(x, y, held_out=0.2, owners=None):
    """Parts arrays of records by a public hash of each record's numbers.

    Where the privacy unit is an owner of several records, pass `owners`: by
    themselves an owner's records would be in both parts, whose ledgers then
    add up.

    For `neighbours="add_remove"` alone: a record that is *replaced* may leave
    one part and enter the other. A record's part does not depend on who else
    is there, as it would if n records were shuffled and cut. Equal records
    go together, so the share of the held-out part is met on average.

    Args:
        x: `(n, ...)` array of numbers.
        y: `(n, ...)` array of numbers.
        held_out: float in (0, 1), the share of the second part.
        owners: `None`, or `(n,)` ids of the records' owners: the hash is of
            these alone, and an owner is in one part with all its records.

    Returns:
        `(x, y), (x_held_out, y_held_out)`; with owners, those of each part
        as a third.

    Raises:
        ValueError: if x and y are no arrays of numbers, or of other lengths,
            or `owners` no ids.

    Example:

    >>> x, y = np.arange(1000.0)[:, None], np.arange(1000) % 2
    >>> train, held_out = part_by_hash(x, y)
    >>> len(train[0]) + len(held_out[0]), 150 < len(held_out[0]) < 250
    (1000, True)

    Proof: docs/proofs/evaluation.md, proposition 5.
    """
    share = checks.number("held_out", held_out, above=0, below=1)
    x, y = columns.one_array(x, "x"), columns.one_array(y, "y")
    if x.dtype.kind not in _KINDS or y.dtype.kind not in _KINDS:
        raise ValueError(
            "x and y must be arrays of numbers. Received: "
            f"x.dtype={x.dtype}, y.dtype={y.dtype}"
        )
    if len(x) != len(y) or not len(x):
        raise ValueError(
            "x and y must hold the same number of records. Received: "
            f"x.shape={x.shape}, y.shape={y.shape}"
        )
    parted, by = [x, y], [x, y]
    if owners is not None:
        ids = columns.owner_ids(owners)
        if ids.shape != (len(x),):
            raise ValueError(
                "`owners` must hold one id for each record. Received: "
                f"owners.shape={ids.shape}, {len(x)} records"
            )
        parted, by = [x, y, ids], [_as_text(ids)]
    # The upper 53 bits, which a float64 holds.
    found = (placed_records.hashes(by) >> np.uint64(11)) * 2.0**-53
    held = found < share
    return tuple(v[~held] for v in parted), tuple(v[held] for v in parted)


def _as_text(ids):
    """Ids in one form, whatever type others among them made an array have."""
    if ids.dtype.kind in "biuf" or isinstance(ids[0], int):
        ids = [int(v) if v == int(v) else float(v) for v in ids.tolist()]
    found = np.empty(len(ids), object)
    found[:] = [v if isinstance(v, bytes) else str(v) for v in ids]
    return found
