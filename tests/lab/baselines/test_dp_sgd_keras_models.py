"""DP-SGD by jax-privacy and by Opacus, which train the Keras model itself,
beside what test_dp_sgd_libraries.py has."""

import math
import re

import keras
import numpy as np
import pytest
from clipped_sgd import (
    CLASSES,
    FEATURES,
    N,
    augment,
    by_hand,
    config,
    convolutional_model,
    data,
    hidden_layer_model,
    linear_model,
    there_and_back,
    with_weights,
)

from keras_fm.lab.baselines import (
    JaxDPSGDClassifier,
    dp_sgd_jax,
    dp_sgd_opacus,
)
from keras_fm.lab.baselines.dp_sgd_opacus import OpacusClassifier

pytestmark = pytest.mark.backend


LIBRARIES = {
    "jax": ("jax_privacy", JaxDPSGDClassifier),
    "torch": ("opacus", OpacusClassifier),
}


@pytest.fixture
def classifier():
    backend = keras.backend.backend()
    if backend not in LIBRARIES:
        pytest.skip("they need the JAX or the PyTorch backend of Keras")
    package, found = LIBRARIES[backend]
    pytest.importorskip(package)
    return found


@pytest.fixture
def jax_privacy():
    if keras.backend.backend() != "jax":
        pytest.skip("jax-privacy needs the JAX backend of Keras")
    return pytest.importorskip("jax_privacy")


@pytest.fixture
def opacus():
    if keras.backend.backend() != "torch":
        pytest.skip("Opacus needs the PyTorch backend of Keras")
    return pytest.importorskip("opacus")


def build_and_fit(model, cfg, x, y, kind=JaxDPSGDClassifier, **kwargs):
    fit = kind(model, cfg, math.inf, 1e-5, **({"seed": 5} | kwargs))
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


def test_it_trains_the_model_itself_and_keeps_its_softmax(classifier):
    x, y = data()
    model = hidden_layer_model()
    before = model.get_weights()
    fit = build_and_fit(model, config(), x, y, classifier)
    assert fit.to_keras() is model
    assert model.layers[-1].activation is keras.activations.softmax
    assert np.abs(model.get_weights()[0] - before[0]).max() > 1e-2
    p = keras.ops.convert_to_numpy(model(x))
    np.testing.assert_allclose(fit.predict(x), p, atol=1e-6)


def test_frozen_layers_stay(classifier):
    x, y = data()
    model = hidden_layer_model()
    model.layers[0].trainable = False
    before = model.get_weights()
    build_and_fit(model, config(), x, y, classifier)
    after = model.get_weights()
    np.testing.assert_array_equal(before[0], after[0])
    assert np.abs(before[2] - after[2]).max() > 1e-2


def test_an_empty_batch_changes_nothing(classifier):
    # A model at rest: without noise and momentum only records move it.
    x, y = data()
    model = linear_model()
    before = model.get_weights()
    cfg = config(batch_size=1, steps=1, momentum=0.0)
    rows = cfg.plan(N, math.inf, 1e-5).batches(np.random.default_rng(2))
    assert len(next(rows)) == 0
    build_and_fit(model, cfg, x, y, classifier, seed=2)
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


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_accountant_of_opacus_agrees(opacus, epsilon):
    """Its PRV accountant is within what it says it errs."""
    from opacus.accountants import PRVAccountant

    plan = config(batch_size=256, steps=100).plan(1437, epsilon, 1e-5)
    accountant = PRVAccountant()
    accountant.history = [
        (plan.noise_multiplier, plan.sampling_rate, plan.steps)
    ]
    spent = accountant.get_epsilon(1e-5, eps_error=0.01)
    assert 0.99 * epsilon - 0.01 < spent < 1.001 * epsilon + 0.01


# Models --------------------------------------------------------------------

layers = keras.layers


def of_parts():
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Reshape((FEATURES, 1)),
            layers.LSTM(4),
            layers.Dropout(0.5),
            layers.Dense(8, "tanh"),
            layers.Dropout(0.5),
            layers.Dense(1, "sigmoid"),
        ]
    )


def test_a_model_is_cut_at_dropout(opacus):
    """What Opacus holds of each record is its gradient at the masks that were
    drawn: those of a layer behind a mask are zero where the mask is."""
    x, y = data(classes=2)
    model = with_weights(of_parts())
    parts = dp_sgd_opacus._parts(model, x.shape[1:])
    assert [type(p).__name__ for p, _ in parts] == [
        "Sequential", "Dropout", "Sequential", "Dropout", "Sequential",
    ]  # fmt: skip
    fit = OpacusClassifier(model, config(), math.inf, 1e-5)
    library, plan = fit._import_library(), config().plan(N, math.inf, 1e-5)
    step = dp_sgd_opacus._Step(fit, library, plan, x, y)
    step._differentiate(np.arange(20))
    last = model.layers[-1].kernel.value.grad_sample.numpy()[:, :, 0]
    bias = model.layers[-1].bias.value.grad_sample.numpy()
    assert last.shape == (20, 8) and np.abs(bias).min() > 0
    dropped = last == 0
    assert 0.2 < dropped.mean() < 0.8
    # A unit that is dropped learns nothing, for the same record.
    before = model.layers[-3].bias.value.grad_sample.numpy()
    np.testing.assert_array_equal(before == 0, dropped)
    assert (
        OpacusClassifier(of_parts(), config(), 8.0, 1e-5)
        .fit(x, y)
        .report()["mechanism"]
        == "DP-SGD (Opacus)"
    )


class Mixed(layers.Layer):
    def call(self, x):
        return x - keras.ops.mean(x, axis=0, keepdims=True)


def branched(layer):
    inputs = keras.Input((FEATURES,))
    h = layer(layers.Dense(4, "tanh")(inputs))
    h = layers.Concatenate()([h, inputs])
    return keras.Model(inputs, layers.Dense(CLASSES)(h))


@pytest.mark.parametrize(
    "layer, words",
    [
        (layers.Dropout(0.5), "random numbers in training"),
        (layers.BatchNormalization(), "'batch_norm.*state training changes"),
        (Mixed(), "depend on other records"),
        (layers.LayerNormalization(), ""),
    ],
)
def test_what_opacus_cannot_take(layer, words):
    """What is told on any backend: the library may be elsewhere."""
    found = dp_sgd_opacus.why_not(branched(layer), (FEATURES,))
    assert re.search(words, found) if words else found is None


def test_layers_that_keras_convolves_with_channels_last(opacus):
    """PyTorch's `vmap` knows no such convolution of several channels."""
    inputs = keras.Input((8, 8, 1))
    h = layers.Conv2D(4, 3, 2, "same", activation="relu")(inputs)
    h = layers.GroupNormalization(2)(layers.Conv2D(8, 3)(h))
    h = layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(h))
    model = keras.Model(inputs, h)
    assert dp_sgd_opacus.why_not(model, (8, 8, 1)) is None
    x, y = data(features=64)
    x = x.reshape(-1, 8, 8, 1)
    fit = OpacusClassifier(model, config(), math.inf, 1e-5)
    library, plan = fit._import_library(), config().plan(N, math.inf, 1e-5)
    step = dp_sgd_opacus._Step(fit, library, plan, x, y)
    step._differentiate(np.arange(3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for i in range(3):
        model.zero_grad()
        loss(y[i : i + 1], model(x[i : i + 1])).backward()
        for v in model.trainable_variables:
            one = v.value.grad_sample[i].numpy()
            np.testing.assert_allclose(one, v.value.grad, atol=1e-5)


def test_one_output_is_trained_by_its_own_loss(classifier):
    """The crossentropy of all classes of a single logit is zero."""
    x, _ = data(200)
    y = (x[:, 0] > 0).astype(int)
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(1, "sigmoid")]
    )
    cfg = config(learning_rate=4.0, batch_size=50, steps=20)
    fit = build_and_fit(model, cfg, x, y, classifier)
    assert fit.evaluate(x, y)["accuracy"] > 0.9


# Errors --------------------------------------------------------------------


def test_larger_models_hold_fewer_gradients_at_a_time(jax_privacy):
    import jax

    small = dp_sgd_jax._microbatch_rows(jax, convolutional_model())
    large = keras.Sequential([keras.Input((784,)), keras.layers.Dense(300)])
    assert 8 <= dp_sgd_jax._microbatch_rows(jax, large) < small
