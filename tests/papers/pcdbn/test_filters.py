"""Filters from released moments: directions, scales, least energy."""

import numpy as np
import pytest

from keras_fm.kernel import mechanisms
from keras_fm.papers.pcdbn import filters
from keras_fm.papers.pcdbn.patch_moments import PatchMomentRelease
from keras_fm.public import polynomials
from keras_fm.queries import PatchMomentQuery

D, KAPPA, BOUND, Z = 6, 0.7, 2.2, 2.0
# sigma_1 and sigma_3 of sigmoid(5 X), constant first.
LINEAR, CUBIC = (
    [
        a * 5.0**power
        for power, a in enumerate(
            polynomials.chebyshev("sigmoid", degree, 5.0).coefficients
        )
    ]
    for degree in (1, 3)
)


def patches(n=150, positions=5, seed=0):
    """`(n, positions, D)`: no symmetric distribution, longest 2."""
    rng = np.random.default_rng(seed)
    v = rng.uniform(size=(n, positions, D)) * np.linspace(1, 0.1, D)
    far = rng.uniform(size=(n, positions, 1)) < 0.2
    v = v + far * rng.uniform(0, 0.8, v.shape)
    return v / np.maximum(1, np.linalg.norm(v, axis=2, keepdims=True) / 2)


def released(v, order=2, noise=1e-12, seed=0):
    """Moments of these patches under Gaussian noise, if there is any."""
    objective = PatchMomentQuery(
        num_features=v.shape[2] + 1,
        order=order,
        feature_bound=BOUND,
        constant=KAPPA,
    )
    mechanism = mechanisms.GaussianMechanism(
        sensitivity=objective.sensitivity("l2", neighbours="add_remove"),
        noise_multiplier=noise,
    )
    constant = np.full((*v.shape[:2], 1), KAPPA)
    exact = objective.accumulate(
        objective.zero(), np.concatenate([v, constant], axis=2)
    )
    vector = objective.pack(exact, "l2")
    if noise > 1e-9:
        vector = mechanism.perturb(vector, mechanisms.NoiseSource(seed))
    return PatchMomentRelease(
        statistics={"moments": objective.unpack(vector, "l2")[0]},
        query=objective,
        mechanism=mechanism,
        neighbours="add_remove",
        private=False,
    )


def learn(release, count, coefficients=LINEAR, sparsity=1.0, **kwargs):
    return filters.learn(
        release, count, coefficients, Z, sparsity=sparsity, **kwargs
    )


def exact_energy(kernel, mean, v, coefficients=CUBIC):
    """- sum over filters of the mean of x sigma_L(x / Z), from patches."""
    x = (v.reshape(-1, D) - mean) @ kernel
    value = sum(a * (x / Z) ** power for power, a in enumerate(coefficients))
    return -np.sum(np.mean(x * value, axis=0))


# Moments --------------------


@pytest.mark.parametrize("order", [2, 3, 4])
def test_mean_and_covariance_are_those_of_the_patches(order):
    v = patches()
    mean, covariance = filters.centred_moments(released(v, order))
    flat = v.reshape(-1, D)
    np.testing.assert_allclose(mean, flat.mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(
        covariance, np.cov(flat.T, bias=True), atol=1e-10
    )


# Order 2 --------------------


@pytest.mark.parametrize("noise", [1e-12, 1.0])
def test_filters_are_the_principal_directions_of_the_release(noise):
    release = released(patches(), noise=noise)
    second = release.moment(2)
    count = second[-1, -1] / KAPPA**2
    covariance = np.empty((D, D))
    for i in range(D):
        for j in range(D):
            covariance[i, j] = second[i, j] / count - (
                second[i, -1] * second[j, -1] / (KAPPA * count) ** 2
            )
    values = np.linalg.eigvalsh(covariance)[::-1]
    kernel, _ = learn(release, 4, standardize=False)
    np.testing.assert_allclose(kernel.T @ kernel, np.eye(4), atol=1e-10)
    np.testing.assert_allclose(
        covariance @ kernel, kernel * values[:4], atol=1e-8
    )
    # One after the other: no direction orthogonal to those before has more.
    rng = np.random.default_rng(0)
    for k in range(4):
        other = rng.normal(size=(D, 500))
        other -= kernel[:, :k] @ (kernel[:, :k].T @ other)
        other /= np.linalg.norm(other, axis=0)
        found = np.einsum("ik,ij,jk->k", other, covariance, other)
        own = kernel[:, k] @ covariance @ kernel[:, k]
        assert np.all(found <= own + 1e-12) and found.max() > 0.5 * own


@pytest.mark.parametrize("sparsity", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("order, coefficients", [(2, LINEAR), (4, CUBIC)])
def test_responses_have_unit_variance_and_mean_minus_sparsity(
    order, coefficients, sparsity
):
    v = patches()
    release = released(v, order)
    kernel, bias = learn(release, 5, coefficients, sparsity=sparsity)
    x = v.reshape(-1, D) @ kernel + bias
    np.testing.assert_allclose(x.mean(axis=0), -sparsity, atol=1e-8)
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-8)
    # And in the same directions without it.
    plain, offset = learn(
        release, 5, coefficients, sparsity=sparsity, standardize=False
    )
    np.testing.assert_allclose(
        kernel / np.linalg.norm(kernel, axis=0), plain, atol=1e-10
    )
    x = v.reshape(-1, D) @ plain + offset
    np.testing.assert_allclose(
        x.mean(axis=0), -sparsity * x.std(axis=0), atol=1e-8
    )


def test_unit_variance_under_the_released_moments_whatever_the_noise():
    release = released(patches(), noise=0.05)
    mean, covariance = filters.centred_moments(release)
    kernel, bias = learn(release, 3)
    variance = np.einsum("ik,ij,jk->k", kernel, covariance, kernel)
    np.testing.assert_allclose(variance, 1, rtol=1e-9)
    np.testing.assert_allclose(mean @ kernel + bias, -1, rtol=1e-9)


@pytest.mark.parametrize("order, coefficients", [(2, LINEAR), (4, CUBIC)])
def test_more_filters_are_negatives_of_the_first(order, coefficients):
    v = patches()
    release = released(v, order)
    kernel, bias = learn(release, 9, coefficients)
    np.testing.assert_array_equal(kernel[:, 6:], -kernel[:, :3])
    x = v.reshape(-1, D) @ kernel + bias
    np.testing.assert_allclose(x.mean(axis=0), -1, atol=1e-8)
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-8)
    plain, _ = learn(release, 12, coefficients, standardize=False)
    np.testing.assert_allclose(
        plain.T @ plain,
        np.kron([[1, -1], [-1, 1]], np.eye(6)),
        atol=1e-9,
    )


@pytest.mark.parametrize("order, coefficients", [(2, LINEAR), (4, CUBIC)])
def test_signs_do_not_depend_on_the_linear_algebra_library(
    monkeypatch, order, coefficients
):
    release = released(patches(), order)
    kernel, bias = learn(release, 6, coefficients)
    if order == 2:
        largest = np.abs(kernel).argmax(axis=0)
        assert np.all(kernel[largest, np.arange(6)] > 0)
    eigh = np.linalg.eigh

    def flipped(matrix):
        values, vectors = eigh(matrix)
        return values, vectors * [1, -1, -1, 1, -1, 1]

    monkeypatch.setattr(np.linalg, "eigh", flipped)
    again = learn(release, 6, coefficients)
    np.testing.assert_allclose(again[0], kernel, atol=1e-12)
    np.testing.assert_allclose(again[1], bias, atol=1e-12)


def test_variances_below_the_noise_are_not_blown_up():
    release = released(patches(n=5), noise=3.0)
    _, covariance = filters.centred_moments(release)
    # Noise on so few records makes the covariance indefinite.
    assert np.linalg.eigvalsh(covariance)[0] < 0
    kernel, bias = learn(release, 6)
    floor = release.noise_edge() / release.count()
    lengths = np.linalg.norm(kernel, axis=0)
    assert np.all(lengths <= floor**-0.5 * (1 + 1e-9))
    assert lengths[-1] == pytest.approx(floor**-0.5)
    assert np.isfinite(bias).all()


def test_constant_entries_are_no_directions_of_interest():
    """Without noise their variance is rounding, which once was divided by."""
    v = patches()
    v[..., 3:] = 0.25
    kernel, bias = learn(released(v, noise=1e-50), 6)
    variance = v.reshape(-1, D).var(axis=0)[:3].max()
    assert np.linalg.norm(kernel, axis=0).max() < 1e5 / variance**0.5
    assert np.isfinite(bias).all()
    assert np.abs(kernel[3:, :3]).max() < 1e-6


# Order 4: the minimum of the energy --------------------


def projected(kernel, slope):
    inner = kernel.T @ slope
    return slope - kernel @ (inner + inner.T) / 2


def slope_by_differences(kernel, mean, v, step=1e-5):
    slope = np.empty_like(kernel)
    for index in np.ndindex(kernel.shape):
        near = [kernel.copy(), kernel.copy()]
        near[0][index] += step
        near[1][index] -= step
        energies = [exact_energy(k, mean, v) for k in near]
        slope[index] = (energies[0] - energies[1]) / (2 * step)
    return slope


def full(kernel, mean):
    return np.concatenate([kernel, -(mean @ kernel)[None] / KAPPA])


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_without_noise_filters_are_stationary_in_the_exact_energy(count):
    v = patches()
    release = released(v, 4)
    mean, covariance = filters.centred_moments(release)
    start = filters.principal(covariance, count)
    kernel, _ = learn(release, count, CUBIC, standardize=False)
    np.testing.assert_allclose(kernel.T @ kernel, np.eye(count), atol=1e-10)
    lower, upper = (exact_energy(k, mean, v) for k in (kernel, start))
    assert lower < upper - 1e-6
    np.testing.assert_allclose(
        release.energy(full(kernel, mean), CUBIC, Z), lower, rtol=1e-8
    )
    slope = slope_by_differences(kernel, mean, v)
    released_slope = release.energy_gradient(full(kernel, mean), CUBIC, Z)
    released_slope = released_slope[:-1] - (
        np.outer(mean, released_slope[-1]) / KAPPA
    )
    np.testing.assert_allclose(released_slope, slope, atol=1e-8)
    size = np.linalg.norm(slope)
    assert np.linalg.norm(projected(kernel, slope)) < 1e-6 * size
    # Which the start was not.
    slope = slope_by_differences(start, mean, v)
    assert np.linalg.norm(projected(start, slope)) > 1e-4 * size


def test_one_filter_is_the_best_of_all_directions():
    v = patches()
    v[..., 2:] = 0.2
    release = released(v, 4)
    mean, _ = filters.centred_moments(release)
    kernel, _ = learn(release, 1, CUBIC, standardize=False)
    angles = np.linspace(0, np.pi, 2000)
    energies = []
    for angle in angles:
        w = np.zeros((D, 1))
        w[:2, 0] = np.cos(angle), np.sin(angle)
        energies.append(exact_energy(w, mean, v))
    found = exact_energy(kernel, mean, v)
    assert abs(found - min(energies)) < 1e-6
    assert found < np.mean(energies) - 1e-2


@pytest.mark.parametrize("noise", [0.01, 0.3, 10.0])
def test_the_released_energy_never_ends_above_its_start(noise):
    for seed in range(5):
        release = released(patches(n=60, seed=seed), 4, noise, seed)
        mean, covariance = filters.centred_moments(release)
        for count in (1, 3, 6):
            start = filters.principal(covariance, count)
            kernel = filters.descend(release, start, mean, CUBIC, Z)
            np.testing.assert_allclose(
                kernel.T @ kernel, np.eye(count), atol=1e-9
            )
            before, after = (
                release.energy(full(k, mean), CUBIC, Z) for k in (start, kernel)
            )
            assert after <= before
            assert count == 6 or after < before


def test_a_straight_line_needs_no_descent():
    v = patches()
    for order in (2, 4):
        kernel, bias = learn(released(v, order), 4, LINEAR)
        if order == 2:
            wanted = kernel, bias
    np.testing.assert_allclose(kernel, wanted[0], atol=1e-8)
    np.testing.assert_allclose(bias, wanted[1], atol=1e-8)
