"""A released second moment: moments, directions and synthetic records.

Statistical tests state their false-alarm rates.
"""

import math

import made_release
import numpy as np
import pytest
from scipy import stats

from keras_fm import queries
from keras_fm.core.second_moment import SecondMomentRelease
from keras_fm.kernel.mechanisms import GaussianMechanism, NoiseSource

DELTA = 1e-5
CONSTANT = 0.4
BOUND = 3.0


def some_records(n=400, d=5, seed=0):
    """Correlated records with a mean, inside a ball of radius 2.5."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(d, d)) * np.linspace(1.0, 0.2, d)
    x = 0.25 * rng.normal(size=(n, d)) @ mixing.T + np.linspace(-0.3, 0.3, d)
    return x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True) / 2.5)


def augmented(x):
    return np.concatenate([x, np.full((len(x), 1), CONSTANT)], axis=1)


def make_release(
    batches, d=5, epsilon=1.0, delta=DELTA, noise=None, **objective_arguments
):
    objective = queries.SecondMomentQuery(
        num_features=d + 1, feature_bound=BOUND, **objective_arguments
    )
    return made_release.make_release(
        objective, batches, epsilon, delta, noise=noise or NoiseSource(1)
    )


def of_matrix(quadratic):
    """A release whose noisy A is this matrix."""
    m = len(quadratic)
    return SecondMomentRelease(
        statistics={"quadratic": np.asarray(quadratic, float)},
        query=queries.SecondMomentQuery(num_features=m),
        mechanism=GaussianMechanism(sensitivity=1.0, noise_multiplier=1e-3),
        neighbours="add_remove",
        private=True,
    )


def indefinite(d=6, seed=0, count=50.0):
    """A symmetric matrix with eigenvalues of both signs and a fair count."""
    a = np.random.default_rng(seed).normal(size=(d + 1, d + 1))
    a = 3 * (a + a.T)
    a[-1, -1] = count * CONSTANT**2
    return a


# Moments ------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, DELTA])
def test_at_a_huge_epsilon_the_moments_are_those_of_the_data(delta):
    x = some_records()
    made = make_release([(augmented(x),)], epsilon=1e6, delta=delta)
    mean, covariance, count = made.moments(CONSTANT)
    assert count == pytest.approx(len(x), abs=0.3)
    np.testing.assert_allclose(mean, x.mean(axis=0), atol=5e-4)
    np.testing.assert_allclose(covariance, np.cov(x.T, bias=True), atol=5e-4)
    np.testing.assert_array_equal(covariance, covariance.T)


@pytest.mark.parametrize("seed", range(4))
def test_of_pure_noise_the_count_is_at_least_one(seed):
    made = make_release([], noise=NoiseSource(seed))
    mean, covariance, count = made.moments(CONSTANT)
    assert count >= 1
    if made.quadratic[-1, -1] < CONSTANT**2:
        assert count == 1
    assert np.all(np.isfinite(mean)) and np.all(np.isfinite(covariance))
    _, directions, variances = made.principal(5, CONSTANT)
    np.testing.assert_allclose(directions.T @ directions, np.eye(5), atol=1e-12)
    assert np.all(variances > 0)
    assert np.all(np.isfinite(made.gaussian_records(10, CONSTANT)))


# Principal directions -----------------------------------------------------


@pytest.mark.parametrize("units", [1, 3, 6])
def test_principal_directions_are_orthonormal_and_sorted(units):
    made = of_matrix(indefinite())
    mean, directions, variances = made.principal(units, CONSTANT)
    assert directions.shape == (6, units) and variances.shape == (units,)
    np.testing.assert_allclose(
        directions.T @ directions, np.eye(units), atol=1e-12
    )
    assert np.all(np.diff(variances) <= 0)
    np.testing.assert_array_equal(mean, made.moments(CONSTANT)[0])
    covariance = made.moments(CONSTANT)[1]
    values = np.linalg.eigvalsh(covariance)[::-1][:units]
    above = variances > made.noise_edge() / made.moments(CONSTANT)[2]
    assert above.any()
    np.testing.assert_allclose(variances[above], values[above])
    np.testing.assert_allclose(
        covariance @ directions, directions * values, atol=1e-12
    )


def test_variances_have_a_positive_floor_at_the_noise():
    made = make_release([(augmented(some_records(n=30)),)], epsilon=0.5)
    _, _, variances = made.principal(5, CONSTANT)
    covariance, count = made.moments(CONSTANT)[1:]
    floor = made.noise_edge() / count
    # The noise must have made a variance negative, or nothing is tested.
    assert np.linalg.eigvalsh(covariance).min() < 0
    assert variances.min() == pytest.approx(floor)
    # Without noise and without records it is still positive.
    zero = of_matrix(np.zeros((3, 3))).principal(2, CONSTANT)[2]
    assert np.all(zero > 0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("units", [1, 2, 5])
def test_directions_minimise_the_released_error_of_any_matrix(units, seed):
    """docs/proofs/reconstruction.md, proposition 2 (b): against random
    encoders and offsets, and against small rotations of the answer."""
    a = indefinite(seed=seed)
    made = of_matrix(a)
    mean, directions, _ = made.principal(units, CONSTANT)
    assert np.linalg.eigvalsh(made.moments(CONSTANT)[1]).min() < 0

    def error(encoder, offset):
        projection = encoder @ encoder.T
        e = np.column_stack([np.eye(6) - projection, -offset / CONSTANT])
        return np.trace(e @ a @ e.T) / 2

    through_mean = mean - directions @ (directions.T @ mean)
    best = error(directions, through_mean)
    rng = np.random.default_rng(seed)
    for size in (0.01, 0.3, 10.0):
        for _ in range(30):
            moved = directions + size * rng.normal(size=directions.shape)
            encoder = np.linalg.qr(moved)[0]
            offset = mean - encoder @ (encoder.T @ mean)
            assert error(encoder, offset) > best
            other = through_mean + size * rng.normal(size=6)
            assert error(directions, other) > best


# Synthetic records --------------------------------------------------------


def test_gaussian_records_have_the_released_moments():
    """Each of 5 means and 15 covariances within 5 standard errors: a false
    alarm once in 80,000 runs with a fresh seed."""
    made = make_release([(augmented(some_records()),)], epsilon=50.0)
    mean, covariance, _ = made.moments(CONSTANT)
    values, vectors = np.linalg.eigh(covariance)
    covariance = (vectors * np.maximum(values, 0)) @ vectors.T
    n = 20_000
    x = made.gaussian_records(n, CONSTANT, seed=3)
    assert x.shape == (n, 5)
    scale = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(x.mean(axis=0) - mean) <= 5 * scale / math.sqrt(n))
    errors = np.sqrt((np.outer(scale, scale) ** 2 + covariance**2) / n)
    found = np.cov(x.T)
    assert np.all(np.abs(found - covariance) <= 5 * errors)
    # The test would notice a covariance that is a tenth too large.
    assert np.any(np.abs(1.1 * found - covariance) > 5 * errors)


def test_gaussian_records_are_gaussian():
    """Kolmogorov-Smirnov: a false alarm once in 10,000 runs with a fresh
    seed, while a Laplace distribution of this scale is rejected."""
    made = make_release([(augmented(some_records()),)], epsilon=50.0)
    mean, covariance, _ = made.moments(CONSTANT)
    x = made.gaussian_records(4000, CONSTANT, seed=4)[:, 0]
    z = (x - mean[0]) / math.sqrt(covariance[0, 0])
    assert stats.kstest(z, stats.norm.cdf).pvalue > 1e-4
    heavy = stats.laplace(scale=math.sqrt(0.5))
    assert stats.kstest(z, heavy.cdf).pvalue < 1e-6


def test_directions_of_negative_variance_stay_at_the_mean():
    a = np.diag([4.0, -3.0, CONSTANT**2])
    x = of_matrix(a).gaussian_records(100, CONSTANT)
    np.testing.assert_array_equal(x[:, 1], 0.0)
    assert x[:, 0].std() > 1


# Files --------------------------------------------------------------------
