"""Filters of a convolutional RBM from a released energy.

Everything here is post-processing of a `PatchMomentRelease`: exact functions
of released moments, public constants and public seeds.

A filter w sees a patch v as x = w . (v - mean): its bias holds the released
mean, so no filter is spent on it. Among filters of unit norm that are
orthogonal to each other, those are taken that minimise the released energy

    E(w) = - mean of x sigma_L(x / Z),

sigma_L a polynomial of degree L = order - 1. With L = 1 only the variance of
x counts, and the minimisers are the principal directions of the patches, one
after the other (deflation); with L = 3 conjugate gradients on orthonormal
matrices go on from there.
"""

import numpy as np

_STEPS = 500
_HALVINGS = 60
_TOLERANCE = 1e-7
_ARMIJO = 0.1
_DOWNHILL = 1e-3


def learn(
    release,
    filters,
    coefficients,
    scale,
    standardize=True,
    sparsity=1.5,
    restarts=0,
    seed=0,
):
    """Filters and biases that minimise a released energy.

    There are as many orthogonal directions as entries in a patch; further
    filters are the negatives of the first ones, whose rectified responses
    are others.

    Args:
        release: a `PatchMomentRelease` of p entries, the last one constant.
        filters: int K.
        coefficients: of the polynomial sigma_L, constant first; its degree
            is at most the released order minus 1.
        scale: Z > 0.
        standardize: whether every filter is divided by the standard
            deviation of its responses (that of the release); else it has
            unit norm.
        sparsity: how many standard deviations above its mean response a
            unit is half active.
        restarts: with L > 1, how many random starts descend beside the
            principal directions, all at once. Those of the lowest released
            energy are kept: a choice by what is released, which reads no
            record and costs no privacy.
        seed: of the random starts, public.

    Returns:
        tuple `(kernel, bias)`: `(p - 1, K)` and `(K,)`.

    Raises:
        ValueError: if there are more than `2 (p - 1)` filters.
    """
    mean, covariance = centred_moments(release)
    size = len(mean)
    if filters > 2 * size:
        raise ValueError(
            f"Patches of {size} entries have {2 * size} filters (orthogonal "
            f"directions and their negatives). Received: filters={filters}"
        )
    count = min(filters, size)
    kernel = principal(covariance, count)
    if release.query.order > 2 and len(coefficients) > 2:
        starts = random_starts(size, count, restarts, seed)
        kernels = np.concatenate([kernel[None], starts])
        kernels = descend(release, kernels, mean, coefficients, scale)
        found = energies(release, kernels, mean, coefficients, scale)
        kernel = kernels[found.argmin()]
    variance = np.einsum("ik,ij,jk->k", kernel, covariance, kernel)
    order = np.argsort(-variance, kind="stable")
    kernel, variance = kernel[:, order], variance[order]
    # A variance below the noise (or rounding) says nothing.
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
    those before it. Signs do not depend on the linear algebra library.
    """
    vectors = np.linalg.eigh(covariance)[1][:, ::-1][:, :count]
    largest = np.abs(vectors).argmax(axis=0)
    return vectors * np.sign(vectors[largest, np.arange(count)])


def random_starts(size, count, restarts, seed):
    """Orthonormal columns, `(restarts, size, count)`, evenly distributed.

    Args:
        size, count: p - 1 and K, see `descend`.
        restarts: how many.
        seed: public.

    Example:

    >>> random_starts(25, 16, restarts=8, seed=0).shape
    (8, 25, 16)
    """
    draw = np.random.default_rng(seed).normal(size=(restarts, size, count))
    columns, triangle = np.linalg.qr(draw)
    return columns * np.sign(np.einsum("rii->ri", triangle))[:, None]


def energies(release, kernels, mean, coefficients, scale):
    """Released energies of filters with the mean in their biases.

    Args:
        kernels: `(r, p - 1, K)`.
        release, mean, coefficients, scale: see `descend`.

    Returns:
        `(r,)` array.

    Example:

    >>> found = descend(release, starts, mean, coefficients, scale)
    >>> energies(release, found, mean, coefficients, scale).argmin()
    """
    filters = _side_by_side(_with_bias(release, kernels, mean))
    found = release.energies(filters, coefficients, scale)
    return found.reshape(len(kernels), -1).sum(axis=1)


def descend(release, kernels, mean, coefficients, scale):
    """Conjugate gradients on the released energy over orthonormal matrices.

    Gradients and directions are projected on the tangent space (Polak and
    Ribiere's choice of direction), a step is brought back by its polar
    factor and halved until the energy falls by enough (Armijo's rule).
    Several starts descend side by side: each as it would alone, by the same
    products of matrices.

    Args:
        kernels: `(p - 1, K)`, orthonormal columns to start from, or
            `(r, p - 1, K)`.
        mean: `(p - 1,)` of the patches.
        release, coefficients, scale: see `learn`.

    Returns:
        of the shape of `kernels`, orthonormal columns of no larger energy.
    """
    kernels = np.array(kernels, np.float64)
    if kernels.ndim == 2:
        (found,) = descend(release, kernels[None], mean, coefficients, scale)
        return found

    def energy(stack):
        return energies(release, stack, mean, coefficients, scale)

    def slope(stack):
        filters = _side_by_side(_with_bias(release, stack, mean))
        found = release.energy_gradient(filters, coefficients, scale)
        found = found.reshape(len(found), len(stack), -1).transpose(1, 0, 2)
        # The bias follows the filter.
        last = found[:, -1:] / release.query.constant
        return found[:, :-1] - mean[:, None] * last

    values, steps = energy(kernels), np.ones(len(kernels))
    last, direction = np.zeros_like(kernels), np.zeros_like(kernels)
    fresh = np.ones(len(kernels), bool)
    running = np.arange(len(kernels))
    for _ in range(_STEPS):
        whole = slope(kernels[running])
        gradient = _tangent(kernels[running], whole)
        length = np.sqrt(_inner(gradient, gradient))
        size = np.sqrt(_inner(whole, whole))
        going = length > _TOLERANCE * np.maximum(1e-300, size)
        running, gradient = running[going], gradient[going]
        length = length[going]
        if not len(running):
            break
        here, before = kernels[running], last[running]
        turn = _inner(gradient, gradient - _tangent(here, before))
        turn = turn / np.where(fresh[running], 1, _inner(before, before))
        conjugate = np.where(fresh[running], 0, np.maximum(0, turn))
        ahead = conjugate[:, None, None] * _tangent(here, direction[running])
        ahead -= gradient
        # Downhill by enough, or start again.
        steep = _DOWNHILL * length * np.sqrt(_inner(ahead, ahead))
        again = -_inner(ahead, gradient) < steep
        ahead[again] = -gradient[again]
        direction[running] = ahead
        rate = -_inner(ahead, gradient)
        steps[running] *= 2

        # Positions in `running` whose step is still too long.
        seeking = np.arange(len(running))
        for _ in range(_HALVINGS):
            where = running[seeking]
            step = steps[where, None, None]
            moved = here[seeking] + step * ahead[seeking]
            left, _, right = np.linalg.svd(moved, full_matrices=False)
            moved = left @ right
            found = energy(moved)
            target = values[where] - _ARMIJO * steps[where] * rate[seeking]
            low = found <= target
            kernels[where[low]], values[where[low]] = moved[low], found[low]
            seeking = seeking[~low]
            if not len(seeking):
                break
            steps[running[seeking]] /= 2
        last[running], fresh[running] = gradient, False
        # No step goes down any more.
        running = np.delete(running, seeking)
        if not len(running):
            break
    return kernels


def _with_bias(release, kernels, mean):
    bias = -(mean @ kernels)[:, None] / release.query.constant
    return np.concatenate([kernels, bias], axis=1)


def _side_by_side(stack):
    """`(r, p, K)` as the columns of one matrix, `(p, r K)`."""
    return stack.transpose(1, 0, 2).reshape(stack.shape[1], -1)


def _inner(one, other):
    return np.einsum("rij,rij->r", one, other)


def _tangent(kernels, matrices):
    inner = kernels.transpose(0, 2, 1) @ matrices
    return matrices - kernels @ (inner + inner.transpose(0, 2, 1)) / 2
