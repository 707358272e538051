"""The second moment: coefficients, bounds, and why it suffices.

Bounds are those of docs/proofs/reconstruction.md, proposition 2; see
`neighbours` for the search.
"""

import math

import numpy as np
import pytest
from hypothesis import strategies as st
from neighbours import (
    NORMS,
    Domain,
    bounds,
    check_generated,
    check_sensitivity,
    halves,
    shares,
    to_ball,
)

from keras_fm.queries import CrossEntropyQuery, SecondMomentQuery


def make(m=4, **kwargs):
    return SecondMomentQuery(num_features=m, **kwargs)


def second_moment(objective, u):
    (upper, _) = objective.accumulate(objective.zero(), u)
    return np.triu(upper) + np.triu(upper, 1).T


def domain(m, **kwargs):
    query = make(m, **kwargs)
    return Domain(
        query,
        m,
        lambda u: to_ball(u, query.feature_bound, query.nonnegative),
        lambda u: (u[None],),
    )


def extremal(query):
    m, c = query.num_features, query.feature_bound
    ones, first = np.full(m, c / math.sqrt(m)), c * np.eye(m)[0]
    yield ones, 0 * ones
    yield first, np.roll(first, 1)
    yield from halves(m, c)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("m, alpha", [(1, 1.0), (2, 0.3), (3, 5.0), (17, 1.0)])
def test_no_neighbouring_pair_exceeds_a_bound(m, alpha, nonnegative):
    found = domain(
        m, feature_bound=2.5, quadratic_scale=alpha, nonnegative=nonnegative
    )
    check_sensitivity(found, extremal(found.query), m)


def test_no_generated_pair_exceeds_a_bound():
    check_generated(
        lambda data: domain(
            data.draw(st.integers(1, 7)),
            feature_bound=data.draw(st.sampled_from([0.1, 1.0, 9.0])),
            quadratic_scale=data.draw(st.sampled_from([0.05, 1.0, 40.0])),
        )
    )


@pytest.mark.parametrize("m", [1, 2, 6, 16])
def test_every_bound_is_attained_or_nearly(m):
    found = domain(m, feature_bound=0.7, quadratic_scale=0.2)
    for key, share in shares(found, extremal(found.query)).items():
        if key[1:] == ("l1", "replace_one") and m > 2:
            # docs/proofs/cross_entropy.md, proposition 2: at least 0.962.
            assert share >= (0.96 if key[0] != "linear" else 1)
        else:
            # The angles of the search miss the best one by less than 1e-3.
            assert share >= 0.999, key


def test_golden_values_of_the_bounds():
    assert joint(make(8, feature_bound=2.0)) == pytest.approx(
        {
            ("l1", "add_remove"): 18.0,
            ("l1", "replace_one"): 4 * math.sqrt(44),
            ("l2", "add_remove"): 4.0,
            ("l2", "replace_one"): 4 * math.sqrt(2),
        },
        rel=1e-14,
    )
    # One feature: there is no orthogonal record.
    single = joint(make(1, feature_bound=2.0, quadratic_scale=0.5))
    assert set(single.values()) == {8.0}


def joint(query):
    return {k[1:]: v for k, v in bounds(query).items() if k[0] == "joint"}


@pytest.mark.parametrize("m", [1, 2, 9])
def test_the_bounds_are_those_of_a_alone(m):
    objective, head = make(m), CrossEntropyQuery(
        num_features=m, num_outputs=3
    )  # fmt: skip
    for (norm, relation), limit in joint(objective).items():
        assert limit == head.quadratic_sensitivity(norm, neighbours=relation)
        assert objective.linear_sensitivity(norm, neighbours=relation) == 0


# Coefficients -------------------------------------------------------------


def some_records(m=4, n=29, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, size=(n, m)) / math.sqrt(m)


@pytest.mark.parametrize("m", [1, 5])
def test_the_statistic_is_the_sum_over_records(m):
    objective, u = make(m, quadratic_scale=0.7), some_records(m)
    a = np.zeros((m, m))
    for row in u:
        for i in range(m):
            for j in range(m):
                a[i, j] += row[i] * row[j]
    statistics = objective.accumulate(objective.zero(), u)
    for norm in NORMS:
        vector = objective.pack(statistics, norm)
        assert vector.shape == (objective.size,) == (m * (m + 1) // 2,)
        (made,) = objective.unpack(vector, norm)
        np.testing.assert_allclose(made, a, atol=1e-13)
        np.testing.assert_array_equal(made, made.T)
        # A release packs what it unpacked.
        np.testing.assert_allclose(objective.pack((made,), norm), vector)


def affine_error(x, encoder, bias, decoder, offset):
    residual = x - (x @ encoder + bias) @ decoder.T - offset
    return np.sum(residual**2) / 2


@pytest.mark.parametrize("units", [1, 2, 6])
def test_it_gives_the_squared_error_of_every_affine_auto_encoder(units):
    d, constant = 4, 0.3
    x = np.random.default_rng(1).normal(size=(50, d))
    u = np.concatenate([x, np.full((50, 1), constant)], axis=1)
    objective = make(d + 1, feature_bound=10.0)
    a = second_moment(objective, u)
    rng = np.random.default_rng(2)
    for _ in range(5):
        encoder, decoder = rng.normal(size=(2, d, units))
        bias, offset = rng.normal(size=units), rng.normal(size=d)
        shift = -(decoder @ bias + offset) / constant
        error = np.column_stack([np.eye(d) - decoder @ encoder.T, shift])
        made = np.trace(error @ a @ error.T) / 2
        expected = affine_error(x, encoder, bias, decoder, offset)
        assert made == pytest.approx(expected, rel=1e-10)


# Errors and configuration --------------------------------------------------


@pytest.mark.parametrize(
    "u, message",
    [
        (np.full((2, 4), np.nan), "finite"),
        (np.full((2, 4), -np.inf), "finite"),
        (np.zeros((2, 3)), "shape"),
        (np.zeros(4), "shape"),
        (np.zeros((2, 4, 1)), "shape"),
        (np.full((2, 4), 77.0), "outside the public L2 bound"),
    ],
)
def test_invalid_records_are_refused_and_add_nothing(u, message):
    objective = make()
    statistics = objective.zero()
    with pytest.raises(ValueError, match=message) as caught:
        objective.accumulate(statistics, u)
    assert "77" not in str(caught.value)
    assert not statistics[0].any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_clipping_bounds_what_a_record_adds(dtype):
    objective = make(feature_bound=0.3)
    rng = np.random.default_rng(3)
    for size in (0.1, 1.0, 1e3):
        u = (size * rng.normal(size=(1, 4))).astype(dtype)
        made = objective.accumulate(objective.zero(), u, clip=True)
        for norm, order in NORMS.items():
            length = np.linalg.norm(objective.pack(made, norm), order)
            limit = objective.sensitivity(norm, neighbours="add_remove")
            assert length <= limit * (1 + 1e-13)
