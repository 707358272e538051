"""Intervals hold, at the rate they say, for noise and for sampling."""

import numpy as np
import pytest
from scipy import stats

from keras_fm.evaluation import intervals
from keras_fm.kernel.mechanisms import (
    GaussianMechanism,
    LaplaceMechanism,
    NoiseSource,
)

MECHANISMS = {
    "laplace": LaplaceMechanism(sensitivity=1.0, epsilon=0.2),
    "gaussian": GaussianMechanism(sensitivity=1.0, noise_multiplier=6.0),
}
LEVEL = 0.9
# Of a test with this many repetitions: coverage below this number has a
# probability of 1e-6 at most, if the interval holds at LEVEL.
RUNS = 400
FEWEST = int(stats.binom.ppf(1e-6, RUNS, LEVEL))


@pytest.fixture(params=MECHANISMS)
def mechanism(request):
    return MECHANISMS[request.param]


def noise(mechanism, shape, seed=1):
    source = NoiseSource(reproducible_noise=seed)
    return mechanism.perturb(np.zeros(shape), source)


def test_tails_are_those_of_what_is_drawn(mechanism):
    """Of weighted sums of two; 1e-6 either way."""
    law = intervals.NoiseLaw(mechanism, 2)
    drawn = noise(mechanism, (200_000, 2))
    for weights in ((1.0, 0.0), (0.3, 0.7), (0.5, 0.5), (0.0, 1.0)):
        found = drawn @ weights
        for t in (0.0, 2.0, 7.0, -4.0):
            p = float(law.tail(t, *weights))
            count = int((found >= t).sum())
            low, high = stats.binom.ppf([1e-6, 1 - 1e-6], len(found), p)
            assert low <= count <= high
    assert law.margin(0.95) == pytest.approx(
        np.quantile(np.abs(drawn), 0.95), rel=0.02
    )


def missed(mechanism, n, p, of, records):
    """How often the true share is not in the interval."""
    rng = np.random.default_rng(n)
    law = intervals.NoiseLaw(mechanism, 2)
    misses = 0
    for z in noise(mechanism, (RUNS, 2), seed=n):
        right = rng.binomial(n, p)
        accepted = intervals._test(
            law,
            right + z[0],
            n - right + z[1],
            n if records else 0,
            LEVEL,
            of,
        )
        misses += not accepted(right / n if of == "records" else p)
    return misses


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("n, p", [(20, 0.5), (300, 0.9), (2000, 0.99)])
@pytest.mark.parametrize("of", intervals.OF)
def test_an_interval_holds(mechanism, of, n, p, records):
    assert missed(mechanism, n, p, of, records) <= RUNS - FEWEST


def test_an_interval_is_all_that_is_accepted(mechanism):
    law = intervals.NoiseLaw(mechanism, 2)
    for of in intervals.OF:
        found = intervals.share(law, 87.0, 11.0, level=LEVEL, of=of)
        accepted = intervals._test(law, 87.0, 11.0, 0, LEVEL, of)
        inside = [p for p in np.linspace(0, 1, 501) if accepted(p)]
        assert found.low <= inside[0] < found.low + 0.003
        assert found.high - 0.003 < inside[-1] <= found.high
        assert found.low < found.value < found.high


def test_the_interval_of_records_does_not_hold_for_the_population():
    """The coverage test can fail: sampling is not in it."""
    law = intervals.NoiseLaw(LaplaceMechanism(sensitivity=1.0, epsilon=50.0), 2)
    rng, hits = np.random.default_rng(0), 0
    for _ in range(RUNS):
        right = rng.binomial(300, 0.9)
        accepted = intervals._test(law, right, 300 - right, 0, LEVEL, "records")
        hits += bool(accepted(0.9))
    assert hits < FEWEST


def test_without_noise_the_interval_is_inside_clopper_and_pearson():
    """Of a tie, noise that is symmetric takes half."""
    little = GaussianMechanism(sensitivity=1.0, noise_multiplier=1e-3)
    law = intervals.NoiseLaw(little, 1)
    for right, n in ((0, 30), (27, 30), (30, 30), (450, 1000)):
        found = intervals.share(law, right, 0.0, records=n, of="population")
        exact = stats.binomtest(right, n).proportion_ci(method="exact")
        assert exact.low - 1e-3 < found.low <= found.high < exact.high + 1e-3
        assert found.high - found.low > 0.8 * (exact.high - exact.low)


def test_errors_that_vary_less_than_coins_are_covered():
    """Shares that are no 0 or 1, of the same mean: fewer misses."""
    law = intervals.NoiseLaw(MECHANISMS["gaussian"], 2)
    rng, hits = np.random.default_rng(0), 0
    for z in noise(MECHANISMS["gaussian"], (RUNS, 2)):
        sums = rng.beta(2, 6, 400).sum()
        accepted = intervals._test(
            law, sums + z[0], 400 - sums + z[1], 0, LEVEL, "population"
        )
        hits += accepted(0.25)
    assert hits >= FEWEST


@pytest.mark.parametrize("records", [False, True])
def test_an_interval_of_absolute_sums_holds(mechanism, records):
    rng, hits = np.random.default_rng(0), 0
    law = intervals.NoiseLaw(mechanism, 20)
    middles = (np.arange(10) + 0.5) / 10
    for z in noise(mechanism, (60, 2, 10)):
        count = rng.multinomial(1000, np.full(10, 0.1))
        right = rng.binomial(count, np.clip(middles + 0.05, 0, 1))
        truth = np.abs(right - middles * count).sum() / 1000
        found = intervals.absolute_sum(
            law,
            right + z[0],
            count - right + z[1],
            middles,
            records=1000 if records else 0,
            level=LEVEL,
        )
        hits += found.low <= truth <= found.high
    assert hits >= stats.binom.ppf(1e-6, 60, LEVEL)
