"""DP-SGD by jax-privacy beside what test_dp_sgd_libraries.py has."""

import math

import keras
import numpy as np
import pytest
from clipped_sgd import (
    N,
    augment,
    by_hand,
    config,
    convolutional_model,
    data,
    hidden_layer_model,
    linear_model,
    there_and_back,
)

from keras_fm.lab.baselines import JaxDPSGDClassifier, dp_sgd_jax

pytestmark = pytest.mark.backend


@pytest.fixture
def jax_privacy():
    if keras.backend.backend() != "jax":
        pytest.skip("jax-privacy needs the JAX backend of Keras")
    return pytest.importorskip("jax_privacy")


def build_and_fit(model, cfg, x, y, epsilon=math.inf, seed=5, **kwargs):
    fit = JaxDPSGDClassifier(model, cfg, epsilon, 1e-5, seed=seed, **kwargs)
    return fit.fit(x, y)


# Clipping and updates ------------------------------------------------------


@pytest.mark.parametrize("rows", [None, 8])
def test_views_of_a_record_are_clipped_as_one(jax_privacy, rows):
    x, y = data()
    cfg = config(views=2, physical_batch_size=rows)
    expected = by_hand(hidden_layer_model(), x, y, cfg, 5, there_and_back)
    plain = by_hand(hidden_layer_model(), x, y, cfg, 5)
    fit = build_and_fit(
        hidden_layer_model(), cfg, x, y, augment=augment
    ).to_keras()
    for a, b, other in zip(fit.get_weights(), expected, plain, strict=True):
        assert np.abs(b - other).max() > 1e-2
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_it_trains_the_model_itself_and_keeps_its_softmax(jax_privacy):
    x, y = data()
    model = hidden_layer_model()
    before = model.get_weights()
    fit = build_and_fit(model, config(), x, y)
    assert fit.to_keras() is model
    assert model.layers[-1].activation is keras.activations.softmax
    assert np.abs(model.get_weights()[0] - before[0]).max() > 1e-2
    p = keras.ops.convert_to_numpy(model(x))
    np.testing.assert_allclose(fit.predict(x), p, atol=1e-6)


def test_frozen_layers_stay(jax_privacy):
    x, y = data()
    model = hidden_layer_model()
    model.layers[0].trainable = False
    before = model.get_weights()
    build_and_fit(model, config(), x, y)
    after = model.get_weights()
    np.testing.assert_array_equal(before[0], after[0])
    assert np.abs(before[2] - after[2]).max() > 1e-2


def test_an_empty_batch_changes_nothing(jax_privacy):
    # A model at rest: without noise and momentum only records move it.
    x, y = data()
    model = linear_model()
    before = model.get_weights()
    cfg = config(batch_size=1, steps=1, momentum=0.0)
    rows = cfg.plan(N, math.inf, 1e-5).batches(np.random.default_rng(2))
    assert len(next(rows)) == 0
    build_and_fit(model, cfg, x, y, seed=2)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


# Accounting ----------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_its_own_accountant_agrees_within_a_percent(jax_privacy, epsilon):
    from jax_privacy.accounting import accountants, analysis

    plan = config(batch_size=256, steps=100).plan(1437, epsilon, 1e-5)
    spent = analysis.DpsgdTrainingAccountant(
        dp_accountant_config=accountants.PldAccountantConfig()
    ).compute_epsilon(
        plan.steps,
        analysis.DpParams(
            noise_multipliers=plan.noise_multiplier,
            num_samples=plan.n,
            delta=1e-5,
            batch_size=plan.expected_batch_size,
        ),
    )
    assert 0.99 * epsilon < spent <= epsilon * (1 + 1e-6)


# Errors --------------------------------------------------------------------


def test_larger_models_hold_fewer_gradients_at_a_time(jax_privacy):
    import jax

    small = dp_sgd_jax._microbatch_rows(jax, convolutional_model())
    large = keras.Sequential([keras.Input((784,)), keras.layers.Dense(300)])
    assert 8 <= dp_sgd_jax._microbatch_rows(jax, large) < small
