"""Layers as linear maps of every record: forward, backward, and clipped sums of
per-record coefficients that are never formed.

The first-order coefficient of a record is an outer product of two vectors: d,
the derivative at the layer's output, and u, its input (with a constant 1 for
the bias). Its Frobenius norm is ||d|| ||[u; 1]|| for a Dense layer; for a
convolution it follows from sums over positions. No tensor of batch x weights is
made, except for a convolution with few weights beside its unfolded input.

A `Dense` layer on several positions is a convolution with windows of one
position. Sequences are images of one row.
"""

import dataclasses
import math

import keras
import numpy as np

from keras_fm.per_example import direct_ops as ops
from keras_fm.per_example.pull_backs import pull_back
from keras_fm.per_example.stages import weights_of
from keras_fm.per_example.windows import COLUMNS, Windows

# Options of convolutions that can be unfolded.
PLAIN_OPTIONS = {
    "data_format": "channels_last",
    "groups": 1,
    "dilation_rate": 1,
}
# More than the sum of a vector's squares that float32 rounds to 0. No factor of
# a norm may vanish if the other one is huge, nor of the allowance for rows that
# cancel.
UNDERFLOW = 1e-24
# Numbers of an unfolded input that are in memory at a time.
AT_ONCE = 2**20
# Allowance relative to the squared sum of positions before they cancel: more
# than the squared float32 error of the sum, and than the error of a square.
_ROUNDING = 1e-6
# Relative rounding of a float32 operation.
_UNIT = 1.1 * 2**-24


def without(tree, kept):
    """Values of records, zeros for records that are not kept: a product with 0
    would keep NaN. Usually all are kept, and nothing is copied."""
    flat = keras.tree.flatten(tree)

    def chosen(values):
        rows = ops.reshape(kept, (-1,) + (1,) * (len(values.shape) - 1))
        return ops.where(rows, values, ops.zeros((), values.dtype))

    # XLA copies the result of a branch, but not that of a loop without
    # iterations.
    often = ops.cast(ops.logical_not(ops.all(kept)), "int32")
    found = ops.fori_loop(
        0, often, lambda _, flat: [chosen(v) for v in flat], flat
    )
    return keras.tree.pack_sequence_as(tree, found)


def scaled(values, scale):
    """Values of records, each record times its number."""
    return values * ops.reshape(scale, (-1,) + (1,) * (len(values.shape) - 1))


def total(values, scale):
    """The sum over records of `scaled` values."""
    shape = values.shape[1:]
    values = ops.reshape(values, (-1, math.prod(shape)))
    return ops.reshape(ops.matmul(ops.expand_dims(scale, 0), values), shape)


def squared_length(values):
    """`(n,)` sums of squares of each record's values."""
    values = ops.reshape(values, (-1, math.prod(values.shape[1:])))
    if keras.backend.backend() == "torch":
        # Computed at once, without storing the squares.
        return ops.square(ops.norm(values, axis=1))
    return ops.sum(ops.square(values), axis=1)


def joined(read, returned, entries):
    """Squared norms of coefficients, from the products between places of inputs
    and of derivatives (each a sum of `entries` numbers). Rounded up for any
    order of float32 sums."""
    places = read.shape[-1]
    # Sums rows first, then their sums: 2 x places roundings instead of places
    # squared.
    ones = ops.ones((places, 1), read.dtype)
    total = ops.sum(ops.matmul(read * returned, ones), axis=(1, 2))
    rounding = _UNIT * (entries + 2 * places + 3)
    lengths = [
        ops.sum(ops.diagonal(v, axis1=1, axis2=2), axis=1)
        for v in (read, returned)
    ]
    return total + rounding * lengths[0] * lengths[1]


def without_cancelling(read, returned):
    """A small part of the squared Cauchy-Schwarz bound on the norm, which does
    not shrink if positions cancel. `read` and `returned` are squared lengths of
    records."""
    return _ROUNDING * read * returned


def convolved(operation, images, kernel, **given):
    """A convolution of images with channels last.

    PyTorch's `vmap` does not support these, so there channels come first.
    """
    if keras.backend.backend() != "torch":
        return operation(images, kernel, data_format="channels_last", **given)
    axes = tuple(range(1, len(images.shape) - 1))
    found = operation(
        ops.transpose(images, (0, len(axes) + 1, *axes)),
        kernel,
        data_format="channels_first",
        **given,
    )
    return ops.transpose(found, (0, *(a + 1 for a in axes), 1))


class CoefficientMap:
    """Sums of per-record coefficients, and their norms beforehand."""

    def measured(self, inputs, delta):
        """`(n,)` squared norms of the coefficients, and the input of
        `sums_of`."""

    def sums_of(self, found, scale):
        """Coefficients times `scale`, summed over records, in the shapes of
        the weights."""

    # Numbers of a record that are kept between the two calls.
    held = 0
    # Whether each use of the weights is at one place of a record.
    has_few = False

    def squared_norm(self, inputs, delta):
        """`(n,)` squared Frobenius norms of the coefficients."""
        return self.measured(inputs, delta)[0]


class DenseMap(CoefficientMap):
    """`inputs @ kernel + bias` of a `keras.layers.Dense`.

    Args:
        layer: the layer.
        input_shape: shape of its input, without the batch.
    """

    names = ("kernel", "bias")
    has_few = True

    def __init__(self, layer, input_shape):
        self.layer = layer
        self.input_shape = tuple(input_shape)
        self.output_shape = (layer.units,)

    def forward(self, inputs, weights):
        outputs = ops.matmul(inputs, weights[0])
        return outputs + weights[1] if len(weights) > 1 else outputs

    def backward(self, delta, weights):
        """What `delta` is for the inputs."""
        return ops.matmul(delta, ops.transpose(weights[0]))

    def measured(self, inputs, delta):
        returned = squared_length(delta) + UNDERFLOW
        return self.squared_inputs(inputs) * returned, (inputs, delta)

    def squared_inputs(self, inputs):
        """`(n,)` squared norms of the inputs and the constant."""
        constant = 1.0 if self.layer.use_bias else 0.0
        return squared_length(inputs) + (constant + UNDERFLOW)

    def sums_of(self, found, scale):
        inputs, delta = found
        biases = [total(delta, scale)] if self.layer.use_bias else []
        # The narrower one is scaled, and comes first in the product.
        if self.input_shape[0] < self.layer.units:
            inputs = ops.transpose(scaled(inputs, scale))
            return [ops.matmul(inputs, delta), *biases]
        kernel = ops.matmul(ops.transpose(scaled(delta, scale)), inputs)
        return [ops.transpose(kernel), *biases]

    def augmented(self, inputs):
        """Inputs with a constant entry: `(n, m)`."""
        if not self.layer.use_bias:
            return inputs
        return ops.concatenate([inputs, ops.ones_like(inputs[:, :1])], axis=1)

    def input_bound(self, norm):
        """Bound on `||[u; 1]||` from one on the norm of the inputs."""
        return math.hypot(norm, 1.0) if self.layer.use_bias else norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Weights that a layer applies to every position by itself.

    Attributes:
        filters: outputs of one position.
        use_bias: whether there is a bias.
    """

    filters: int
    use_bias: bool


class ConvolutionMap(CoefficientMap):
    """The correlation of a convolution, unfolded.

    The inputs of the kernel at every position are columns `(n, positions,
    fan_in)`; a few are formed at a time.

    Args:
        layer: the layer: `Conv2D`, `Conv1D`, or `Dense` of several positions.
        input_shape: shape of its input, without the batch. Before it there may
            be the number of images of a record.
        part: `None`, or a `Part` of another layer.

    Raises:
        ValueError: if the layer is of another kind or has unsupported options;
            names it.
    """

    names = ("kernel", "bias")

    def __init__(self, layer, input_shape, part=None):
        self.layer = layer
        self.input_shape = tuple(input_shape)
        self.channels = input_shape[-1]
        if type(layer) is keras.layers.Dense:
            part = Part(filters=layer.units, use_bias=layer.use_bias)
        if part is not None:
            self.filters, self.use_bias = part.filters, part.use_bias
            self.padding, size, strides = "valid", (1, 1), (1, 1)
            images, image = 1, (1, math.prod(input_shape[:-1]))
        else:
            _check_options(layer)
            self.filters, self.padding = layer.filters, layer.padding
            self.use_bias = layer.use_bias
            # A sequence is one row of an image.
            ones = (1,) * (2 - layer.rank)
            size = (*ones, *layer.kernel_size)
            strides = (*ones, *layer.strides)
            images = math.prod(input_shape[: -layer.rank - 1])
            image = (*ones, *input_shape[-layer.rank - 1 : -1])
        self.kernel_size, self.strides = size, strides
        self._is_product = math.prod(size) == math.prod(strides) == 1
        self._image_shape = (*image, self.channels)
        self._kernel_shape = (*size, self.channels, self.filters)
        self.fan_in = self.channels * math.prod(size)
        self._windows = Windows(self._image_shape, size, strides, self.padding)
        outputs = self._windows.outputs
        if part is not None:
            outputs = input_shape[:-1]
        else:
            outputs = outputs[2 - layer.rank :]
            outputs = (*input_shape[: -layer.rank - 1], *outputs)
        self.output_shape = (*outputs, self.filters)
        self.positions, self._images = math.prod(outputs), images
        # Products between positions need the unfolded input twice.
        unfolded = 2 * self.positions * (self.fan_in + self.filters)
        self._is_formed = unfolded >= self.fan_in * self.filters
        self._is_formed &= self.positions > 1 or self.use_bias
        self.held = self.fan_in * self.filters * self._is_formed

    def _image(self, inputs):
        return ops.reshape(inputs, (-1, *self._image_shape))

    def _convolved(self, images, kernel):
        if self._is_product:
            shape = (self.fan_in, self.filters)
            return ops.matmul(images, ops.reshape(kernel, shape))
        kernel = ops.reshape(kernel, self._kernel_shape)
        if keras.backend.backend() == "jax":
            return self._windows.correlation(images, kernel)
        given = {"strides": self.strides, "padding": self.padding}
        return convolved(ops.conv, images, kernel, **given)

    def forward(self, inputs, weights):
        outputs = self._convolved(self._image(inputs), weights[0])
        outputs = ops.reshape(outputs, (-1, *self.output_shape))
        if len(weights) > 1:
            outputs = outputs + ops.reshape(weights[1], (-1,))
        return outputs

    def backward(self, delta, weights):
        """What `delta` is for the inputs."""
        inputs = ops.zeros((ops.shape(delta)[0], *self.input_shape))
        _, back = pull_back(
            lambda inputs: (self.forward(inputs, weights[:1]), None), inputs
        )
        return back(ops.reshape(delta, (-1, *self.output_shape)))

    def _columns(self, inputs):
        """`(n, places, columns)` of the unfolded input, a few columns at a
        time."""
        found, width = [], 0
        for part in self._windows.rows(inputs):
            if found and width + part.shape[-1] > COLUMNS:
                yield ops.concatenate(found, axis=-1)
                found, width = [], 0
            found.append(part)
            width += part.shape[-1]
        yield ops.concatenate(found, axis=-1)

    def measured(self, inputs, delta):
        """Norms from the P x P products between positions, or from the
        coefficients if that is less work. Positions may cancel while their
        rounding errors do not, so an allowance is added.
        """
        delta = ops.reshape(delta, (-1, self.positions, self.filters))
        if self.positions == 1 and not self.use_bias:
            # One outer product, in which nothing cancels.
            read, returned = squared_length(inputs), squared_length(delta)
            squared = (read + UNDERFLOW) * (returned + UNDERFLOW)
            return squared, (self._image(inputs), delta)
        squared = self._without_cancelling(inputs, delta)
        inputs = self._image(inputs)
        if self.use_bias:
            bias = ops.sum(delta, axis=1)
            squared = squared + squared_length(bias)
        if not self._is_formed:
            more = self._norm_by_products(inputs, delta)
            return squared + more, (inputs, delta)
        shape = (-1, self.positions // self._images, self.filters)
        blocks = self._blocks(inputs, ops.reshape(delta, shape))
        if self._images > 1:
            blocks = [
                ops.sum(
                    ops.reshape(v, (-1, self._images, *v.shape[1:])), axis=1
                )
                for v in blocks
            ]
        for block in blocks:
            squared = squared + squared_length(block)
        return squared, (blocks, [bias] if self.use_bias else [])

    def _without_cancelling(self, inputs, delta):
        read = self._often() * squared_length(inputs)
        if self.use_bias:
            read = read + self.positions
        returned = squared_length(delta)
        return without_cancelling(read + UNDERFLOW, returned + UNDERFLOW)

    def _often(self):
        """The most patches that an entry of the input is part of."""
        return math.prod(
            math.ceil(kernel / stride)
            for kernel, stride in zip(self.kernel_size, self.strides)
        )

    def _norm_by_products(self, inputs, delta):
        parts = self._columns(inputs)
        parts = (
            ops.reshape(v, (-1, self.positions, v.shape[-1])) for v in parts
        )
        between = sum(
            ops.matmul(part, ops.transpose(part, (0, 2, 1))) for part in parts
        )
        returned = ops.matmul(delta, ops.transpose(delta, (0, 2, 1)))
        return joined(between, returned, self.fan_in + self.filters)

    def _blocks(self, inputs, delta):
        """List of `(n, filters, columns)` of the coefficients, a few columns
        at a time."""
        if keras.backend.backend() == "torch" and not self._is_product:
            # Unfolding all records at once would allocate new memory in every
            # step.
            width = max(self.fan_in // self.kernel_size[0], COLUMNS)
            size = max(AT_ONCE // (self.positions * width), 1)
            pieces = [
                self._formed(inputs[i : i + size], delta[i : i + size])
                for i in range(0, len(inputs), size)
            ]
            return [ops.concatenate(parts) for parts in zip(*pieces)]
        return self._formed(inputs, delta)

    def _formed(self, inputs, delta):
        # In this order, the faster one.
        returned = ops.transpose(delta, (0, 2, 1))
        return [ops.matmul(returned, v) for v in self._columns(inputs)]

    def coefficients(self, found, scale):
        """As `sums_of`: `(fan_in, filters)`, and `(filters,)` with a bias."""
        if self._is_formed:
            blocks, biases = found
            rows = [ops.transpose(total(block, scale)) for block in blocks]
            biases = [total(bias, scale) for bias in biases]
        else:
            inputs, delta = found
            rows, biases = self._sums_at_once(inputs, scaled(delta, scale))
        return [self._windows.in_order(ops.concatenate(rows)), *biases]

    def sums_of(self, found, scale):
        found = self.coefficients(found, scale)
        shapes = [w.shape for w in weights_of(self.layer, self.names)]
        return [ops.reshape(*pair) for pair in zip(found, shapes)]

    def _sums_at_once(self, inputs, delta):
        """Sums from the unfolded inputs: in XLA the derivative of a convolution
        by its kernel is slow."""
        delta = ops.reshape(delta, (-1, self.filters))
        parts = self._columns(inputs)
        flat = (ops.reshape(v, (-1, v.shape[-1])) for v in parts)
        rows = [ops.matmul(ops.transpose(v), delta) for v in flat]
        return rows, [ops.sum(delta, axis=0)][: self.use_bias]

    def input_bound(self, norm):
        """Bound on the norm of all patches, each with its constant.

        The norm of sum_p d_p [u_p; 1]^T is at most
        ||d|| times this, by the Cauchy-Schwarz inequality.
        """
        constants = self.positions if self.use_bias else 0
        return math.sqrt(self._often() * norm**2 + constants)


def is_plain(layer):
    """Whether a convolution can be unfolded."""
    try:
        _check_options(layer)
    except ValueError:
        return False
    return True


def _check_options(layer):
    for name, wanted in PLAIN_OPTIONS.items():
        value = getattr(layer, name)
        if any(v != wanted for v in np.ravel(value)):
            refuse_option(layer, name, wanted)
    if layer.padding not in ("valid", "same"):
        refuse_option(layer, "padding", "valid or same")


def refuse_option(layer, name, wanted):
    raise ValueError(
        f"Layer '{layer.name}' ({type(layer).__name__}) must have "
        f"{name}={wanted!r}. Received: {name}={getattr(layer, name)!r}"
    )


def of_layer(layer, input_shape):
    """The map of a layer, with `backward`; arguments as for the maps, which
    refuse layers of other kinds."""
    # A subclass may change `call`.
    if type(layer) is keras.layers.Dense and len(input_shape) == 1:
        return DenseMap(layer, input_shape)
    return ConvolutionMap(layer, input_shape)
