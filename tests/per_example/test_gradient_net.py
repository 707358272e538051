"""`GradientNet`: a name for `make_private` of layers that end in logits."""

import keras
import numpy as np
import pytest
from keras import layers as L

import keras_fm as fm

pytestmark = [pytest.mark.full, pytest.mark.backend]

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 6)).astype("float32"), np.arange(60) % 3


def budget(**more):
    return fm.callbacks.PrivateModel(epsilon=4.0, delta=1e-5, **more)


@pytest.mark.parametrize(
    "loss, y, metrics",
    [
        ("categorical_crossentropy", Y, ["accuracy"]),
        ("binary_crossentropy", np.eye(3, dtype="float32")[Y], None),
        ("squared_error", X[:, :3], ["mse"]),
    ],
)
def test_a_loss_of_its_own_and_a_fit_as_a_private_network(loss, y, metrics):
    model = fm.models.GradientNet(
        (6,), [L.Dense(4, "tanh"), L.Dense(3)], loss=loss, clip=0.5
    )
    model.compile(keras.optimizers.SGD(0.1), metrics=metrics)
    private = budget()
    print(private.plan(model, X, batch_size=20))
    history = model.fit(X, y, batch_size=20, verbose=0, callbacks=[private])
    assert set(history.history) == {"charged"}
    (entry,) = private.ledger.entries
    assert entry.mechanism["sensitivity"] == 1.0
    assert entry.uses == "gradients of records, each clipped to the norm 0.5"
    assert 3.9 < private.ledger.epsilon() <= 4.0
    assert model.model.predict(X, verbose=0).shape == (60, 3)


def test_frozen_layers_and_keras_models():
    body = keras.Sequential([keras.Input((6,)), L.Dense(5), L.ReLU()])
    body.trainable = False
    before = body.get_weights()
    model = fm.models.GradientNet((6,), [body, L.Dense(3)], public="a paper")
    model.compile("sgd")
    private = budget()
    model.fit(X, Y, batch_size=20, verbose=0, callbacks=[private])
    for a, b in zip(before, body.get_weights()):
        np.testing.assert_array_equal(a, b)
    assert "first weights: public by declaration: a paper" in private.report()
    whole = fm.models.GradientNet((6,), keras.Sequential([L.Dense(3)]))
    assert len(whole.trainable_variables) == 2


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"loss": "hinge"}, "`loss` must be one of"),
        ({"clip": -1.0}, "`clip`"),
        ({"layers": [L.BatchNormalization()]}, "mixes the records"),
    ],
)
def test_refusals(arguments, words):
    arguments = {"layers": [L.Dense(3)], **arguments}
    with pytest.raises(ValueError, match=words):
        fm.models.GradientNet((6,), **arguments)


def test_views_of_a_record_inside_of_the_model():
    """As docs/gradient_net.md has them: one record, one gradient, one clip."""

    class Views(keras.Model):
        def __init__(self, changed, body, count):
            super().__init__()
            self.changed, self.body, self.count = changed, body, count

        def call(self, x, training=None):
            if training:
                x = keras.ops.repeat(x, self.count, axis=0)
                x = self.changed(x, training=True)
            found = keras.ops.log_softmax(self.body(x))
            if training:
                found = keras.ops.reshape(found, (-1, self.count, 3))
                found = keras.ops.mean(found, axis=1)
            return found

    changed = keras.Sequential(
        [L.RandomFlip("horizontal"), L.RandomTranslation(0.1, 0.1)]
    )
    body = keras.Sequential([L.Conv2D(2, 3), L.Flatten(), L.Dense(3)])
    images = RNG.random((60, 8, 8, 1)).astype("float32")
    model = Views(changed, body, 4)
    model(images[:2], training=True)
    private = fm.make_private(model, clip=0.5)
    private.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    spent = budget()
    private.fit(images, Y, batch_size=20, verbose=0, callbacks=[spent])
    assert spent.ledger.entries[0].mechanism["sensitivity"] == 1.0
