"""One streaming pass over records in any form Keras users hold them."""

import math

import numpy as np


def batches(data, batch_size=4096):
    """Yields `(x, y)` NumPy batches from `data`, each record once.

    Args:
        data: a tuple `(x, y)` of arrays with equal first dimension, a
            `tf.data.Dataset` of batched `(x, y)`, a `keras.utils.PyDataset`,
            or a function without arguments that returns an iterator over
            `(x, y)` batches.
        batch_size: int, rows per batch for arrays.

    Raises:
        ValueError: if `data` has another form, is infinite, holds sample
            weights, or x and y differ in length.
    """
    if isinstance(data, (tuple, list)):
        yield from _array_batches(data, batch_size)
    elif hasattr(data, "as_numpy_iterator"):
        cardinality = int(data.cardinality())
        if cardinality == -1:
            raise ValueError(
                "The dataset repeats without end, so a pass over it never "
                "stops. Remove `.repeat()`."
            )
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


def _pair(batch):
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
