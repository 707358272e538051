"""DPME and Filter-Priority: grids, and noise on every cell.

Statistical tests accept at p > 1e-4 (fixed seeds make them repeatable; a
fresh seed would fail once in 10,000 runs for each p-value) and must reject a
stated wrong law at p < 1e-6.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.linear_model import LogisticRegression

from keras_fm.lab.baselines.dpme import DPME, PublicGrid, bandwidth
from keras_fm.lab.baselines.filter_priority import (
    FilterPriority,
    priority_sample,
)

pytestmark = [pytest.mark.once, pytest.mark.full]

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


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("relation, sensitivity", RELATIONS.items())
def test_every_cell_gets_noise_of_the_stated_scale(kind, relation, sensitivity):
    scale, threshold = sensitivity / 0.5, 0.0
    kwargs = {"bins": 60, "max_cells": 7200, "neighbours": relation}
    if kind is FilterPriority:
        threshold = scale / 4
        kwargs |= {"threshold": threshold, "sample_size": 7200}
    model = make(kind, 0.5, **kwargs)
    model.fit(np.full((7, 2), 0.01), np.zeros(7, int))
    assert model.grid_.cells == 7200
    # All cells but the one with the records are empty: those of noise above
    # the threshold remain, and exceed it by exponential amounts.
    if kind is DPME:
        counts = model.counts_[1:]
    else:
        counts = model.weights_[model.cells_.any(axis=1)]
    kept = counts[counts > 0]
    p = math.exp(-threshold / scale) / 2
    assert abs(len(kept) - 7199 * p) < 5 * math.sqrt(7199 * p * (1 - p))
    excess = kept - threshold
    assert stats.kstest(excess, stats.expon(scale=scale).cdf).pvalue > 1e-4
    for factor in (2 / 3, 3 / 2):
        wrong = stats.kstest(excess, stats.expon(scale=factor * scale).cdf)
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


# Filter-Priority -------------------------------------------------------------


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


def test_filter_priority_without_noise_keeps_the_records():
    x, y = records(300)
    model = make(FilterPriority, 1e6, bins=50, sample_size=300).fit(x, y)
    weights = model.weights_
    expected, counts = np.unique(
        np.column_stack([np.floor(x * 50), y]), axis=0, return_counts=True
    )
    # The dummies that fill the sample weigh as little as the noise.
    real = weights > 0.5
    assert weights[~real].max() < 1e-3
    np.testing.assert_array_equal(model.cells_[real], expected)
    np.testing.assert_allclose(weights[real], counts, atol=1e-4)
    assert model.score(x, y) > 0.95


def test_a_smaller_sample_has_the_same_expected_mass():
    x, y = records(4000)
    model = make(FilterPriority, 1e6, bins=50, sample_size=500).fit(x, y)
    assert len(model.cells_) == 500
    # Priority sampling's relative error is below 1 / sqrt(size - 1).
    assert abs(model.weights_.sum() - 4000) < 5 * 4000 / math.sqrt(499)
    assert model.score(x, y) > 0.9
