"""Sums of per-record coefficients, each record clipped on its own.

The Frobenius norm of a record's coefficients of one layer and one order
follows from their factors. A factor per record scales them to at most a
threshold. Only the sum over records is ever formed, never the coefficients of
one record.
"""

import math

from keras import ops

from keras_fm.per_example.affine_maps import UNDERFLOW, scaled, without

# Below the threshold by more than the rounding of a float32 norm.
_MARGIN = 1 - 1e-4
_TINY = 1e-30


def norms(stage, meeting):
    """`(n,)` norms of the first-order coefficients. A record whose inputs or
    derivatives are not numbers has a norm that is not a number."""
    return ops.sqrt(stage.map.squared_norm(meeting.inputs, meeting.delta))


def second_norms(stage, meeting):
    """`(n,)` Frobenius norms of the second-order coefficients."""
    squared = ops.sum(ops.square(meeting.curvature), axis=1) + UNDERFLOW
    return ops.sqrt(squared) * stage.map.squared_inputs(meeting.inputs)


def factors(lengths, weights, threshold):
    """`(n,)` scale of every record, and whether the record is counted.

    Args:
        lengths: `(n,)` norms before clipping.
        weights: `(n,)` weights of records.
        threshold: float, or `None` for no clipping.
    """
    if threshold is None:
        return weights, weights != 0
    kept = ops.logical_and(weights > 0, ops.isfinite(lengths))
    scale = threshold * _MARGIN / ops.maximum(lengths, _TINY)
    return weights * ops.minimum(scale, 1.0), kept


def first_order(stage, meeting, weights, threshold):
    """Sum of `delta [inputs; 1]^T`, in the shapes of the layer's weights.

    Args:
        stage: a `Stage`.
        meeting: its `Meeting`.
        weights: `(n,)` weights of records.
        threshold: float, bound on the norm of a record, or `None`.

    Returns:
        list of tensors.
    """
    squared, measures = stage.map.measured(meeting.inputs, meeting.delta)
    scale, kept = factors(ops.sqrt(squared), weights, threshold)
    return stage.map.sums_of(*without((measures, scale), kept))


def second_order(stage, meeting, weights, threshold):
    """Sum of `c_h [inputs; 1] [inputs; 1]^T` for every unit h.

    Returns:
        tensor `(units, m, m)`.
    """
    lengths = None if threshold is None else second_norms(stage, meeting)
    scale, kept = factors(lengths, weights, threshold)
    inputs, curved, scale = without(
        (meeting.inputs, meeting.curvature, scale), kept
    )
    inputs, curved = stage.map.augmented(inputs), scaled(curved, scale)

    # One unit at a time: the largest array is then batch x m.
    def of_unit(column):
        weighted = inputs * ops.expand_dims(column, 1)
        return ops.matmul(ops.transpose(weighted), inputs)

    return ops.map(of_unit, ops.transpose(curved))


def newton_direction(first, second, noise, damping):
    """`(C_h + ridge)^-1 b_h` for every unit: a step of rate 1 subtracts it.

    C_h is projected to the positive semi-definite matrices. The ridge is
    `damping` plus half the spectral edge of the noise on C_h.

    Args:
        first: list `[kernel]` or `[kernel, bias]`, the b_h in columns.
        second: `(units, m, m)` in the same scale.
        noise: float, standard deviation of a diagonal entry of `second`.
        damping: float > 0.

    Returns:
        list like `first`.
    """
    columns = first[0]
    if len(first) > 1:
        columns = ops.concatenate([columns, ops.expand_dims(first[1], 0)])
    size = columns.shape[0]
    # TensorFlow ends the program if a decomposition does not exist.
    finite = ops.all(ops.isfinite(second))
    second = ops.where(finite, second, ops.zeros_like(second))
    # One matrix at a time: on a CPU, JAX splits a stack among threads that its
    # other steps may hold, and then waits for ever.
    values, vectors = ops.map(ops.linalg.eigh, second)
    values = ops.maximum(values, 0.0)
    ridge = damping + noise * math.sqrt(2 * size) / 2
    columns = ops.expand_dims(ops.transpose(columns), 2)
    rotated = ops.matmul(ops.transpose(vectors, (0, 2, 1)), columns)
    solved = ops.matmul(vectors, rotated / ops.expand_dims(values + ridge, 2))
    solved = ops.transpose(solved[:, :, 0])
    solved = ops.where(finite, solved, float("nan"))
    if len(first) == 1:
        return [solved]
    return [solved[:-1], solved[-1]]
