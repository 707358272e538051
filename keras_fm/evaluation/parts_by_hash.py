"""Splits records into two parts by a hash, each record by itself.

Two data sets that differ in one record then differ in one part only. So the
epsilons of two ledgers, one for each part, do not add up: the larger one holds
for all records.
"""

import contextlib
import hashlib
import math
import numbers

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel.access import columns, fixed_rows

_MISSING = ("NAType", "NaTType", "NoneType")


def part_by_hash(x, y, held_out=0.2, owners=None):
    """Splits records into two parts by a public hash of their values.

    Two ledgers, one for each part, do not add up: the larger epsilon holds for
    all. If a person has several records, pass `owners`. Otherwise the person's
    records may be in both parts, and the epsilons add up for that person.

    Use it with `neighbours="add_remove"` only: a record that is *replaced* may
    leave one part and enter the other. A record's part does not depend on other
    records, as it would in a shuffled split. Equal records are in one part, so
    the size of the held-out part is met on average only.

    Args:
        x: `(n, ...)` array, or a data frame, of numbers, text and missing
            values. Pass dates as text.
        y: `(n, ...)` array, or a column, of the same kinds of values.
        held_out: float in (0, 1), the share of the second part.
        owners: `None`, or `(n,)` ids of the records' owners. The hash then uses
            the ids alone, and all records of an owner are in one part.

    Returns:
        `(x, y), (x_held_out, y_held_out)`, as data frames if you passed data
        frames. With owners each part has a third entry, its owners.

    Raises:
        ValueError: if x or y hold other values, if lengths differ, or if
            `owners` are not ids. No error shows a value.

    Example:

    >>> x, y = np.arange(1000.0)[:, None], np.arange(1000) % 2
    >>> train, held_out = part_by_hash(x, y)
    >>> len(train[0]) + len(held_out[0]), 150 < len(held_out[0]) < 250
    (1000, True)

    Proof: docs/proofs/evaluation.md, proposition 5.
    """
    parted = [_kept(x, "x"), _kept(y, "y")]
    held = is_held_out(*parted, held_out, owners)
    if owners is not None:
        parted.append(columns.owner_ids(owners))
    train, held_out = np.flatnonzero(~held), np.flatnonzero(held)
    return (
        tuple(_rows(v, train) for v in parted),
        tuple(_rows(v, held_out) for v in parted),
    )


def is_held_out(x, y, held_out, owners=None):
    """Which records `part_by_hash` holds out, `(n,)`."""
    share = checks.number("held_out", held_out, above=0, below=1)
    parted = [_kept(x, "x"), _kept(y, "y")]
    by = [_of_table(v, name) for v, name in zip(parted, "xy")]
    if len(by[0]) != len(by[1]) or not len(by[0]):
        raise ValueError(
            "x and y must hold the same number of records. Received: "
            f"x.shape={parted[0].shape}, y.shape={parted[1].shape}"
        )
    if owners is not None:
        ids = _ids(owners, len(by[0]))
        by = [_words(ids, "owners", exact=True)]
    # The upper 53 bits, which a float64 holds.
    return (fixed_rows.hashes(by) >> np.uint64(11)) * 2.0**-53 < share


def one_row_of_each(x, y, owners):
    """x and y with one row of each owner, drawn at random."""
    x, y = _kept(x, "x"), _kept(y, "y")
    ids = _ids(owners, columns.count(y))
    order = np.random.default_rng().permutation(len(ids))
    _, first = np.unique(ids[order], return_index=True)
    rows = np.sort(order[first])
    return _rows(x, rows), _rows(y, rows)


def _ids(owners, n):
    ids = np.array(columns.owner_ids(owners))
    if ids.shape != (n,):
        raise ValueError(
            "`owners` must hold one id for each record. Received: "
            f"owners.shape={ids.shape}, {n} records"
        )
    return ids


def _is_frame(x):
    return hasattr(x, "columns") and hasattr(x, "dtypes")


def _kept(x, name):
    """The object from which rows are taken: as it was given if it can be
    indexed by rows."""
    columns.check_dense(x, name)
    if _is_frame(x) or hasattr(x, "iloc") or isinstance(x, np.ndarray):
        return x
    return columns.one_array(x, name)


def _rows(x, rows):
    return x.iloc[rows] if hasattr(x, "iloc") else x[rows]


# Values ----------------------------------------------------------------------


def _of_table(x, name):
    if not _is_frame(x):
        return _words(np.asarray(x), name)
    parts = []
    for i, key in enumerate(x.columns):
        column = np.asarray(x.iloc[:, i] if hasattr(x, "iloc") else x[key])
        columns.check_small(column, name)
        parts.append(_words(column, name))
    return np.stack(parts, axis=1) if parts else np.zeros((len(x), 0))


def _words(array, name, exact=False):
    """64 bits for each value, from that value alone, in an array of float64.

    A single fraction, missing value or word can change the type in which NumPy
    and pandas hold a whole array or column. Here a value has the same bits in
    every such type: as a whole number, as a float, and as a number in text.

    Args:
        exact: whether whole numbers of 2^53 and more are kept distinct. No
            value may then be a float.
    """
    kind = array.dtype.kind
    if kind in "biuf" and not exact:
        return array.astype(np.float64)
    values = array.ravel().tolist() if kind in "biufOSU" else [NotImplemented]
    found = np.empty(len(values), np.uint64)
    for i, value in enumerate(values):
        told = _told(value, exact)
        if told is None:
            break
        if isinstance(told, float):
            found[i] = np.float64(told).view(np.uint64)
        else:
            digest = hashlib.blake2b(told, digest_size=8).digest()
            found[i] = int.from_bytes(digest, "little")
    else:
        return found.view(np.float64).reshape(array.shape)
    # Outside of the loop, so that the error shows no value.
    raise ValueError(
        f"`{name}` must hold numbers, text or gaps; write dates as text in one "
        'form, `dates.dt.strftime("%Y-%m-%d")`. At least one value is of '
        f"another type. Received: {name} of dtype {array.dtype}"
    )


def _told(value, exact):
    """A value as a float or as bytes; `None` if it is neither."""
    if type(value).__name__ in _MISSING:
        return math.nan
    if isinstance(value, str):
        text = value.encode(errors="surrogatepass")
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return _number(kind(value), exact)
        return b"s" + text
    if isinstance(value, numbers.Real | np.bool_):
        return _number(value, exact)
    return value if isinstance(value, bytes) else None


def _number(value, exact):
    try:
        if exact and abs(value) >= 2**53 and value == int(value):
            return b"i%d" % int(value)
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
