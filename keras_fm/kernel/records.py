"""One streaming pass over records in any form Keras users hold them."""

import copy
import math
import queue
import threading
from collections.abc import Mapping

import numpy as np

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel.reads import columns
from keras_fm.kernel.reads.data_sets import (
    check,
    is_function,
    is_loader,
    of_one_length,
)

# Says that no batch follows.
_END = object()


def batches(data, batch_size=4096, labelled=True):
    """Yields `(x, y)` NumPy batches from `data`, each row once: a record.

    x is one array, or a structure of several: a list or dict, nested too.
    A whole pass without a record is an error: what it released would be
    noise alone.

    Args:
        data: a tuple `(x, y)` of arrays with equal first dimension, a
            `tf.data.Dataset` of batched `(x, y)`, a `keras.utils.PyDataset`,
            a `DataLoader` of PyTorch, or a function without arguments that
            returns an iterator over `(x, y)` batches.
        batch_size: int, rows per batch for arrays.
        labelled: `False` also takes x alone, in all of these forms; y is
            then `None`.

    Raises:
        ValueError: if `data` has another form, is infinite or empty, leaves
            records out, draws them with replacement, holds sample weights, is
            sparse, ragged or padded to the longest record of a batch, or x
            and y differ in length.
    """
    found = 0
    for x, y in of_one_length(data, _batches(data, batch_size, labelled)):
        found += columns.count(x)
        yield x, y
    if not found:
        raise ValueError(
            "`data` holds no records. If it did before: it must begin anew at "
            "every call and give the same records, as a generator function "
            "does."
        )


def _batches(data, batch_size, labelled):
    check(data)
    _pair = _labelled_pair if labelled else _unlabelled_pair
    if not labelled:
        data = without_tuple(data)
    if columns.are_inputs(data):
        if labelled:
            raise ValueError(
                "`data` must be a pair (x, y), records and labels. "
                f"Received: {type(data).__name__} alone"
            )
        x = columns.arrays(data, "data")
        for rows in _slices(columns.count(x), batch_size):
            yield columns.taken(x, rows), None
    elif isinstance(data, (tuple, list)):
        yield from map(_pair, _array_batches(data, batch_size))
    elif hasattr(data, "as_numpy_iterator"):
        yield from map(_pair, data.as_numpy_iterator())
    elif is_loader(data):
        yield from map(_pair, data)
    elif hasattr(data, "num_batches") or _is_sequence(data):
        # Keras: `num_batches` of a PyDataset without end is `None`.
        total = data.num_batches if hasattr(data, "num_batches") else len(data)
        if total is None or not math.isfinite(total):
            raise ValueError(
                "The dataset has no end, so a pass over it never stops."
            )
        for index in range(int(total)):
            yield _pair(data[index])
    elif is_function(data):
        yield from map(_pair, data())
    else:
        raise ValueError(
            "`data` must be a tuple (x, y) of arrays, a tf.data.Dataset, a "
            "keras.utils.PyDataset, a DataLoader of PyTorch, or a function "
            "that returns an iterator over (x, y) batches. Received: "
            f"{type(data)}"
        )


def _is_sequence(data):
    # Archives of arrays and text have a length, too.
    return hasattr(data, "__len__") and not isinstance(data, (str, Mapping))


def inputs_of(data):
    """x of `(x, y)`, or x itself."""
    return data[0] if isinstance(data, (tuple, list)) else data


def number(data):
    """How many records arrays hold, or `None` for other data."""
    x = inputs_of(data)
    if isinstance(data, (tuple, list)) or columns.are_inputs(x):
        first = columns.flatten(x)[0][1]
        return len(first) if hasattr(first, "__len__") else None
    return None


def _slices(count, size):
    if not count:
        raise ValueError("`data` holds no records.")
    for start in range(0, count, size):
        yield slice(start, start + size)


def _array_batches(data, batch_size):
    if len(data) != 2:
        raise ValueError(
            "`data` must be (x, y). Sample weights change what a record "
            "weighs and are not supported by a release. Received a tuple "
            f"of length {len(data)}"
        )
    x, y = checked_pair(data)
    for rows in _slices(columns.count(x), batch_size):
        yield columns.taken(x, rows), y[rows]


def checked_pair(pair):
    """x and labels as arrays of as many records."""
    x, y = (columns.arrays(v, name) for v, name in zip(pair, "xy"))
    if columns.are_several(y):
        raise ValueError(
            "y must be one array of labels. Received: "
            f"{len(columns.flatten(y))} arrays"
        )
    y = _numbers(y)
    if columns.count(x) != len(y):
        shapes = [array.shape for _, array in columns.flatten(x)]
        raise ValueError(
            "x and y must hold the same number of records. Received: "
            f"x.shape={shapes[0] if len(shapes) == 1 else shapes}, "
            f"y.shape={y.shape}"
        )
    return x, y


def _numbers(y):
    """Labels of a table, which may hold numbers as objects."""
    if y.dtype.kind != "O":
        return y
    found = np.asarray(y.tolist())
    if found.dtype.kind not in "biuf":
        raise ValueError(
            "Labels must be numbers or truth values. "
            f"{bounds_lib.NUMBER_THE_CLASSES} Received: text or missing labels"
        )
    return found


def _labelled_pair(batch):
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(
            "Every batch must be a pair (x, y), without sample weights: "
            "they change what a record weighs."
        )
    return checked_pair(batch)


def without_tuple(data):
    """x of `(x,)`, which Keras takes for x alone."""
    return data[0] if isinstance(data, tuple) and len(data) == 1 else data


def _unlabelled_pair(batch):
    batch = without_tuple(batch)
    if isinstance(batch, (tuple, list)):
        return _labelled_pair(batch)[0], None
    return columns.arrays(batch, "x"), None


def take_while_reading(batches, take):
    """Calls `take(*batch)` for all batches, and reads on in the meantime.

    Batches are read (and their features computed) where this is called:
    readers, Keras' settings and scopes of `tf.distribute` never see another
    thread. `take` runs in one other thread, batch after batch in order. At
    most two batches are read ahead, and each is copied, since a reader may
    fill the same array again.

    What it raises, and when something is raised, is the same as in a plain
    loop: the error of the first batch that has one. Then no batch is left
    in memory and the thread has ended.

    Args:
        batches: iterable of tuples of arrays.
        take: function of the arrays of a batch; plain NumPy.

    Example:

    >>> taken = []
    >>> take_while_reading(((i,) for i in range(3)), taken.append)
    >>> taken
    [0, 1, 2]
    """
    batches = iter(batches)
    # With the one in work and the one being read: two ahead.
    waiting, failed = queue.Queue(maxsize=1), []

    def work():
        while (batch := waiting.get()) is not _END:
            try:
                if not failed:
                    take(*batch)
            # Also an interrupt: the reader must not wait for ever.
            except BaseException as e:
                failed.append(e)
            del batch

    thread = None
    try:
        for batch in batches:
            if failed:
                break
            if thread is None:
                thread = threading.Thread(target=work, daemon=True)
                thread.start()
            waiting.put(copy.deepcopy(batch))
            del batch
    except Exception:
        # What failed first would have ended a plain loop.
        _end(thread, waiting)
        if failed:
            raise failed.pop() from None
        raise
    finally:
        _end(thread, waiting)
    if failed:
        raise failed.pop()


def _end(thread, waiting):
    if thread is not None and thread.is_alive():
        waiting.put(_END)
        thread.join()
