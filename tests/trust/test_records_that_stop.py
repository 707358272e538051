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


def gradients(below):
    layers = [keras.layers.Flatten(), keras.layers.Dense(3)]
    return fm.models.GradientNet((4,), layers, below=below)


def coordinates(below):
    layers = [keras.layers.Flatten(), keras.layers.Dense(3)]
    return fm.models.DPMAC((4,), layers, below=below, z_steps=1)


def table():
    return keras.layers.Embedding(10, 2, trainable=False)


FORMS = {"gradients": gradients, "coordinates": coordinates}


def refused(model, x, private, kind):
    """Fits and returns all that an error holds."""
    batches = fm.datasets.PoissonBatches(
        x, Y, sampling="full", steps_per_epoch=2
    )
    model.compile(keras.optimizers.SGD(0.1))
    with pytest.raises(kind) as error:
        model.fit(batches, verbose=0, callbacks=[private])
    found = error.value
    assert found.__cause__ is None and found.__context__ is None
    return "".join(traceback.format_exception(found))


def callback():
    return fm.callbacks.PrivateModel(fm.PrivacyBudget(2.0, 1e-5))


@pytest.mark.parametrize("below", [table, Stops])
@pytest.mark.parametrize("form", FORMS)
def test_they_are_refused_before_the_charge(form, below):
    if below is Stops and keras.backend.backend() == "jax":
        pytest.skip("JAX stops at no record")
    private, model = callback(), FORMS[form]([below()])
    text = refused(model, records(), private, ValueError)
    assert "57913" not in text
    assert not private.ledger.entries
    # The same fit on records that it takes.
    batches = fm.datasets.PoissonBatches(
        records(secret=False), Y, sampling="full", steps_per_epoch=2
    )
    model.fit(batches, verbose=0, callbacks=[private])
    assert model.steps_taken == 2


def view(record, rng):
    """Fails in the steps alone: nobody can know it before."""
    return record + (57913 - record) * (record.sum() > 1)


def test_an_error_inside_a_step_shows_no_record():
    if keras.backend.backend() == "jax":
        pytest.skip("JAX stops at no record")
    layers = [keras.layers.Flatten(), keras.layers.Dense(3)]
    model = fm.models.GradientNet((4,), layers, below=[table()], views=2)
    model.compile(keras.optimizers.SGD(0.1))
    batches = fm.datasets.PoissonBatches(
        records(secret=False),
        Y,
        sampling="full",
        steps_per_epoch=2,
        augment=view,
        views=2,
    )
    private = callback()
    with pytest.raises(RuntimeError, match="A step of .* failed") as error:
        model.fit(batches, verbose=0, callbacks=[private])
    found = error.value
    assert found.__cause__ is None and found.__context__ is None
    assert "57913" not in "".join(traceback.format_exception(found))
    # They were paid for, and no other loop takes the steps.
    assert len(private.ledger.entries) == 1
    assert not model._noise.may_step


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
        private = fm.callbacks.PrivateModel(fm.PrivacyBudget(2.0, 1e-5), (x, Y))
        with pytest.raises(ValueError, match="from 0 to 9.*'words'") as error:
            model.fit(x, Y, verbose=0, callbacks=[private])
        assert not private.ledger.entries
        assert "57913" not in str(error.value)
