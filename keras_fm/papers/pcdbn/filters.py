"""Filters of a convolutional RBM from a released energy.

A release is a noisy statistic of the records. All functions here post-process
a `PatchMomentRelease`: they use only released moments and public constants,
and cost no more budget.

A filter w maps a patch v to x = w . (v - mean). Its bias holds the released
mean, so that no filter is used for the mean. The filters have unit norm, are
orthogonal to each other, and minimise the released energy

    E(w) = - mean of x sigma_L(x / Z),

with sigma_L a polynomial of degree L = order - 1. With L = 1 only the
variance of x counts. The minimisers are then the principal directions of the
patches, one after the other (deflation). With L = 3 conjugate gradients on
orthonormal matrices continue from there.
"""

import numpy as np

from keras_fm.core.second_moment import signed

__all__ = ["centred_moments", "learn"]

_STEPS = 500
_HALVINGS = 60
_TOLERANCE = 1e-7
_ARMIJO = 0.1
_DOWNHILL = 1e-3


def learn(
    release, filters, coefficients, scale, standardize=True, sparsity=1.5
):
    """Filters and biases that minimise a released energy.

    There are as many orthogonal directions as entries in a patch. Further
    filters are the negatives of the first ones: their rectified responses
    differ.

    Args:
        release: a `PatchMomentRelease` of p entries, the last one constant.
        filters: int K, at most `2 (p - 1)`.
        coefficients: of the polynomial sigma_L, constant first; its degree
            is at most the released order minus 1.
        scale: Z > 0.
        standardize: `True` divides every filter by the standard deviation
            of its responses, as released; `False` keeps unit norm.
        sparsity: a unit is half active this many standard deviations above
            its mean response.

    Returns:
        tuple `(kernel, bias)`: `(p - 1, K)` and `(K,)`.
    """
    mean, covariance = centred_moments(release)
    size = len(mean)
    count = min(filters, size)
    kernel = principal(covariance, count)
    if release.query.order > 2 and len(coefficients) > 2:
        kernel = descend(release, kernel, mean, coefficients, scale)
    variance = np.einsum("ik,ij,jk->k", kernel, covariance, kernel)
    order = np.argsort(-variance, kind="stable")
    kernel, variance = kernel[:, order], variance[order]
    # A variance below the noise (or rounding) carries no information.
    floor = max(
        release.noise_edge() / release.count(),
        variance.max(initial=0.0) * 1e-9,
        np.finfo(float).tiny,
    )
    deviation = np.sqrt(np.maximum(variance, floor))
    kernel = np.concatenate([kernel, -kernel[:, : filters - count]], axis=1)
    deviation = np.concatenate([deviation, deviation[: filters - count]])
    bias = -mean @ kernel - sparsity * deviation
    if standardize:
        kernel, bias = kernel / deviation, bias / deviation
    return kernel, bias


def centred_moments(release):
    """Mean and covariance of patches, averaged over records and positions.

    Returns:
        tuple `(mean, covariance)`: `(p - 1,)` and `(p - 1, p - 1)`.
    """
    constant, count = release.query.constant, release.count()
    second = release.moment(2)
    mean = second[:-1, -1] / constant / count
    return mean, second[:-1, :-1] / count - np.outer(mean, mean)


def principal(covariance, count):
    """The `count` orthonormal columns of largest variance.

    Each minimises the energy of degree 2 among the directions orthogonal to
    the previous ones. Signs do not depend on the linear algebra library.
    """
    return signed(np.linalg.eigh(covariance)[1][:, ::-1][:, :count])


def descend(release, kernel, mean, coefficients, scale):
    """Conjugate gradients on the released energy over orthonormal matrices.

    Gradients and directions are projected on the tangent space (Polak and
    Ribiere's choice of direction). A step ends at its polar factor, which is
    orthonormal, and is halved until the energy falls enough (Armijo's rule).

    Args:
        kernel: `(p - 1, K)`, orthonormal columns to start from.
        mean: `(p - 1,)` of the patches.
        release, coefficients, scale: see `learn`.

    Returns:
        of the shape of `kernel`, orthonormal columns of no larger energy.
    """
    kernel = np.array(kernel, np.float64)

    def with_bias(kernel):
        bias = -(mean @ kernel) / release.query.constant
        return np.concatenate([kernel, bias[None]])

    def energy(kernel):
        return release.energy(with_bias(kernel), coefficients, scale)

    def slope(kernel):
        found = release.energy_gradient(with_bias(kernel), coefficients, scale)
        # The bias follows the filter.
        return found[:-1] - np.outer(mean, found[-1] / release.query.constant)

    value, step, last, direction = energy(kernel), 1.0, None, None
    for _ in range(_STEPS):
        whole = slope(kernel)
        gradient = _tangent(kernel, whole)
        length = np.linalg.norm(gradient)
        if length <= _TOLERANCE * max(1e-300, np.linalg.norm(whole)):
            break
        ahead = -gradient
        if last is not None:
            turn = np.vdot(gradient, gradient - _tangent(kernel, last))
            turn = max(0.0, turn / np.vdot(last, last))
            conjugate = ahead + turn * _tangent(kernel, direction)
            # Restart if the direction is not steep enough.
            steep = _DOWNHILL * length * np.linalg.norm(conjugate)
            if -np.vdot(conjugate, gradient) >= steep:
                ahead = conjugate
        rate = -np.vdot(ahead, gradient)
        step *= 2
        for _ in range(_HALVINGS):
            left, _, right = np.linalg.svd(
                kernel + step * ahead, full_matrices=False
            )
            moved = left @ right
            found = energy(moved)
            if found <= value - _ARMIJO * step * rate:
                break
            step /= 2
        else:
            # No step lowers the energy any more.
            break
        kernel, value = moved, found
        last, direction = gradient, ahead
    return kernel


def _tangent(kernel, matrix):
    inner = kernel.T @ matrix
    return matrix - kernel @ (inner + inner.T) / 2
