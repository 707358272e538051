"""One streaming pass over records in any form Keras users hold them."""

import copy
import math
import queue
import threading

import numpy as np

# Says that no batch follows.
_END = object()


def batches(data, batch_size=4096, labelled=True):
    """Yields `(x, y)` NumPy batches from `data`, each record once.

    Args:
        data: a tuple `(x, y)` of arrays with equal first dimension, a
            `tf.data.Dataset` of batched `(x, y)`, a `keras.utils.PyDataset`,
            or a function without arguments that returns an iterator over
            `(x, y)` batches.
        batch_size: int, rows per batch for arrays.
        labelled: `False` also takes x alone, in all of these forms; y is
            then `None`.

    Raises:
        ValueError: if `data` has another form, is infinite, hands on records
            more than once, holds sample weights, or x and y differ in
            length.
    """
    check(data)
    _pair = _labelled_pair if labelled else _unlabelled_pair
    if not labelled:
        data = _without_tuple(data)
    if not labelled and hasattr(data, "__array__"):
        data = (data, np.zeros(len(data)))
        for x, _ in _array_batches(data, batch_size):
            yield x, None
    elif isinstance(data, (tuple, list)):
        yield from map(_pair, _array_batches(data, batch_size))
    elif hasattr(data, "as_numpy_iterator"):
        yield from map(_pair, data.as_numpy_iterator())
    elif hasattr(data, "num_batches") or hasattr(data, "__len__"):
        # Keras: `num_batches` of a PyDataset without end is `None`.
        total = data.num_batches if hasattr(data, "num_batches") else len(data)
        if total is None or not math.isfinite(total):
            raise ValueError(
                "The dataset has no end, so a pass over it never stops."
            )
        for index in range(int(total)):
            yield _pair(data[index])
    elif callable(data):
        yield from map(_pair, data())
    else:
        raise ValueError(
            "`data` must be a tuple (x, y) of arrays, a tf.data.Dataset, a "
            "keras.utils.PyDataset, or a function that returns an iterator "
            f"over (x, y) batches. Received: {type(data)}"
        )


def check(data):
    """Refuses a `tf.data.Dataset` that hands on records more than once, or
    with weights; nothing is read.

    A release counts what it reads, so a record that comes twice counts
    twice. What functions of `map` do cannot be seen.

    Args:
        data: see `batches`; other forms than a data set pass.

    Raises:
        ValueError: saying what to write instead.
    """
    if not hasattr(data, "as_numpy_iterator"):
        return
    if int(data.cardinality()) == -1:
        raise ValueError(
            "The dataset repeats without end, so a pass over it never "
            "stops. Remove `.repeat()`."
        )
    spec = data.element_spec
    if isinstance(spec, (tuple, list)) and len(spec) > 2:
        raise ValueError(
            "A dataset must give pairs (x, y). Sample weights change what a "
            "record weighs and are not supported by a release. Received "
            f"elements of {len(spec)} parts"
        )
    _check_once(data)


def _check_once(dataset):
    """Refuses a data set that takes another one twice.

    Returns:
        set of the ids of what it is made of.
    """
    kind = type(dataset).__name__.strip("_")
    parts = [_check_once(part) for part in dataset._inputs()]
    if kind == "RepeatDataset" and int(dataset._count) != 1:
        raise ValueError(
            f"The dataset repeats its records {int(dataset._count)} times, "
            "and a release would count each of them as often. Remove "
            "`.repeat()`; `epochs` of `fit` repeats training."
        )
    if kind == "ConcatenateDataset" and set.intersection(*parts):
        raise ValueError(
            "The dataset is joined with itself (`.concatenate()`), and a "
            "release would count its records twice. Remove "
            "`.concatenate()`, or make the two parts of different arrays or "
            "files."
        )
    if kind == "DirectedInterleaveDataset":
        raise ValueError(
            "The dataset chooses among others (`sample_from_datasets`, "
            "`choose_from_datasets`, `rejection_resample`), so a record may "
            "come any number of times. Pass a dataset that gives each record "
            "once."
        )
    if kind in _MADE_BY_FUNCTIONS and not _makes_each_once(dataset):
        raise ValueError(
            "The dataset makes several elements of one (`.flat_map()` or "
            "`.interleave()`), so it cannot be seen whether a record comes "
            "more than once. Read files or a generator by it, or pass "
            "arrays, or a function that returns an iterator over (x, y) "
            "batches."
        )
    return {id(dataset)}.union(*parts)


_MADE_BY_FUNCTIONS = {
    "FlatMapDataset": "_map_func",
    "GroupByWindowDataset": "_reduce_func",
    "InterleaveDataset": "_map_func",
    "ParallelInterleaveDataset": "_map_func",
}


def _makes_each_once(dataset):
    """Whether it reads files or a generator, or groups, and repeats none."""
    kind = type(dataset).__name__.strip("_")
    function = getattr(dataset, _MADE_BY_FUNCTIONS[kind], None)
    if function is None:
        return False
    graph = function.function.graph.as_graph_def()
    nodes = [*graph.node]
    for inner in graph.library.function:
        nodes += inner.node_def
    if any(node.op == "RepeatDataset" for node in nodes):
        return False
    (source,) = dataset._inputs()
    spec = source.element_spec
    names = getattr(getattr(spec, "dtype", None), "name", None) == "string"
    once = type(source).__name__.strip("_") == "TensorDataset"
    return kind == "GroupByWindowDataset" or once or names


def inputs_of(data):
    """x of `(x, y)`, or x itself."""
    return data[0] if isinstance(data, (tuple, list)) else data


def _array_batches(data, batch_size):
    if len(data) != 2:
        raise ValueError(
            "`data` must be (x, y). Sample weights change what a record "
            "weighs and are not supported by a release. Received a tuple "
            f"of length {len(data)}"
        )
    x, y = (np.asarray(a) for a in data)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise ValueError(
            "x and y must hold the same number of records. Received: "
            f"x.shape={x.shape}, y.shape={y.shape}"
        )
    if not len(x):
        raise ValueError("`data` holds no records.")
    for start in range(0, len(x), batch_size):
        yield x[start : start + batch_size], y[start : start + batch_size]


def _labelled_pair(batch):
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(
            "Every batch must be a pair (x, y), without sample weights: "
            "they change what a record weighs."
        )
    x, y = (np.asarray(a) for a in batch)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise ValueError(
            "x and y of a batch must hold the same number of records, along "
            "their first axis (call `.batch()` on a tf.data.Dataset). "
            f"Received: x.shape={x.shape}, y.shape={y.shape}"
        )
    return x, y


def _without_tuple(data):
    """x of `(x,)`, which Keras takes for x alone."""
    return data[0] if isinstance(data, tuple) and len(data) == 1 else data


def _unlabelled_pair(batch):
    batch = _without_tuple(batch)
    if isinstance(batch, (tuple, list)):
        return _labelled_pair(batch)[0], None
    x = np.asarray(batch)
    if x.ndim == 0:
        raise ValueError(
            "Every batch must hold records along its first axis (call "
            "`.batch()` on a tf.data.Dataset)."
        )
    return x, None


def batches_by_owner(data, owners, batch_size=4096, labelled=True):
    """Yields `(x, y, owners)` batches, all records of an owner in one.

    Args:
        data: `(x, y)`, or x alone if not `labelled`; arrays.
        owners: `(n,)` ids of the records' owners.
        batch_size: int, rows per batch, more if an owner has more.
        labelled: see `batches`.

    Raises:
        ValueError: if `data` is not made of arrays, or lengths differ.
    """
    if not labelled:
        data = _without_tuple(data)
    if not labelled and hasattr(data, "__array__"):
        data = (data, np.zeros(len(data)))
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise ValueError(
            "With `owners`, `data` must be arrays (x, y): the records of an "
            f"owner are brought together. Received: {type(data)}"
        )
    x, y = (np.asarray(a) for a in data)
    owners = np.asarray(owners)
    # A NaN equals no other id: its rows would be owners of their own.
    missing = bool(np.any(owners != owners))
    if owners.shape != (len(x),) or len(x) != len(y) or not len(x) or missing:
        raise ValueError(
            "`owners` must hold one id for each record. Received: "
            f"owners.shape={owners.shape}, x.shape={x.shape}, "
            f"y.shape={y.shape}"
        )
    order = np.argsort(owners, kind="stable")
    ordered = owners[order]
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, len(x))
    start = previous = 0
    for end in ends:
        if end - start > batch_size and previous > start:
            part = order[start:previous]
            yield x[part], y[part] if labelled else None, owners[part]
            start = previous
        previous = end
    part = order[start:]
    yield x[part], y[part] if labelled else None, owners[part]


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
