"""Sums over records on a graphics card: the same integers as with NumPy.

A release of a quadratic objective needs sum h h^T and sum h t^T over rows that
are cut to a grid (`sums.on_grid`). In steps of the grid, rows are whole
numbers, and float64 holds the sums of `EXACT_ROWS` products in any order. So a
card's products have the same bits as a processor's, and neither proofs nor
releases change. Three things make sure of it:

* A row is taken here only if its cut cannot depend on how its norm was
  rounded. All others, also those out of bounds or with NaN, go through
  NumPy's path, which scales them back or refuses them.
* Every sum S = K^T Z is checked before it is used: S r = K^T (Z r) modulo
  2^64 for random 64-bit numbers r of the operating system, without a product
  of matrices. A wrong sum is missed with a probability of at most 2^-10.
* Nothing is charged before all of that.

Rounds keep their records on the card (`DeviceRows`), features in the steps of
another grid. A round is one function there: logits and sums are such products,
exact and checked. Residuals are rounded between them, so a record whose cut
could depend on that is left to NumPy.

The proofs are in docs/proofs/lattice_noise.md, "Sums without rounding", and
docs/proofs/gradient.md, "Rounding".
"""

import contextlib
import copy
import functools
import operator
import secrets

import keras
import numpy as np
from keras import ops

from keras_fm.core.record_alone import compiled
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.access import columns
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.query import QuadraticQuery
from keras_fm.kernel.sums import EXACT_ROWS

# Not Keras' product, which casts float64 to float32 on PyTorch.
_product = operator.matmul


def available():
    """Whether the backend computes on a card that has float64."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.default_backend() == "gpu" and hasattr(jax, "enable_x64")
    if backend == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_logical_devices("GPU"))
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    return False


def takes(query):
    """Whether sums of a query are formed here: on a card, for single records
    whose rows have one bound and no weights."""
    return (
        isinstance(query, QuadraticQuery)
        and type(query).accumulate is QuadraticQuery.accumulate
        and not query.grouped
        and query.feature_l1_bound is None
        and getattr(query, "class_weights", None) is None
        and available()
    )


def summed(query, batches, clip=False):
    """The `PartialStatistics` of all batches.

    Args:
        query: one that `takes` accepts.
        batches: iterable of `(features, labels)` or `(features,)`, NumPy
            arrays of `(n, m)` and what the query takes.
        clip: whether rows outside their bounds are scaled back.

    Raises:
        ValueError: if a record is invalid, as in `PartialStatistics.add`.
        RuntimeError: if the device summed wrongly.

    Example:

    >>> query = keras_fm.queries.SecondMomentQuery(num_features=2)
    >>> summed(query, [(np.array([[0.6, 0.8]]),)])
    <PartialStatistics of SecondMomentQuery>
    """
    found = PartialStatistics(query, clip)
    for block in _blocks(batches):
        _add(found, *block)
    return found


def _blocks(batches):
    """Batches joined to at most `EXACT_ROWS` rows of one type."""
    waiting, count = [], 0
    for batch in batches:
        for part in summation.chunks(len(batch[0]), EXACT_ROWS):
            # A copy: a reader may fill the same array again.
            some = [v if v is None else np.array(v[part]) for v in batch]
            count += len(some[0])
            if waiting and (
                count > EXACT_ROWS or some[0].dtype != waiting[0][0].dtype
            ):
                yield _joined(waiting)
                waiting, count = [], len(some[0])
            waiting.append(some)
    if waiting:
        yield _joined(waiting)


def _joined(parts):
    return [v[0] if v[0] is None else np.concatenate(v) for v in zip(*parts)]


def _add(found, h, y=None):
    query, count = found.query, len(h)
    h = columns.as_numbers(h, "features")
    checks.shape("Features", h.shape, "records", query.num_features)
    steps = query.grid_steps
    targets = np.array(query.targets(y, count, found.clip), np.float64)
    targets = summation.on_grid(targets, steps[1]) / steps[1]
    check = _random(h.shape[1] + targets.shape[1])
    rounding = bounds_lib.ROUNDING.get(h.dtype, 2e-2)
    # Longer rows are for the host, which refuses or scales them back.
    largest = query.feature_bound * (1 + rounding)
    least = 0.0 if query.nonnegative else -np.inf
    limits = np.array([query.feature_bound, largest, least, steps[0]])
    sent = h if h.dtype == np.float32 else h.astype(np.float64)
    free = ((0, EXACT_ROWS - count), (0, 0))
    with _float64():
        rows = _spread(np.pad(sent, free)), _spread(np.pad(targets, free))
        made = _once(_products)(*rows, _sent(check), _sent(limits))
        sums, checked, taken = map(ops.convert_to_numpy, made)
    sums = _verified(sums, check, checked)
    taken = taken[:count]
    quadratic, linear = np.split(sums, [h.shape[1]], axis=1)
    found.add_exact(
        int(taken.sum()),
        np.triu(quadratic) * steps[0] ** 2,
        linear * (steps[0] * steps[1]),
    )
    if not taken.all():
        found.add(h[~taken], *([] if y is None else [y[~taken]]))


def _verified(product, check, checked):
    """A product as int64, after a check: times `check` it is `checked`."""
    # Numbers that are not whole, or too large to be right, differ now.
    whole = np.clip(np.nan_to_num(product), -(2.0**53), 2.0**53)
    whole = whole.astype(np.int64)
    if not np.array_equal(whole @ check, checked):
        raise RuntimeError(
            "The device computed a wrong matrix product: a random check in "
            "integers found a difference. Nothing was released. Run on the "
            "processor instead, and report the device and its library "
            "versions."
        )
    return whole


def _random(count):
    return np.frombuffer(secrets.token_bytes(8 * count), np.int64)


class DeviceRows:
    """Records of rounds on a device, for `GradientQuery.total`.

    Args:
        narrow: int16 `(n, m)`, features in whole steps.
        targets: `(n, M)`.
        lengths: `(n,)`, norms of the features.
    """

    def __init__(self, narrow, targets, lengths):
        free, given = -len(narrow) % _PADDED, (narrow, targets, lengths)
        padded = [np.pad(v, ((0, free), (0, 0))[: v.ndim]) for v in given]
        with _float64():
            self._held = [_spread(v) for v in padded]
        self._of = np.arange(len(narrow))

    def __len__(self):
        return len(self._of)

    def __getitem__(self, kept):
        """Some of the rows, by a boolean mask; the device holds them once."""
        found = copy.copy(self)
        found._of = self._of[kept]
        return found

    def sums(self, query, targets, whole, factors):
        """The sums of one round, but for a few records.

        Args:
            query: a `GradientQuery`.
            targets: `(n, M)`, of these rows.
            whole, factors: weights in steps, `CoefficientGrid.weights`.

        Returns:
            sums `(M, m)` in steps, the places of the records that are left
            to NumPy, and their features.
        """
        # A record that is not in a sample weighs nothing.
        taken = np.zeros(self._held[0].shape[0])
        taken[self._of] = query.record_weights(targets)
        check = _random(len(whole))
        given = whole.T, whole.T.astype(np.int64) @ check, factors, check
        with _float64():
            found = _round(query)(*self._held, *map(_sent, (taken, *given)))
            product, checked, sure = map(ops.convert_to_numpy, found)
            left = np.flatnonzero(~sure[self._of])
            # One shape for most counts: each is compiled.
            places = np.resize(self._of[left], -len(left) // 256 * -256)
            rows = ops.take(self._held[0], places, axis=0)
            rows = ops.convert_to_numpy(rows)[: len(left)]
        return _verified(product, check, checked).T, left, rows


def _sent(array):
    return ops.convert_to_tensor(array, dtype=array.dtype.name)


def _spread(array):
    """Rows as a tensor, over all devices of a Keras `DataParallel`. Sums of
    integers are the same, however many devices they come from."""
    tensor, over = _sent(array), keras.distribution.distribution()
    spread = isinstance(over, keras.distribution.DataParallel)
    if not spread or len(array) % over.device_mesh.devices.size:
        return tensor
    axes = [over.batch_dim_name, *[None] * (array.ndim - 1)]
    layout = keras.distribution.TensorLayout(axes, over.device_mesh)
    return keras.distribution.distribute_tensor(tensor, layout)


# Rows of a block are a multiple of this, so that few shapes are compiled.
_PADDED = 4096
_once = functools.cache(compiled)


@functools.cache
def _round(query):
    """One round of a query in one function: logits, residuals, clip, cut and
    sums. Products are checked as those of a release."""

    def run(rows, targets, lengths, weights, *given):
        whole, of_whole, factors, check = given
        steps = ops.cast(rows, "int64")
        rows = ops.cast(rows, "float64")
        logits = ops.cast(_product(rows, whole), "int64")
        off = ops.sum(logits * check, 1) != ops.sum(steps * of_whole, 1)
        z = ops.transpose(ops.cast(logits, "float64")) * factors
        delta, sure = query.cut(z, ops.transpose(targets), lengths, weights)
        delta = ops.transpose(delta)
        product = _product(ops.transpose(rows), delta)
        # A wrong logit fails the check, too.
        wrong = ops.cast(ops.any(off), "int64")
        return product, _checked(steps, delta, check) + wrong, sure

    return compiled(run)


def _products(h, targets, check, limits):
    """K^T Z of rows in whole steps, K^T (Z r), and which rows are included."""
    bound, largest, least, step = (limits[i] for i in range(4))
    h = ops.cast(h, "float64")
    norms = ops.sqrt(ops.sum(ops.square(h), axis=1))
    # More than twice the distance that two computed norms may have.
    near = (h.shape[1] + 128) * 2.0**-52
    inside = norms < bound * (1 - near)
    outside = (norms > bound * (1 + near)) & (norms < largest * (1 - near))
    shrink = bound * (1 - 1e-15) / ops.where(outside, norms, bound)
    scaled = h / step * ops.expand_dims(ops.where(outside, shrink, 1.0), 1)
    apart = ops.abs(scaled - ops.round(scaled))
    unsure = ops.any(apart < ops.abs(scaled) * (2 * near), axis=1)
    taken = (inside | (outside & ~unsure)) & (ops.min(h, axis=1) >= least)
    rows = ops.where(ops.expand_dims(taken, 1), ops.trunc(scaled), 0.0)
    both = ops.concatenate([rows, targets], axis=1)
    sums = _product(ops.transpose(rows), both)
    return sums, _checked(ops.cast(rows, "int64"), both, check), taken


def _checked(rows, factors, check):
    """K^T (Z r). Integers wrap around: exact modulo 2^64."""
    of_rows = ops.sum(ops.cast(factors, "int64") * check, axis=1)
    return ops.sum(rows * ops.expand_dims(of_rows, 1), axis=0)


def _float64():
    """A scope for float64, which JAX has in a context only."""
    if keras.backend.backend() != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(True)
