"""Layers without weights between those that are trained: forwards, and
backwards for every record."""

import math

import keras
from keras import ops

from keras_fm.public import activations
from keras_fm.stacks.windows import Windows

KINDS = (
    keras.layers.Activation,
    keras.layers.ReLU,
    keras.layers.UnitNormalization,
    keras.layers.MaxPooling2D,
    keras.layers.AveragePooling2D,
    keras.layers.GlobalAveragePooling2D,
    keras.layers.Flatten,
    keras.layers.Reshape,
)


class _Elementwise:
    def __init__(self, function, input_shape):
        self.function, self.input_shape = function, tuple(input_shape)

    def forward(self, z):
        return self.function.value(ops.reshape(z, (-1, *self.input_shape)))

    def backward(self, z, delta):
        z = ops.reshape(z, (-1, *self.input_shape))
        delta = ops.reshape(delta, (-1, *self.input_shape))
        return delta * self.function.slope(z)


class _UnitNorm:
    """Every record as a vector of length one; one of zeros stays."""

    def __init__(self, input_shape):
        self.input_shape = tuple(input_shape)

    def _divided(self, z):
        z = ops.reshape(z, (-1, *self.input_shape))
        squared = ops.sum(ops.square(z), axis=1, keepdims=True)
        # As in Keras.
        length = ops.sqrt(ops.maximum(squared, 1e-24))
        return z / length, length

    def forward(self, z):
        return self._divided(z)[0]

    def backward(self, z, delta):
        unit, length = self._divided(z)
        delta = ops.reshape(delta, (-1, *self.input_shape))
        along = ops.sum(unit * delta, axis=1, keepdims=True)
        return (delta - unit * along) / length


class _MaxPooling:
    """The largest of every window; of equal ones the first counts."""

    def __init__(self, layer, input_shape):
        self.layer, self.input_shape = layer, tuple(input_shape)
        self.windows = Windows(
            input_shape, layer.pool_size, layer.strides, layer.padding
        )
        self.output_shape = (*self.windows.outputs, input_shape[-1])

    def forward(self, z):
        z = ops.reshape(z, (-1, *self.input_shape))
        return ops.max_pool(
            z,
            self.windows.size,
            strides=self.windows.strides,
            padding=self.layer.padding,
            data_format="channels_last",
        )

    def backward(self, z, delta):
        z = ops.reshape(z, (-1, *self.input_shape))
        delta = ops.reshape(delta, (-1, *self.output_shape))
        largest = self.forward(z)
        total, left = 0.0, ops.ones_like(largest, dtype="bool")
        for place, view in self.windows.views(z, padding=-math.inf):
            here = ops.logical_and(left, ops.equal(view, largest))
            left = ops.logical_and(left, ops.logical_not(here))
            chosen = ops.where(here, delta, ops.zeros_like(delta))
            total = total + self.windows.placed(chosen, place)
        return self.windows.of_inputs(total)


class _AveragePooling:
    """The mean of every window."""

    def __init__(self, input_shape, size, strides):
        self.input_shape = tuple(input_shape)
        self.windows = Windows(input_shape, size, strides, "valid")
        self.output_shape = (*self.windows.outputs, input_shape[-1])

    def forward(self, z):
        return ops.average_pool(
            ops.reshape(z, (-1, *self.input_shape)),
            self.windows.size,
            strides=self.windows.strides,
            padding="valid",
            data_format="channels_last",
        )

    def backward(self, z, delta):
        delta = ops.reshape(delta, (-1, *self.output_shape))
        delta = delta / math.prod(self.windows.size)
        if self.windows.outputs == (1, 1):
            size = (1, *self.windows.size, 1)
            return self.windows.of_inputs(ops.tile(delta, size))
        places = [
            (i, j)
            for i in range(self.windows.size[0])
            for j in range(self.windows.size[1])
        ]
        total = sum(self.windows.placed(delta, place) for place in places)
        return self.windows.of_inputs(total)


def of_layer(layer, input_shape):
    """The passage through a layer, or `None` if it changes shapes alone.

    Args:
        layer: a Keras layer without weights.
        input_shape: shape of what it reads, without the batch.

    Raises:
        ValueError: if its derivatives are not known, naming it.
    """
    # Subclasses may do anything in `call`.
    kind = type(layer)
    if getattr(layer, "data_format", None) == "channels_first":
        raise _refusal(layer, "is of data_format='channels_first'")
    if kind in (keras.layers.Flatten, keras.layers.Reshape):
        return None
    if kind is keras.layers.Activation:
        function = activations.get(layer.activation)
        if function is None:
            raise _refusal(
                layer, f"must have one of the activations {activations.NAMES}"
            )
        return _Elementwise(function, input_shape)
    if kind is keras.layers.ReLU:
        given = layer.max_value, layer.negative_slope, layer.threshold
        if given != (None, 0.0, 0.0):
            raise _refusal(layer, "must be a plain `ReLU()`")
        return _Elementwise(activations.get("relu"), input_shape)
    if kind is keras.layers.UnitNormalization:
        vectors = len(input_shape) == 1 and layer.axis in (-1, 1, [1], [-1])
        if not vectors:
            raise _refusal(layer, "must read vectors")
        return _UnitNorm(input_shape)
    if kind is keras.layers.MaxPooling2D:
        return _MaxPooling(layer, input_shape)
    if kind is keras.layers.AveragePooling2D:
        if layer.padding != "valid":
            raise _refusal(layer, "must have padding='valid'")
        return _AveragePooling(input_shape, layer.pool_size, layer.strides)
    if kind is keras.layers.GlobalAveragePooling2D:
        return _AveragePooling(input_shape, input_shape[:2], (1, 1))
    raise _refusal(layer, "has no derivatives that are known here")


def _refusal(layer, why):
    return ValueError(
        f"Layer '{layer.name}' ({type(layer).__name__}) {why}. Public or "
        "frozen layers go into `below`."
    )
