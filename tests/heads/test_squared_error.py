"""The squared error of numbers: coefficients, sensitivity, predictions.

Pairs come from the proof (attained bounds), from random search, from hill
climbing and from hypothesis: see `neighbours`.
"""

import numpy as np
import pytest
from hypothesis import strategies as st
from neighbours import (
    Domain,
    check_generated,
    check_sensitivity,
    extremal_of_outputs,
    shares,
    to_ball,
)

from keras_fm.core.quadratic_release import QuadraticRelease
from keras_fm.heads.squared_error import SquaredErrorQuery, without_noise
from keras_fm.kernel import mechanisms
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.release import calibrate, release

pytestmark = pytest.mark.full

BOUNDS = (-2.0, 8.0)


def make(m, outputs=1, **kwargs):
    return SquaredErrorQuery(
        **{
            "num_features": m,
            "num_outputs": outputs,
            "target_bounds": BOUNDS,
            **kwargs,
        }
    )


def domain(m, outputs=1, **kwargs):
    """A record is its features and its targets on the scale [-1, 1]."""
    query = make(m, outputs, **kwargs)
    low, high = np.array(query.target_bounds).T

    def inside(v):
        h = to_ball(
            v[:m],
            query.feature_bound,
            query.nonnegative,
            query.feature_l1_bound,
        )
        return np.append(h, np.clip(v[m:], -1, 1))

    def arguments(v):
        return v[None, :m], low + (high - low) * (v[None, m:] + 1) / 2

    return Domain(query, m + outputs, inside, arguments)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("m, alpha", [(1, 1.0), (2, 0.3), (3, 3.0), (16, 1.0)])
def test_no_neighbouring_pair_exceeds_a_bound(m, alpha, outputs, nonnegative):
    found = domain(
        m,
        outputs,
        feature_bound=1.7,
        quadratic_scale=alpha,
        nonnegative=nonnegative,
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
            feature_l1_bound=data.draw(st.sampled_from([None, 9.0, 12.0])),
            target_bounds=data.draw(
                st.sampled_from([(0, 1), (-1e5, 3.0), (1e6, 1e6 + 1)])
            ),
        ),
        examples=200,
    )


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("m, alpha", [(2, 0.1), (2, 3.0), (6, 0.3), (16, 1.0)])
def test_a_pair_attains_every_bound(m, alpha, outputs, nonnegative):
    found = domain(
        m,
        outputs,
        feature_bound=0.6,
        quadratic_scale=alpha,
        nonnegative=nonnegative,
    )
    for key, share in shares(found, extremal_of_outputs(found.query)).items():
        statistic, norm, relation = key
        if norm == "l1" and relation == "replace_one":
            # Two parts with different extremes; of A alone, vectors with
            # entries of both signs.
            if statistic == "joint" or nonnegative:
                continue
        assert share >= (0.999 if norm == "l2" else 0.95), key


def records(n=400, m=4, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(n, m))
    h /= np.maximum(1, np.linalg.norm(h, axis=1, keepdims=True))
    z = h @ rng.normal(size=(m, outputs)) + 0.1 * rng.normal(size=(n, outputs))
    return h, np.clip(3 + 2 * z, *BOUNDS)


def test_the_objective_is_the_squared_error():
    h, y = records()
    query = make(4, 2)
    quadratic, linear = query.accumulate(query.zero(), h, y)
    quadratic = np.triu(quadratic) + np.triu(quadratic, 1).T
    t = (y - 3) / 5
    for seed in range(3):
        w = np.random.default_rng(seed).normal(size=(4, 2))
        wanted = np.sum((h @ w - t) ** 2) / 2 - np.sum(t**2) / 2
        found = query.value(w, (quadratic, linear))
        assert found == pytest.approx(wanted, rel=1e-9)


def released(query, batches, epsilon=1e6, neighbours="replace_one"):
    ledger = Ledger(PrivacyBudget(epsilon, 1e-5), neighbours=neighbours)
    return release(
        query,
        batches,
        mechanism=calibrate(query, ledger.budget, neighbours=neighbours),
        ledger=ledger,
        name="part",
        noise=mechanisms.NoiseSource(1),
    )


def test_its_minimum_is_least_squares_and_its_pseudo_records_too():
    h, y = records()
    t = (y - 3) / 5
    wanted = np.linalg.lstsq(h, t, rcond=None)[0]
    made = released(make(4, 2), [(h, y)])
    hessian, found = made.minimise(0.0)
    np.testing.assert_allclose(found, wanted, atol=2e-3)
    assert made.estimated_records() == pytest.approx(np.sum(h**2), rel=1e-3)
    x, targets = made.pseudo_records(0.0)
    again = np.linalg.lstsq(x, targets, rcond=None)[0]
    np.testing.assert_allclose(again, found, atol=1e-6)
    np.testing.assert_allclose(x.T @ x, hessian, atol=1e-6 * len(h))
    assert 0.99 < made.signal_share() <= 1


def test_with_noise_alone_nothing_is_signal():
    h, y = records(n=5)
    made = released(make(4, 2), [(h, y)], epsilon=1e-3)
    assert made.signal_share() < 0.8 and np.all(np.isfinite(made.minimise()[1]))


def table(rng, n=3000, m=8, signal=0.0, level=-0.9):
    """Rows with a constant 1 at the end, and numbers about a level."""
    h = np.c_[rng.uniform(-1, 1, (n, m)) / m**0.5, np.ones(n)]
    t = level + signal * h[:, 0] + rng.uniform(-0.05, 0.05, n)
    return h, 3 + 5 * t


def missed(weights, h, y):
    """Its squared errors, in variances of the numbers."""
    t = (y - 3) / 5
    return np.mean((h @ weights[:, 0] - t) ** 2) / np.var(t)


def test_weights_are_no_larger_than_the_noise_lets_one_see():
    """A ridge on all of A fitted the noise where bounds are wide and the mean
    lies at their end: R² of -45 and less on one table of the literature."""
    errors = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        h, y = table(rng)
        made = released(
            make(9, feature_bound=2**0.5),
            [(h, y)],
            epsilon=1.0,
            neighbours="add_remove",
        )
        plain = QuadraticRelease.minimise(made)[1]
        kept = made.minimise(constant=1.0)[1]
        errors.append([missed(w, h, y) for w in (plain, kept)])
    plain, kept = np.mean(errors, axis=0)
    assert kept < 1.3 and plain > 2


def test_a_mean_at_the_end_of_its_bounds_is_found_at_once():
    h, y = table(np.random.default_rng(3), level=0.95)
    made = released(
        make(9, feature_bound=2**0.5),
        [(h, y)],
        epsilon=0.5,
        neighbours="add_remove",
    )
    weights = made.minimise(constant=1.0)[1]
    # The noise of n and of the sum: 0.02 of half a range, four times.
    assert np.mean(h @ weights[:, 0]) == pytest.approx(0.95, abs=0.08)


def test_the_unit_of_features_changes_no_prediction():
    """The noise on means was taken for that of a constant of 1."""
    h, y = table(np.random.default_rng(5), signal=0.3, level=-0.7)
    found = []
    for unit in (1.0, 8.0):
        query = make(9, feature_bound=2**0.5 * unit, quadratic_scale=unit)
        made = released(
            query, [(unit * h, y)], epsilon=2.0, neighbours="add_remove"
        )
        found.append(unit * made.minimise(constant=unit)[1])
    np.testing.assert_allclose(*found, rtol=1e-3)


def test_with_little_noise_the_constant_changes_nothing():
    h, y = table(np.random.default_rng(4), signal=0.1, level=-0.3)
    made = released(make(9, feature_bound=2**0.5), [(h, y)])
    wanted = np.linalg.lstsq(h, (y - 3) / 5, rcond=None)[0]
    for constant in (None, 1.0):
        found = made.minimise(0.0, constant)[1]
        np.testing.assert_allclose(found[:, 0], wanted, atol=2e-3)


def test_eigenvalues_are_freed_of_what_the_noise_adds():
    before, after = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        true = np.diag([30.0, 8.0, *[4.0] * 10])
        noise = rng.normal(size=true.shape)
        # Variance 4 of an entry, 8 on the diagonal.
        found = np.linalg.eigvalsh(true + (noise + noise.T) * 2**0.5)
        freed, kept = without_noise(found, 4.0)
        before.append(found - np.sort(np.diag(true)))
        after.append(freed - np.sort(np.diag(true)))
        assert 0 < kept < 1 and np.all(freed >= 0)
    assert np.mean(np.square(after)) < 0.5 * np.mean(np.square(before))
    same, kept = without_noise(np.arange(3.0), 0.0)
    np.testing.assert_allclose(same, np.arange(3.0))
    assert kept == pytest.approx(1.0)


# Targets ---------------------------------------------------------------------


def test_targets_are_scaled_each_by_its_bounds():
    query = make(2, 3, target_bounds=[(0, 1), (-5, 5), (100, 300)])
    y = np.array([[0, -5, 100], [1, 5, 300], [0.5, 0, 250]])
    np.testing.assert_allclose(
        query.targets(y, 3), [[-1, -1, -1], [1, 1, 1], [0, 0, 0.5]]
    )
    one = make(2, target_bounds=(0, 4))
    for form in ([1, 2], [[1], [2]], np.array([1, 2], "uint8")):
        np.testing.assert_array_equal(one.targets(form, 2), [[-0.5], [0.0]])
    np.testing.assert_array_equal(one.targets([True, False], 2), [[-0.5], [-1]])


@pytest.mark.parametrize(
    "y, match",
    [
        ([1.0, 9.0], "within their public bounds"),
        ([1.0, -2.1], "within their public bounds"),
        ([1.0, np.nan], "`Targets` must be finite"),
        ([1.0, np.inf], "`Targets` must be finite"),
        ([1.0, 1e308], "within their public bounds"),
        ([1.0], "same number of records"),
        ([[1.0, 1.0], [1.0, 1.0]], "must have shape"),
        (["a", "b"], "must be numbers"),
        ([1j, 1], "must be numbers"),
    ],
)
def test_targets_that_are_refused(y, match):
    with pytest.raises(ValueError, match=match) as caught:
        make(2).targets(y, 2)
    assert "9.0" not in str(caught.value) and "1e308" not in str(caught.value)


def test_a_record_is_counted_with_the_others_in_an_exact_sum():
    """Bits do not depend on batches: sums of several machines."""
    h, y = records(n=64)
    query = make(4, 2)
    whole = query.accumulate(query.zero(), h, y, exact=True)
    order = np.random.default_rng(1).permutation(64)
    found = query.zero()
    for part in np.split(order, 8):
        found = query.accumulate(found, h[part], y[part], exact=True)
    for a, b in zip(found, whole):
        np.testing.assert_array_equal(a, b)


def test_an_owner_counts_as_one_record():
    h, y = records(n=60)
    query = make(4, 2, grouped=True)
    for norm in ("l1", "l2"):
        found = query.accumulate(query.zero(), h, y, owners=np.zeros(60, int))
        limit = query.sensitivity(norm, neighbours="add_remove")
        length = np.linalg.norm(query.pack(found, norm), int(norm[1]))
        assert 0.5 * limit < length <= limit
