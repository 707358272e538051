"""Histograms of columns: bounds, places, gaps, and the range they tell.

Bounds are those of docs/proofs/column_moments.md, proposition 2; see
`neighbours` for the search.
"""

import math

import numpy as np
import pytest
from neighbours import NORMS, Domain, check_sensitivity, shares

from keras_fm.kernel.mechanisms import GaussianMechanism
from keras_fm.preprocessing.column_histogram import (
    ColumnHistogramQuery,
    ColumnHistogramRelease,
)


def domain(d, missing=False, places=1, bins=3):
    def arguments(v):
        values, there = np.split(np.asarray(v, float), 2)
        z = np.clip(values, -1, 1)
        if missing:
            z = np.where(there < -0.5, np.nan, z)
        return (z.reshape((1, places, d) if places > 1 else (1, d)),)

    query = ColumnHistogramQuery(num_columns=d, num_bins=bins, missing=missing)
    return Domain(query, 2 * d * places, lambda v: v, arguments)


def extremal(d):
    yield np.ones(2 * d), np.r_[-np.ones(d), np.ones(d)]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("d, places", [(1, 1), (3, 1), (2, 3)])
def test_no_neighbouring_pair_exceeds_a_bound(d, places, missing):
    check_sensitivity(domain(d, missing, places), extremal(d * places), seed=d)


def test_the_bounds_are_attained_and_smaller_ones_are_found_out(monkeypatch):
    found = shares(domain(4), list(extremal(4)))
    assert min(found.values()) == pytest.approx(1, rel=1e-9)
    record = ColumnHistogramQuery._record
    monkeypatch.setattr(
        ColumnHistogramQuery, "_record", lambda *a, **k: 0.99 * record(*a, **k)
    )
    with pytest.raises(AssertionError):
        check_sensitivity(domain(4), extremal(4))


@pytest.mark.parametrize("norm", NORMS)
def test_an_owner_counts_as_one_record_may(norm):
    query = ColumnHistogramQuery(num_columns=2, num_bins=4, grouped=True)
    z = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    z[:30] = 1.0
    owners = np.repeat([0, 1], [30, 20])
    both = query.accumulate(query.zero(), z, None, owners)
    second = query.accumulate(query.zero(), z[30:], None, owners[30:])
    move = query.pack(both, norm) - query.pack(second, norm)
    limit = query.sensitivity(norm, neighbours="add_remove")
    assert 0.5 * limit < np.linalg.norm(move, NORMS[norm]) <= limit
    assert query.sensitivity(norm, neighbours="replace_one") == 2 * limit
    # Of each owner reached, whose record is in it, all may change.
    reaching = ColumnHistogramQuery(
        num_columns=2, num_bins=4, grouped=True, reach=3
    )
    for relation, own in (("add_remove", 1), ("replace_one", 2)):
        found = reaching.sensitivity(norm, neighbours=relation)
        assert found == pytest.approx((own + 3 * 2) * limit)


def test_counts_are_those_of_numpy():
    rng = np.random.default_rng(0)
    z = rng.uniform(-1.2, 1.2, (3000, 2))
    query = ColumnHistogramQuery(num_columns=2, num_bins=10)
    (found,) = query.accumulate(query.zero(), z)
    for j in range(2):
        inside = np.clip(z[:, j], -1, 1)
        wanted = np.histogram(inside, bins=10, range=(-1, 1))[0]
        np.testing.assert_array_equal(found[j], wanted)
    # Of several places each adds its share, a gap nothing.
    gaps = np.where(rng.random((40, 5, 2)) < 0.3, np.nan, 0.5)
    query = ColumnHistogramQuery(num_columns=2, num_bins=4, missing=True)
    (found,) = query.accumulate(query.zero(), gaps)
    known = (~np.isnan(gaps)).sum(axis=(0, 1)) / 5
    np.testing.assert_allclose(found[:, 3], known, rtol=1e-12)
    assert not found[:, :3].any()


def release_of(counts, noise_multiplier=1e-9):
    query = ColumnHistogramQuery(
        num_columns=len(counts), num_bins=len(counts[0])
    )
    mechanism = GaussianMechanism(
        sensitivity=query.sensitivity("l2", neighbours="add_remove"),
        noise_multiplier=noise_multiplier,
    )
    return ColumnHistogramRelease(
        statistics={"counts": np.asarray(counts, float)},
        query=query,
        mechanism=mechanism,
        neighbours="add_remove",
        private=False,
    )


def test_a_range_holds_all_but_the_tails():
    rng = np.random.default_rng(0)
    z = rng.normal(0.3, 0.02, (50_000, 1))
    query = ColumnHistogramQuery(num_columns=1)
    (counts,) = query.accumulate(query.zero(), z)
    low, high = release_of(counts).range_of(0.01, 0.99)
    exact = np.quantile(z, [0.01, 0.99])
    assert exact[0] - 2 / 256 <= low[0] <= exact[0]
    assert exact[1] <= high[0] <= exact[1] + 2 / 256
    low, high = release_of(counts).range_of(0.0, 1.0)
    assert (z >= low).all() and (z <= high).all() and low > -1 and high < 1


def test_noise_in_empty_bins_ends_no_tail():
    """At four deviations of noise. Each column of noise is 64 correlated sums:
    a false end has a chance of about 1e-3 (400 columns, a fixed seed)."""
    rng = np.random.default_rng(1)
    counts = rng.normal(0, 10 * math.sqrt(400), (400, 64))
    counts[:, 32] += 1e5
    low, high = release_of(counts, 10.0).range_of(0.01, 0.99)
    assert (low <= 0).all() and (high >= 2 / 64).all()
    cut = np.mean(low < -1e-9)
    assert cut < 0.02
    # What does not stand out at all keeps its bounds.
    low, high = release_of(counts * 0 + 1e-3, 10.0).range_of(0.01, 0.99)
    assert (low == -1).all() and (high == 1).all()
