"""Sums keep their digits, and their error stays below its bound."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_fm import queries
from keras_fm.kernel import sums as summation
from keras_fm.kernel.sums import CompensatedSum, error_bound

FINITE = st.floats(-1e12, 1e12, allow_subnormal=True)


def fractions(values):
    return sum((Fraction(v) for v in values), Fraction(0))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=50))
def test_a_sum_is_as_good_as_in_twice_the_precision(values):
    made = CompensatedSum()
    for value in values:
        made.add(np.array([value]))
    size = float(sum(abs(Fraction(v)) for v in values))
    error = abs(Fraction(float(made.value()[0])) - fractions(values))
    # One rounding of the result, and squares of roundings.
    largest = 2**-53 * abs(float(fractions(values)))
    assert error <= largest + len(values) ** 2 * 2**-106 * size


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("size", [1, 7, 130, 100_003])
def test_lengths_are_right_to_a_few_digits_in_any_dimension(norm, size):
    rng = np.random.default_rng(size)
    rows = rng.normal(size=(2, size)) * 10.0 ** rng.uniform(-3, 3, (2, size))
    # Not contiguous, and in the other order: the same sums.
    for given_rows in (rows, np.asfortranarray(rows), np.repeat(rows, 2, 1)):
        given_rows = (
            given_rows[:, ::2] if given_rows.shape[1] > size else (given_rows)
        )
        made = summation.lengths(given_rows, norm)
        for row, length in zip(rows, made):
            if norm == "l1":
                exact = math.fsum(np.abs(row))
            else:
                exact = math.sqrt(math.fsum(row**2))
            assert abs(length - exact) <= 2**-47 * exact


def test_the_bound_grows_with_what_it_is_about():
    base = error_bound(1.0)
    assert error_bound(5.0) == pytest.approx(5 * base, rel=1e-15)
    assert 2.9 * base < error_bound(1.0, grouped=True) < 3.1 * base
    assert base < error_bound(1.0, reach=10) < 1.001 * base
    # In rational numbers: 2^30 records, 1280 roundings each.
    u = Fraction(1, 2**53)
    exact = 1280 * u / (1 - 1280 * u) * 2**30
    assert Fraction(base) > exact


# The statistics of objectives ------------------------------------------------


def exact_second_moment(h):
    """Upper triangle of h^T h, in rational numbers."""
    rows = [[Fraction(v) for v in row] for row in h.tolist()]
    m = h.shape[1]
    return {
        (i, j): sum((row[i] * row[j] for row in rows), Fraction(0))
        for i in range(m)
        for j in range(i, m)
    }


@pytest.mark.parametrize("order", ["given", "sorted", "batches of 7"])
def test_computed_moments_are_within_the_share_of_their_records(order):
    """Of n records the error is at most n / 2^30 of the bound, in L2 and L1,
    for records of any size and sign, in any order."""
    rng = np.random.default_rng(0)
    n, m = 2500, 4
    h = rng.normal(size=(n, m)) * 10.0 ** rng.uniform(-12, 0, (n, 1))
    h /= np.maximum(np.linalg.norm(h, axis=1, keepdims=True), 1.0)
    if order == "sorted":
        h = h[np.argsort(-np.abs(h[:, 0]))]
    objective = queries.SecondMomentQuery(num_features=m)
    size = 7 if order == "batches of 7" else n
    parts = [objective.zero()] + [
        objective.accumulate(objective.zero(), h[i : i + size])
        for i in range(0, n, size)
    ]
    quadratic, _ = summation.total(parts)
    found = [
        float(Fraction(float(quadratic[key])) - value)
        * (1, 2**0.5)[key[0] != key[1]]
        for key, value in exact_second_moment(h).items()
    ]
    share = n / 2**30
    assert np.linalg.norm(found) <= share * objective.rounding_error("l2")
    assert (
        np.abs(found).sum() <= share * objective.rounding_error("l1") * 2**0.5
    )


@pytest.mark.parametrize(
    "objective",
    [
        queries.CrossEntropyQuery(num_features=3, num_outputs=2),
        queries.ReconstructionQuery(
            num_features=3, num_visible=2, visible_bound=1.0, reach=2
        ),
        queries.SecondMomentQuery(num_features=3, grouped=True),
        queries.PatchMomentQuery(
            num_features=3, order=3, feature_bound=2.0, constant=1.0
        ),
        queries.PatchClustersQuery(directions=2, components=3, clip=0.1),
        queries.RelevanceQuery(num_features=3),
        queries.NetworkExpansionQuery(shapes_of_layers=((3, 2),)),
    ],
    ids=lambda o: type(o).__name__,
)
def test_errors_are_a_small_share_of_the_sensitivity(objective):
    for norm in ("l1", "l2"):
        error = objective.rounding_error(norm)
        whole = objective.sensitivity(norm, neighbours="add_remove")
        assert 0 < 2 * error < 1.1e-3 * whole, norm
