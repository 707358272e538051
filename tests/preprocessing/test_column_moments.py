"""Moments of columns: bounds, means over places, and what they tell.

Bounds are those of docs/proofs/column_moments.md, proposition 1; see
`neighbours` for the search.
"""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import strategies as st
from neighbours import (
    NORMS,
    RELATIONS,
    Domain,
    check_audit,
    check_generated,
    check_sensitivity,
    shares,
)

from keras_fm.core.column_moments import (
    SQUARE_WEIGHT,
    ColumnMomentsQuery,
    ColumnMomentsRelease,
)
from keras_fm.kernel.mechanisms import GaussianMechanism


def domain(d, missing, places=1):
    """Records of `places * d` numbers, and as many that say what is there."""

    def inside(v):
        return v

    def arguments(v):
        values, there = np.split(np.asarray(v, float), 2)
        z = np.clip(values, -1, 1)
        if missing:
            z = np.where(there < -0.5, np.nan, z)
        shape = (1, places, d) if places > 1 else (1, d)
        return (z.reshape(shape),)

    query = ColumnMomentsQuery(num_columns=d, missing=missing)
    return Domain(query, 2 * d * places, inside, arguments)


def whole(d, value, there=1.0):
    """A record with one value in every column."""
    return np.r_[np.full(d, value), np.full(d, there)]


def extremal(d, missing):
    # L1 under replace_one: a - b = 2 - s and a + b = s.
    s = 1 - 1 / (2 * SQUARE_WEIGHT)
    yield whole(d, 1.0), whole(d, -1.0)
    yield whole(d, 1.0), whole(d, s - 1)
    yield whole(d, 1.0), whole(d, 0.0, -1.0 if missing else 1.0)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("d, places", [(1, 1), (3, 1), (2, 3)])
def test_no_neighbouring_pair_exceeds_a_bound(d, places, missing):
    found = domain(d, missing, places)
    pairs = extremal(d * places, missing)
    check_sensitivity(found, pairs, seed=d)


@pytest.mark.parametrize("missing", [False, True])
def test_no_generated_pair_exceeds_a_bound(missing):
    check_generated(
        lambda data: domain(
            data.draw(st.integers(1, 3)), missing, data.draw(st.integers(1, 2))
        ),
        examples=60,
    )


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("d", [1, 4])
def test_the_bounds_are_attained(d, missing):
    found = shares(domain(d, missing), list(extremal(d, missing)))
    assert min(found.values()) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("missing", [False, True])
def test_a_bound_that_is_one_per_cent_too_small_is_found(missing, monkeypatch):
    record = ColumnMomentsQuery._record
    monkeypatch.setattr(
        ColumnMomentsQuery, "_record", lambda *a, **k: 0.99 * record(*a, **k)
    )
    with pytest.raises(AssertionError):
        check_sensitivity(domain(3, missing), extremal(3, missing))


def test_the_numbers_of_the_docstring():
    for d in (1, 7):
        query = ColumnMomentsQuery(num_columns=d)
        gaps = dataclasses.replace(query, missing=True)
        third = d * (9 + 4 * math.sqrt(2)) / (4 * math.sqrt(2))
        wanted = {
            ("l2", "add_remove"): (
                math.sqrt((3 * d + 1) / 2),
                math.sqrt(2 * d),
            ),
            ("l2", "replace_one"): (2 * math.sqrt(d),) * 2,
            ("l1", "add_remove"): (
                d * (1 + math.sqrt(0.5)) + math.sqrt(0.5),
                d * (1 + math.sqrt(2)),
            ),
            ("l1", "replace_one"): (third, third),
        }
        for (norm, relation), pair in wanted.items():
            for each, value in zip((query, gaps), pair):
                found = each.sensitivity(norm, neighbours=relation)
                assert found == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_owners_and_reach(missing, norm):
    """A crowd of records of one owner counts as one may; others who hold its
    data count as replaced."""
    one = ColumnMomentsQuery(num_columns=3, missing=missing)
    query = dataclasses.replace(one, grouped=True)
    z = np.random.default_rng(0).uniform(-1, 1, (60, 3))
    z[:30] = 1.0
    owners = np.repeat([0, 1], 30)
    both = query.accumulate(query.zero(), z, None, owners)
    second = query.accumulate(query.zero(), z[30:], None, owners[30:])
    move = query.pack(both, norm) - query.pack(second, norm)
    length = np.linalg.norm(move, NORMS[norm])
    limit = query.sensitivity(norm, neighbours="add_remove")
    assert limit == one.sensitivity(norm, neighbours="add_remove")
    assert 0.5 * limit < length <= limit
    replaced = query.sensitivity(norm, neighbours="replace_one")
    assert replaced == 2 * limit
    for relation, own in (("add_remove", limit), ("replace_one", replaced)):
        far = dataclasses.replace(query, reach=3)
        found = far.sensitivity(norm, neighbours=relation)
        assert found == pytest.approx(own + 3 * replaced)


def test_places_are_summed_without_rounding():
    """The mean of many places, in whatever order they stand."""
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, (1, 5000, 2))
    query = ColumnMomentsQuery(num_columns=2)
    found = query.accumulate(query.zero(), z)
    turned = query.accumulate(query.zero(), z[:, ::-1].copy())
    for a, b in zip(found, turned):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(found[1], z.mean(axis=(0, 1)), atol=2e-6)
    np.testing.assert_allclose(
        found[2], (z**2).mean(axis=(0, 1)) - 0.5, atol=4e-6
    )
    corner = query.accumulate(query.zero(), np.ones((1, 5000, 2)))
    np.testing.assert_array_equal(corner[1], 1.0)
    np.testing.assert_array_equal(corner[2], 0.5)


def release_of(query, z, noise_multiplier=1e-9):
    statistics = query.accumulate(query.zero(), z)
    mechanism = GaussianMechanism(
        sensitivity=query.sensitivity("l2", neighbours="add_remove"),
        noise_multiplier=noise_multiplier,
    )
    return ColumnMomentsRelease(
        statistics=dict(zip(query.names, statistics)),
        query=query,
        mechanism=mechanism,
        neighbours="add_remove",
        private=False,
    )


def test_means_and_scales_are_those_of_numpy():
    rng = np.random.default_rng(0)
    z = np.clip(rng.normal([0.3, -0.5], [0.1, 0.2], (500, 2)), -1, 1)
    means, scales = release_of(
        ColumnMomentsQuery(num_columns=2), z
    ).means_and_scales()
    np.testing.assert_allclose(means, z.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(scales, z.std(axis=0), atol=1e-6)
    z[rng.random(z.shape) < 0.4] = np.nan
    gaps = ColumnMomentsQuery(num_columns=2, missing=True)
    means, scales = release_of(gaps, z).means_and_scales()
    np.testing.assert_allclose(means, np.nanmean(z, axis=0), atol=1e-9)
    np.testing.assert_allclose(scales, np.nanstd(z, axis=0), atol=1e-6)


def test_a_scale_is_never_below_what_the_noise_lets_see():
    query = ColumnMomentsQuery(num_columns=2, missing=True)
    z = np.tile([0.25, np.nan], (100, 1))
    found = release_of(query, z, 2.0)
    means, scales = found.means_and_scales()
    unsure = found.noise_of_means()
    np.testing.assert_allclose(means, [0.25 / (1 + 3 * unsure[0] ** 2), 0.0])
    # The standard deviation is 0, and its noise hides that.
    assert unsure[0] < scales[0] < 4 * unsure[0]
    # Nothing but noise: as if spread evenly over [-1, 1].
    assert scales[1] == pytest.approx(math.sqrt(2 / 3), rel=0.01)
    means, scales = release_of(query, z).means_and_scales()
    assert np.isfinite(means).all() and (scales > 0).all()


@pytest.mark.parametrize("relation", RELATIONS)
def test_an_audit_comes_near_its_epsilon_and_stays_below(relation):
    corners = [(np.full((1, 3), v),) for v in (1.0, -1.0)]
    check_audit(ColumnMomentsQuery(num_columns=3), corners, relation)
