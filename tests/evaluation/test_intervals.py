"""Intervals hold, at the rate they say, for noise and for sampling."""

import numpy as np
import pytest
from scipy import stats

from keras_fm.evaluation import intervals
from keras_fm.evaluation.evaluation_query import Evaluation, EvaluationQuery
from keras_fm.evaluation.private_evaluation import agreement
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


# By draws ---------------------------------------------------------------------


@pytest.fixture
def few_draws(monkeypatch):
    """A tail of 4.5 % is within 1.4 % then."""
    monkeypatch.setattr(intervals, "_DRAWS", 2000)


def asked(mechanism, query, sums):
    """What is released of sums, with the noise of all of them."""
    parts = [part + noise(mechanism, part.shape, seed=None) for part in sums]
    return Evaluation(
        statistics=dict(zip(query.names, parts)),
        query=query,
        mechanism=mechanism,
        neighbours="add_remove",
        private=True,
    )


def often(runs, ask):
    """Whether no fewer intervals hold than of one that holds at `LEVEL`,
    less than once in a million runs."""
    hits = sum(low <= true <= high for low, true, high in map(ask, range(runs)))
    return hits >= stats.binom.ppf(1e-6, runs, LEVEL)


def rates(rng, matrix, of):
    """A table of records, and the true recall, precision and balanced
    accuracy, of it or of the population."""
    drawn = rng.multinomial(matrix.sum(), matrix.ravel() / matrix.sum())
    drawn = drawn.reshape(matrix.shape).astype(float)
    true = drawn if of == "records" else matrix
    recall, precision = (np.diag(true) / true.sum(axis=a) for a in (1, 0))
    return drawn, recall[1], precision[1], recall.mean()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("of", intervals.OF)
def test_intervals_of_rates_hold(few_draws, mechanism, of, size):
    """Of a rare class with 80 of 800 records, three of four of them found."""
    rng = np.random.default_rng(size)
    matrix = np.full((size, size), 20)
    np.fill_diagonal(matrix, [700, *[60] * (size - 1)])
    query = EvaluationQuery(metrics="confusion_matrix", classes=size)
    found = []
    for _ in range(100):
        drawn, *true = rates(rng, matrix, of)
        told = asked(mechanism, query, [drawn])
        found.append(
            (
                told.recall(of=of, level=LEVEL)[1],
                told.precision(of=of, level=LEVEL)[1],
                told.balanced_accuracy(of=of, level=LEVEL),
                *true,
            )
        )
    for i in range(3):
        assert often(
            100,
            lambda r, i=i: (found[r][i].low, found[r][3 + i], found[r][i].high),
        )


@pytest.mark.parametrize("of", intervals.OF)
def test_an_interval_of_an_auc_holds(few_draws, mechanism, of):
    """Of scores of which no two are alike, and of their population."""
    rng = np.random.default_rng(0)
    query = EvaluationQuery(metrics="auc", bins=4)
    edges = np.linspace(-4, 5, 19)

    def ask(_):
        first, second = rng.normal(0, 1, 700), rng.normal(1.5, 1, 100)
        true = stats.norm.cdf(1.5 / np.sqrt(2))
        if of == "records":
            true = (second[:, None] > first).mean()
        bins = [np.digitize(v, edges) for v in (first, second)]
        table = np.stack([np.bincount(b, minlength=20) for b in bins])
        told = asked(mechanism, query, [table.astype(float)])
        found = told.auc(of=of, level=LEVEL)
        return found.low, true, found.high

    assert often(100, ask)


@pytest.mark.parametrize("records", [0, 500])
def test_an_interval_of_r2_holds(few_draws, mechanism, records):
    rng = np.random.default_rng(0)
    query = EvaluationQuery(metrics="r2", low=-4.0, high=4.0, records=records)

    def ask(_):
        y = np.clip(rng.normal(size=500), -4, 4)
        said = 0.7 * y + rng.normal(0, 0.4, 500)
        of = agreement(said, y, -4.0, 4.0, True)
        shares = np.stack([of[name] for name in query.means], axis=1)
        told = asked(mechanism, query, query.accumulate(query.zero(), shares))
        found = told.r2(level=LEVEL)
        said = np.clip(said, -4, 4)
        return found.low, 1 - np.mean((y - said) ** 2) / np.var(y), found.high

    assert often(100, ask)


def test_intervals_of_less_noise_than_there_is_do_not_hold(
    few_draws, monkeypatch
):
    """The tests of coverage can fail."""
    half = intervals.NoiseLaw.draws
    monkeypatch.setattr(
        intervals.NoiseLaw, "draws", lambda *a, **k: half(*a, **k) / 2
    )
    with pytest.raises(AssertionError):
        test_intervals_of_rates_hold(None, MECHANISMS["gaussian"], "records", 2)
