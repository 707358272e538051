"""Bounds in closed form, and what is too much to be convolved."""

import itertools
import math

import pytest
from scipy import optimize, stats

from keras_fm.kernel import compose, mechanisms
from keras_fm.kernel.compose import compose_epsilon
from keras_fm.kernel.ledger import quick_bounds

DELTA = 1e-5


def gaussian(multiplier):
    return mechanisms.GaussianMechanism(
        sensitivity=1.0, noise_multiplier=multiplier
    )


def pure(epsilon):
    return mechanisms.LaplaceMechanism(sensitivity=1.0, epsilon=epsilon)


def sampled(multiplier=1.0, rate=0.01, steps=100, overflow=0.0):
    return mechanisms.SampledGaussianMechanism(
        sensitivity=1.0,
        noise_multiplier=multiplier,
        sampling_rate=rate,
        steps=steps,
        overflow_probability=overflow,
    )


def bound(*parts, delta=DELTA):
    return quick_bounds.Bound(parts).get_epsilon_for_delta(delta)


def exact_gaussian(multiplier, delta=DELTA):
    """Balle and Wang (2018), theorem 8, sensitivity one."""

    def delta_of(epsilon):
        half, shift = 1 / (2 * multiplier), epsilon * multiplier
        tail = math.exp(epsilon + stats.norm.logcdf(-half - shift))
        return stats.norm.cdf(half - shift) - tail

    return optimize.brentq(lambda e: delta_of(e) - delta, 0, 1e9, xtol=1e-12)


# Bounds ----------------------------------------------------------------------

ORDINARY = {
    "a Gaussian": [gaussian(3.0)],
    "Gaussians": [gaussian(3.0), gaussian(0.5)],
    "a pure one": [pure(0.5)],
    "large pure ones": [pure(5.0), pure(3.0)],
    "many pure ones": [pure(0.02)] * 200,
    "sampled": [sampled(steps=1000)],
    "sampled rarely": [sampled(3.0, 1e-4, 100_000)],
    "sampled twice": [sampled(), sampled(2.0, 0.1, 30)],
    "all samples": [sampled(5.0, 1.0, 9)],
    "mixed": [pure(0.5), gaussian(4.0), sampled()],
}


@pytest.mark.parametrize("parts", ORDINARY.values(), ids=ORDINARY)
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_a_bound_is_above_what_is_composed_and_not_far(parts, delta):
    exact = compose_epsilon(parts, delta)
    found = bound(*parts, delta=delta)
    # Roundings of a pure loss may make the exact one larger.
    assert exact * (1 - 1e-3) - 1e-12 <= found <= 2.2 * exact + 0.1


@pytest.mark.parametrize("multiplier", [1e-40, 1e-4, 0.1, 1.0, 30.0])
def test_a_bound_on_a_gaussian_is_above_the_exact_epsilon(multiplier):
    found = bound(gaussian(multiplier))
    if multiplier < 1e-4:
        # Where nothing is protected the mean of the loss is all of it.
        assert found == pytest.approx(multiplier**-2 / 2, rel=1e-6)
        return
    exact = exact_gaussian(multiplier)
    assert exact <= found <= 1.6 * exact


def test_sampling_counts_in_a_bound():
    assert bound(sampled(steps=1000)) < bound(gaussian(1 / math.sqrt(1000))) / 9


@pytest.mark.parametrize("parts", ORDINARY.values(), ids=ORDINARY)
@pytest.mark.parametrize("delta", [1e-30, 1e-5, 0.5])
def test_epsilon_and_delta_of_a_bound_are_inverses(parts, delta):
    found = quick_bounds.Bound(parts)
    epsilon = found.get_epsilon_for_delta(delta)
    assert found.get_delta_for_epsilon(epsilon) <= delta * (1 + 1e-6)
    assert found.get_delta_for_epsilon(0.99 * epsilon) >= delta or epsilon == 0
    assert found.get_delta_for_epsilon(0.0) <= 1.0


def test_hundreds_of_sampled_mechanisms_are_bounded_by_the_worst():
    parts = [sampled(1 + i / 1000, 0.01 - i / 1e5) for i in range(200)]
    found = bound(*parts)
    assert found == pytest.approx(bound(sampled(steps=20_000)), rel=1e-9)
    assert found > bound(*parts[:100])


def test_rounding_is_paid_for_where_steps_are_many():
    """Divergences of rare samples are below what a float resolves, and were
    rounded to nothing, which many steps multiply."""
    steps = 10**12
    rare = sampled(100.0, 1e-6, steps)
    # Like one Gaussian (central limit theorem).
    limit = 1e-6 * math.sqrt(steps * math.expm1(1e-4))
    assert bound(rare) >= exact_gaussian(1 / limit)


# What is convolved -----------------------------------------------------------


def is_convolved(monkeypatch, *parts, delta=DELTA, scale=1.0):
    """Whether an accountant convolves, and on which grid: a pair."""
    seen = []

    def record(parts, grid):
        seen.append((parts, grid))
        raise ArithmeticError

    monkeypatch.setattr(compose, "_convolved", record)
    compose._compose_epsilon.cache_clear()
    compose_epsilon(parts, delta, scale=scale)
    compose._compose_epsilon.cache_clear()
    return seen[0] if seen else (None, None)


@pytest.mark.parametrize(
    "parts",
    [
        [gaussian(3.7)],
        [sampled(1.0, 0.01, 1000, 1e-12)],
        [sampled(0.8, 0.01, 10_000)],
        [sampled(5.0, 0.1, 1_000_000)],
        [pure(0.1)] * 1000,
        [sampled(1.0 + i / 10) for i in range(10)],
    ],
)
def test_ordinary_plans_are_convolved_on_a_fine_grid(monkeypatch, parts):
    merged, grid = is_convolved(monkeypatch, *parts)
    assert merged and grid <= 1.1e-3


@pytest.mark.parametrize(
    "parts, delta",
    [
        ([sampled(steps=10**9)], DELTA),
        ([sampled(steps=10**12)] * 3, DELTA),
        ([sampled(3.0, 0.5, 10**6)], DELTA),
        ([gaussian(1e-6)], DELTA),
        ([gaussian(1e-50)], DELTA),
        ([pure(1e4)], DELTA),
        ([pure(1e50)] * 2, DELTA),
        ([sampled(1 + i / 1000) for i in range(1000)], DELTA),
        ([pure(1e-3 + i * 1e-9) for i in range(20_000)], DELTA),
        ([gaussian(1.0)], 1 - 1e-9),
    ],
)
def test_what_would_take_too_long_is_bounded(monkeypatch, parts, delta):
    """1e9 steps were an integer with a billion digits; noise of 1e-320 was
    no float when squared; thousands of parts were as many transforms."""
    assert is_convolved(monkeypatch, *parts, delta=delta) == (None, None)
    found = compose_epsilon(parts, delta)
    least = min(
        math.fsum(m.pure_epsilon() for m in parts),
        bound(*parts, delta=delta),
    )
    assert found == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("rate", [1e-18, 1e-3, 0.5, 1 - 1e-16, 1.0])
@pytest.mark.parametrize("multiplier", [1e-4, 1e-3, 0.01, 0.1, 1.0, 100.0])
def test_no_grid_has_too_many_points(monkeypatch, multiplier, rate):
    """Points are time: see the costs in `quick_bounds`."""
    one = 1 / (2 * multiplier**2) + 10 / multiplier
    for steps, scale, overflow in itertools.product(
        (1, 1000, 2**21), (1e-300, 1.0, 1e6), (0.0, 1e-12, 1e-7)
    ):
        part = sampled(multiplier, rate, steps, overflow)
        merged, grid = is_convolved(monkeypatch, part, scale=scale)
        if merged is None:
            continue
        assert grid <= 500
        assert quick_bounds.reach([part]) / grid <= 2e6
        if rate < 1:
            assert one / grid <= 3e5
            # Of few points a large number is taken to the power of steps.
            assert steps <= 2**18 or one / grid >= 4000


def test_an_accountant_that_gives_up_is_replaced_by_the_bound():
    """Its checks of what it computes fail for the rarest samples."""
    parts = [sampled(0.3, 1e-18, 5)]
    assert compose_epsilon(parts, DELTA) == pytest.approx(bound(*parts))


def test_a_large_delta_is_met():
    for delta in (0.9, 1 - 1e-15):
        for parts in ([gaussian(0.01)], [sampled(0.2, 1.0, 3)]):
            found = compose_epsilon(parts, delta)
            assert 0 <= found <= bound(*parts) and math.isfinite(found)


def test_many_steps_cost_what_one_gaussian_does():
    """By the central limit theorem; a billion of them."""
    parts = [sampled(1.0, 1e-5, 10**9)]
    limit = 1e-5 * math.sqrt(10**9 * math.expm1(1))
    exact = exact_gaussian(1 / limit)
    assert exact <= compose_epsilon(parts, DELTA) <= 1.3 * exact


def test_many_steps_more_cost_more():
    """The bound takes over where the accountant ends, without a fall."""
    runs = [10**5, 10**6, 2**21, 2**21 + 1, 10**7, 10**9]
    found = [
        compose_epsilon([sampled(2.0, 0.01, n)], DELTA, scale=100.0)
        for n in runs
    ]
    assert found == sorted(found)


def test_an_overflow_is_paid_for_in_a_bound():
    parts = [sampled(1.0, 1e-5, 10**9)]
    without = compose_epsilon(parts, DELTA)
    little = compose_epsilon([sampled(1.0, 1e-5, 10**9, 1e-8)], DELTA)
    assert without < little < 1.1 * without
    much = compose_epsilon([sampled(1.0, 1e-5, 10**9, 1e-5)], DELTA)
    assert much == math.inf
