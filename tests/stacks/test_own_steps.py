"""What is no step of this package's own, and what a step shows."""

import keras
import numpy as np
import pytest
from gradient_nets import private
from keras import layers as L
from keras import ops

import keras_fm as fm

X = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")
Y = np.arange(60) % 3
Batches = fm.datasets.PoissonBatches


class Centred(Batches):
    """Batches whose rows hold the mean of all records in them."""

    def __getitem__(self, index):
        x, y, mask = super().__getitem__(index)
        return x - x.mean(axis=0), y, mask


class Louder(fm.models.GradientNet):
    """A loss that reads the records beside the noisy sums."""

    def compute_loss(self, x=None, y=None, y_pred=None, *args, **kwargs):
        found = super().compute_loss(x, y, y_pred, *args, **kwargs)
        return found + ops.mean(ops.square(y_pred))


def own_step(model):
    model.train_step = lambda *args: {"loss": ops.mean(args[-1][0])}


@pytest.mark.parametrize(
    "kind, batches, change, match",
    [
        (fm.models.GradientNet, Centred, None, "no class of your own"),
        (Louder, Batches, None, "class of its own"),
        (fm.models.GradientNet, Batches, own_step, "own `train_step`"),
    ],
)
def test_own_batches_and_steps_are_refused(kind, batches, change, match):
    model = kind((6,), [L.Dense(3)], clip=0.1)
    model.compile("sgd")
    if change is not None:
        change(model)
    before = model.get_weights()
    callback = private()
    sampled = batches(X, Y, batch_size=10)
    with pytest.raises(ValueError, match=match):
        model.fit(sampled, callbacks=[callback], verbose=0)
    assert not callback.ledger.entries
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("token", [987654, -5])
def test_no_step_stops_at_a_record(token):
    """Uncompiled, a table told the token that is not in it, after all was
    paid for."""
    tokens = np.random.default_rng(0).integers(0, 6, (30, 4))
    tokens[7, 3] = token
    layers = [L.Embedding(6, 2), L.Flatten(), L.Dense(3)]
    model = fm.models.GradientNet((4,), layers, clip=0.1)
    eager = keras.backend.backend() != "jax"
    model.compile("sgd", run_eagerly=eager)
    sampled = Batches(tokens, Y[:30], sampling="full")
    model.fit(sampled, epochs=2, callbacks=[private()], verbose=0)
    assert model.steps_taken == 2


def test_the_batches_themselves_are_no_validation_data():
    model = fm.models.GradientNet((6,), [L.Dense(3)], clip=0.1)
    model.compile("sgd", metrics=["accuracy"])
    sampled, callback = Batches(X, Y, batch_size=10), private()
    others = Batches(X + 1, Y.copy(), batch_size=10)
    for shown in (sampled, Batches(X[:9], Y[:9], sampling="full")):
        with pytest.raises(ValueError, match="holds private records"):
            model.fit(
                sampled,
                validation_data=shown,
                callbacks=[callback],
                verbose=0,
            )
    assert not callback.ledger.entries
    fit = {"validation_data": others, "callbacks": [callback], "verbose": 0}
    assert "val_accuracy" in model.fit(sampled, **fit).history
