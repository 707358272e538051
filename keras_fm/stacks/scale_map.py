"""The trained scale and offset of a normalisation, as a map of every record.

With u what is normalised, already without a scale, the layer gives
`gamma * u + beta`, entry by entry along the last axis. A record's coefficients
are the sums over its positions of `delta * u` and of `delta`: two vectors of as
many entries as there are channels, which are formed.
"""

import math

import keras
from keras import ops

from keras_fm.stacks.affine_maps import chosen, without_cancelling

KINDS = (keras.layers.LayerNormalization, keras.layers.GroupNormalization)


class ScaleMap:
    """`gamma * inputs + beta` of a layer of `KINDS`, or one of the two.

    Args:
        layer: the layer, built.
        input_shape: shape of what it reads, without the batch.
        views: int, rows of the batch that are one record.
    """

    def __init__(self, layer, input_shape, views=1):
        axes = layer.axis if isinstance(layer.axis, list) else [layer.axis]
        if len(axes) != 1 or axes[0] not in (-1, len(input_shape)):
            raise ValueError(
                f"Layer '{layer.name}' ({type(layer).__name__}) must be of "
                f"axis=-1. Received: axis={layer.axis}"
            )
        if getattr(layer, "rms_scaling", False):
            raise ValueError(
                f"Layer '{layer.name}' (LayerNormalization) must be of "
                "rms_scaling=False."
            )
        self.layer, self.views = layer, views
        self.input_shape = self.output_shape = tuple(input_shape)
        self._channels = input_shape[-1]
        self._places = views * math.prod(input_shape[:-1])

    def forward(self, inputs, weights):
        weights = list(weights)
        if self.layer.scale:
            inputs = inputs * weights.pop(0)
        if self.layer.center:
            inputs = inputs + weights.pop(0)
        return inputs

    def squared_norm(self, inputs, delta):
        """`(n,)` squared norms of the coefficients."""
        total = sum(
            ops.sum(ops.square(part), axis=1)
            for part in self._coefficients(inputs, delta)
        )
        read, returned = (
            ops.sum(ops.square(self._rows(v)), axis=(1, 2))
            for v in (inputs, delta)
        )
        # Both are lengths of records already.
        return total + without_cancelling(read + self._places, returned, 1)

    def sums(self, inputs, delta, scale, kept):
        """Coefficients times `scale`, summed over the records that are
        `kept`, in the shapes of the weights."""
        scale = ops.expand_dims(chosen(scale, kept), 0)
        return [
            ops.matmul(scale, chosen(part, kept))[0]
            for part in self._coefficients(inputs, delta)
        ]

    def _coefficients(self, inputs, delta):
        inputs, delta = self._rows(inputs), self._rows(delta)
        found = []
        if self.layer.scale:
            found.append(ops.sum(inputs * delta, axis=1))
        if self.layer.center:
            found.append(ops.sum(delta, axis=1))
        return found

    def _rows(self, values):
        """`(n, places, channels)`: a record, over all its views."""
        return ops.reshape(values, (-1, self._places, self._channels))
