"""Dropout and its kin in a step: random numbers of every row of a batch.

The numbers of a row are drawn by themselves, new in every step, before the
records are looked at. In a noisy step they come from the stream of the noise:
which row a record stands in depends on the others of the batch, so numbers
that somebody knows would let one record change what all others say
(docs/proofs/gradient.md, "Masks").
"""

import math

import keras
from keras import ops

from keras_fm.stacks.layer_stack import refusal

_layers = keras.layers
_SPATIAL = (
    _layers.SpatialDropout1D,
    _layers.SpatialDropout2D,
    _layers.SpatialDropout3D,
)
KINDS = (
    *(_layers.Dropout, _layers.AlphaDropout, *_SPATIAL),
    *(_layers.GaussianNoise, _layers.GaussianDropout),
)
# What AlphaDropout puts in the place of a value: selu of minus infinity.
_LOWEST = -1.6732632423543772848170429916717 * 1.0507009873554804934193349852946


class RowMask:
    """What a layer does in a training step.

    Args:
        layer: one of `KINDS`.
        input_shape: shape of what it reads, without the batch.

    Raises:
        ValueError: if it has settings that are not known here, naming it.
    """

    def __init__(self, layer, input_shape):
        self.layer = layer
        self.rate = getattr(layer, "rate", None)
        shape = tuple(input_shape)
        if None in shape:
            raise refusal(
                layer, f"must read records of a known shape, not {shape}"
            )
        if self.rate == 1:
            raise refusal(layer, "must have a rate below 1")
        if type(layer) in _SPATIAL:
            if getattr(layer, "data_format", None) == "channels_first":
                raise refusal(layer, "must be of data_format='channels_last'")
            shape = (1,) * (len(shape) - 1) + shape[-1:]
        shared = getattr(layer, "noise_shape", None)
        if shared is not None:
            if len(shared) != len(shape) + 1 or shared[0] is not None:
                raise refusal(
                    layer,
                    "would share a mask between records: `noise_shape` must "
                    "begin with None",
                )
            shape = tuple(own or size for own, size in zip(shared[1:], shape))
        self.shape = shape

    def draw(self, rows, noise=None):
        """Numbers for every row, or `None` where the layer does nothing.

        Args:
            rows: how many.
            noise: the `StepNoise` of a noisy step, or `None`: from the
                layer's own stream.
        """
        normal = self.rate is None or type(self.layer) is KINDS[-1]
        if not (self.layer.stddev if self.rate is None else self.rate):
            return None
        shape = (rows, *self.shape)
        if noise is not None:
            return noise.numbers(shape, normal)
        drawn = keras.random.normal if normal else keras.random.uniform
        seed = self.layer.seed_generator
        return drawn(shape, dtype="float32", seed=seed)

    def apply(self, values, numbers):
        """Values of rows after the layer, with the numbers that `draw`
        gave."""
        if numbers is None:
            return values
        numbers = ops.cast(numbers, values.dtype)
        if self.rate is None:
            return values + self.layer.stddev * numbers
        rate = self.rate
        if type(self.layer) is _layers.GaussianDropout:
            return values * (1 + math.sqrt(rate / (1 - rate)) * numbers)
        kept = numbers >= rate
        if type(self.layer) is not _layers.AlphaDropout:
            return ops.where(kept, values / (1 - rate), ops.zeros_like(values))
        low = _LOWEST * ops.ones_like(values)
        scale = ((1 - rate) * (1 + rate * _LOWEST**2)) ** -0.5
        return scale * (ops.where(kept, values, low) - _LOWEST * rate)
