"""DP-SGD of models that its own library cannot take, and of what a ledger has
left."""

import keras
import numpy as np
import pytest
from test_dp_sgd import needs_tensorflow_privacy

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_entry import LedgerEntry
from keras_fm.kernel.mechanisms import GaussianMechanism
from keras_fm.lab.baselines import (
    DPSGDAutoencoder,
    DPSGDClassifier,
    DPSGDConfig,
)

pytestmark = [pytest.mark.full, pytest.mark.once]
layers = keras.layers


@pytest.fixture(autouse=True)
def tfp():
    needs_tensorflow_privacy()


def config(**changes):
    given = {"learning_rate": 16.0, "l2_norm_clip": 0.1, "batch_size": 100}
    return DPSGDConfig(**({"steps": 30} | given | changes))


def data(n=300):
    x = np.random.default_rng(0).normal(size=(n, 6)).astype("float32")
    return x, (x[:, 0] > 0).astype(int)


def branched():
    inputs = keras.Input((6,))
    joined = layers.Add()([layers.Dense(6)(inputs), inputs])
    return keras.Model(inputs, layers.Dense(2, "softmax")(joined))


def normalised():
    return [layers.Dense(8), layers.LayerNormalization(), layers.Dense(2)]


def one_output():
    return [layers.Dense(8, "tanh"), layers.Dense(1, "sigmoid")]


@pytest.mark.parametrize(
    "build, why",
    [
        (branched, "not one layer after the other"),
        (normalised, "of type LayerNormalization"),
        (one_output, "one output for two classes"),
    ],
)
def test_what_tensorflow_privacy_cannot_take_make_private_trains(build, why):
    """They were refused, one layer at a time."""
    model = build()
    if isinstance(model, list):
        model = keras.Sequential([keras.Input((6,)), *model])
    fit = DPSGDClassifier(model, config(), 20.0, 1e-5).fit(*data())
    report = fit.report()
    assert "keras_fm.make_private, since tensorflow-pri" in report["mechanism"]
    assert why in report["mechanism"]
    assert 19.9 < report["epsilon_proven"] <= 20
    (entry,) = fit.ledger.entries
    multiplier = entry.build_mechanism().noise_multiplier
    assert multiplier == pytest.approx(report["noise_multiplier"])
    # A guess is right for half of them.
    assert fit.evaluate(*data())["accuracy"] > 0.8
    assert fit.to_keras() is fit._model
    chances = fit.predict(data()[0])
    assert chances.shape == (300, 2)
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    "changes", [{"sampling": "shuffled"}, {"average": 0.9}], ids=str
)
def test_what_only_the_library_does_is_refused_before_a_step(changes):
    model = keras.Sequential([keras.Input((6,)), *normalised()])
    fit = DPSGDClassifier(model, config(**changes), 1.0, 1e-5)
    with pytest.raises(ValueError, match="is trained by keras_fm.make_private"):
        fit.fit(*data())
    assert fit.plan is None


def test_layers_that_were_refused_have_twins():
    inputs = keras.Input((6,))
    h = layers.ReLU(max_value=2.0)(layers.Dense(8)(inputs))
    h = layers.Reshape((4, 2))(layers.Dropout(0.1)(h))
    h = layers.Flatten()(layers.GroupNormalization(1)(h))
    model = keras.Model(inputs, layers.Dense(2)(h))
    x, y = data()
    before = keras.ops.convert_to_numpy(keras.ops.softmax(model(x)))
    still = config(learning_rate=1e-12, steps=1)
    fit = DPSGDClassifier(model, still, 1.0, 1e-5).fit(x, y)
    assert fit.report()["mechanism"] == "DP-SGD (tensorflow-privacy)"
    np.testing.assert_allclose(fit.predict(x), before, atol=1e-5)


def test_an_auto_encoder_of_other_layers():
    x = np.random.default_rng(0).random((300, 4)).astype("float32")
    model = [layers.Dense(8), layers.LayerNormalization(), layers.Dense(4)]
    fit = DPSGDAutoencoder(
        [keras.Input((4,)), *model], config(learning_rate=4.0), 20.0, 1e-5
    )
    assert fit.fit(x).predict(x).shape == x.shape
    # Zeros have the mean square.
    assert fit.evaluate(x)["mse"] < 0.5 * np.square(x).mean()


# What a ledger has left ----------------------------------------------------


def spent(stddev, budget=1.0):
    mechanism = GaussianMechanism(sensitivity=1.0, noise_multiplier=stddev)
    ledger = Ledger(PrivacyBudget(budget, 1e-5), neighbours="add_remove")
    entry = LedgerEntry(
        name="moment",
        guarantee="proven",
        neighbours="add_remove",
        mechanism=mechanism.config(),
        uses="A",
        proof="docs/proofs/reconstruction.md",
    )
    ledger.charge([entry])
    return ledger


def test_a_fit_gets_what_a_ledger_has_left():
    ledger = spent(10.0)
    fit = DPSGDClassifier(None, config(), ledger).fit(*data(), num_classes=2)
    assert fit.ledger is ledger and len(ledger.entries) == 2
    assert 0.99 < ledger.epsilon() <= 1
    alone = config().plan(300, 1.0, 1e-5).noise_multiplier
    assert fit.report()["noise_multiplier"] > alone
    with pytest.raises(ValueError):
        DPSGDClassifier(None, config(), ledger).fit(*data(), num_classes=2)
    assert len(ledger.entries) == 2
