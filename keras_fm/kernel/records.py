"""Records in any form in which Keras users hold them: a row is a record.

`batches` reads them once. `Passes` checks that several runs over them agree.
"""

import copy
import math
from collections.abc import Mapping
from concurrent import futures

import numpy as np

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel.access import columns, fixed_rows


def batches(data, batch_size=4096, labelled=True):
    """Yields `(x, y)` NumPy batches from `data`, every row once: a record.

    x is one array, or a structure of several: a list or dict, nested too.
    Data without any record are an error: their release would be noise alone.

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
    for x, y in _of_one_length(data, _batches(data, batch_size, labelled)):
        found += columns.count(x)
        yield x, y
    if not found:
        raise ValueError(
            "`data` holds no records. If it held some before, it must start "
            "again at every call with the same records, as a generator "
            "function does."
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
    elif columns.is_loader(data):
        yield from map(_pair, data)
    elif hasattr(data, "num_batches") or _is_sequence(data):
        # Keras: `num_batches` of a PyDataset without end is `None`.
        total = data.num_batches if hasattr(data, "num_batches") else len(data)
        if total is None or not math.isfinite(total):
            raise ValueError(
                "The dataset has no end, so its records cannot be counted."
            )
        for index in range(int(total)):
            yield _pair(data[index])
    elif columns.is_function(data):
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


def number(data):
    """How many records arrays hold; `None` for other data."""
    x = data[0] if isinstance(data, (tuple, list)) else data
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
    """x and labels as arrays with equally many records."""
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
    """x of `(x,)`: Keras takes this tuple for x alone."""
    return data[0] if isinstance(data, tuple) and len(data) == 1 else data


def _unlabelled_pair(batch):
    batch = without_tuple(batch)
    if isinstance(batch, (tuple, list)):
        return _labelled_pair(batch)[0], None
    return columns.arrays(batch, "x"), None


# Data sets, by their public interfaces --------------------------------------


def check(data):
    """Refuses a data set without end, one that drops an incomplete batch, one
    with weights, and a loader that draws with replacement.

    A release counts the rows that it gets. The check reads no record and does
    not look into the parts of a data set.

    Args:
        data: see `batches`.

    Raises:
        ValueError: saying what to write instead.
    """
    if columns.is_loader(data):
        check_loader(data)
    elif hasattr(data, "as_numpy_iterator"):
        check_dataset(data)
    else:
        columns.check_dense(data, "data")
        for name, array in columns.flatten(data, "data"):
            columns.check_dense(array, name)


def check_dataset(data, weights=False):
    """Refuses a `tf.data.Dataset` that repeats records or leaves some out.

    Args:
        data: the dataset.
        weights: whether it may hold weights of records.
    """
    count, spec = int(data.cardinality()), data.element_spec
    if count == -1:
        raise ValueError(
            "The dataset has no end, so its records cannot be counted. Remove "
            "`.repeat()`: `epochs` of `fit` repeats training."
        )
    if isinstance(spec, (tuple, list)) and len(spec) > 2 + weights:
        raise ValueError(
            "A dataset must give pairs (x, y). Sample weights change what a "
            "record weighs and are not supported by a release. Received "
            f"elements of {len(spec)} parts"
        )
    for name, part in columns.flatten(spec, "data"):
        columns.check_dense(part, name)
        shape = part.shape
        # A batch that may be short has no known number of rows.
        if shape.rank and (shape[0] or 0) > 1 and count != 1:
            raise ValueError(
                "The dataset leaves out the last batch if it is not full, so "
                "one more record may bring in many others. Set "
                "`drop_remainder=False`; if its elements are single records, "
                f"write `.batch(256)`. Received: batches of always {shape[0]} "
                "rows"
            )


def _of_one_length(data, batches):
    """Yields the batches `(x, y)` that were read from `data`.

    Raises:
        ValueError: if records of several batches have different lengths, or
            a dataset does not state their length.
    """
    unknown, several, forms = _has_unknown_lengths(data), False, set()
    for x, y in batches:
        count = columns.count(x)
        several |= count > 1
        if count:
            forms.add(tuple(v.shape[1:] for _, v in columns.flatten(x)))
        if several and (unknown or len(forms) > 1):
            raise ValueError(
                "Records must have one known length in all batches. If rows "
                "are padded to the longest of their batch, one record changes "
                "others. Pad to a public length, `padded_batch(size, "
                "padded_shapes=...)` or `x.to_tensor(shape=(None, length))`, "
                "or give batches of one record."
            )
        yield x, y


def _has_unknown_lengths(data):
    if not hasattr(data, "as_numpy_iterator"):
        return False
    shapes = [v.shape for _, v in columns.flatten(data.element_spec, "data")]
    return any(shape.rank and None in shape[1:] for shape in shapes)


def check_loader(loader):
    """Refuses a `DataLoader` that repeats records or leaves some out."""
    # A custom `batch_sampler` need not have a sampler.
    sampler = getattr(loader.batch_sampler, "sampler", None)
    rows = loader.dataset
    count = len(rows) if hasattr(rows, "__len__") else None
    drawn = getattr(sampler, "num_samples", count)
    if getattr(sampler, "replacement", False) or drawn != count:
        raise ValueError(
            "The DataLoader's sampler draws with replacement, or draws more "
            "or fewer records than there are. One record may then count "
            "several times. Write `shuffle=True` instead of a sampler. "
            f"Received: {type(sampler).__name__}"
        )
    if getattr(loader.batch_sampler, "drop_last", False):
        raise ValueError(
            "The DataLoader leaves out different records in every epoch. Set "
            "`drop_last=False`."
        )


# Several runs over the records ------------------------------------------------


class Passes:
    """Whole runs over the records: each must give as many as the first.

    Args:
        n: int, how many there are; `None` until the first run has ended.
        compared: whether they must be the same records, in any order.
    """

    def __init__(self, n=None, compared=False):
        self.n = n
        self._compared, self._digest = compared, None

    def over(self, batches):
        """Yields the batches, tuples `(x, ...)`, of one run.

        Raises:
            ValueError: at its end, if it differed from the first.
        """
        n, digest = 0, 0
        for x, *more in batches:
            n += columns.count(x)
            if self._compared:
                digest = (digest + _digest(x, *more)) % 2**64
            yield x, *more
        if self.n == n and self._digest not in (None, digest):
            raise ValueError(
                "`data` must give the same records each time it is used, in "
                "any order, but later it gave others. `.shuffle(n).take(m)` "
                "chooses other records each time, and a random `.map()` "
                "changes them. Write `.cache()` after such a step, or pass "
                "arrays."
            )
        self._digest = digest if self._compared else None
        if self.n is None:
            self.n = n
        elif n != self.n:
            raise ValueError(
                "`data` must start again at every call with the same records: "
                "a later call gave another number of them."
            )


def _digest(*parts):
    """A digest that is a sum over records, so their order does not matter."""
    arrays = [
        columns.one_array(array)
        for part in parts
        if part is not None
        for _, array in columns.flatten(part)
    ]
    found = fixed_rows.hashes(arrays) if len(arrays[0]) else []
    return int(np.sum(found, dtype=np.uint64))


# Reading ahead ----------------------------------------------------------------


def prefetch(batches, take):
    """Calls `take(*batch)` for all batches, and reads ahead meanwhile.

    Batches are read (and their features computed) in the calling thread:
    readers, Keras' settings and scopes of `tf.distribute` never see another
    thread. `take` runs in one other thread, batch after batch in order. One
    batch is read ahead. Each is copied, since a reader may fill the same
    array again. The first error is raised after the thread has ended.

    Args:
        batches: iterable of tuples of arrays.
        take: function of the arrays of a batch; plain NumPy.

    Example:

    >>> taken = []
    >>> prefetch(((i,) for i in range(3)), taken.append)
    >>> taken
    [0, 1, 2]
    """
    with futures.ThreadPoolExecutor(1) as worker:
        before = worker.submit(lambda: None)
        try:
            for batch in batches:
                batch = copy.deepcopy(batch)
                before.result()
                before = worker.submit(take, *batch)
                del batch
        finally:
            before.result()
