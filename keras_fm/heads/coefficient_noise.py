"""Published noise on the coefficients of a quadratic objective."""

import numpy as np
from keras import ops


def symmetric(quadratic):
    """The symmetric part of `(M, m, m)` noise N: w^T N w depends on no more.
    NumPy."""
    quadratic = np.asarray(quadratic)
    return (quadratic + np.swapaxes(quadratic, 1, 2)) / 2


def loss(weights, linear, quadratic):
    """`<N1, W> + sum_j w_j^T N2_j w_j`, w_j the columns of W.

    Args:
        weights: `(m, M)` tensor.
        linear: `(m, M)` noise.
        quadratic: `(M, m, m)` noise, symmetric, so that one product gives
            both value and gradient.
    """
    # Rows before matrices: TensorFlow takes twice as long for columns behind.
    rows = ops.expand_dims(ops.transpose(weights), axis=1)
    curved = ops.stop_gradient(ops.matmul(rows, quadratic))
    square = ops.sum(rows * curved)
    return ops.sum(linear * weights) + 2 * square - ops.stop_gradient(square)
