"""Calls that do not say whether they train: where a part would train on
records, they are refused or change nothing."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_fm as fm

rng = np.random.default_rng(0)
X = rng.random((60, 4)).astype("float32") / 2
Y = np.arange(60) % 3
TARGETS = np.eye(3, dtype="float32")[Y]

pytestmark = pytest.mark.usefixtures("untraced")


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


def refused(model, match, optimizer="sgd"):
    model.compile(optimizer, loss=fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(1.0, 1e-5), data=(X, Y)
    )
    with pytest.raises(ValueError, match=match):
        model.fit(X, Y, verbose=0, callbacks=[private])
    assert not private.ledger.entries


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
    with pytest.raises(ValueError, match="is trainable beside the released"):
        compiled(wrapper(part, [below])).fit(X, TARGETS, verbose=0)
    logs = [
        compiled(wrapper(part)).fit(X, y, verbose=0).history
        for y in (TARGETS, 1 - TARGETS)
    ]
    assert [*logs[0]] == ["loss"] and logs[0]["loss"] == pytest.approx(
        logs[1]["loss"], rel=1e-3
    )
    assert part.is_released


class Student(keras.Model):
    """Learns from a released model that it holds."""

    def __init__(self, teacher):
        super().__init__()
        self.teacher, self.own = teacher, keras.layers.Dense(3)

    def call(self, inputs):
        return self.own(inputs)

    def compute_loss(self, x, y, y_pred, *_, **__):
        wanted = self.teacher(x, training=False)
        return ops.mean(ops.square(wanted - y_pred))


def test_a_released_teacher_is_called_in_a_step_of_another():
    teacher = released(head())
    before = teacher.get_weights()[0].copy()
    student = compiled(Student(teacher))
    student.fit(X, TARGETS, verbose=0)
    assert np.abs(student.own.get_weights()[0]).max() > 0
    np.testing.assert_array_equal(before, teacher.get_weights()[0])
    assert teacher.is_released


def gradients(model, loss):
    """Of the trainable weights of a model, by the backend's own means."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        held = [v.value for v in model.non_trainable_variables]

        def value(weights):
            def call(training):
                return model.stateless_call(
                    weights, held, X, training=training, return_losses=True
                )

            return loss(call(False)[0], call(True)[2] if trains else [])

        trains = model.name != "plain"
        return jax.grad(value)([v.value for v in model.trainable_variables])
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            found = loss(model(X), own_losses(model))
        return tape.gradient(found, model.trainable_variables)
    model.zero_grad()
    loss(model(X), own_losses(model)).backward()
    return [v.value.grad for v in model.trainable_variables]


def own_losses(model):
    if model.name == "plain":
        return []
    model(X, training=True)
    return model.losses


def test_a_plain_call_of_a_released_network_gives_no_gradient():
    """Beside the losses of a call that trains, which move the weights."""

    def loss(targets):
        return lambda outputs, own: (
            ops.mean(ops.square(outputs - targets)) + sum(own)
        )

    found = []
    model = released(network())
    for targets in (TARGETS, 1 - TARGETS):
        try:
            found.append(gradients(model, loss(targets)))
        except RuntimeError as error:
            assert "does not require grad" in str(error)
            return
    for one, other in zip(*found):
        if one is not None:
            np.testing.assert_array_equal(
                ops.convert_to_numpy(one), ops.convert_to_numpy(other)
            )


def test_a_head_below_itself_is_refused():
    """Its own weights would be below its release, from no release."""
    inputs, part = keras.Input((4,)), fm.layers.PrivateDense(4)
    inner = keras.Model(inputs, part(inputs))
    for hidden in (part(inputs), inner(inputs)):
        outputs = part(fm.layers.NormalizationLayer()(hidden))
        refused(keras.Model(inputs, outputs), "called once")


def test_gradients_that_gather_are_training_before_a_release():
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    twin = head(unprotected=True)
    model = keras.Sequential([keras.Input((4,)), twin])
    model.compile(optimizer, loss="mse")
    model.train_on_batch(X, TARGETS)
    other = keras.Sequential([keras.Input((4,)), head()])
    refused(other, "before its first release", optimizer)


class Sideways(fm.layers.PrivateDense):
    """Beside its kernel a weight that no release describes."""

    def call(self, inputs, training=None):
        return super().call(inputs, training=training) + ops.sum(inputs)


def test_a_call_over_the_librarys_is_refused():
    model = keras.Sequential([keras.Input((4,)), Sideways(3)])
    refused(model, "`call` of its own")
