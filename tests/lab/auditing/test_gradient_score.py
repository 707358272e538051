"""The gradient score, against gradients by hand, on every backend."""

import keras
import numpy as np
import pytest

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.lab.auditing.gradient_score import gradient_losses
from keras_fm.lab.auditing.report import NOT_REFUTED, VIOLATED
from keras_fm.lab.auditing.training_audit import audit
from keras_fm.layers import PrivateDense
from keras_fm.papers.batch_standardization import BatchStandardization

# Traced in tests of this name alone; see `untraced`.
TRACED = "audit"
pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.full]
CLASSES = 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4)).astype("float32")
LABELS = np.stack([np.arange(12) % 3, (np.arange(12) + 1) % 3], axis=1)


def array(values):
    return keras.ops.convert_to_numpy(values).astype(np.float64)


def linear(classes=CLASSES, **kwargs):
    layer = keras.layers.Dense(classes, **kwargs)
    return keras.Sequential([keras.Input((4,)), layer])


def probabilities(logits):
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def test_a_linear_model_by_hand():
    """The gradient is x (p - e)^T and p - e: norms multiply."""
    model = linear()
    p = probabilities(array(model(X)))
    found = gradient_losses(model, X, LABELS)
    assert found.shape == (12, 2)
    for form in range(2):
        error = p - np.eye(CLASSES)[LABELS[:, form]]
        length = np.square(X).sum(axis=1) + 1
        by_hand = length * np.square(error).sum(axis=1)
        np.testing.assert_allclose(found[:, form], by_hand, rtol=1e-4)


def test_one_logit_is_that_of_class_one():
    model = linear(1, use_bias=False)
    p = 1 / (1 + np.exp(-array(model(X))[:, 0]))
    found = gradient_losses(model, X, [[0, 1]] * 12)
    length = np.square(X).sum(axis=1)
    by_hand = np.stack([p**2 * length, (1 - p) ** 2 * length], axis=1)
    np.testing.assert_allclose(found, by_hand, rtol=1e-4)


def test_frozen_layers_and_dropout_do_not_count():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(4, trainable=False),
            keras.layers.Dropout(0.9),
            keras.layers.Dense(CLASSES, use_bias=False),
        ]
    )
    p = probabilities(array(model(X, training=False)))
    features = array(model.layers[0](X))
    error = p - np.eye(CLASSES)[LABELS[:, 0]]
    by_hand = np.square(features).sum(1) * np.square(error).sum(1)
    found = gradient_losses(model, X, LABELS[:, :1])
    np.testing.assert_allclose(found[:, 0], by_hand, rtol=1e-4)


def test_a_model_that_normalises_over_the_batch_sees_all_records():
    normal = BatchStandardization(momentum=1.0)
    head = keras.layers.Dense(CLASSES)
    model = keras.Sequential([keras.Input((4,)), normal, head])
    found = gradient_losses(model, X, LABELS)
    # A record alone is 0 after the normalisation: all would be alike.
    features = (X - X.mean(axis=0)) / np.sqrt(X.var(axis=0) + 1e-3)
    p = probabilities(array(model(X)))
    error = p - np.eye(CLASSES)[LABELS[:, 0]]
    head_part = (np.square(features).sum(axis=1) + 1) * np.square(error).sum(1)
    assert np.all(found[:, 0] > 0.999 * head_part)
    # gamma and beta count beside the head, at most by its weights.
    weights = np.square(array(head.kernel)).sum()
    most = head_part + (np.square(features).max(axis=1) + 1) * (
        weights * np.square(error).sum(1)
    )
    assert np.all(found[:, 0] < 1.001 * most)


def test_a_layer_that_was_released_cuts_the_gradient():
    layer = PrivateDense(CLASSES)
    model = keras.Sequential([keras.Input((4,)), layer])
    assert gradient_losses(model, X, LABELS).min() > 0
    layer.set_release(None, np.zeros((5, CLASSES)), 0.0, "{}")
    with pytest.raises(ValueError, match="No trainable weight has a gradient"):
        gradient_losses(model, X, LABELS)


def test_outputs_that_are_not_finite_have_no_score():
    model = linear(kernel_initializer="ones")
    x = X.copy()
    x[3] = np.inf
    found = gradient_losses(model, x, LABELS)
    assert np.isnan(found[3]).all()
    assert np.isfinite(np.delete(found, 3, axis=0)).all()


def test_an_audit_by_gradients():
    x = np.eye(60, dtype="float32")
    y = np.arange(60) % 2

    def learned(x, y):
        model = keras.Sequential(
            [keras.Input((60,)), keras.layers.Dense(2, use_bias=False)]
        )
        model.layers[0].kernel.assign(8.0 * np.eye(2)[y])
        return model

    def ignorant(x, y):
        return learned(x, np.zeros_like(y))

    def run(fit):
        return audit(
            fit,
            (x, y),
            PrivacyBudget(1.0, delta=0),
            control=lambda x, y: learned(x, y),
            neighbours="replace_one",
            classes=2,
            score="gradient",
            seeds=0,
            progress=False,
        )

    found = run(learned)
    assert found.verdict == VIOLATED and found.score == "gradient"
    assert found.runs[0].bound.correct == found.runs[0].bound.guesses
    assert run(ignorant).verdict == NOT_REFUTED
    with pytest.raises(ValueError, match="not a function of predictions"):
        run(lambda x, y: lambda x: np.zeros((len(x), 2)))
