"""Rounds in the directions that a released second moment whitens."""

import math

import keras
import made_release
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_fm as fm
from keras_fm.heads import whitening
from keras_fm.kernel.planning import calibration

DELTA, N, M, BOUND = 1e-5, 400, 6, 1.5
pytestmark = pytest.mark.once


def rows(n=N, m=M, seed=0, bound=BOUND):
    """Of very unequal directions, the longest at the bound."""
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(n, m)) * 0.5 ** np.arange(m)
    return h * bound / np.linalg.norm(h, axis=1).max()


def learned(h, epsilon=1e6, bound=BOUND, n=None, **kwargs):
    white = whitening.Whitening(h.shape[1], bound, grouped=False, reach=0)
    release = made_release.make_release(
        white.query, [(h, None)], epsilon=epsilon, **kwargs
    )
    white.learn(release, n or len(h))
    return white


def test_all_directions_count_alike_and_rows_stay_inside():
    h = rows()
    found = learned(h).rows(h)
    lengths = np.linalg.norm(found, axis=1)
    assert lengths.max() <= BOUND and np.mean(lengths > 0.999 * BOUND) < 0.1
    values = np.linalg.eigvalsh(found.T @ found / N)
    assert values.max() < 1.7 * values.min()
    # A typical row is well inside of the bound.
    assert math.sqrt(np.mean(lengths**2)) == pytest.approx(BOUND / 8, rel=0.1)


@pytest.mark.parametrize("epsilon", [0.3, 3.0, 1e6])
@pytest.mark.parametrize("seed", range(3))
def test_the_stated_curvature_is_not_far_exceeded(epsilon, seed):
    """Descent with momentum 0.8 bears 3.6 times it."""
    h = rows(seed=seed)
    white = learned(h, epsilon, seed=seed)
    found = white.rows(h)
    values = np.linalg.eigvalsh(found.T @ found / N)
    assert values.max() < 1.5 * white.curvature


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    epsilon=st.sampled_from([1e-2, 1.0, 1e6]),
    exponent=st.integers(-60, 0),
    bound=st.sampled_from([1e-3, 1.0, 1.1, 37.0]),
)
def test_no_record_leaves_the_ball(seed, epsilon, exponent, bound):
    """Adversarial ones, along a direction that the noise hides, and tiny."""
    rng = np.random.default_rng(seed)
    white = learned(rows(40, bound=bound), epsilon, bound)
    _, vectors = np.linalg.eigh(white._map @ white._map.T)
    far = bound * (1 - 1e-9) * np.concatenate([vectors.T, -vectors.T])
    found = white.rows(np.concatenate([far, far * 2.0**exponent]))
    assert np.all(np.linalg.norm(found, axis=1) <= bound)
    anywhere = rng.normal(size=(7, M)) * 10.0 ** rng.integers(-9, 9, (7, 1))
    found = white.rows(anywhere, clip=True)
    assert np.all(np.linalg.norm(found, axis=1) <= bound)
    with pytest.raises(ValueError, match="bound"):
        white.rows(2 * far)


def test_a_row_depends_on_its_own_record_to_the_last_bit():
    h = rows(300, 40)
    white = learned(h)
    together = white.rows(h)
    for part in (slice(0, 1), slice(3, 20), slice(100, 300, 7)):
        np.testing.assert_array_equal(white.rows(h[part]), together[part])


def test_weights_of_features_give_the_logits_of_whitened_ones():
    h = rows()
    white = learned(h)
    weights = np.random.default_rng(1).normal(size=(M, 3))
    found = white.rows(h)
    inside = np.linalg.norm(found, axis=1) < 0.99 * BOUND
    made, wanted = h @ white.weights(weights), found @ weights
    np.testing.assert_allclose(made[inside], wanted[inside], atol=0.02)


def test_the_clip_follows_public_numbers():
    def clip(
        loss="cross_entropy", outputs=1, units=1000, noise=3.0, m=10, **of
    ):
        known = whitening.rule(loss, outputs, **of)
        return whitening.clip(known, outputs, m, BOUND, units, noise)

    # In proportion to the records and to one over features and noise.
    assert clip(units=2000) == pytest.approx(2 * clip())
    assert clip(m=20) == clip(noise=6.0) == pytest.approx(clip() / 2)
    assert clip(outputs=16) == pytest.approx(clip(outputs=4) / 2)
    # None below a tenth of a typical row, or above what residuals can be.
    assert clip(units=2) == pytest.approx(BOUND / 80)
    for loss, outputs, independent, most in (
        ("cross_entropy", 1, False, 1.0),
        ("cross_entropy", 7, False, math.sqrt(2)),
        ("cross_entropy", 9, True, 3.0),
        ("squared_error", 1, False, 2.0),
        ("squared_error", 4, False, 4.0),
    ):
        found = clip(loss, outputs, 10**9, independent=independent)
        assert found == pytest.approx(1.5 * most * BOUND / 8)


# Whole fits -------------------------------------------------------------------


def test_numbers_that_are_not_whitened_do_not_swing_either():
    """Their curvature is public: a rate beyond one over it never settles."""
    x, *_ = table()
    y = x[:, 0]
    rounds = fm.Rounds(rounds=60, loss="squared_error", whitening=0.0, clip=3.0)
    model = fm.estimators.PrivateRegressor(
        1e5, DELTA, bounds=(-1, 1), target_bounds=(-1, 1), rounds=rounds
    ).fit(x, y)
    # The spread of y is 0.58.
    assert np.abs(model.model_.predict(x, verbose=0)[:, 0] - y).mean() < 0.3


def test_a_rare_flag_does_not_bend_what_its_rows_are_told():
    """Numbers far from the middle of their bounds: rows with a flag that one
    in a hundred has are ten times as long as others, whitened."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (4000, 4))
    x[:, 3] = np.where(np.arange(4000) % 100, -1, 1)
    y = 3 + x[:, 0] + 2 * (x[:, 3] > 0) + rng.normal(size=4000)
    model = fm.estimators.PrivateRegressor(
        100.0, 1e-5, bounds=(-1, 1), target_bounds=(0, 80), rounds=60
    ).fit(x, np.clip(y, 0, 80))
    rare = x[:, 3] > 0
    off = model.predict(x[rare]).mean() - y[rare].mean()
    # It was 5 where rows were cut to 1.5 times the typical length.
    assert abs(off) < 2


def table(n=1500, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 5))
    p = 1 / (1 + np.exp(-4 * x[:, 0] - x[:, 1]))
    return x, (rng.random(n) < p).astype(int), p


def fitted(estimator, x, y):
    given = {"bounds": (-1, 1), "rounds": 40, "reproducible_noise": 1}
    return estimator(**given).fit(x, y)


def loss_at(epsilon):
    x, y, p = table()
    model = fitted(
        lambda **given: fm.estimators.PrivateClassifier(
            epsilon, DELTA, classes=[0, 1], **given
        ),
        x,
        y,
    )
    found = model.predict_proba(x)[:, 1]
    entropy = -(p * np.log(found) + (1 - p) * np.log(1 - found))
    return np.mean(entropy), model


def test_more_budget_gives_better_probabilities():
    (low, _), (high, _), (most, model) = map(loss_at, (1, 20, 1e4))
    _, y, p = table()
    least = -np.mean(p * np.log(p) + (1 - p) * np.log(1 - p))
    assert most < least + 0.01 and high < least + 0.01
    assert most < low + 0.001
    # A tenth of the budget, and the rest: as squares of 1 / multiplier.
    moment, rounds = model.ledger_.entries
    whole = calibration.gaussian_multiplier(1e4, DELTA) ** -2
    share = moment.mechanism["noise_multiplier"] ** -2
    assert share == pytest.approx(0.1 * whole, rel=1e-3)
    share = 40 * rounds.mechanism["noise_multiplier"] ** -2
    assert share == pytest.approx(0.9 * whole, rel=1e-2)
    assert "(second moment)" in moment.name and "A = sum h h^T" in moment.uses


@pytest.mark.parametrize("epsilon", [4, 1e4])
@pytest.mark.parametrize("counts", [False, True])
def test_numbers_arrive_at_least_squares_and_keep_their_mean(counts, epsilon):
    x, _, p = table(3000)
    rng = np.random.default_rng(2)
    y, bounds = 6 * x[:, 0] + rng.normal(size=3000), (-10, 10)
    if counts:
        y = np.minimum(rng.poisson(5 * p * rng.gamma(1, 1, 3000)), 40)
        bounds = (0, 40)
    model = fitted(
        lambda **given: fm.estimators.PrivateRegressor(
            epsilon, DELTA, target_bounds=bounds, **given
        ),
        x,
        y,
    )
    straight = np.concatenate([x, np.ones((3000, 1))], axis=1)
    best = straight @ np.linalg.lstsq(straight, y, rcond=None)[0]
    found = model.predict(x)
    assert np.mean((found - y) ** 2) < np.mean((best - y) ** 2) * 1.02
    assert np.mean(found) == pytest.approx(np.mean(y), abs=0.1)


def private(data, epsilon=50.0, **proven):
    return fm.callbacks.PrivateModel(
        epsilon=epsilon,
        delta=DELTA,
        data=data,
        guarantee=fm.Proven(**proven),
        reproducible_noise=1,
    )


def head(batch_size=None, units=1):
    rounds = fm.Rounds(rounds=30, loss="cross_entropy", batch_size=batch_size)
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Rescaling(5**-0.5),
            fm.layers.PrivateDense(units, rounds=rounds, name="head"),
        ]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy(), run_eagerly=True)
    return model


@pytest.mark.parametrize("kind", ["owners", "samples", "shares"])
def test_owners_samples_and_shares(kind):
    x, y, p = table()
    x = x.astype("float32")
    more = {}
    if kind == "owners":
        more = {"unit": fm.Unit(owners=np.arange(len(x)) // 5)}
    if kind == "shares":
        more = {"shares": (0.4, 0.6)}
    model = head(300 if kind == "samples" else None)
    callback = private((x, y), **more)
    model.fit(x, y, steps_per_epoch=1, verbose=0, callbacks=[callback])
    logits = model.predict(x, verbose=0)[:, 0]
    assert np.mean((logits > 0) == (p > 0.5)) > 0.93
    assert np.mean(1 / (1 + np.exp(-logits))) == pytest.approx(0.5, abs=0.05)
    first, second = callback.ledger.entries
    assert (first.name, second.name) == ("head (second moment)", "head")
    if kind == "shares":
        whole = calibration.gaussian_multiplier(50.0, DELTA) ** -2
        share = first.mechanism["noise_multiplier"] ** -2
        assert share == pytest.approx(0.4 * whole, rel=1e-3)


def test_a_release_of_whitened_rounds_is_learned_by_another_layer():
    x, y, _ = table(200)
    x = x.astype("float32")
    model, callback = head(), private((x, y))
    model.fit(x, y, steps_per_epoch=1, verbose=0, callbacks=[callback])
    other = head()
    other.layers[-1].learn(callback.release, callback.ledger)
    np.testing.assert_array_equal(
        model.layers[-1].get_weights()[0], other.layers[-1].get_weights()[0]
    )
