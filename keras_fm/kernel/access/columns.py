"""Records as one array, or several: a list or dict of them, nested too.

Every array holds the records along its first axis. Dicts are taken in the order
of their sorted keys, as in Keras.
"""

import contextlib
import hashlib
import numbers

import numpy as np

_SEQUENCE = (list, tuple)


def are_several(x):
    """Whether x is a structure of arrays, not one array (or its rows)."""
    if isinstance(x, _SEQUENCE):
        return any(hasattr(v, "shape") or are_several(v) for v in x)
    return isinstance(x, dict)


def are_inputs(x):
    """Whether x can only be inputs, without labels."""
    return hasattr(x, "__array__") or isinstance(x, dict) or _is_sparse(x)


def flatten(x, name="x"):
    """Names and arrays of x, `[(name, array), ...]`."""
    if not are_several(x):
        return [(name, x)]
    if isinstance(x, dict):
        pairs = [(key, x[key]) for key in sorted(x)]
    else:
        pairs = list(enumerate(x))
    return [
        pair
        for key, value in pairs
        for pair in flatten(value, f"{name}[{key!r}]")
    ]


def transform(function, x, name="x"):
    """x with every array replaced by `function(array, name)`."""
    if not are_several(x):
        return function(x, name)
    if isinstance(x, dict):
        return {
            key: transform(function, x[key], f"{name}[{key!r}]")
            for key in sorted(x)
        }
    return [
        transform(function, value, f"{name}[{i}]") for i, value in enumerate(x)
    ]


def taken(x, rows):
    """The given rows of x, from all of its arrays."""
    return transform(lambda array, _: array[rows], x)


def count(x):
    """The number of records in x, whose arrays have equal lengths."""
    pairs = flatten(x)
    return len(pairs[0][1]) if pairs else 0


def arrays(x, name="x"):
    """x with NumPy arrays of equally many records.

    Args:
        x: arrays, tensors, tables or lists of rows; a structure of them.
        name: of x, for errors.

    Raises:
        ValueError: naming what is not an array, or has another length.

    Example:

    >>> arrays({"age": [30, 40], "city": ["a", "b"]})["city"].dtype
    dtype('O')
    """
    found = transform(one_array, x, name)
    pairs = flatten(found, name)
    if not pairs:
        raise ValueError(f"`{name}` must hold at least one array.")
    lengths = {part: len(array) for part, array in pairs}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"All arrays of `{name}` must hold the same number of records. "
            f"Received: {lengths}"
        )
    return found


def _is_sparse(x):
    kind, layout = type(x).__name__, str(getattr(x, "layout", ""))
    return hasattr(x, "tocsr") or any(
        word in kind + layout for word in ("Sparse", "BCOO", "sparse")
    )


def check_dense(x, name="x"):
    """Refuses sparse and ragged data, and data sets that describe
    such data.

    Raises:
        ValueError: saying what to write instead.
    """
    kind = type(x).__name__
    if kind.endswith("Dataset"):
        return
    if "Ragged" in kind or getattr(x, "is_nested", False) is True:
        raise ValueError(
            f"`{name}` is ragged ({kind}): its records have different "
            "lengths. Pad them to a public length, `x.to_tensor(shape=(None, "
            "length))`, or give text and its split to "
            "`keras.layers.TextVectorization(output_sequence_length=...)`."
        )
    if _is_sparse(x):
        raise ValueError(
            f"`{name}` is sparse ({kind}), but records must be dense. Pass "
            "`x.toarray()` (the dense form of a tensor). If memory is short, "
            "pass a function that returns an iterator over dense (x, y) "
            "batches: `x[i : i + 1024].toarray()`."
        )


def one_array(value, name="x"):
    """A NumPy array in native byte order. Text is kept as objects, so that
    other texts do not decide its width.

    Raises:
        ValueError: if it is sparse, ragged or not an array of rows, or a
            list or table of numbers that floats may not hold.
    """
    check_dense(value, name)
    _check_no_batches(value, name)
    if hasattr(value, "detach"):
        # NumPy takes no tensor with gradients or on another device.
        value = value.detach().cpu()
    array = None
    with contextlib.suppress(ValueError):
        array = np.asarray(value)
    # Outside of `except`: NumPy's own message may show values.
    if array is None:
        raise ValueError(
            f"`{name}` must be an array with a row for each record. Received: "
            f"{type(value).__name__} whose rows have different lengths, or "
            "hold bytes among text"
        )
    if array.ndim == 0:
        raise ValueError(
            f"`{name}` must hold records along its first axis (call "
            "`.batch()` on a tf.data.Dataset, give a PyTorch one to a "
            "`DataLoader`). Received: "
            f"{type(value).__name__} of shape {array.shape}"
        )
    if array.dtype.kind in "SU":
        return array.astype(object)
    if not hasattr(value, "dtype"):
        check_small(array, name)
    # JAX and PyTorch have no numbers in other byte orders.
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_no_batches(value, name):
    """Refuses a data set or loader where an array belongs."""
    kinds = [kind.__name__ for kind in type(value).__mro__]
    if hasattr(value, "element_spec") or {"DataLoader", "PyDataset"} & {*kinds}:
        raise ValueError(
            f"`{name}` must be an array with a row for each record, not a "
            "data set. Join its batches: `x, y = map(np.concatenate, "
            "zip(*batches))`, or without labels `x = "
            f"np.concatenate(list(batches))`. Received: {type(value).__name__}"
        )


def floats(array):
    """Whole numbers and booleans as float64, which has room for a column of
    constants or a subtraction; floats as they are. One record decides which
    type an array of lists or of a table has."""
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype.kind in "biu" else array


def as_numbers(value, name="x", dtype=None):
    """An array of numbers, of `dtype` or its own type.

    Raises:
        ValueError: if it is not one; NumPy's own message would show values.
    """
    found = None
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            dtype = dtype or np.float64
        if array.dtype.kind not in tuple("SUMmc"):
            found = array.astype(dtype or array.dtype, copy=False)
    except (TypeError, ValueError, OverflowError):
        pass
    # Outside of `except`, which would keep the first error as a cause.
    if found is None:
        raise ValueError(
            f"`{name}` must be an array of numbers. At least one value is not "
            "a number, or too large for a float, or rows differ in length. "
            f"Received: {type(value).__name__}"
        )
    return found


def has_large(array):
    """Whether some are whole numbers that floats cannot tell apart."""
    return array.dtype.kind in "iuf" and bool(
        np.any(np.abs(array.astype(np.float64)) >= 2**53)
    )


def check_small(array, name):
    """Refuses numbers of a list or table that floats cannot tell apart. One
    fraction makes floats of all, and so rounds those of other records."""
    if has_large(array):
        raise ValueError(
            f"`{name}` is a list or table with numbers of 2^53 or more, and "
            "one record with a fraction would round all of them. Pass an array "
            'of a type, `np.array(x, "int64")`, or each column of a table as '
            'an input of its own, `{k: table[k].to_numpy("int64") for k in '
            "table}`."
        )


def owner_ids(owners):
    """Ids of the records' owners, a NumPy array. Two of its entries are equal
    if and only if they are of one owner.

    Args:
        owners: an array or list of whole numbers or of text.

    Raises:
        ValueError: if ids are missing, of several types, neither
            numbers nor text, or numbers that floats cannot tell apart.

    Example:

    >>> owner_ids(["b", "a", "b"]).tolist()
    ['b', 'a', 'b']
    """
    # NumPy makes one type of several, and floats of large numbers.
    kind = None if hasattr(owners, "dtype") else object
    found = np.asarray(owners, kind)
    if found.dtype.kind == "O":
        kinds = {_id_kind(value) for value in found.ravel()}
        if len(kinds) > 1 or not kinds <= {int, str, bytes}:
            _refuse_ids(f"types {sorted(map(str, kinds))}")
        if kinds == {int}:
            with contextlib.suppress(OverflowError):
                found = found.astype(np.int64)
    elif found.dtype.kind == "f":
        # False for NaN, and for numbers that floats cannot tell apart.
        if not np.all(np.abs(found) < 1 / np.finfo(found.dtype).eps):
            _refuse_ids(f"dtype={found.dtype}, with NaN or large numbers")
    elif found.dtype.kind not in "biuSU":
        _refuse_ids(f"dtype={found.dtype}")
    return found


def _id_kind(value):
    whole = isinstance(value, numbers.Integral | np.bool_)
    kinds = [int] * whole + [k for k in (str, bytes) if isinstance(value, k)]
    return kinds[0] if kinds else type(value)


def _refuse_ids(received):
    raise ValueError(
        "`owners` must hold one id for each record, all of them whole numbers "
        "or all text, none missing. Give each person exactly one id, or that "
        "person's influence is not limited. Write `[str(v) for v in owners]`. "
        "Give records without an owner ids of their own. Fill up lists of "
        f"several owners with -1 or ''. Received: {received}"
    )


def row_bytes(array):
    """`(n, bytes of a row)`. Signs of zeros and NaNs count; text is compared
    by its digest."""
    if not array.size:
        return np.zeros((len(array), 0), np.uint8)
    if array.dtype.kind == "O":
        rows = array.reshape(len(array), -1)
        digests = b"".join(map(_digest, rows))
        return np.frombuffer(digests, np.uint8).reshape(len(array), -1)
    array = np.ascontiguousarray(array)
    return array.reshape(len(array), -1).view(np.uint8).reshape(len(array), -1)


def _digest(row):
    digest = hashlib.blake2b(digest_size=32)
    for value in row:
        if isinstance(value, str):
            value = value.encode(errors="surrogatepass")
        elif not isinstance(value, bytes):
            value = repr(value).encode()
        digest.update(len(value).to_bytes(8, "little") + value)
    return digest.digest()


def filled(array, rows):
    """`rows` empty records like those of an array: zeros, or empty text."""
    shape = (rows, *array.shape[1:])
    if array.dtype.kind == "O":
        return np.full(shape, "", object)
    return np.zeros(shape, array.dtype)


def is_function(data):
    """Whether data are a function, which is called for every round."""
    others = ("as_numpy_iterator", "num_batches", "__len__", "__array__")
    return (
        callable(data)
        and not is_loader(data)
        and not any(hasattr(data, name) for name in others)
    )


def is_loader(data):
    """Whether data are a `torch.utils.data.DataLoader`."""
    return any(
        kind.__module__.startswith("torch.utils.data")
        and kind.__name__ == "DataLoader"
        for kind in type(data).__mro__
    )
