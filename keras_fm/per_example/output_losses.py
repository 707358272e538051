"""Losses of DPMAC's output layer, with two derivatives."""

import math

from keras import ops


class BinaryCrossEntropy:
    """Per class, on logits: `sum_h softplus(a_h) - y_h a_h`."""

    labels = True

    def __init__(self, activation, units):
        _check_logits("binary_crossentropy", activation)
        self.units = units
        # |sigmoid - y| <= 1 and sigmoid' <= 1/4 for every class.
        self.slope_bound = math.sqrt(units)
        self.curvature_bound = math.sqrt(units) / 4

    def value(self, outputs, y):
        """`(n,)` losses of outputs and targets."""
        return ops.sum(ops.softplus(outputs) - y * outputs, axis=1)

    def slope(self, a, y):
        """Derivative of `value` by the outputs before activation."""
        return ops.sigmoid(a) - y

    def curvature(self, a, y):
        """Second derivatives of `value` by each output."""
        s = ops.sigmoid(a)
        return s * (1 - s)


class CategoricalCrossEntropy:
    """Softmax over the classes, on logits."""

    labels = True

    def __init__(self, activation, units):
        _check_logits("categorical_crossentropy", activation)
        if units < 2:
            raise ValueError(
                'loss="categorical_crossentropy" needs at least two classes; '
                'for one logit use "binary_crossentropy". Received: '
                f"units={units}"
            )
        self.units = units
        # p and y are distributions: ||p - y||^2 <= ||p||^2 + ||y||^2 <= 2,
        # and sum p^2 (1 - p)^2 <= max p (1 - p)^2 = 4/27.
        self.slope_bound = math.sqrt(2)
        self.curvature_bound = math.sqrt(4 / 27)

    def value(self, outputs, y):
        high = ops.logsumexp(outputs, axis=1) * ops.sum(y, axis=1)
        return high - ops.sum(outputs * y, axis=1)

    def slope(self, a, y):
        return ops.softmax(a) * ops.sum(y, axis=1, keepdims=True) - y

    def curvature(self, a, y):
        p = ops.softmax(a)
        return p * (1 - p) * ops.sum(y, axis=1, keepdims=True)


class SquaredError:
    """`1/2 ||f(a) - y||^2`, f the activation of the output layer."""

    labels = False

    def __init__(self, activation, units):
        self.units = units
        self.activation = activation
        self.slope_bound = math.sqrt(units) * activation.pull
        self.curvature_bound = math.sqrt(units) * activation.bend

    def value(self, outputs, y):
        return ops.sum(ops.square(outputs - y), axis=1) / 2

    def slope(self, a, y):
        missed = self.activation.value(a) - y
        return missed * self.activation.slope(a)

    def curvature(self, a, y):
        f = self.activation
        return ops.square(f.slope(a)) + (f.value(a) - y) * f.curvature(a)


LOSSES = {
    "binary_crossentropy": BinaryCrossEntropy,
    "categorical_crossentropy": CategoricalCrossEntropy,
    "squared_error": SquaredError,
}


def _check_logits(name, activation):
    if activation.name != "linear":
        raise ValueError(
            f"loss={name!r} is a loss of logits: give the last layer no "
            f"activation. Received: activation={activation.name!r}"
        )


def targets(labels, y, units, dtype):
    """Targets `(n, units)` from the labels of `fit`.

    Args:
        labels: bool, whether `(n,)` and `(n, 1)` are class indices if units >
            1.
        y: tensor.
        units: int.
        dtype: of the result.

    Raises:
        ValueError: if the shape fits neither.
    """
    shape = tuple(y.shape)
    if len(shape) == 1:
        y = ops.expand_dims(y, 1)
    elif labels is False and len(shape) > 2 and None not in shape[1:]:
        y = ops.reshape(y, (-1, math.prod(shape[1:])))
    if labels and units > 1 and y.shape[-1] == 1 and len(y.shape) == 2:
        index = ops.cast(ops.squeeze(y, 1), "int32")
        y = ops.one_hot(index, units)
    if len(y.shape) != 2 or y.shape[1] != units:
        raise ValueError(
            "`y` must hold class indices or one target for each output of "
            f"the model. Received: y.shape={shape}, outputs={units}"
        )
    return ops.cast(y, dtype)
