"""Noise has the stated law, and costs what is stated.

The Kolmogorov-Smirnov tests accept at p > 1e-4: with fixed seeds they are
repeatable, and a fresh seed would fail by chance once in 10,000 runs. The
same samples must reject 2/3 and 3/2 of the scale at p < 1e-6.
"""

import copy
import dataclasses
import functools
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize, stats

from keras_fm.kernel import compose, lattice_noise, mechanisms
from keras_fm.kernel.mechanisms import (
    GaussianMechanism,
    LaplaceMechanism,
    NoiseSource,
    SampledGaussianMechanism,
    compose_epsilon,
)

DELTA = 1e-5
# An accountant never goes below the exact epsilon but by rounding.
BELOW = 1 - 1e-9
ADDITIVE = [
    GaussianMechanism(sensitivity=0.7, noise_multiplier=3.0),
    LaplaceMechanism(sensitivity=0.7, epsilon=0.4),
]


def named(mechanism):
    return type(mechanism).__name__


def assert_scale(sample, distribution, scale):
    """Accepts `scale` and rejects 2/3 and 3/2 of it."""
    accepted = stats.kstest(sample, distribution(scale).cdf).pvalue
    assert accepted > 1e-4
    for factor in (2 / 3, 3 / 2):
        wrong = stats.kstest(sample, distribution(factor * scale).cdf)
        assert wrong.pvalue < 1e-6, factor


# The law of the noise -------------------------------------------------------


def test_gaussian_noise():
    mechanism = ADDITIVE[0]
    sample = mechanism.perturb(np.zeros(4000), NoiseSource(1))
    assert_scale(sample, lambda s: stats.norm(scale=s), 2.1)
    assert mechanism.stddev == pytest.approx(2.1)


def test_laplace_noise():
    mechanism = ADDITIVE[1]
    sample = mechanism.perturb(np.zeros(4000), NoiseSource(2))
    assert_scale(sample, lambda s: stats.laplace(scale=s), 1.75)
    assert mechanism.scale == pytest.approx(1.75)


@pytest.mark.parametrize("mechanism", ADDITIVE, ids=named)
def test_coordinates_are_centred_with_the_stated_variance(mechanism):
    source = NoiseSource(5)
    draws = mechanism.perturb(np.zeros((20000, 5)), source)
    variance = mechanism.coordinate_variance(5)
    # Five standard errors: by chance in fewer than one of a million runs.
    assert abs(draws.mean()) < 5 * math.sqrt(variance / draws.size)
    covariance = np.cov(draws.T) / variance
    np.testing.assert_allclose(covariance, np.eye(5), atol=0.12)


# The lattice -----------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ADDITIVE, ids=named)
@pytest.mark.parametrize("size, error", [(1, 0.0), (900, 0.0), (900, 0.35)])
def test_noise_covers_rounding_and_the_error_of_the_sum(mechanism, size, error):
    """The scale in steps, in rational numbers: nothing is left uncovered,
    and little is wasted."""
    release = mechanism.lattice_release(size, error)
    # What two neighbours' rounded vectors may be apart, from the definition.
    apart = (Fraction(0.7) + 2 * Fraction(error)) / Fraction(
        release.lattice.step
    )
    if mechanism.norm == "l1":
        needed = math.floor(apart + size) / Fraction(0.4)
        made = release.sampler.scale
        assert made >= needed
    else:
        # A root that is rounded up; compared by squares.
        needed = Fraction(3) ** 2 * math.floor(
            (apart + lattice_noise._root_above(size)) ** 2
        )
        made = release.sampler.variance_parameter
        assert made >= needed + 4
        needed, made = math.sqrt(needed), math.sqrt(made)
    wasted = (
        float(made * Fraction(release.lattice.step))
        if (mechanism.norm == "l1")
        else made * release.lattice.step
    )
    ideal = (0.7 + 2 * error) * (3.0 if mechanism.norm == "l2" else 2.5)
    assert ideal < wasted < ideal * (1 + 2**-13)


@pytest.mark.parametrize("mechanism", ADDITIVE, ids=named)
def test_perturbed_values_are_on_the_lattice(mechanism):
    release = mechanism.lattice_release(40)
    exact = np.random.default_rng(3).normal(0, 50, (25, 40))
    noisy = mechanism.perturb(exact, NoiseSource(4))
    assert noisy.shape == exact.shape and noisy.dtype == np.float64
    np.testing.assert_array_equal(noisy % release.lattice.step, 0)
    # The same words, the same integers: only the statistic moves.
    noise = mechanism.perturb(np.zeros((25, 40)), NoiseSource(4))
    assert np.abs(noisy - noise - exact).max() <= release.lattice.step / 2


def test_the_lattice_is_fine_compared_to_little_noise():
    """Rounding is below 2^-14 of the noise too, at any epsilon."""
    for mechanism, scale in (
        (GaussianMechanism(sensitivity=1.0, noise_multiplier=1e-4), 1e-4),
        (LaplaceMechanism(sensitivity=1.0, epsilon=1e4), 1e-4),
    ):
        step = mechanism.lattice_release(100).lattice.step
        assert 10 * step <= 2**-14 * scale
        sample = mechanism.perturb(np.zeros(2000), NoiseSource(5))
        assert (
            0.8
            < np.std(sample) / math.sqrt(mechanism.coordinate_variance(1))
            < 1.2
        )


def test_a_lattice_that_integers_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="below 2\\*\\*50 steps"):
        LaplaceMechanism(sensitivity=1.0, epsilon=1e-12).lattice_release(10**6)


def test_what_is_paid_for_the_lattice_is_enough():
    """For a million releases of 2^40 numbers each, more than any machine."""
    paid = compose._lattice_cost([ADDITIVE[0]] * 3)
    assert 2**20 * lattice_noise.log_ratio(2**40) < paid == 2**-50
    assert compose._lattice_cost([sampled(steps=2**20)]) == paid
    assert compose._lattice_cost([sampled(steps=2**21)]) == 2 * paid
    assert compose._lattice_cost([ADDITIVE[1]]) == 0


@pytest.mark.parametrize("multiplier", [0.6, 4.0])
def test_epsilon_and_delta_pay_for_the_lattice(multiplier):
    """The corollary: epsilon + 2 eta at exp(eta) delta."""
    mechanism = GaussianMechanism(sensitivity=1.0, noise_multiplier=multiplier)
    made = compose_epsilon([mechanism], 0.01)
    left = 0.01 * (1 - 2**-50)
    assert math.exp(2**-50) * left <= 0.01
    continuous = compose.gaussian_epsilon(multiplier, left)
    assert made == continuous + 2**-49


# Privacy --------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 40])
def test_laplace_mechanism_bounds_the_privacy_loss(size):
    mechanism = ADDITIVE[1]
    source, rng = NoiseSource(8), np.random.default_rng(9)
    law, worst = stats.laplace(scale=mechanism.scale), 0.0
    for z in mechanism.perturb(np.zeros((300, size)), source):
        move = rng.laplace(size=size) ** 3
        move *= 0.7 / np.abs(move).sum()
        losses = law.logpdf(z) - law.logpdf(z - move)
        worst = max(worst, abs(losses.sum()))
    assert 0.9 * mechanism.epsilon < worst <= mechanism.epsilon * (1 + 1e-9)


def analytic_delta(epsilon, multiplier):
    """Balle and Wang (2018), theorem 8, sensitivity one."""
    half, shift = 1 / (2 * multiplier), epsilon * multiplier
    tail = math.exp(epsilon + stats.norm.logcdf(-half - shift))
    return stats.norm.cdf(half - shift) - tail


def analytic_epsilon(multiplier, delta):
    return optimize.brentq(
        lambda e: analytic_delta(e, multiplier) - delta, 0, 1e7, xtol=1e-12
    )


def analytic_multiplier(epsilon, delta):
    return optimize.brentq(
        lambda s: analytic_delta(epsilon, s) - delta, 1e-3, 1e3, xtol=1e-13
    )


@pytest.mark.parametrize(
    "epsilon, golden",
    [(0.25, 13.29), (0.5, 7.03), (1.0, 3.73), (2.0, 1.99), (8.0, 0.600)],
)
def test_gaussian_multiplier(epsilon, golden):
    made = mechanisms.gaussian_multiplier(epsilon, DELTA)
    assert made == pytest.approx(golden, abs=0.0051)
    exact = analytic_multiplier(epsilon, DELTA)
    # Never below the exact one, which is the smallest that is private.
    assert exact * BELOW <= made <= exact * (1 + 1e-3)


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0])
def test_epsilon_of_gaussians(multiplier):
    # The sensitivity is in the multiplier already: it must not matter.
    for sensitivity in (0.01, 1.0, 300.0):
        mechanism = GaussianMechanism(
            sensitivity=sensitivity, noise_multiplier=multiplier
        )
        exact = analytic_epsilon(multiplier, DELTA)
        made = compose_epsilon([mechanism], DELTA, scale=exact)
        assert exact * BELOW <= made <= exact * (1 + 1e-3)
    exact = analytic_epsilon(multiplier / math.sqrt(3), DELTA)
    made = compose_epsilon([mechanism] * 3, DELTA, scale=exact)
    assert exact * BELOW <= made <= exact * (1 + 1e-3)


@pytest.mark.parametrize("multiplier", [1e-3, 0.05, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("delta", [1e-2, 1e-8, 1e-40])
def test_the_closed_form_of_gaussians_is_rounded_up(multiplier, delta):
    mpmath = pytest.importorskip("mpmath")
    mechanism = GaussianMechanism(sensitivity=1.0, noise_multiplier=multiplier)
    made = compose_epsilon([mechanism], delta)

    def exact(epsilon):
        half, far = 1 / mpmath.mpf(2 * multiplier), epsilon * multiplier
        below = mpmath.exp(epsilon) * mpmath.ncdf(-half - far)
        return mpmath.ncdf(half - far) - below

    with mpmath.workdps(40):
        epsilon = mpmath.mpf(made)
        assert exact(epsilon) <= delta
        assert made < 1e-12 or exact(epsilon * (1 - 1e-6)) > delta


def test_pure_epsilons_add_up():
    parts = [
        LaplaceMechanism(sensitivity=3.0, epsilon=e) for e in (0.1, 0.7, 1.5)
    ]
    assert compose_epsilon(parts[:1], 0.0) == 0.1
    assert compose_epsilon(parts, 0.0) == pytest.approx(2.3, rel=1e-15)


def test_one_pure_mechanism_with_a_delta():
    """Randomised response: delta = (e^e0 - e^e) / (1 + e^e0)."""
    part = LaplaceMechanism(sensitivity=1.0, epsilon=0.5)
    delta, top = 0.01, math.exp(0.5)
    exact = math.log(top - delta * (1 + top))
    made = compose_epsilon([part], delta, scale=0.5)
    assert exact * BELOW <= made <= exact + 1e-4
    assert made < 0.5


def test_many_pure_mechanisms_gain_from_a_delta():
    """Against the optimal composition of Kairouz, Oh and Viswanath (2015)."""
    epsilon, count = 0.1, 20
    flip = 1 / (1 + math.exp(epsilon))
    wins = np.arange(count + 1)
    losses = epsilon * (count - 2 * wins)
    mass = stats.binom(count, flip).pmf(wins)

    def delta_of(e):
        return np.sum(mass * np.maximum(0, 1 - np.exp(e - losses)))

    exact = optimize.brentq(lambda e: delta_of(e) - DELTA, 0, 2)
    parts = [LaplaceMechanism(sensitivity=1.0, epsilon=epsilon)] * count
    made = compose_epsilon(parts, DELTA, scale=exact)
    # Each of the 20 privacy losses is rounded up by at most 1e-4 of `scale`.
    assert exact * BELOW <= made <= exact * (1 + 20e-4)
    assert made < 0.9 * count * epsilon


def test_far_too_little_noise_is_still_accounted():
    """A refusal must not need more memory than a release."""
    parts = [GaussianMechanism(sensitivity=1.0, noise_multiplier=1e-3)]
    made = compose_epsilon(parts, DELTA, scale=0.1)
    exact = analytic_epsilon(1e-3, DELTA)
    assert exact * BELOW <= made <= exact * 1.001
    parts = [LaplaceMechanism(sensitivity=1.0, epsilon=500.0)] * 2
    assert 500 < compose_epsilon(parts, DELTA, scale=0.1) <= 1000


def sampled(**changes):
    return SampledGaussianMechanism(
        **{
            "sensitivity": 1.0,
            "noise_multiplier": 1.0,
            "sampling_rate": 0.01,
            "steps": 100,
            **changes,
        }
    )


def test_parts_of_a_run_cost_what_the_run_costs():
    parts = [sampled(steps=30), sampled(steps=70, sensitivity=9.0)]
    made = compose_epsilon(parts, DELTA)
    assert made == compose_epsilon([sampled()], DELTA)
    # Full batches are Gaussians, whatever stands beside them.
    full = sampled(sampling_rate=1.0, steps=9, noise_multiplier=6.0)
    gaussian = GaussianMechanism(sensitivity=1.0, noise_multiplier=2.0)
    pure = LaplaceMechanism(sensitivity=1.0, epsilon=0.3)
    for others in ([], parts, [pure]):
        one = compose_epsilon([full, *others], DELTA)
        assert one == compose_epsilon([*others, gaussian], DELTA), others


# Overflowing buffers --------------------------------------------------------

MIXTURES = {
    "sampled": [sampled()],
    "with a Gaussian": [
        sampled(noise_multiplier=2.0, sampling_rate=0.05),
        GaussianMechanism(sensitivity=1.0, noise_multiplier=4.0),
    ],
    "with a pure one": [
        sampled(),
        LaplaceMechanism(sensitivity=1.0, epsilon=0.5),
    ],
    "two buffers": [sampled(), sampled(sampling_rate=0.02, steps=30)],
}


@functools.lru_cache
def composed(parts):
    """Composed here, on a grid not coarser than that of scale 2."""
    plds = [m.loss_distribution(2e-4) for m in parts]
    return functools.reduce(lambda p, q: p.compose(q), plds)


def with_overflow(parts, probability):
    return tuple(
        dataclasses.replace(m, overflow_probability=probability)
        if isinstance(m, SampledGaussianMechanism)
        else m
        for m in parts
    )


@pytest.mark.full
@pytest.mark.parametrize("probability", [1e-13, 1e-9, 3e-7])
@pytest.mark.parametrize("parts", MIXTURES.values(), ids=MIXTURES)
def test_an_overflow_is_paid_at_the_epsilon_of_the_whole(parts, probability):
    buffered = with_overflow(parts, probability)
    paid = math.fsum(m.overflow_probability for m in buffered)
    made = compose_epsilon(buffered, DELTA, scale=2)

    def spent(epsilon):
        delta = composed(tuple(parts)).get_delta_for_epsilon(epsilon)
        return delta + (1 + math.exp(epsilon)) * paid

    # The smallest such epsilon. (Tails are cut in another order here.)
    assert spent(made) <= DELTA * (1 + 1e-4)
    assert spent(made * (1 - 3e-3)) > DELTA
    least = compose_epsilon(parts, DELTA, scale=2)
    assert made > least if probability > 1e-12 else made >= least
    assert made < 1.1 * least


def test_an_overflow_that_delta_cannot_pay_for():
    # (1 + exp(epsilon)) * p > delta already at epsilon = 0, or further up.
    for probability in (DELTA, DELTA / 2, DELTA / 8):
        loud = sampled(
            steps=3000, sampling_rate=0.05, overflow_probability=probability
        )
        assert compose_epsilon([loud], DELTA, scale=2) == math.inf
    assert compose_epsilon([sampled(overflow_probability=1e-9)], 0) == math.inf


@pytest.mark.parametrize("probability", [0.0, 1e-12, 1e-8, 1e-4])
def test_the_smallest_epsilon_that_pays_for_an_overflow(probability):
    """Against a root of delta_of(e) = exp(-2 e): 1 + e^e times p is exact."""
    delta = 0.01
    made = mechanisms.epsilon_with_overflow(
        lambda d: -math.log(d) / 2,
        lambda e: math.exp(-2 * e),
        delta,
        probability,
    )

    def spent(epsilon):
        return math.exp(-2 * epsilon) + (1 + math.exp(epsilon)) * probability

    exact = optimize.brentq(lambda e: spent(e) - delta, 0, 4)
    assert spent(made) <= delta * (1 + 1e-15)
    assert made == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("probability", [1e-12, 1e-8, 1e-4])
def test_an_inexact_inverse_does_not_undercut_delta(probability):
    """Accountants invert in floating point: the result is checked."""
    made = mechanisms.epsilon_with_overflow(
        lambda d: -math.log(d) / 2,
        lambda e: (1 + 1e-7) * math.exp(-2 * e),
        0.01,
        probability,
    )
    spent = (1 + 1e-7) * math.exp(-2 * made)
    assert spent + (1 + math.exp(made)) * probability <= 0.01 * (1 + 1e-15)
    assert made < 3


def test_an_overflow_without_a_solution_is_infinite():
    # min over e of exp(-2e) + p e^e is 3/2^(2/3) p^(2/3) > 0.01 for p > 4e-4.
    for probability in (5e-4, 0.5):
        made = mechanisms.epsilon_with_overflow(
            lambda d: -math.log(d) / 2,
            lambda e: math.exp(-2 * e),
            0.01,
            probability,
        )
        assert made == math.inf
    made = mechanisms.epsilon_with_overflow(
        lambda d: math.inf, lambda e: 0.5, 0.01, 1e-12
    )
    assert made == math.inf


# Arguments, configs and secrets ----------------------------------------------


@pytest.mark.parametrize("mechanism", [*ADDITIVE, sampled()], ids=named)
def test_the_largest_and_smallest_parameters_compose(monkeypatch, mechanism):
    monkeypatch.setattr(compose, "_POINTS", 1e4)
    for field in dataclasses.fields(mechanism):
        for value in (1e-100, 1e-50, 1e-18, 1, 10**12, 1e50, 1e100):
            try:
                made = dataclasses.replace(mechanism, **{field.name: value})
            except ValueError:
                continue
            for delta in (5e-324, DELTA):
                found = compose_epsilon([made, made], delta)
                assert found >= 0
            assert made.coordinate_variance(3) < math.inf


@pytest.mark.full
def test_very_many_different_samples_cost_what_worse_ones_would():
    several = [
        sampled(noise_multiplier=1 + i / 1000, steps=1) for i in range(200)
    ]
    exact = compose_epsilon([sampled(noise_multiplier=1.2, steps=200)], DELTA)
    worst = compose_epsilon([sampled(steps=200)], DELTA)
    assert exact < compose_epsilon(several, DELTA) < worst


def test_a_pure_epsilon_that_no_grid_holds_is_added():
    parts = [LaplaceMechanism(sensitivity=1.0, epsilon=1e4), ADDITIVE[0]]
    alone = compose_epsilon(parts[1:], DELTA)
    assert compose_epsilon(parts, DELTA) == pytest.approx(1e4 + alone, rel=1e-9)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_noise_source_cannot_be_pickled_or_copied(seed):
    source = NoiseSource(seed)
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="reveal the noise"):
            leak(source)
    with pytest.raises(TypeError, match="reveal the noise"):
        copy.deepcopy({"model": [source]})


def test_only_a_seed_is_reproducible():
    def draw(size, source):
        return ADDITIVE[0].perturb(np.zeros(size), source)

    assert NoiseSource(0).reproducible and not NoiseSource().reproducible
    np.testing.assert_array_equal(
        draw(5, NoiseSource(0)), draw(5, NoiseSource(0))
    )
    assert not np.any(draw(5, NoiseSource(0)) == draw(5, NoiseSource(1)))
    assert not np.any(draw(5, NoiseSource()) == draw(5, NoiseSource()))


def test_the_global_seed_does_not_reach_the_noise():
    draws = []
    for _ in range(2):
        np.random.seed(0)
        draws.append(ADDITIVE[0].perturb(np.zeros(5), NoiseSource()))
    assert not np.any(draws[0] == draws[1])
