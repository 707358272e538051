"""DPME and Filter-Priority: noise on every cell, really or in law.

Statistical tests accept at p > 1e-4 (fixed seeds make them repeatable; a
fresh seed would fail once in 10,000 runs for each p-value) and must reject a
stated wrong law at p < 1e-6.
"""

import decimal
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from keras_fm.baselines import DPME, FilterPriority, filter_priority
from keras_fm.baselines.dpme import PublicGrid, bandwidth, weighted_logistic
from keras_fm.baselines.filter_priority import (
    high_pass_threshold,
    noisy_cells,
    passing_points,
    poisson,
    priority_sample,
)
from keras_fm.kernel.ledger.ledger import BudgetExceededError
from keras_fm.kernel.mechanisms import LaplaceMechanism, NoiseSource

RELATIONS = {"add_remove": 1.0, "replace_one": 2.0}
CLASSES = (DPME, FilterPriority)


def make(kind, epsilon=1.0, **kwargs):
    arguments = {"low": 0.0, "high": 1.0, "reproducible_noise": 0, **kwargs}
    return kind(epsilon, **arguments)


def records(n=400, d=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((n, d))
    return x, (x.sum(axis=1) > d / 2).astype(int)


# The grid --------------------------------------------------------------------


def test_bandwidth_balances_bias_and_noise():
    for n, d in ((100, 1), (5000, 3), (50_000, 13)):
        h = bandwidth(n, d)
        assert h == pytest.approx(h ** (-d / 2) * math.sqrt(math.log(n)) / n)
    # sqrt(log 10^4) = 3.0349, over 10^4, to the power 2 / (2 + 2).
    assert bandwidth(10_000, 2) == pytest.approx(3.0349e-4**0.5, rel=1e-4)
    assert bandwidth(1, 3) <= 1
    with pytest.raises(ValueError, match="`num_records` must be"):
        bandwidth(0, 3)


def test_the_rule_of_the_grid():
    # One feature: Lei's bandwidth fits.
    grid = PublicGrid.of(1000, 1, max_cells=10**6)
    assert grid.bins == math.ceil(1 / bandwidth(1000, 1)) == 53
    assert grid.cells == 106 and grid.projection is None
    # It does not fit: as many bins as do.
    assert PublicGrid.of(1000, 1, max_cells=50).bins == 25
    grid = PublicGrid.of(50_000, 3, max_cells=2 * 10**3)
    assert (grid.num_dimensions, grid.bins, grid.cells) == (3, 10, 2000)
    # Too many features for two bins each: as many directions as fit.
    grid = PublicGrid.of(50_000, 130, max_cells=2**13)
    assert (grid.num_dimensions, grid.bins) == (12, 2)
    assert grid.cells == 2**13
    assert grid.projection.shape == (12, 130)
    lengths = np.linalg.norm(grid.projection, axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-4)
    assert np.all(lengths <= 1)
    again = PublicGrid.of(50_000, 130, max_cells=2**13)
    np.testing.assert_array_equal(grid.projection, again.projection)
    other = PublicGrid.of(50_000, 130, max_cells=2**13, projection_seed=1)
    assert not np.allclose(grid.projection, other.projection)
    leading = PublicGrid.of(50_000, 130, max_cells=64, projection="leading")
    assert leading.projection is None and leading.num_dimensions == 5
    # The user's own grid may be huge.
    huge = PublicGrid.of(50_000, 130, max_cells=64, num_dimensions=130, bins=16)
    assert huge.cells == 2 * 16**130


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    n=st.integers(1, 10**7), d=st.integers(1, 200), most=st.integers(4, 10**6)
)
def test_the_rule_never_exceeds_its_cells(n, d, most):
    grid = PublicGrid.of(n, d, max_cells=most)
    assert 4 <= grid.cells <= most
    assert grid.num_dimensions <= d and grid.bins >= 2


def test_a_record_more_moves_no_other_to_another_cell():
    """Records on an edge, where the rounding of a product would decide, which
    a library does in another order for another number of rows."""
    grid = PublicGrid.of(1000, 64, max_cells=2**13)
    cube = np.random.default_rng(0).random((200, 64))
    for _ in range(60):
        along = (cube - 0.5) @ grid.projection[0]
        cube = np.clip(cube - along[:, None] * grid.projection[:1], 0, 1)
    labels = np.zeros(200)
    alone = [grid.locate(row[None], labels[:1])[0] for row in cube]
    assert len({cell[0] for cell in alone}) > 1
    for n in range(1, 201):
        found = grid.locate(cube[:n], labels[:n])
        np.testing.assert_array_equal(found, alone[:n])


@pytest.mark.parametrize("projection", [None, "random"])
def test_cells_and_centres(projection):
    rng = np.random.default_rng(1)
    grid = PublicGrid.of(
        100, 3, max_cells=99, num_dimensions=3 if projection is None else 2,
        bins=5,
    )  # fmt: skip
    cube = np.vstack([rng.random((200, 3)), np.zeros(3), np.ones(3)])
    labels = rng.integers(2, size=202)
    cells = grid.locate(cube, labels)
    points, found = grid.centres(cells)
    np.testing.assert_array_equal(found, labels)
    if projection is None:
        axes, width = cube, 1 / 5
    else:
        axes, width = np.clip((cube - 0.5) @ grid.projection.T, -1, 1), 2 / 5
    assert np.abs(points - axes).max() <= width / 2 * (1 + 1e-12)
    # A function of the axes is the same function of the cube.
    slope = np.array([1.0, -2.0, 3.0])[: grid.num_dimensions]
    weights, bias = grid.cube_function(slope, 0.7)
    if projection is not None:
        axes = (cube - 0.5) @ grid.projection.T  # Not clipped.
    np.testing.assert_allclose(cube @ weights + bias, axes @ slope + 0.7)


# DPME ------------------------------------------------------------------------


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_record_moves_the_histogram_by_its_sensitivity(relation):
    x, y = records(40)
    model = make(DPME, neighbours=relation, bins=4)
    plan = model._plan(40, 2)
    assert plan.sensitivity == RELATIONS[relation]

    def counts(x, y):
        return model._read(plan, x, y.astype(float))

    exact = counts(x, y)
    assert exact.shape == (32,) and exact.sum() == 40
    brute = np.zeros((4, 4, 2))
    for row, label in zip(x, y):
        brute[int(row[0] * 4), int(row[1] * 4), label] += 1
    np.testing.assert_array_equal(exact, brute.ravel())
    rng, worst = np.random.default_rng(3), 0
    for _ in range(200):
        k, other = rng.integers(40), x.copy()
        other[k] = rng.random(2)
        far = np.abs(counts(other, y) - exact).sum()
        worst = max(worst, far)
        assert np.abs(counts(x[1:], y[1:]) - exact).sum() == 1
    assert worst == 2


@pytest.mark.parametrize("relation, sensitivity", RELATIONS.items())
def test_every_cell_gets_noise_of_the_stated_scale(relation, sensitivity):
    epsilon = 0.5
    x, y = np.full((7, 2), 0.01), np.zeros(7, int)
    model = make(
        DPME, epsilon, bins=60, max_cells=7200, neighbours=relation
    ).fit(x, y)
    counts = model.counts_.reshape(60, 60, 2).copy()
    assert model.grid_.cells == counts.size == 7200
    # All cells but the one with the records are empty: about half of them
    # are positive, and those are exponential with the Laplace scale.
    counts[0, 0, 0] = 0
    positive = counts[counts > 0]
    assert abs(len(positive) - 3600) < 5 * math.sqrt(1800)
    scale = sensitivity / epsilon
    assert stats.kstest(positive, stats.expon(scale=scale).cdf).pvalue > 1e-4
    for factor in (2 / 3, 3 / 2):
        wrong = stats.kstest(positive, stats.expon(scale=factor * scale).cdf)
        assert wrong.pvalue < 1e-6, factor


def test_dpme_without_noise_is_logistic_regression_on_centres():
    x, y = records(500)
    model = make(DPME, 1e6, bins=20).fit(x, y)
    centres = (np.floor(x * 20) + 0.5) / 20
    plain = LogisticRegression(C=1.0, max_iter=1000).fit(centres, y)
    np.testing.assert_allclose(model.coef_, plain.coef_[0], rtol=2e-2)
    assert model.intercept_ == pytest.approx(plain.intercept_[0], rel=2e-2)
    assert model.score(x, y) > 0.95


def test_weights_are_in_the_units_of_the_features():
    x, y = records(500)
    unit = make(DPME, 1e6, bins=20).fit(x, y)
    scaled = make(DPME, 1e6, bins=20, low=-3.0, high=[1.0, 5.0])
    rows = x * [4.0, 8.0] - 3
    scaled.fit(rows, y)
    np.testing.assert_allclose(scaled.coef_ * [4, 8], unit.coef_)
    np.testing.assert_allclose(
        scaled.decision_function(rows), unit.decision_function(x), rtol=1e-6
    )
    np.testing.assert_allclose(
        rows @ scaled.coef_ + scaled.intercept_, scaled.decision_function(rows)
    )


def test_too_many_cells_are_refused_before_reading():
    model = make(DPME, bins=50, num_dimensions=3)
    with pytest.raises(ValueError, match="The grid has 250000 cells"):
        model.fit(Unread(3), Unread(3))
    assert model.ledger.entries == ()


def test_one_label_gives_a_constant():
    points, labels = np.zeros((3, 2)), np.ones(3, int)
    weights, bias = weighted_logistic(points, labels, np.ones(3), 1.0)
    np.testing.assert_array_equal(weights, 0)
    assert bias == pytest.approx(math.log(4))
    weights, bias = weighted_logistic(points, labels, np.zeros(3), 1.0)
    assert bias == 0


# Filter-Priority -------------------------------------------------------------

GRID = PublicGrid(bins=4, num_features=2, num_dimensions=2)
OCCUPIED = np.array([[0, 0, 0], [1, 2, 1], [3, 3, 0], [3, 3, 1]])
COUNTS = np.array([1, 3, 5, 2])
NOISE = LaplaceMechanism(sensitivity=2.0, epsilon=1.0)


def number(cells):
    """Index of a cell among the 32 of GRID."""
    cells = cells.astype(int)
    return (cells[:, 0] * 4 + cells[:, 1]) * 2 + cells[:, 2]


def lazy_runs(runs, threshold, source, noise=NOISE):
    """`(passed, values)`, `(runs, 32)`, of the lazy simulation."""
    passed = np.zeros((runs, 32), bool)
    values = np.zeros((runs, 32))
    for run in range(runs):
        cells, noisy = noisy_cells(
            GRID, OCCUPIED, COUNTS, noise, threshold, source
        )
        assert np.all(np.diff(number(cells)) > 0)  # Sorted, no cell twice.
        passed[run, number(cells)] = True
        values[run, number(cells)] = noisy
    return passed, values


def dense_runs(runs, threshold, source, noise=NOISE):
    """The same of noise on every cell."""
    exact = np.zeros(32)
    exact[number(OCCUPIED)] = COUNTS
    exact = np.broadcast_to(exact, (runs, 32))
    values = noise.perturb(exact, source, dimension=2)
    passed = values >= threshold
    return passed, np.where(passed, values, 0.0)


@pytest.mark.parametrize("threshold", [0.0, 1.5, 4.0])
def test_the_lazy_simulation_has_the_law_of_noise_on_every_cell(threshold):
    """Inclusion of each cell, number of passing cells, values, and pairs of
    cells, each against the dense implementation (8 p-values)."""
    runs = 3000
    lazy, lazy_values = lazy_runs(runs, threshold, NoiseSource(1))
    dense, dense_values = dense_runs(runs, threshold, NoiseSource(2))
    held = number(OCCUPIED)
    empty = np.setdiff1d(np.arange(32), held)
    p = math.exp(-threshold / NOISE.scale) / 2

    # Each of the 28 empty cells passes with probability p.
    sums = lazy[:, empty].sum(axis=0)
    z = (sums - runs * p) / math.sqrt(runs * p * (1 - p))
    assert stats.chi2(28).sf(np.sum(z**2)) > 1e-4
    # Occupied cells as often as in the dense table (5 standard errors).
    low = dense[:, held].mean(axis=0)
    error = np.sqrt(2 * np.maximum(low * (1 - low), 1e-4) / runs)
    assert np.all(np.abs(lazy[:, held].mean(axis=0) - low) < 5 * error)
    # Their number is binomial: every count that is expected 10 times.
    found = np.bincount(lazy[:, empty].sum(axis=1), minlength=29)
    law = stats.binom(28, p).pmf(np.arange(29)) * runs
    often = law > 10
    observed = np.append(found[often], found[~often].sum())
    expected = np.append(law[often], law[~often].sum())
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    # Pairs of empty cells pass independently.
    correlation = np.corrcoef(lazy[:, empty].T)[np.triu_indices(28, 1)]
    z = correlation * math.sqrt(runs)
    assert stats.kstest(z, stats.norm.cdf).pvalue > 1e-4
    # Values, of empty and of occupied cells.
    for cells in (empty, held):
        ours = lazy_values[:, cells][lazy[:, cells]]
        theirs = dense_values[:, cells][dense[:, cells]]
        assert ours.min() >= threshold
        assert stats.ks_2samp(ours, theirs).pvalue > 1e-4


def test_the_comparison_has_power():
    """Noise of 3/2 of the scale, or hits that forget -log(1 - p) for p, are
    found out by the same statistics."""
    runs, threshold = 3000, 1.5
    wide = LaplaceMechanism(sensitivity=3.0, epsilon=1.0)
    lazy, values = lazy_runs(runs, threshold, NoiseSource(1), wide)
    dense, dense_values = dense_runs(runs, threshold, NoiseSource(2))
    empty = np.setdiff1d(np.arange(32), number(OCCUPIED))
    p = math.exp(-threshold / NOISE.scale) / 2

    def inclusion(sums):
        z = (sums - runs * p) / math.sqrt(runs * p * (1 - p))
        return stats.chi2(28).sf(np.sum(z**2))

    assert inclusion(lazy[:, empty].sum(axis=0)) < 1e-6
    compared = stats.ks_2samp(
        values[:, empty][lazy[:, empty]],
        dense_values[:, empty][dense[:, empty]],
    )
    assert compared.pvalue < 1e-6
    # A Poisson number of hits with mean p, not -log(1 - p), for each cell.
    rng = np.random.default_rng(4)
    careless = (rng.poisson(p, size=(runs, 28)) > 0).sum(axis=0)
    assert inclusion(careless) < 1e-6


def test_poisson_numbers():
    """Against the law, at p > 1e-4; another mean is found out."""
    source = NoiseSource(5)
    for mean in (1, 6):
        drawn = np.array([poisson(mean, source) for _ in range(4000)])
        law = stats.poisson(mean).pmf(np.arange(60)) * 4000
        often = law > 10
        found = np.bincount(drawn, minlength=60)
        observed = np.append(found[often], found[~often].sum())
        expected = np.append(law[often], law[~often].sum())
        assert stats.chisquare(observed, expected).pvalue > 1e-4
        law = stats.poisson(1.15 * mean).pmf(np.arange(60)) * 4000
        expected = np.append(law[often], law[~often].sum())
        expected *= 4000 / expected.sum()
        assert stats.chisquare(observed, expected).pvalue < 1e-6
    # Sums of many are Poisson too: mean and variance.
    drawn = np.array([poisson(10_000, source) for _ in range(50)])
    assert abs(drawn.mean() - 10_000) < 5 * 100 / math.sqrt(50)
    assert 0.4 < drawn.var() / 10_000 < 2
    assert poisson(0, source) == 0


@pytest.mark.parametrize("k", [0, 1, 5, 30])
def test_coins_of_poisson_numbers_are_enclosed(k):
    low, high = filter_priority._one_more(k, 100)
    with decimal.localcontext() as context:
        context.prec = 120
        tails, term = [], Decimal(1)
        below = Decimal(0)
        for j in range(k + 1):
            tails.append(1 - below / Decimal(1).exp())
            below += term
            term /= j + 1
        exact = (1 - below / Decimal(1).exp()) / tails[-1] * 2**100
        assert low <= exact <= high and high - low <= 1


@pytest.mark.parametrize("cells", [8, 2 * 16**5, 2**1001])
@pytest.mark.parametrize("least", [0, 3, 2**14, 40 * 2**14])
def test_hits_that_pass_are_enclosed(cells, least):
    """P(cell passes) = P(cell is hit) times the share that is kept."""
    scale = Fraction(2**14) + Fraction(1, 3)
    points = 12
    while filter_priority._kept_hits(cells, points, scale, least, 64)[1] > (
        2**64
    ):
        points *= 2
        if points > 2**40:
            return  # Far too many points for any plan.
    low, high = filter_priority._kept_hits(cells, points, scale, least, 90)
    with decimal.localcontext() as context:
        context.prec = 700
        t = Decimal(scale.numerator) / Decimal(scale.denominator)
        passes = (-Decimal(least) / t).exp() / (1 + (-1 / t).exp())
        hit = 1 - (-Decimal(points) / Decimal(cells)).exp()
        assert low <= passes / hit * 2**90 <= high
        assert high - low <= 2
    # The number of points that is chosen is the least that does, or so.
    if cells < 2**30:
        made = filter_priority._points(cells, scale, least)
        hit = 1 - math.exp(-made / cells)
        assert float(passes) <= hit * (1 + 1e-12)


def test_the_values_do_not_tell_occupied_cells_from_empty_ones():
    """Both are whole steps of one lattice, which no private number chose."""
    for counts in (COUNTS, COUNTS[:1]):
        _, values = noisy_cells(
            GRID, OCCUPIED[: len(counts)], counts, NOISE, 0.0, NoiseSource(3)
        )
        step = NOISE.lattice_release(2).lattice.step
        np.testing.assert_array_equal(values % step, 0)


def test_on_a_huge_grid_the_dummies_are_spread_over_it():
    grid = PublicGrid(bins=2, num_features=1000, num_dimensions=1000)
    assert grid.cells == 2**1001
    noise = LaplaceMechanism(sensitivity=1.0, epsilon=1.0)
    threshold = high_pass_threshold(grid.cells, noise.scale, 2000)
    points = passing_points(grid.cells, noise.scale, threshold)
    assert points == pytest.approx(2000, rel=1e-9)
    none = np.empty((0, 1001), np.uint16)
    cells, values = noisy_cells(
        grid, none, np.empty(0, int), noise, threshold, NoiseSource(1)
    )
    assert abs(len(cells) - 2000) < 5 * math.sqrt(2000)
    # Every bit is fair: 1,001 binomial counts.
    z = (cells.sum(axis=0) - len(cells) / 2) / math.sqrt(len(cells) / 4)
    assert stats.kstest(z, stats.norm.cdf).pvalue > 1e-4
    fit = stats.kstest(values - threshold, stats.expon.cdf)
    assert fit.pvalue > 1e-4


def test_the_threshold_of_small_grids():
    assert high_pass_threshold(10, 3.0, 100) == 0
    # p = 1/2: log 2 points for each cell.
    assert passing_points(10, 3.0, 0.0) == pytest.approx(10 * math.log(2))
    assert passing_points(10, 1.0, 1e4) == 0
    assert passing_points(2 * 16**1000, 1.0, 0.0) == math.inf


@pytest.mark.parametrize("size", [3, 7])
def test_priority_sampling_is_unbiased(size):
    values = np.array([0.1, 1.0, 1.0, 2.0, 5.0, 20.0, 0.5, 3.0])
    rng, runs = np.random.default_rng(7), 40_000
    weights = np.zeros((runs, 8))
    for run in range(runs):
        kept, weight = priority_sample(values, size, rng)
        assert len(kept) == size and np.all(np.diff(kept) > 0)
        weights[run, kept] = weight
    # An item that is always kept has its own value for a weight.
    error = np.maximum(weights.std(axis=0) / math.sqrt(runs), 1e-12)
    z = (weights.mean(axis=0) - values) / error
    assert np.all(np.abs(z) < 5)  # Fails by chance 5 times in 10^6.
    wrong = (weights > 0).mean(axis=0) * values  # Without the weights.
    assert np.abs((wrong - values) / error).max() > 20


def test_priority_sampling_keeps_all_of_a_small_summary():
    kept, weights = priority_sample(
        np.array([2.0, 1.0]), 2, np.random.default_rng(0)
    )
    np.testing.assert_array_equal(kept, [0, 1])
    np.testing.assert_array_equal(weights, [2.0, 1.0])


def test_filter_priority_without_noise_keeps_the_records():
    x, y = records(300)
    model = make(FilterPriority, 1e6, bins=50, sample_size=300).fit(x, y)
    points, labels, weights = model.synthetic_data()
    expected, counts = np.unique(
        np.column_stack([np.floor(x * 50), y]), axis=0, return_counts=True
    )
    # The dummies that fill the sample weigh as little as the noise.
    real = weights > 0.5
    assert weights[~real].max() < 1e-3
    np.testing.assert_array_equal(model.cells_[real], expected)
    np.testing.assert_allclose(weights[real], counts, atol=1e-4)
    np.testing.assert_allclose(points[real], (expected[:, :2] + 0.5) / 50)
    np.testing.assert_array_equal(labels[real], expected[:, 2])
    assert model.score(x, y) > 0.95


def test_a_smaller_sample_has_the_same_expected_mass():
    x, y = records(4000)
    model = make(FilterPriority, 1e6, bins=50, sample_size=500).fit(x, y)
    assert len(model.cells_) == 500
    # Priority sampling's relative error is below 1 / sqrt(size - 1).
    assert abs(model.weights_.sum() - 4000) < 5 * 4000 / math.sqrt(499)
    assert model.score(x, y) > 0.9


def test_a_filter_that_lets_too_much_pass_is_refused_before_reading():
    model = make(FilterPriority, bins=50, num_dimensions=4, threshold=0.0)
    with pytest.raises(ValueError, match="empty cells would pass the filter"):
        model.fit(Unread(4), Unread(4))
    assert model.ledger.entries == ()
    # A threshold of the user, on the same grid.
    model = make(FilterPriority, bins=50, num_dimensions=4, threshold=12.0)
    model.fit(*records(d=4))
    assert model.threshold_ == 12.0
    assert model.cells_.shape[1] == 5


def test_a_huge_grid_runs_and_says_how_large_it_is():
    x, y = records(500, d=130)
    model = make(FilterPriority, bins=16, num_dimensions=130).fit(x, y)
    assert "all 10^156.8 cells" in model.report()
    # Above the threshold of so many cells no count of one survives.
    assert model.threshold_ > 100
    assert len(model.cells_) == len(model.weights_) <= 500


# Both ------------------------------------------------------------------------


class Unread:
    """Records that must not be read."""

    def __init__(self, d=2):
        self.shape = (100, d)

    def __array__(self, *args, **kwargs):
        pytest.fail("the records were read")


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_ledger_is_charged_once(kind, relation):
    x, y = records()
    model = make(kind, 0.3, neighbours=relation, reproducible_noise=None)
    assert model.fit(x, y) is model
    assert model.ledger.epsilon() == pytest.approx(0.3, rel=1e-12)
    (entry,) = model.ledger.entries
    assert entry.guarantee == "proven" and entry.private
    assert entry.neighbours == relation
    assert entry.mechanism == {
        "mechanism": "LaplaceMechanism",
        "sensitivity": RELATIONS[relation],
        "epsilon": 0.3,
    }
    # Under replace_one the number of records is the same for neighbours.
    assert bool(entry.notes) == (relation == "add_remove")
    assert "proven:     (epsilon = 0.3, delta = 0)" in model.report()
    before = model.coef_.copy()
    with pytest.raises(BudgetExceededError):
        model.fit(Unread(), Unread())
    assert len(model.ledger.entries) == 1
    np.testing.assert_array_equal(model.coef_, before)
    # Declared, the number of records is not taken from the data.
    model = make(kind, neighbours=relation, num_records=1000).fit(x, y)
    assert model.ledger.entries[0].notes == ()
    grids = [make(kind, num_records=1000)._plan(n, 2).grid for n in (5, 500)]
    assert grids[0].cells == grids[1].cells


@pytest.mark.parametrize("kind", CLASSES)
def test_seeds_projections_and_pickles(kind):
    x, y = records()
    models = [make(kind).fit(x, y) for _ in "ab"]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    assert "NOT PRIVATE" in models[0].report()
    free = [make(kind, reproducible_noise=None).fit(x, y) for _ in "ab"]
    assert not np.array_equal(free[0].coef_, free[1].coef_)
    again = pickle.loads(pickle.dumps(free[0]))
    np.testing.assert_array_equal(again.predict(x), free[0].predict(x))


@pytest.mark.parametrize("kind", CLASSES)
def test_many_features_and_records(kind):
    """d = 130 and n = 50,000: a public projection makes it possible."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(50_000, 4))
    x = factors @ rng.normal(size=(4, 130)) + rng.normal(size=(50_000, 130))
    y = (factors[:, 0] > 0).astype(int)
    model = make(kind, 8.0, low=-6.0, high=6.0).fit(x, y)
    assert model.score(x, y) > 0.6  # Half would be chance.
    assert model.coef_.shape == (130,)


@pytest.mark.parametrize("kind", CLASSES)
def test_accuracy_at_a_large_epsilon(kind):
    """Breast cancer, its first two features, round bounds: 63 % of the
    records have the larger class."""
    x, y = load_breast_cancer(return_X_y=True)
    x = x[:, :2]
    model = make(kind, 100.0, low=5.0, high=[30.0, 40.0])
    assert model.fit(x[:400], y[:400]).score(x[400:], y[400:]) > 0.85
    p = model.predict_proba(x)
    np.testing.assert_array_equal(p.argmax(axis=1), model.predict(x))


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x, y: (x[:, 0], y), r"`x` must have shape \(n, d\)"),
        (lambda x, y: (x[:0], y[:0]), "at least one record"),
        (lambda x, y: (x[:, :1], y), "as many features as the bounds"),
        (lambda x, y: (x * np.nan, y), "`x` must be finite"),
        (lambda x, y: (x / 0.0, y), "`x` must be finite"),
        (lambda x, y: (x, y[1:]), r"`y` must have shape \(n,\)"),
        (lambda x, y: (x, y * np.nan), "Labels must be 0 or 1"),
        (lambda x, y: (x, y + 1), "Labels must be 0 or 1"),
    ],
)
def test_invalid_records_cost_nothing(kind, change, message):
    model = make(kind, low=np.zeros(2))
    with np.errstate(all="ignore"):
        bad = change(*records())
    with pytest.raises(ValueError, match=message):
        model.fit(*bad)
    assert model.ledger.entries == ()


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"epsilon": 0}, "`epsilon` must be greater than 0"),
        ({"low": 1.0}, "lower bound must be below"),
        ({"neighbours": "swap"}, "`neighbours` must be"),
        ({"max_cells": 3}, "`max_cells` must be at least 4"),
        ({"max_cells": 10.5}, "`max_cells` must be a positive integer"),
        ({"bins": 0}, "`bins` must be a positive integer"),
        ({"num_dimensions": 1.5}, "`num_dimensions` must be a positive"),
        ({"num_records": -3}, "`num_records` must be a positive integer"),
        ({"projection": "pca"}, "`projection` must be one of"),
        ({"C": 0.0}, "`C` must be a finite number greater than 0"),
        ({"C": math.inf}, "`C` must be a finite number greater than 0"),
    ],
)
def test_invalid_arguments(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        make(kind, **changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"sample_size": 0}, "`sample_size` must be a positive integer"),
        ({"threshold": -1.0}, "`threshold` must be a finite number"),
        ({"threshold": math.nan}, "`threshold` must be a finite number"),
        ({"refinement": 0}, "`refinement` must be a positive integer"),
    ],
)
def test_invalid_arguments_of_filter_priority(changes, message):
    with pytest.raises(ValueError, match=message):
        make(FilterPriority, **changes)


@pytest.mark.parametrize("kind", CLASSES)
def test_grids_that_do_not_fit_the_records_are_refused(kind):
    x, y = records()
    model = make(kind, num_dimensions=3)
    with pytest.raises(ValueError, match="must not exceed the number of feat"):
        model.fit(x, y)
    for bins in (1, 2**16):
        with pytest.raises(ValueError, match="`bins` must be from 2 to"):
            make(kind, bins=bins).fit(x, y)
    with pytest.raises(RuntimeError, match="Call `fit` first"):
        make(kind).predict(x)
    with pytest.raises(RuntimeError, match="Call `fit` first"):
        make(FilterPriority).synthetic_data()
