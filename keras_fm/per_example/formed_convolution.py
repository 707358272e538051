"""Convolutions of every kind, as maps of every record.

Let u_kp be the input of place k of the kernel at position p. A record's
gradient at place k is `sum_p u_kp delta_p^T` for each group of channels. It is
formed for one place after the other, and only its norm is kept. A depthwise
convolution has a group for each channel. In a transposed convolution the kernel
slides over `delta`.
"""

import itertools
import math

import keras

from keras_fm.per_example import direct_ops as ops
from keras_fm.per_example.affine_maps import (
    UNDERFLOW,
    CoefficientMap,
    convolved,
    refuse_option,
    scaled,
    squared_length,
    total,
    without_cancelling,
)
from keras_fm.per_example.pull_backs import pull_back
from keras_fm.per_example.windows import side

DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
SEPARABLE = (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)
TRANSPOSED = (
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
)


class FormedConvolution(CoefficientMap):
    """The convolution of a layer, formed place by place of its kernel.

    Args:
        layer: one of the kinds above.
        input_shape: shape of the layer's input, without the batch.
    """

    def __init__(self, layer, input_shape):
        self.layer = layer
        self.input_shape = tuple(input_shape)
        channels, kind = input_shape[-1], type(layer)
        self._transposed = kind in TRANSPOSED
        self._by_channel = kind in (*DEPTHWISE, *SEPARABLE)
        self.names = ("kernel", "bias")
        self._has_bias = layer.use_bias
        self._groups = getattr(layer, "groups", 1)
        filters = getattr(layer, "filters", 0)
        if self._by_channel:
            self._groups = channels
            filters = channels * layer.depth_multiplier
        # Sides of the image over which the kernel slides, and of each place.
        sides = self._sides(input_shape[:-1])
        positions = tuple(count for count, _, _ in sides)
        self._padding = [(low, high) for _, low, high in sides]
        outputs = self._outputs if self._transposed else positions
        self.output_shape = (*outputs, filters)
        self._places = math.prod(positions)
        places = itertools.product(*map(range, layer.kernel_size))
        self._slices = {at: self._at(at, positions) for at in places}

    def _at(self, place, positions):
        """The inputs of all positions at one place."""
        firsts = [at * gap for at, gap in zip(place, self.layer.dilation_rate)]
        return tuple(
            slice(first, first + (count - 1) * stride + 1, stride)
            for first, count, stride in zip(
                firsts, positions, self.layer.strides
            )
        )

    def _cut(self, values):
        """The padded image over which the kernel slides."""
        return ops.pad(values, [(0, 0), *self._padding, (0, 0)])

    def _sides(self, sizes):
        """Positions, and padding of the input, along every side."""
        found, self._outputs = [], []
        layer = self.layer
        more = getattr(layer, "output_padding", None)
        if more is not None:
            refuse_option(layer, "output_padding", None)
        for size, window, stride, apart in zip(
            sizes, layer.kernel_size, layer.strides, layer.dilation_rate
        ):
            window = (window - 1) * apart + 1
            if self._transposed:
                size = size * stride
                if layer.padding == "valid":
                    size += max(window - stride, 0)
                self._outputs.append(size)
            found.append(side(size, window, stride, layer.padding))
        return found

    # The layer -------------------------------------------------------------

    def _linear(self, inputs, kernel):
        layer = self.layer
        given = {
            "padding": layer.padding,
            "strides": layer.strides,
            "dilation_rate": layer.dilation_rate,
        }
        if self._transposed:
            given["strides"] = list(layer.strides)
            return convolved(ops.conv_transpose, inputs, kernel, **given)
        if layer.padding == "causal":
            (before, _), given["padding"] = self._padding[0], "valid"
            inputs = ops.pad(inputs, [(0, 0), (before, 0), (0, 0)])
        if self._by_channel and keras.backend.backend() == "tensorflow":
            return self._by_places(inputs, kernel)
        operation = ops.depthwise_conv if self._by_channel else ops.conv
        return convolved(operation, inputs, kernel, **given)

    def _by_places(self, inputs, kernel):
        """In a form that TensorFlow's map over records supports."""
        slid, found = self._cut(inputs), 0.0
        for place, at in self._slices.items():
            seen = ops.expand_dims(slid[tuple([slice(None), *at])], -1)
            found = found + seen * kernel[place]
        return ops.reshape(found, (-1, *self.output_shape))

    def forward(self, inputs, weights):
        outputs = self._linear(inputs, weights[0])
        return outputs + weights[1] if len(weights) > 1 else outputs

    # Coefficients of a record ------------------------------------------------

    def measured(self, inputs, delta):
        """Positions may cancel while their rounding errors do not, so an
        allowance is added.
        """
        found = self._without_cancelling(inputs, delta)
        if self._has_bias:
            found = found + squared_length(self._over_outputs(delta))
        for block in self._blocks(inputs, delta):
            found = found + squared_length(block)
        return found, (inputs, delta)

    def _blocks(self, inputs, delta):
        """Coefficients of records, for one place of the kernel after the
        other."""
        slid, still = inputs, delta
        if self._transposed:
            slid, still = delta, inputs
        slid, still = self._cut(slid), self._rows(still)
        for at in self._slices.values():
            seen = self._rows(slid[tuple([slice(None), *at])])
            yield self._formed(seen, still)

    @property
    def _of_outputs(self):
        return math.prod(self.output_shape[:-1])

    def _over_outputs(self, delta):
        shape = (-1, self._of_outputs, delta.shape[-1])
        return ops.sum(ops.reshape(delta, shape), axis=1)

    def _rows(self, values):
        """`(n, places, groups, channels of one)`."""
        channels = values.shape[-1]
        shape = (-1, self._places, self._groups, channels // self._groups)
        return ops.reshape(values, shape)

    def _formed(self, one, other):
        """Products of the two, summed over the places of a record."""
        if one.shape[-1] == 1 or other.shape[-1] == 1:
            return ops.sum(one * other, axis=1)
        if self._groups == 1:
            one, other = one[:, :, 0], other[:, :, 0]
            return ops.matmul(ops.transpose(one, (0, 2, 1)), other)
        one = ops.transpose(one, (0, 2, 3, 1))
        return ops.matmul(one, ops.transpose(other, (0, 2, 1, 3)))

    def _without_cancelling(self, inputs, delta):
        """Group by group, since each group cancels by itself."""

        def lengths(values):
            shape = (-1, math.prod(values.shape[1:-1]), self._groups)
            shape = (*shape, values.shape[-1] // self._groups)
            squares = ops.square(ops.reshape(values, shape))
            return ops.sum(squares, axis=(1, 3)) + UNDERFLOW

        read = self._often() * lengths(inputs)
        if self._has_bias:
            read = read + self._of_outputs
        return ops.sum(without_cancelling(read, lengths(delta)), axis=1)

    def _often(self):
        """The most positions that use one entry of the input."""
        return math.prod(
            math.ceil(size / (stride if apart == 1 else 1))
            for size, stride, apart in zip(
                self.layer.kernel_size,
                self.layer.strides,
                self.layer.dilation_rate,
            )
        )

    def sums_of(self, found, scale):
        inputs, delta = found
        kernel = getattr(self.layer, self.names[0])
        if self._by_channel:
            found = [total(v, scale) for v in self._blocks(inputs, delta)]
            found = [ops.reshape(ops.stack(found), kernel.shape)]
            if self._has_bias:
                found.append(total(self._over_outputs(delta), scale))
            return found
        delta = scaled(delta, scale)
        _, back = pull_back(
            lambda kernel: (self._linear(inputs, kernel), None),
            ops.zeros(kernel.shape, inputs.dtype),
        )
        found = [back(delta)]
        if self._has_bias:
            axes = tuple(range(len(delta.shape) - 1))
            found.append(ops.sum(delta, axis=axes))
        return found
