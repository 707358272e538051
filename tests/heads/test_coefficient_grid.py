"""Sums of coefficients in whole steps: their bits, and what one record moves.

Exact sums are those of Python's integers, which have no largest one.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_fm.heads import coefficient_grid, gradient_query
from keras_fm.heads.coefficient_grid import CoefficientGrid
from keras_fm.kernel import sums as summation
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.queries import GradientQuery

LOSSES = ("cross_entropy", "squared_hinge", "crammer_singer")
BOUNDS = (1e-30, 0.3, 1.0, 1.5, 2.0, 1e30)


def drawn(n=400, m=7, outputs=3, bound=1.0, seed=0):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(n, m))
    h *= bound / np.linalg.norm(h, axis=1, keepdims=True)
    y = rng.integers(0, max(outputs, 2), n)
    return h, y, rng.normal(size=(m, outputs)) / bound


def whole(values, step):
    """Of multiples of a step, which numbers of steps they are."""
    found = [Fraction(float(v)) / Fraction(step) for v in np.ravel(values)]
    assert all(v.denominator == 1 for v in found)
    return [v.numerator for v in found]


def alone(query, h, y, weights):
    """The integers of every record's own sum, added up."""
    step = query._grid.step
    sums = [
        whole(query.total(*query.check_records(*one), weights), step)
        for one in zip(h[:, None], y[:, None])
    ]
    return [sum(column) for column in zip(*sums)]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bound, clip", itertools.product(BOUNDS, (0.1, 0.25)))
def test_a_sum_is_the_exact_sum_of_its_records(loss, bound, clip):
    query = GradientQuery(
        num_features=7, num_outputs=3, clip=clip, loss=loss, feature_bound=bound
    )
    h, y, weights = drawn(bound=bound)
    found = query.total(*query.check_records(h, y), weights)
    assert whole(found, query._grid.step) == alone(query, h, y, weights)


@pytest.mark.parametrize("loss", LOSSES)
def test_bits_do_not_depend_on_order_batches_or_products(loss, monkeypatch):
    """Nor on how a matrix library takes its products: their sizes differ."""
    query = GradientQuery(num_features=60, num_outputs=10, clip=0.1, loss=loss)
    h, y, weights = drawn(3000, 60, 10)
    rng, found = np.random.default_rng(1), []
    for few, size in ((1, 1), (7, 21), (64, 256), (3000, 3000)):
        monkeypatch.setattr(
            gradient_query, "_blocks", lambda *_, sizes=(few, size): sizes
        )
        partial = PartialStatistics(query.at(weights))
        order = rng.permutation(len(h))
        for part in np.array_split(order, rng.integers(1, 9)):
            partial.add(h[part], y[part])
        found.append(partial.statistics()[0].tobytes())
    assert len(set(found)) == 1


def test_sums_are_exact_where_they_are_longest():
    """Every record as long as it may be, in one coordinate."""
    # Odd, as are the features: one digit more would be lost.
    n, odd = coefficient_grid.EXACT_ROWS - 1, []
    for bound, clip in itertools.product((1.0, 1.99), (0.1, 0.2, 0.49, 0.99)):
        query = GradientQuery(
            num_features=1,
            num_outputs=1,
            clip=clip,
            feature_bound=bound,
            loss="squared_hinge",
        )
        h = np.full((n, 1), bound - query._grid.feature_step)
        y = np.ones(n)
        weights = np.full((1, 1), -1e6)
        (one,) = alone(query, h[:1], y[:1], weights)
        found = query.total(*query.check_records(h, y), weights)
        assert whole(found, query._grid.step) == [n * one]
        odd.append(one % 2)
        assert clip * (1 - 1e-3) <= abs(one) * query._grid.step <= clip
    assert any(odd)


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1.0, 1e12, 1e300])
def test_logits_have_the_same_bits_beside_any_records(size):
    query = GradientQuery(num_features=60, num_outputs=10)
    h, y, weights = drawn(1000, 60, 10)
    weights *= size
    rows, targets = query.check_records(h, y)
    grid = query._grid
    columns, factors = grid.weights(weights)
    together = (columns @ rows.astype(float).T).T
    for i in range(0, 1000, 37):
        one = [
            sum(int(a) * int(b) for a, b in zip(column, rows[i]))
            for column in columns
        ]
        assert [int(v) for v in together[i]] == one
        assert max(map(abs, one)) < 2**53
    if 1e-200 < size < 1e200:
        np.testing.assert_allclose(
            together * factors[:, 0],
            grid.feature_step * rows @ weights,
            atol=1e-9 * size,
        )


@pytest.mark.parametrize("bound", BOUNDS)
def test_features_are_cut_towards_zero(bound):
    grid = CoefficientGrid(bound, 0.1)
    h, *_ = drawn(bound=bound, m=5)
    ends = bound * np.array([[1.0], [-1.0], [1 - 2**-53], [2**-60], [0.0]])
    h = np.concatenate([h, ends * np.eye(5)])
    narrow = grid.narrow(h.copy())
    assert narrow.dtype == np.int16 and np.abs(narrow).max() <= 2**14
    kept = narrow * grid.feature_step
    assert np.all(np.abs(kept) <= np.abs(h)) and np.all(kept * h >= 0)
    assert np.all(np.abs(kept - h) < bound / 2**13)
    lengths = grid.lengths(narrow)
    np.testing.assert_allclose(lengths, np.linalg.norm(kept, axis=1))


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@settings(derandomize=True, deadline=None, max_examples=120)
@given(data=st.data())
def test_no_neighbour_moves_a_computed_sum_by_more(relation, data):
    """The sums of many records, of which one is added, removed or replaced:
    no rounding of the others takes part. In integers."""
    m, outputs = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    bound = data.draw(st.sampled_from(BOUNDS))
    clip = data.draw(st.sampled_from([1e-30, 0.1, 1.0, 0.7, 1e30]))
    loss = data.draw(st.sampled_from(LOSSES))
    query = GradientQuery(
        num_features=m,
        num_outputs=outputs,
        feature_bound=bound,
        clip=clip,
        loss=loss,
    )
    seed = data.draw(st.integers(0, 2**32 - 1))
    h, y, weights = drawn(300, m, outputs, bound, seed)
    weights *= 10.0 ** data.draw(st.integers(-9, 9))
    place = data.draw(st.integers(0, 298))
    sums = []
    for change in (0, 1):
        rows = np.arange(300) != place + change * (relation == "replace_one")
        if relation == "add_remove" and change:
            rows[:] = True
        found = query.total(*query.check_records(h[rows], y[rows]), weights)
        sums.append(whole(found, query._grid.step))
    moved = sum((a - b) ** 2 for a, b in zip(*sums))
    limit = query.sensitivity("l2", neighbours=relation)
    assert moved * Fraction(query._grid.step) ** 2 <= Fraction(limit) ** 2


def test_steps_are_multiples_of_what_sums_are_kept_in():
    """Or batches would be rounded as they come in."""
    for bound, clip in itertools.product(BOUNDS, (1e-30, 0.1, 1.0, 1e30)):
        grid = CoefficientGrid(bound, clip)
        unit = summation.FixedPointSum(clip, (1,))._unit * 2.0**-60
        assert grid.step >= unit and (grid.step / unit) % 1 == 0
