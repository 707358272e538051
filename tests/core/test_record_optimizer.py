"""Keras optimizers on variables of records."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fm.core import record_optimizer
from keras_fm.core.record_optimizer import RecordOptimizer

OPTIMIZERS = {
    "SGD": {},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adagrad": {},
    "Adadelta": {},
    "Adamax": {},
    "Lion": {},
    "Ftrl": {"l1_regularization_strength": 0.01},
}
RNG = np.random.default_rng(0)
A = RNG.normal(size=(6, 3)).astype("float32")
B = RNG.normal(size=(6, 2, 2)).astype("float32")


def array(x):
    return ops.convert_to_numpy(x)


def tensors(*arrays):
    return [ops.convert_to_tensor(a) for a in arrays]


def make(name, rate=0.05):
    kind = {"nesterov": "SGD"}.get(name, name)
    return getattr(keras.optimizers, kind)(rate, **OPTIMIZERS[name])


def gradients(z):
    a, b = z
    return [2 * a - 1, b + ops.reshape(a[:, :2], (-1, 2, 1))]


def compiled(function):
    """With unknown rows where a backend knows such."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        shapes = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 2, 2)))
        return tf.function(function, input_signature=shapes)
    if backend == "jax":
        import jax

        return jax.jit(function)
    return function


def test_every_elementwise_optimizer_is_tested():
    kinds = {kind.__name__ for kind in record_optimizer.ELEMENTWISE}
    assert kinds == set(OPTIMIZERS) - {"nesterov"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_equal_those_of_the_optimizer_on_weights(name):
    records = RecordOptimizer(make(name), 2)
    run = compiled(lambda a, b: records.minimize(gradients, [a, b], 5))
    made = run(*tensors(A, B))
    variables = [keras.Variable(A), keras.Variable(B)]
    optimizer = make(name)
    optimizer.build(variables)
    for _ in range(5):
        optimizer.apply(gradients([v.value for v in variables]), variables)
    for moved, variable, start in zip(made, variables, (A, B)):
        np.testing.assert_allclose(array(moved), array(variable), atol=2e-6)
        assert np.abs(array(moved) - start).max() > 1e-4
    # It starts anew with every batch, of whatever size.
    again = run(*tensors(A[:4], B[:4]))
    np.testing.assert_allclose(array(again[0]), array(made[0])[:4], atol=1e-6)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_known_first_gradients_change_nothing(name, steps):
    records = RecordOptimizer(make(name), 2)

    def known(a, b):
        first = gradients([a, b])
        return records.minimize(gradients, [a, b], steps, first)

    wanted = records.minimize(gradients, tensors(A, B), steps)
    for found, other in zip(compiled(known)(*tensors(A, B)), wanted):
        assert array(found).shape == array(other).shape
        np.testing.assert_allclose(array(found), array(other), atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_record_moves_by_itself(name):
    records = RecordOptimizer(make(name), 2)
    one = records.minimize(gradients, tensors(A, B), 4)
    others = [a.copy() for a in (A, B)]
    for values in others:
        values[1:] = np.nan
    two = records.minimize(gradients, tensors(*others), 4)
    for first, second in zip(one, two):
        np.testing.assert_array_equal(array(first)[0], array(second)[0])


def test_schedules_count_the_steps_of_a_batch():
    kind = keras.optimizers.schedules.PiecewiseConstantDecay
    schedule = kind([1], [1.0, 0.0])
    records = RecordOptimizer(keras.optimizers.SGD(schedule), 1)
    for _ in range(2):
        (moved,) = records.minimize(
            lambda z: [ops.ones_like(z[0])], tensors(A), 5
        )
        # Steps 0 and 1 have rate 1.
        np.testing.assert_allclose(array(moved), A - 2, atol=1e-6)  # fmt: skip


def test_the_given_optimizer_is_left_alone():
    optimizer = keras.optimizers.Adam(0.1)
    RecordOptimizer(optimizer, 1).minimize(lambda z: z, tensors(A), 3)
    assert int(optimizer.iterations) == 0 and not optimizer.built


class Signed(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, ops.mean(gradient))


@pytest.mark.parametrize(
    "optimizer, match",
    [
        (keras.optimizers.Lamb(0.1), "by its own gradient alone.*Lamb"),
        (keras.optimizers.Adafactor(0.1), "Adafactor"),
        (keras.optimizers.Nadam(0.1), "Nadam"),
        (Signed(0.1), "Signed"),
        (keras.optimizers.AdamW(0.1), "`weight_decay`"),
        (keras.optimizers.SGD(0.1, clipnorm=1.0), "`clipnorm`"),
        (keras.optimizers.SGD(0.1, global_clipnorm=1.0), "`global_clipnorm`"),
        (keras.optimizers.SGD(0.1, clipvalue=1.0), "`clipvalue`"),
        (keras.optimizers.SGD(0.1, use_ema=True), "`use_ema`"),
        (
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
            "`gradient_accumulation_steps`",
        ),
    ],
)
def test_refusals(optimizer, match):
    with pytest.raises(ValueError, match=match):
        RecordOptimizer(optimizer, 1)
