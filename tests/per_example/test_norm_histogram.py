"""Histograms of norms: counts as NumPy's, one in each column per record."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st
from made_release import make_release
from neighbours import Domain, check_generated, shares

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.mechanisms import GaussianMechanism
from keras_fm.kernel.release import calibrate
from keras_fm.per_example.norm_histogram import NormHistogramRelease
from keras_fm.queries import NormHistogramQuery

pytestmark = [pytest.mark.full, pytest.mark.backend]


def make(columns=3, **kwargs):
    return NormHistogramQuery(num_columns=columns, **kwargs)


def counts(objective, *batches):
    statistics = objective.zero()
    for batch in batches:
        statistics = objective.accumulate(statistics, batch)
    return statistics[0]


def norms(n=500, columns=3, seed=0):
    rng = np.random.default_rng(seed)
    return np.exp(rng.normal(size=(n, columns)) * 2 + np.arange(columns))


# Counts ---------------------------------------------------------------------


def test_counts_are_those_of_numpy():
    objective, rows = make(num_bins=17, low=0.01, high=50.0), norms()
    made = counts(objective, rows)
    edges = objective.upper_edges
    assert edges.shape == (17,) and (edges[0], edges[-1]) == (0.01, 50.0)
    np.testing.assert_allclose(edges[1:] / edges[:-1], edges[1] / edges[0])
    for column, found in zip(rows.T, made):
        ends = np.concatenate([[-1.0], edges[:-1], [np.inf]])
        np.testing.assert_array_equal(found, np.histogram(column, ends)[0])
    np.testing.assert_array_equal(made.sum(axis=1), 500)
    parts = np.split(rows, [0, 3, 200])
    np.testing.assert_array_equal(counts(objective, *parts), made)


def test_ends_and_edges():
    objective = make(1, num_bins=3, low=1.0, high=100.0)
    rows = [[0.0], [1.0], [1.001], [10.0], [10.1], [100.0], [1e9], [math.inf]]
    np.testing.assert_array_equal(counts(objective, rows), [[2, 2, 4]])


@pytest.mark.parametrize(
    "rows, match",
    [
        ([[1.0, 2.0, math.nan]], "at least 0"),
        ([[1.0, 2.0, -1e-9]], "at least 0"),
        ([[1.0, 2.0]], "shape"),
        ([1.0, 2.0, 3.0], "shape"),
    ],
)
def test_invalid_norms_add_nothing(rows, match):
    objective = make()
    statistics = objective.zero()
    with pytest.raises(ValueError, match=match):
        objective.accumulate(statistics, rows)
    assert not statistics[0].any()


@pytest.mark.parametrize(
    "kwargs, match",
    [
        ({"num_columns": 0}, "num_columns"),
        ({"num_bins": 1}, "num_bins"),
        ({"num_bins": 2.5}, "num_bins"),
        ({"low": 0.0}, "low"),
        ({"low": math.nan}, "low"),
        ({"high": math.inf}, "high"),
        ({"low": 2.0, "high": 2.0}, "low"),
    ],
)
def test_invalid_arguments(kwargs, match):
    with pytest.raises(ValueError, match=f"`{match}`"):
        NormHistogramQuery(**{"num_columns": 2} | kwargs)


# Sensitivity ----------------------------------------------------------------


def domain(columns, **kwargs):
    """Norms of all sizes."""
    return Domain(
        make(columns, **kwargs),
        columns,
        lambda v: 10.0 ** (8 * v),
        lambda row: (row[None],),
    )


def test_no_pair_exceeds_the_sensitivity():
    check_generated(
        lambda data: domain(data.draw(st.integers(1, 5)), num_bins=6)
    )


@pytest.mark.parametrize("columns", [1, 4])
def test_the_sensitivity_is_attained(columns):
    ones = np.ones(columns)
    found = shares(domain(columns), [(-ones, ones)])
    assert found == pytest.approx(dict.fromkeys(found, 1.0))


# Releases -------------------------------------------------------------------


def released(objective, rows, epsilon=1.0):
    parts = [(part,) for part in np.array_split(rows, 3)]
    return make_release(objective, parts, epsilon, 1e-6, seed=0)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_quantiles_are_near_the_true_ones(level):
    """5000 records at epsilon 1: within one bin (ratio 1.26) and the noise."""
    objective, rows = make(), norms(5000)
    found = released(objective, rows)
    true = np.quantile(rows, level, axis=0)
    ratio = found.quantiles(level) / true
    assert np.all((ratio > 0.75) & (ratio < 1.35)), ratio


def test_quantiles_without_noise_are_the_smallest_edges():
    objective = make(2, num_bins=4, low=1.0, high=1000.0)
    kept = np.array([[10.0, 10.0, 10.0, 10.0], [0.0, 0.0, 1.0, 99.0]])
    found = NormHistogramRelease(
        statistics={"counts": kept},
        query=objective,
        mechanism=GaussianMechanism(sensitivity=1.0, noise_multiplier=1e-9),
        neighbours="add_remove",
        private=True,
    )
    np.testing.assert_allclose(found.quantiles(0.25), [1.0, 1000.0])
    np.testing.assert_allclose(found.quantiles(0.26), [10.0, 1000.0])
    np.testing.assert_allclose(found.quantiles(0.01), [1.0, 100.0])
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="`level`"):
            found.quantiles(level)


def test_noise_alone_does_not_move_a_quantile():
    """All records in one bin, 69 empty bins: of 70 noises of one standard
    deviation, few exceed two, and none makes half of the counts."""
    objective = make(1)
    found = released(objective, np.full((400, 1), 1.0), epsilon=0.3)
    wanted = objective.upper_edges[np.searchsorted(objective.upper_edges, 1.0)]
    assert found.quantiles(0.5) == pytest.approx(wanted)


def test_pure_budgets():
    objective = make()
    for relation in ("add_remove", "replace_one"):
        mechanism = calibrate(
            objective, PrivacyBudget(1.0, 0.0), neighbours=relation
        )
        # 210 counts, of which one record moves three: Laplace noise.
        scale = objective.sensitivity("l1", neighbours=relation)
        assert mechanism.coordinate_variance(210) == 2 * scale**2
