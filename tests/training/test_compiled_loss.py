"""Losses that a model is compiled with, and what its output layer predicts."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel

pytestmark = pytest.mark.usefixtures("untraced")

BACKEND = keras.backend.backend()
N = 40
X = np.random.default_rng(0).random((N, 4)).astype("float32")
HEADS = {
    "classes": (3, {}, np.arange(N) % 3),
    "two classes": (1, {}, np.arange(N) % 2),
    "labels": (
        3,
        {"loss": "binary_cross_entropy"},
        np.eye(3, dtype="float32")[np.arange(N) % 3],
    ),
    "numbers": (
        2,
        {"loss": "squared_error", "target_bounds": (0, 1)},
        X[:, :2],
    ),
}
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
ENTROPY = keras.losses.BinaryCrossentropy(from_logits=True)
OF_NUMBERS = (
    "mse", "mean_squared_error", "mae", "mape", "msle", "log_cosh", "huber",
    keras.losses.MeanSquaredError(), keras.losses.Huber(0.5),
    keras.losses.mean_absolute_error,
)  # fmt: skip
# With what to write instead.
FROM_PROBABILITIES = (
    ("sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"),
    ("SparseCategoricalCrossentropy", "SparseCategoricalCrossentropy"),
    ("categorical_crossentropy", "CategoricalCrossentropy"),
    ("binary_crossentropy", "BinaryCrossentropy"),
    ("kl_divergence", "TaylorCrossEntropy"),
    (
        keras.losses.SparseCategoricalCrossentropy(),
        "SparseCategoricalCrossentropy",
    ),
    (
        keras.losses.sparse_categorical_crossentropy,
        "SparseCategoricalCrossentropy",
    ),
    (keras.losses.BinaryFocalCrossentropy(), "BinaryFocalCrossentropy"),
    (
        {"class_name": "BinaryCrossentropy", "config": {"from_logits": False}},
        "BinaryCrossentropy",
    ),
)


def model(head, loss):
    units, kwargs, _ = HEADS[head]
    made = keras.Sequential(
        [
            keras.Input((4,)),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(units, name="head", **kwargs),
        ]
    )
    made.compile("sgd", loss)
    return made


def private(head):
    return PrivateModel(fm.PrivacyBudget(1.0, 1e-5), data=(X, HEADS[head][2]))


def refused(head, loss, match):
    made, callback = model(head, loss), private(head)
    with pytest.raises(ValueError, match=match):
        callback.plan(made)
    if BACKEND == "tensorflow":
        # Elsewhere Keras tries the loss before any callback begins.
        with pytest.raises(ValueError, match=match):
            made.fit(X, HEADS[head][2], callbacks=[callback], verbose=0)
    assert not callback.ledger.entries
    assert not made.get_layer("head").is_released


@pytest.mark.parametrize("loss", OF_NUMBERS)
@pytest.mark.parametrize("head", [name for name in HEADS if name != "numbers"])
def test_losses_of_numbers_are_refused_for_labels(head, loss):
    refused(head, loss, 'of numbers, .*loss="squared_error"')


@pytest.mark.parametrize(
    "loss",
    [*(loss for loss, _ in FROM_PROBABILITIES), LOGITS, ENTROPY, "hinge"],
)
def test_losses_of_labels_are_refused_for_numbers(loss):
    refused("numbers", loss, 'of labels, .*predicts numbers. .*"mse"')


def test_the_taylor_loss_is_none_of_numbers():
    refused("numbers", fm.losses.TaylorCrossEntropy(), "of labels")


@pytest.mark.parametrize("loss, instead", FROM_PROBABILITIES)
def test_losses_of_probabilities_are_refused_for_logits(loss, instead):
    """They would show nonsense."""
    refused("classes", loss, rf"takes probabilities.*\.{instead}")


@pytest.mark.parametrize(
    "head, loss",
    [
        ("classes", LOGITS),
        ("classes", fm.losses.TaylorCrossEntropy()),
        ("classes", None),
        ("two classes", ENTROPY),
        ("two classes", "hinge"),
        ("labels", ENTROPY),
        ("labels", [ENTROPY]),
        ("labels", fm.losses.TaylorCrossEntropy()),
        ("numbers", "mse"),
        ("numbers", [keras.losses.Huber()]),
        ("numbers", lambda y, z: keras.ops.mean(keras.ops.abs(y - z), -1)),
    ],
)
def test_losses_that_fit(head, loss):
    made, callback = model(head, loss), private(head)
    made.fit(X, HEADS[head][2], callbacks=[callback], verbose=0)
    assert len(callback.ledger.entries) == 1


def test_what_keras_does_not_know_is_refused_before_it_costs():
    made, callback = model("classes", None), private("classes")
    made.loss = "no such loss"
    with pytest.raises(ValueError):
        callback.plan(made)
    assert not callback.ledger.entries
