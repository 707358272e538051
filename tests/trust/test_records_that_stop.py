"""A record that a layer stops at ends a fit before it is paid for, and no
error shows what it holds.

Tokens beyond a table are the ordinary mistake: a vocabulary that was cut
elsewhere. TensorFlow and PyTorch stop at them, and print the number.
"""

import traceback

import keras
import numpy as np
import pytest

import keras_fm as fm

pytestmark = [pytest.mark.backend, pytest.mark.optimised]

SECRET = 57913.0
GENERATOR = np.random.default_rng(0)
Y = np.arange(40) % 3


@keras.saving.register_keras_serializable("tests")
class Stops(keras.layers.Layer):
    """A layer of somebody's, public: it looks a number up in a table."""

    def call(self, inputs):
        table = keras.ops.reshape(keras.ops.arange(10.0), (10, 1))
        tokens = keras.ops.cast(inputs, "int32")
        return keras.ops.take(table, tokens, axis=0)


def records(secret=True):
    x = GENERATOR.integers(0, 10, (40, 4)).astype("float32")
    if secret:
        x[17, 2] = SECRET
    return x


def coordinates(below):
    layers = [keras.layers.Flatten(), keras.layers.Dense(3)]
    return fm.models.DPMAC((4,), layers, below=below, z_steps=1)


def table():
    return keras.layers.Embedding(10, 2, trainable=False)


def refused(model, x, private):
    """Fits and returns all that an error holds."""
    model.compile(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError) as error:
        model.fit(x, Y, batch_size=40, verbose=0, callbacks=[private])
    found = error.value
    assert found.__cause__ is None and found.__context__ is None
    return "".join(traceback.format_exception(found))


def callback():
    return fm.callbacks.PrivateModel(fm.PrivacyBudget(2.0, 1e-5))


@pytest.mark.parametrize("below", [table, Stops])
def test_they_are_refused_before_the_charge(below):
    if below is Stops and keras.backend.backend() == "jax":
        pytest.skip("JAX stops at no record")
    private, model = callback(), coordinates([below()])
    if keras.backend.backend() != "jax":
        assert "57913" not in refused(model, records(), private)
        assert not private.ledger.entries
    # The same fit on records that it takes.
    model.compile(keras.optimizers.SGD(0.1))
    x = records(secret=False)
    model.fit(x, Y, batch_size=40, verbose=0, callbacks=[private])
    assert len(private.ledger.entries) == 1


def test_an_error_inside_a_step_shows_no_record(monkeypatch):
    """It stops nothing before the charge, and then at a record."""
    if keras.backend.backend() == "jax":
        pytest.skip("JAX stops at no record")
    model, private = coordinates([Stops()]), callback()
    monkeypatch.setattr(model, "check_records", lambda given: None)
    model.compile(keras.optimizers.SGD(0.1))
    with pytest.raises(RuntimeError, match="A step of .* failed") as error:
        model.fit(records(), Y, batch_size=40, verbose=0, callbacks=[private])
    found = error.value
    assert found.__cause__ is None and found.__context__ is None
    assert "57913" not in "".join(traceback.format_exception(found))
    assert len(private.ledger.entries) == 1


def test_tokens_outside_of_a_table_are_refused_on_every_backend():
    """JAX makes NaN of them, and a record of those counts for nothing."""
    inputs = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(10, 3, trainable=False, name="words")(inputs)
    x = fm.layers.NormalizationLayer()(keras.layers.Flatten()(x))
    model = keras.Model(inputs, fm.layers.PrivateDense(3)(x))
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    for token in (57913, 10, -1):
        x = records(secret=False).astype("int32")
        x[17, 2] = token
        private = fm.callbacks.PrivateModel(
            fm.PrivacyBudget(2.0, 1e-5), data=(x, Y)
        )
        with pytest.raises(ValueError, match="from 0 to 9.*'words'") as error:
            model.fit(x, Y, verbose=0, callbacks=[private])
        assert not private.ledger.entries
        assert "57913" not in str(error.value)
