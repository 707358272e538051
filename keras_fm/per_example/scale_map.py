"""The trained vectors of a normalisation or a `PReLU`, as a map of every
record.

For normalised inputs u, a normalisation outputs `gamma * u + beta`, entry by
entry along its axes. A `PReLU` outputs `max(x, 0) + alpha * u` with `u = min(x,
0)`. A record's coefficients are the sums of `delta * u` and of `delta` over its
positions. They are vectors of the size of the weights, and are formed.
"""

import functools
import math

import keras

from keras_fm.per_example import direct_ops as ops
from keras_fm.per_example.affine_maps import (
    UNDERFLOW,
    CoefficientMap,
    squared_length,
    total,
    without_cancelling,
)


class ScaleMap(CoefficientMap):
    """`gamma * inputs + beta` of a normalisation, or only one of the terms.

    Args:
        layer: the layer, built.
        input_shape: shape of the layer's input, without the batch.

    Raises:
        ValueError: if its axes are not the last ones.
    """

    names: tuple[str, ...] = ("gamma", "scale", "beta")

    def __init__(self, layer, input_shape):
        self.layer = layer
        self.input_shape = self.output_shape = tuple(input_shape)
        axes = layer.axis if isinstance(layer.axis, list) else [layer.axis]
        rank = len(input_shape) + 1
        axes = [axis % rank for axis in axes]
        last = list(range(rank - len(axes), rank))
        if axes != last or 0 in axes:
            raise ValueError(
                f"Layer '{layer.name}' ({type(layer).__name__}) must be of "
                f"axis=-1, or of several last axes. Received: axis={layer.axis}"
            )
        self._weight_shape = self.input_shape[-len(axes) :]
        self._shape = (1,) * (rank - 1 - len(axes)) + self._weight_shape
        held = [getattr(layer, name, None) for name in self.names]
        *scales, self._has_offset = [
            isinstance(weight, keras.Variable) for weight in held
        ]
        self._has_scale = any(scales)

    def factor(self, inputs):
        """The factor of the scale."""
        return inputs

    def forward(self, inputs, weights):
        weights = [ops.reshape(weight, self._shape) for weight in weights]
        if self._has_scale:
            inputs = inputs * weights.pop(0)
        return inputs + weights[0] if weights else inputs

    def measured(self, inputs, delta):
        found = [self.factor(inputs) * delta] if self._has_scale else []
        found += [delta] * self._has_offset
        found = [self._over_places(values) for values in found]
        squared = sum(squared_length(part) for part in found)
        read, returned = (
            squared_length(v) + UNDERFLOW for v in (self.factor(inputs), delta)
        )
        read = read + math.prod(self.input_shape) // math.prod(self._shape)
        # Both are lengths of records already.
        return squared + without_cancelling(read, returned), found

    def sums_of(self, found, scale):
        shape = self._weight_shape
        return [ops.reshape(total(part, scale), shape) for part in found]

    def _over_places(self, values):
        """`(n, entries)` sums over all places that share an entry."""
        values = ops.reshape(values, (-1, *self.input_shape))
        axes = tuple(k + 1 for k, size in enumerate(self._shape) if size == 1)
        values = ops.sum(values, axis=axes) if axes else values
        return ops.reshape(values, (-1, math.prod(self._weight_shape)))


class RectifierMap(ScaleMap):
    """`max(inputs, 0) + alpha * min(inputs, 0)` of a `PReLU`; the arguments
    are those of `ScaleMap`."""

    names = ("alpha",)

    def __init__(self, layer, input_shape):
        self.layer = layer
        self.input_shape = self.output_shape = tuple(input_shape)
        self._shape = self._weight_shape = tuple(layer.alpha.shape)
        self._has_scale, self._has_offset = True, False

    def factor(self, inputs):
        return ops.minimum(inputs, 0)

    def forward(self, inputs, weights):
        return ops.relu(inputs) + weights[0] * self.factor(inputs)


def unscaled(layer, shape):
    """A normalisation without the effect of its scale and offset: in float32,
    or in float64 if the layer is.

    Args:
        layer: the layer.
        shape: of the layer's input, without the batch.
    """
    if type(layer) is keras.layers.GroupNormalization:
        return functools.partial(_of_groups, layer)
    config = {
        **layer.get_config(),
        "dtype": "float64" if layer.compute_dtype == "float64" else "float32",
    }
    neutral = {"scale": False, "center": False}
    if config.get("rms_scaling"):
        # Always has a scale.
        neutral = {"gamma_initializer": "ones"}
    config.update({k: v for k, v in neutral.items() if k in config})
    made = type(layer).from_config(config)
    made(keras.KerasTensor((None, *shape), config["dtype"]))
    return made


def _of_groups(layer, inputs):
    """Group normalisation in few operations. Keras sums over axes that are
    apart, which takes TensorFlow five times as long."""
    groups, shape = layer.groups, inputs.shape[1:]
    if keras.backend.backend() == "torch":
        import torch

        return torch.nn.functional.group_norm(
            inputs.movedim(-1, 1), groups, eps=layer.epsilon
        ).movedim(1, -1)
    width = shape[-1] // groups

    def mean(values):
        found = ops.reshape(ops.mean(values, axis=1), (-1, groups, width))
        return ops.repeat(ops.mean(found, axis=2), width, axis=1)[:, None]

    inputs = ops.reshape(inputs, (-1, math.prod(shape[:-1]), shape[-1]))
    inputs = inputs - mean(inputs)
    found = inputs * ops.rsqrt(mean(ops.square(inputs)) + layer.epsilon)
    return ops.reshape(found, (-1, *shape))
