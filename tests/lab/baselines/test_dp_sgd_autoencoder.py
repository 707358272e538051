"""DP-SGD of an auto-encoder: shapes, guarantee, and that it learns."""

import importlib.util

import keras
import numpy as np
import pytest

from keras_fm import datasets
from keras_fm.lab.baselines import DPSGDAutoencoder, DPSGDConfig

# `find_spec` does not import it, which would fail on a current TensorFlow.
pytestmark = [
    pytest.mark.skipif(
        not all(
            map(importlib.util.find_spec, ("tensorflow_privacy", "tf_keras"))
        ),
        reason="needs tensorflow-privacy",
    ),
    pytest.mark.full,
]


def network(inputs=64, units=16):
    return [
        keras.Input((inputs,)),
        keras.layers.Dense(units, "sigmoid"),
        keras.layers.Dense(inputs),
    ]


def config(**changes):
    return DPSGDConfig(
        **{
            "form": "fast_clipping",
            "learning_rate": 64.0,
            "l2_norm_clip": 0.01,
            "batch_size": 256,
            "sampling": "poisson",
            "momentum": 0.9,
            "steps": 80,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def digits():
    (x, _), (x_test, _) = datasets.load("digits")
    return x.reshape(len(x), -1), x_test.reshape(len(x_test), -1)


@pytest.mark.parametrize("form", ["fast_clipping", "vectorized"])
def test_it_learns_without_noise(digits, form):
    keras.utils.set_random_seed(0)
    x, x_test = digits
    model = keras.Sequential(network())
    rival = DPSGDAutoencoder(model, config(form=form), np.inf, 1e-5).fit(x)
    mean_image = np.mean((x_test - x.mean(axis=0)) ** 2)
    assert rival.evaluate(x_test)["mse"] < 0.9 * mean_image
    assert rival.predict(x_test).shape == x_test.shape
    found = rival.to_keras().predict(x_test, verbose=0)
    np.testing.assert_allclose(found, rival.predict(x_test), atol=1e-4)


def test_the_ledger_says_what_was_spent(digits):
    rival = DPSGDAutoencoder(
        keras.Sequential(network()), config(steps=3), 2.0, 1e-5
    ).fit(digits[0])
    assert 1.9 < rival.ledger.epsilon() <= 2.0
    assert "DP-SGD" in rival.ledger.statement()
