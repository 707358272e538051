"""The coefficients are right and no neighbouring pair exceeds a bound.

Pairs come from the proofs (attained bounds), from random search, from hill
climbing and from hypothesis: see `neighbours`.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import strategies as st
from neighbours import (
    NORMS,
    SLACK,
    Domain,
    bounds,
    check_generated,
    check_sensitivity,
    extremal_of_outputs,
    shares,
    to_ball,
)

from keras_fm.heads.cross_entropy import CrossEntropyQuery
from keras_fm.kernel import mechanisms
from keras_fm.public import polynomials


def make(m, outputs=3, **kwargs):
    return CrossEntropyQuery(num_features=m, num_outputs=outputs, **kwargs)


def domain(m, outputs=3, **kwargs):
    """A record is its features, and a number whose sign is the label; several
    labels are numbers of their own."""
    query = make(m, outputs, **kwargs)
    labels = outputs if query.independent else 1

    def inside(v):
        h = to_ball(
            v[:m],
            query.feature_bound,
            query.nonnegative,
            query.feature_l1_bound,
        )
        return np.append(h, v[m:])

    def arguments(v):
        found = (v[m:] > 0).astype(int)
        return v[None, :m], found[None] if query.independent else found

    return Domain(query, m + labels, inside, arguments)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("outputs, independent", [(1, 0), (3, 0), (3, 1)])
@pytest.mark.parametrize("m, alpha", [(1, 1.0), (2, 0.3), (3, 3.0), (16, 1.0)])
def test_no_neighbouring_pair_exceeds_a_bound(
    m, alpha, outputs, independent, nonnegative
):
    found = domain(
        m,
        outputs,
        feature_bound=1.7,
        quadratic_scale=alpha,
        nonnegative=nonnegative,
        independent=independent,
    )
    check_sensitivity(found, extremal_of_outputs(found.query), [m, outputs])


def test_no_generated_pair_exceeds_a_bound():
    check_generated(
        lambda data: domain(
            data.draw(st.integers(1, 8)),
            data.draw(st.sampled_from([1, 2, 5])),
            feature_bound=data.draw(st.sampled_from([0.1, 1.0, 9.0])),
            quadratic_scale=data.draw(st.sampled_from([0.05, 1.0, 40.0])),
            nonnegative=data.draw(st.booleans()),
            independent=data.draw(st.booleans()),
            feature_l1_bound=data.draw(st.sampled_from([None, 9.0, 12.0])),
        ),
        examples=200,
    )


@pytest.mark.parametrize("outputs, independent", [(1, 0), (3, 0), (3, 1)])
@pytest.mark.parametrize("m, alpha", [(2, 0.1), (2, 3.0), (6, 0.3), (16, 1.0)])
def test_a_pair_comes_within_five_percent_of_every_bound(
    m, alpha, outputs, independent
):
    found = domain(
        m,
        outputs,
        feature_bound=0.6,
        quadratic_scale=alpha,
        independent=independent,
    )
    for key, share in shares(found, extremal_of_outputs(found.query)).items():
        if key == ("joint", "l1", "replace_one") and (
            alpha > 0.1 or m == 6 or independent
        ):
            # The sum of two parts whose extremes are different pairs: it is
            # near tight where the part of A dominates.
            continue
        assert share >= 0.95, key


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("m", [2, 6])
def test_the_bounds_of_nonnegative_features_are_tight_too(m, outputs):
    found = domain(m, outputs, nonnegative=True)
    for key, share in shares(found, extremal_of_outputs(found.query)).items():
        if key[1] == "l2" or key[2] == "add_remove" or key[0] == "linear":
            assert share >= 0.95, key


def test_exact_values_of_the_bounds():
    """The numbers of the table in docs/proofs/cross_entropy.md."""
    two = make(2, 3)
    assert bounds(two) == pytest.approx(
        {
            ("quadratic", "l1", "add_remove"): 1.5,
            ("quadratic", "l1", "replace_one"): math.sqrt(5),
            ("quadratic", "l2", "add_remove"): 1.0,
            ("quadratic", "l2", "replace_one"): math.sqrt(2),
            ("linear", "l1", "add_remove"): math.sqrt(2),
            ("linear", "l1", "replace_one"): 2 * math.sqrt(2),
            ("linear", "l2", "add_remove"): 1.0,
            ("linear", "l2", "replace_one"): 2.0,
            ("joint", "l1", "add_remove"): 1.5 + math.sqrt(2),
            ("joint", "l1", "replace_one"): math.sqrt(5) + 2 * math.sqrt(2),
            ("joint", "l2", "add_remove"): math.sqrt(2),
            ("joint", "l2", "replace_one"): math.sqrt(4.5),
        }
    )
    one_sided = make(2, 3, nonnegative=True)
    assert one_sided.linear_sensitivity(
        "l2", neighbours="replace_one"
    ) == pytest.approx(math.sqrt(2))
    assert one_sided.sensitivity(
        "l2", neighbours="replace_one"
    ) == pytest.approx(2.0)
    # Binary targets have signs, so nonnegative features do not help.
    for sign in (False, True):
        binary = make(2, 1, nonnegative=sign)
        assert binary.linear_sensitivity(
            "l2", neighbours="replace_one"
        ) == pytest.approx(1.0)


@pytest.mark.parametrize("m", [1, 2, 7])
def test_the_joint_bound_is_never_looser_than_its_parts(m):
    for alpha, outputs in itertools.product((0.1, 1.0, 9.0), (1, 3)):
        objective = make(m, outputs, quadratic_scale=alpha)
        quadratic = objective.quadratic_sensitivity(
            "l2", neighbours="replace_one"
        )
        linear = objective.linear_sensitivity("l2", neighbours="replace_one")
        joint = objective.sensitivity("l2", neighbours="replace_one")
        if m > 1:
            assert joint <= math.hypot(quadratic / alpha, linear) * SLACK
        assert joint >= max(quadratic / alpha, linear) / SLACK


# Coefficients -------------------------------------------------------------


def some_records(m, outputs, n=23, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, size=(n, m)) / math.sqrt(m)
    return rows, rng.integers(0, max(outputs, 2), size=n)


def targets(labels, outputs):
    if outputs == 1:
        return labels[:, None].astype(float)
    return np.eye(outputs)[labels]


@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_statistics_are_the_sums_over_records(outputs):
    objective = make(5, outputs, quadratic_scale=0.7)
    rows, labels = some_records(5, outputs)
    statistics = objective.accumulate(objective.zero(), rows, labels)
    a, s = np.zeros((5, 5)), np.zeros((5, outputs))
    for h, y in zip(rows, targets(labels, outputs)):
        t = y - 0.5 if outputs == 1 else y
        for i in range(5):
            for j in range(5):
                a[i, j] += h[i] * h[j]
            for k in range(outputs):
                s[i, k] += h[i] * t[k]
    for norm in NORMS:
        made = objective.unpack(objective.pack(statistics, norm), norm)
        np.testing.assert_allclose(made[0], a, atol=1e-14)
        np.testing.assert_allclose(made[1], s, atol=1e-14)


@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_value_is_the_summed_taylor_loss(outputs):
    objective = make(5, outputs)
    rows, labels = some_records(5, outputs)
    a = rows.T @ rows
    t = targets(labels, outputs)
    s = rows.T @ (t - 0.5 if outputs == 1 else t)
    softplus = polynomials.taylor("softplus", 2, 1.0)
    rng = np.random.default_rng(1)
    for _ in range(5):
        weights = rng.normal(size=(5, outputs))
        logits = rows @ weights
        loss = np.sum(softplus(logits) - t * logits)
        constant = len(rows) * outputs * math.log(2)
        assert objective.value(weights, (a, s)) == pytest.approx(
            loss - constant, rel=1e-12
        )


def test_the_constant_column_is_the_row_sum_of_s():
    """With a bias entry, L needs nothing beyond A and S."""
    objective = make(3, 4)
    rows, labels = some_records(3, 4)
    rows[:, -1] = 0.25
    _, s = objective.accumulate(objective.zero(), rows, labels)
    np.testing.assert_allclose(s.sum(axis=1), rows.sum(axis=0))
    np.testing.assert_allclose(
        objective.linear_coefficients(s),
        rows.T @ (0.5 - np.eye(4)[labels]),
        atol=1e-14,
    )


@pytest.mark.parametrize(
    "labels",
    [
        [1, 0, 2],
        np.array([1.0, 0.0, 2.0], np.float32),
        np.array([[1], [0], [2]], np.uint8),
        np.eye(3)[[1, 0, 2]],
        np.eye(3, dtype=bool)[[1, 0, 2]],
    ],
)
def test_forms_of_labels_agree(labels):
    objective = make(2, 3)
    rows = np.array([[0.1, 0.2], [0.3, -0.4], [-0.5, 0.6]])
    _, s = objective.accumulate(objective.zero(), rows, labels)
    np.testing.assert_allclose(s, rows.T @ np.eye(3)[[1, 0, 2]])


# Errors -------------------------------------------------------------------

GOOD = np.full((2, 3), 0.25)


@pytest.mark.parametrize(
    "h, y, message",
    [
        (np.full((2, 3), np.nan), [0, 1], "finite"),
        (np.full((2, 3), np.inf), [0, 1], "finite"),
        (GOOD[:, :2], [0, 1], "shape"),
        (GOOD[0], [0, 1], "shape"),
        (GOOD[..., None], [0, 1], "shape"),
        (9 * GOOD, [0, 1], "outside the public L2 bound"),
        (GOOD, [0, 77], r"in \[0, 3\)"),
        (GOOD, [0, -1], r"in \[0, 3\)"),
        (GOOD, [0, 0.5], "whole numbers"),
        (GOOD, [0, math.nan], "whole numbers"),
        (GOOD, [0, math.inf], "whole numbers"),
        (GOOD, [0], "same number"),
        (GOOD, np.zeros((2, 2)), "shape"),
        (GOOD, np.zeros((2, 3)), "one-hot"),
        (GOOD, np.full((2, 3), 1 / 3), "one-hot"),
        (GOOD, np.ones((2, 3)), "one-hot.*binary_cross_entropy"),
        (GOOD, np.full((2, 3), np.nan), "one-hot"),
        (GOOD, [[-1, 1, 1]] * 2, "one-hot"),
    ],
)
def test_invalid_records_are_refused_and_add_nothing(h, y, message):
    objective = make(3, 3)
    statistics = objective.zero()
    with pytest.raises(ValueError, match=message) as caught:
        objective.accumulate(statistics, h, y)
    assert "77" not in str(caught.value)
    assert not statistics[0].any() and not statistics[1].any()


def test_a_declared_sign_is_checked():
    objective = make(3, 3, nonnegative=True)
    rows = GOOD.copy()
    objective.accumulate(objective.zero(), rows, [0, 1])
    rows[1, 2] = -1e-12
    with pytest.raises(ValueError, match="nonnegative"):
        objective.accumulate(objective.zero(), rows, [0, 1])


def test_clipping_bounds_what_a_record_adds():
    objective = make(3, 3, feature_bound=0.5)
    huge = (np.array([1e100, 0.0, -3.0]), 1)
    statistics = objective.accumulate(
        objective.zero(), huge[0][None], [1], clip=True
    )
    vector = objective.pack(statistics, "l2")
    assert np.linalg.norm(vector) <= SLACK * objective.sensitivity(
        "l2", neighbours="add_remove"
    )


# Noise in the coordinates of the statistics --------------------------------


@pytest.mark.parametrize(
    "mechanism",
    [
        mechanisms.GaussianMechanism(sensitivity=1.0, noise_multiplier=2.0),
        mechanisms.LaplaceMechanism(sensitivity=1.0, epsilon=0.5),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_expected_error_is_the_mean_squared_error(mechanism):
    objective = make(6, 3, quadratic_scale=2.0)
    source = mechanisms.NoiseSource(reproducible_noise=11)
    errors, entries = [], []
    for _ in range(2000):
        a, s = objective.unpack(
            mechanism.perturb(np.zeros(objective.size), source),
            mechanism.norm,
        )
        errors.append(np.sum(a**2) + np.sum(s**2))
        entries.append(a[0, 1])
    # The mean's own standard error is 1 %; five of them are allowed.
    mean, error = np.mean(errors), np.std(errors) / math.sqrt(2000)
    # In L1 coordinates an off-diagonal error appears twice in A.
    counted = 6 * 7 / 2 if mechanism.norm == "l2" else 6 * 6
    expected = mechanism.coordinate_variance(objective.size)
    expected *= counted * 2.0**2 + 6 * objective.num_targets
    assert abs(mean - expected) <= 5 * error
    assert abs(mean - 0.8 * expected) > 5 * error
    assert np.std(entries) == pytest.approx(
        objective.off_diagonal_stddev(mechanism), rel=0.12
    )


def test_labels_of_their_own():
    """Any zeros and ones, and the sum of their binary objectives."""
    rng = np.random.default_rng(0)
    h, y = rng.normal(size=(30, 4)) / 9, rng.integers(0, 2, (30, 3))
    query = make(4, 3, independent=True)
    quadratic, linear = query.accumulate(query.zero(), h, y)
    for output in range(3):
        one = make(4, 1)
        alone = one.accumulate(one.zero(), h, y[:, output])
        np.testing.assert_array_equal(alone[0], quadratic)
        np.testing.assert_allclose(
            alone[1], linear[:, [output]], rtol=1e-12, atol=1e-14
        )
    found = query.linear_coefficients(linear)
    np.testing.assert_allclose(found, h.T @ (0.5 - y), atol=1e-12)
    for bad, match in (
        (y[:, 0], "must have shape"),
        (y[:, :2], "must have shape"),
        (y[:5], "same number"),
        (y * 0.5, "must be 0 or 1"),
        (y + np.nan, "must be 0 or 1"),
    ):
        with pytest.raises(ValueError, match=match):
            query.targets(bad, 30)
