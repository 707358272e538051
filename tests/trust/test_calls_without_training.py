"""Calls that do not say whether they train: where a part would train on
records, they are refused or change nothing."""

import keras
import numpy as np
import pytest

import keras_fm as fm

rng = np.random.default_rng(0)
X = rng.random((60, 4)).astype("float32") / 2
Y = np.arange(60) % 3
TARGETS = np.eye(3, dtype="float32")[Y]

pytestmark = [
    pytest.mark.usefixtures("untraced"),
    pytest.mark.full,
    pytest.mark.backend,
    pytest.mark.optimised,
]


def head(**arguments):
    return fm.layers.PrivateDense(3, name="head", **arguments)


def network(**arguments):
    return fm.models.FunctionalNet(
        (4,), [keras.layers.Dense(3)], rounds=1, name="net", **arguments
    )


PARTS = {"PrivateDense": head, "FunctionalNet": network}


class Wrapped(keras.Model):
    """As many are written: `call` has no `training`, or does not pass it."""

    def __init__(self, part, below=()):
        super().__init__()
        self.part, self.below = part, list(below)

    def call(self, inputs):
        for layer in self.below:
            inputs = layer(inputs)
        return self.part(inputs)


class Silent(Wrapped):
    def call(self, inputs, training=False):
        return super().call(inputs)


def compiled(model):
    model(X[:2])
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    return model


def released(part):
    model = part
    if not isinstance(part, keras.Model):
        model = keras.Sequential([keras.Input((4,)), part])
    own = isinstance(part, fm.models.FunctionalNet)
    model.compile("sgd", loss=None if own else fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(2.0, 1e-5), data=(X, Y)
    )
    model.fit(X, Y, verbose=0, callbacks=[private])
    return part


@pytest.mark.parametrize("wrapper", [Wrapped, Silent])
@pytest.mark.parametrize("kind", PARTS)
def test_a_fit_trains_no_part_without_a_release(kind, wrapper):
    model = compiled(wrapper(PARTS[kind]()))
    before = [w.copy() for w in model.get_weights()]
    for fit in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match="no release, so training it"):
            fit(X, TARGETS)
    for one, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("wrapper", [Wrapped, Silent])
def test_the_twin_trains_as_ever(wrapper):
    model = compiled(wrapper(head(unprotected=True)))
    before = model.get_weights()[0].copy()
    model.fit(X, TARGETS, verbose=0)
    assert np.abs(model.get_weights()[0] - before).max() > 0
    model.part.trainable = False
    model.compile("sgd", loss="mse")
    model.evaluate(X, TARGETS, verbose=0)
    model.predict(X, verbose=0)


@pytest.mark.parametrize("wrapper", [Wrapped, Silent])
def test_no_record_enters_a_step_above_a_released_head(wrapper):
    part = released(head())
    below = keras.layers.Dense(4)
    with pytest.raises(ValueError, match="must not be trainable beside"):
        compiled(wrapper(part, [below])).fit(X, TARGETS, verbose=0)
    logs = [
        compiled(wrapper(part)).fit(X, y, verbose=0).history
        for y in (TARGETS, 1 - TARGETS)
    ]
    assert [*logs[0]] == ["loss"] and logs[0]["loss"] == pytest.approx(
        logs[1]["loss"], rel=1e-3
    )
    assert part.is_released
