"""Derivatives of activations, and their bounds."""

import keras
import numpy as np
import pytest
from scipy import special

from keras_fm.public import activations

FUNCTIONS = {
    "linear": lambda a: a,
    "relu": lambda a: np.maximum(a, 0),
    "leaky_relu": lambda a: np.where(a > 0, a, 0.2 * a),
    "sigmoid": special.expit,
    "tanh": np.tanh,
    "softplus": lambda a: np.logaddexp(a, 0),
    "elu": lambda a: np.where(a > 0, a, np.expm1(np.minimum(a, 0))),
    "silu": lambda a: a * special.expit(a),
    "gelu": lambda a: a * special.ndtr(a),
}
# Not at 0, where some of them have a corner.
GRID = np.linspace(-6, 6, 240) + 0.013


def array(x):
    return keras.ops.convert_to_numpy(x)


def test_every_name_is_tested():
    assert set(FUNCTIONS) == set(activations.NAMES)


@pytest.mark.parametrize("name", activations.NAMES)
def test_values_and_derivatives(name):
    known, f, h = activations.get(name), FUNCTIONS[name], 1e-4
    a = keras.ops.convert_to_tensor(GRID, "float32")
    slope = (f(GRID + h) - f(GRID - h)) / (2 * h)
    bend = (f(GRID + h) - 2 * f(GRID) + f(GRID - h)) / h**2
    keras_own = keras.activations.get(name)(a)
    for made, wanted, atol in (
        (known.value(a), f(GRID), 1e-5),
        (known.value(a), array(keras_own), 1e-6),
        (known.slope(a), slope, 1e-5),
        (known.curvature(a), bend, 1e-5),
    ):
        np.testing.assert_allclose(array(made), wanted, atol=atol)


@pytest.mark.parametrize("name", activations.NAMES)
def test_far_inputs_give_numbers(name):
    known = activations.get(name)
    a = keras.ops.convert_to_tensor([-1e4, -90.0, 0.0, 90.0, 1e4], "float32")
    for function in (known.value, known.slope, known.curvature):
        assert np.all(np.isfinite(array(function(a))))


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_bounds_hold_and_are_reached(name):
    known = activations.get(name)
    a = keras.ops.convert_to_tensor(np.linspace(-9, 9, 4001), "float32")
    f, slope, curve = (
        array(g(a)).astype(float)[:, None]
        for g in (known.value, known.slope, known.curvature)
    )
    low, high = known.bounds
    assert low <= f.min() and f.max() <= high
    z = np.linspace(low, high, 41)
    pull = np.abs((f - z) * slope).max()
    bend = np.abs(slope**2 + (f - z) * curve).max()
    assert known.pull * 0.999 < pull <= known.pull * (1 + 1e-6)
    assert known.bend * 0.999 < bend <= known.bend * (1 + 1e-6)


@pytest.mark.parametrize(
    "function", ["selu", "softmax", lambda a: a, keras.layers.ReLU()]
)
def test_others_are_not_known(function):
    assert activations.get(function) is None


def test_functions_are_known_as_names_are():
    assert activations.get(None).name == "linear"
    assert activations.get(keras.activations.silu).name == "silu"
