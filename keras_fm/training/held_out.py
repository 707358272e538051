"""Whether validation data are what they should be: other records."""

import keras
import numpy as np

# Steps that NumPy may take to see whether two views overlap.
_WORK = 100_000
# Rows compared at a time.
_ROWS = 4096
# Of the private rows, how many must be different ones for a match to mean
# that a record was taken and not that records look alike.
_DISTINCT = 0.95


def check_held_out(validation_data, data):
    """Refuses validation data that are the private records.

    What a fit shows of them would be a function of private records that no
    statement covers. Rows are compared where nearly all private ones are
    different: a table of few different rows is no sign of anything. Records
    that were changed are not recognised.

    Args:
        validation_data: as `fit` takes it: x, `(x, y)`, `(x, y, weights)`
            or a data set; or `None`.
        data: the private records: x, `(x, y)` or a data set; or `None`.

    Raises:
        ValueError: if they are the same object, share memory, or have most
            rows in common.

    Example:

    >>> x, y = np.random.normal(size=(10, 3)), np.zeros(10)
    >>> check_held_out((x[8:], y[8:]), (x[:8], y[:8]))
    >>> check_held_out((x[8:], y[8:]), (x, y))
    Traceback (most recent call last):
    ...
    ValueError: `validation_data` holds private records: it shares memory ...
    """
    if validation_data is None or data is None:
        return
    if validation_data is data:
        _refuse("it is `data`")
    shown, private = (
        [_array(part) for part in _parts(v)] for v in (validation_data, data)
    )
    for a in shown:
        if any(_overlap(a, b) for b in private):
            _refuse("it shares memory with `data`")
    if shown and private:
        _check_rows(shown[0], private[0])


def _refuse(reason):
    raise ValueError(
        f"`validation_data` holds private records: {reason}. Metrics on them "
        "would be a function of private records that no statement covers. "
        "Pass held-out or public records, or call `model.evaluate` after "
        "`fit` on your own responsibility."
    )


def _parts(data):
    """x and y of arrays; nothing of a data set, weights left out."""
    if isinstance(data, (tuple, list)):
        return [part for part in data[:2] if part is not None]
    return [data] if hasattr(data, "__array__") else []


def _array(value):
    if hasattr(value, "detach"):
        # PyTorch keeps gradients and other devices from NumPy.
        return keras.ops.convert_to_numpy(value)
    return np.asarray(value)


def _overlap(a, b):
    try:
        return np.shares_memory(a, b, max_work=_WORK)
    except np.exceptions.TooHardError:
        return False


def _check_rows(shown, private):
    if not (shown.ndim and private.ndim and len(shown) and len(private)):
        return
    if shown[:1].size != private[:1].size or not shown[:1].size:
        return
    try:
        common = np.result_type(shown, private)
    except TypeError:
        return
    found = _hashes(shown, common)
    known = _hashes(private, common)
    if shown.shape == private.shape and np.array_equal(found, known):
        _refuse("its records are those of `data`")
    different = np.unique(known)
    if len(different) >= _DISTINCT * len(known):
        share = float(np.mean(np.isin(found, different)))
        if share > 0.5:
            _refuse(f"{share:.0%} of its records are in `data`")


def _hashes(array, dtype):
    """Of rows, in a type that both arrays have."""
    found = np.empty(len(array), np.int64)
    for start in range(0, len(array), _ROWS):
        part = array[start : start + _ROWS].astype(dtype)
        part = np.ascontiguousarray(part.reshape(len(part), -1))
        if dtype.kind == "O":
            # Their bytes would say where they are.
            rows = [tuple(map(str, row)) for row in part]
        else:
            rows = [row.tobytes() for row in part]
        found[start : start + len(part)] = list(map(hash, rows))
    return found
