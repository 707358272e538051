"""What a user is told before anything is spent: plans, hints, refusals."""

import sys
import types

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.training import ledger_of_callback

X = np.random.default_rng(0).uniform(-1, 1, (40, 6)).astype("float32")
Y = np.arange(40) % 2


def over(body):
    return keras.Sequential(
        [
            keras.Input((6,)),
            body,
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(2),
        ]
    )


def plan(model):
    return fm.callbacks.PrivateModel(1.0, 1e-5, data=(X, Y)).plan(model)


def test_a_model_without_a_private_layer():
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    plain.compile("sgd", "mse")
    given = fm.callbacks.PrivateModel(1.0, 1e-5)
    with pytest.raises(ValueError, match=r"`keras_fm.make_private\(model\)`"):
        given.plan(plain)


def test_records_that_a_released_model_does_not_use():
    model = over(keras.layers.Rescaling(1.0))
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    first, other = (
        fm.callbacks.PrivateModel(1.0, 1e-5, data=(X, Y)) for _ in range(2)
    )
    model.fit(X, Y, verbose=0, callbacks=[first])
    with pytest.warns(UserWarning, match="was released before"):
        model.fit(X, Y, verbose=0, callbacks=[other])
    assert not other.ledger.entries


def test_a_frozen_body_with_random_weights_is_pointed_out(tmp_path):
    """On every backend: an initializer gives the same numbers again."""
    body = keras.layers.Dense(3, trainable=False, name="features")
    model = over(body)
    assert "random initial weights: 'features'." in plan(model)
    # Of weights that others trained nothing is said, nor of a file's.
    body.kernel.assign(body.kernel + 0.5)
    assert "initial weights" not in plan(model)
    inner = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    inner.save(tmp_path / "body.keras")
    inner = keras.saving.load_model(tmp_path / "body.keras")
    inner.trainable = False
    assert "initial weights" not in plan(over(inner))


@pytest.mark.once
def test_noisy_steps_over_a_random_body():
    layers = [keras.layers.Dense(3, trainable=False, name=n) for n in "abcdef"]
    layers = [keras.Input((6,)), *layers, keras.layers.Dense(2)]
    private = fm.make_private(keras.Sequential(layers))
    private.compile("sgd", "mse")
    text = fm.callbacks.PrivateModel(1.0, 1e-5).plan(private, 40, batch_size=8)
    assert "'a', 'b', 'c', 'd' and 2 more. Load pretrained" in text


class FrozenTooEarly(keras.Model):
    def __init__(self):
        super().__init__()
        self.trainable = False
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


@pytest.mark.once
def test_a_body_that_was_frozen_too_early_is_told_why():
    model = over(FrozenTooEarly())
    # Keras would train it: the refusal is right, its advice was not.
    assert len(model.trainable_variables) == 4
    with pytest.raises(ValueError, match="in the last line of its `__init__`"):
        plan(model)


@pytest.mark.once
def test_a_plan_counts_its_releases():
    model = over(fm.layers.DPPCA(3))
    text = plan(model)
    assert f"add_remove, {text.count('    uses ')} releases\n" in text
    promise = fm.Proven(releases=2)
    budget = fm.callbacks.PrivateModel(
        1.0, 1e-5, data=(X, Y), guarantee=promise
    )
    assert "releases, 2 times within the budget" in budget.plan(model)


@pytest.mark.once
@pytest.mark.parametrize("kernel", [True, False])
def test_a_notebook_is_told_of_the_ledger_once(
    monkeypatch, capsys, tmp_path, kernel
):
    shell = types.SimpleNamespace(**{"kernel": object()} if kernel else {})
    module = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)
    ledger_of_callback._propose_file.cache_clear()
    fm.callbacks.PrivateModel(1.0, 1e-5, ledger=tmp_path / "privacy.json")
    assert not capsys.readouterr().out
    for told in (kernel, False):
        fm.callbacks.PrivateModel(1.0, 1e-5)
        said = capsys.readouterr().out
        assert said.count("\n") == said.count("ledger=") == told
