"""Activations with their first two derivatives, for exact coefficients."""

import dataclasses
import math
from collections.abc import Callable

import keras
from keras import ops


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation that acts on every unit by itself.

    If a derivative jumps (ReLU at 0), the value from the left is used.

    Attributes:
        name: its Keras name.
        value, slope, curvature: f, f' and f'' of a tensor.
        bounds: `None`, or `(low, high)`, the closure of its range.
        pull: largest `|f(a) - z| |f'(a)|` over all a and all z within
            `bounds`; infinite without bounds.
        bend: largest `|f'(a)^2 + (f(a) - z) f''(a)|`, likewise.
    """

    name: str
    value: Callable
    slope: Callable
    curvature: Callable
    bounds: tuple | None = None
    pull: float = math.inf
    bend: float = math.inf


def _sigmoid_slope(a):
    s = ops.sigmoid(a)
    return s * (1 - s)


def _sigmoid_curvature(a):
    s = ops.sigmoid(a)
    return s * (1 - s) * (1 - 2 * s)


def _tanh_slope(a):
    return 1 - ops.square(ops.tanh(a))


def _tanh_curvature(a):
    t = ops.tanh(a)
    return -2 * t * (1 - t * t)


def _silu_slope(a):
    s = ops.sigmoid(a)
    return s * (1 + a * (1 - s))


def _silu_curvature(a):
    s = ops.sigmoid(a)
    return s * (1 - s) * (2 + a * (1 - 2 * s))


def _normal_density(a):
    return ops.exp(-a * a / 2) / math.sqrt(2 * math.pi)


def _gelu_slope(a):
    return (1 + ops.erf(a / math.sqrt(2))) / 2 + a * _normal_density(a)


def _gelu_curvature(a):
    return (2 - a * a) * _normal_density(a)


def _elu_slope(a):
    # The exponential must not overflow in the branch that is not chosen.
    return ops.where(a > 0, ops.ones_like(a), ops.exp(ops.minimum(a, 0)))


def _elu_curvature(a):
    return ops.where(a > 0, ops.zeros_like(a), ops.exp(ops.minimum(a, 0)))


# With s = sigmoid(a), z in [0, 1]: |s - z| s (1 - s) <= s^2 (1 - s), at most
# 4/27 (s = 2/3). With t = tanh(a), z in [-1, 1]: (1 + t)(1 - t^2), at most
# 32/27 (t = 1/3). The second derivatives are linear in z, so they too are
# largest at an end of the range: s^2 (1 - s)(2 - 3 s) and
# (1 - t)(1 + t)^2 (1 - 3 t), rounded up in the last digit.
_KNOWN = (
    Activation("linear", lambda a: a, ops.ones_like, ops.zeros_like),
    Activation(
        "relu", ops.relu, lambda a: ops.cast(a > 0, a.dtype), ops.zeros_like
    ),
    Activation(
        "leaky_relu",
        lambda a: ops.leaky_relu(a, negative_slope=0.2),
        lambda a: ops.where(a > 0, ops.ones_like(a), 0.2),
        ops.zeros_like,
    ),
    Activation(
        "sigmoid",
        ops.sigmoid,
        _sigmoid_slope,
        _sigmoid_curvature,
        bounds=(0.0, 1.0),
        pull=4 / 27,
        bend=0.07704,
    ),
    Activation(
        "tanh",
        ops.tanh,
        _tanh_slope,
        _tanh_curvature,
        bounds=(-1.0, 1.0),
        pull=32 / 27,
        bend=1.23255,
    ),
    Activation("softplus", ops.softplus, ops.sigmoid, _sigmoid_slope),
    Activation("elu", ops.elu, _elu_slope, _elu_curvature),
    Activation("silu", ops.silu, _silu_slope, _silu_curvature),
    Activation(
        "gelu",
        lambda a: ops.gelu(a, approximate=False),
        _gelu_slope,
        _gelu_curvature,
    ),
)
NAMES = tuple(activation.name for activation in _KNOWN)


def get(function):
    """The `Activation` of a Keras activation.

    Args:
        function: name, `None` for linear, or a function of
            `keras.activations`.

    Returns:
        an `Activation`, or `None` if its derivatives are not known.
    """
    try:
        function = keras.activations.get(function)
    except (ValueError, TypeError):
        return None
    for activation in _KNOWN:
        if function is keras.activations.get(activation.name):
            return activation
    return None
