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
    curved = ops.stop_gradient(ops.einsum("jab,bj->aj", quadratic, weights))
    square = ops.sum(weights * curved)
    return ops.sum(linear * weights) + 2 * square - ops.stop_gradient(square)
