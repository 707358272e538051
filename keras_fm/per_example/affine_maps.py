"""Layers as linear maps of every record: forwards, backwards, and sums of
per-record coefficients that are clipped before any of them exists.

The first-order coefficient of a record is the outer product of what comes
back to the layer, d, and what it reads, u (with a constant 1 for the bias).
Its Frobenius norm is ||d|| ||[u; 1]|| for a Dense layer; for a convolution it
follows from sums over positions. No tensor of batch x weights is made, but for
a convolution that has fewer weights than outputs.

A `Dense` layer that reads a vector at every position is a convolution of
windows of one position; sequences are images of one row.
"""

import dataclasses
import math

import keras
import numpy as np

from keras_fm.per_example import direct_ops as ops
from keras_fm.per_example.pull_backs import pull_back
from keras_fm.per_example.stages import weights_of
from keras_fm.per_example.windows import Windows

# Of a convolution that is unfolded.
PLAIN_OPTIONS = {
    "data_format": "channels_last",
    "groups": 1,
    "dilation_rate": 1,
}
# More than all squares of a vector that float32 takes for 0: a factor of a
# norm must not vanish where the other one is huge, also of what is added where
# rows cancel.
UNDERFLOW = 1e-24
# Of an unfolded input that are multiplied at a time.
_COLUMNS = 64
# Numbers of it that are made at a time.
_AT_ONCE = 2**20
# Of the square of what positions give before they cancel: more than the square
# of what float32 may get wrong of it, and of what it may get wrong of a square.
_ROUNDING = 1e-6
# Of one float32 operation, and of the squares of it in a product of many.
_UNIT = 1.1 * 2**-24


def without(tree, kept):
    """Values of records, zeros for those that are not kept: a product with 0
    would keep what is no number. Mostly all are, and nothing is copied."""
    flat = keras.tree.flatten(tree)

    def chosen(values):
        rows = ops.reshape(kept, (-1,) + (1,) * (len(values.shape) - 1))
        return ops.where(rows, values, ops.zeros((), values.dtype))

    if keras.backend.backend() == "jax":
        # XLA copies what a branch gives, but not what a loop does not run for.
        often = ops.cast(ops.logical_not(ops.all(kept)), "int32")
        found = ops.fori_loop(
            0, often, lambda _, flat: [chosen(v) for v in flat], flat
        )
    else:
        found = ops.cond(
            ops.all(kept), lambda: flat, lambda: [chosen(v) for v in flat]
        )
    return keras.tree.pack_sequence_as(tree, found)


def scaled(values, scale):
    """Values of records times a number of each."""
    return values * ops.reshape(scale, (-1,) + (1,) * (len(values.shape) - 1))


def total(values, scale):
    """The sum over records of such products."""
    shape = values.shape[1:]
    values = ops.reshape(values, (-1, math.prod(shape)))
    return ops.reshape(ops.matmul(ops.expand_dims(scale, 0), values), shape)


def squared_length(values):
    """`(n,)` sums of the squares of records."""
    values = ops.reshape(values, (-1, math.prod(values.shape[1:])))
    if keras.backend.backend() == "torch":
        # In one pass, without the squares.
        return ops.square(ops.norm(values, axis=1))
    return ops.sum(ops.square(values), axis=1)


def joined(read, returned, entries):
    """Squared norms of coefficients from the products between places of what
    was read and of what came back, sums of `entries` numbers together; not
    less, in whatever order float32 adds them up."""
    places = read.shape[-1]
    # No sum of all pairs at once: 2 x places roundings in the place of their
    # product.
    ones = ops.ones((places, 1), read.dtype)
    total = ops.sum(ops.matmul(read * returned, ones), axis=(1, 2))
    rounding = _UNIT * (entries + 2 * places + 3)
    lengths = [
        ops.sum(ops.diagonal(v, axis1=1, axis2=2), axis=1)
        for v in (read, returned)
    ]
    return total + rounding * lengths[0] * lengths[1]


def without_cancelling(read, returned):
    """A small part of the squared bound on the norm, by the Cauchy-Schwarz
    inequality, which no cancelling makes smaller: `read` and `returned` are
    squared lengths of records."""
    return _ROUNDING * read * returned


def convolved(operation, images, kernel, **given):
    """A convolution of images whose channels come last.

    PyTorch's `vmap` knows none of these, so there channels come first.
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
    """Sums of what single records say, and norms of it before."""

    def measured(self, inputs, delta):
        """`(n,)` squared norms of the coefficients, and what `sums_of`
        takes."""
        raise NotImplementedError

    def sums_of(self, found, scale):
        """Coefficients times `scale`, summed over records, in the shapes of
        the weights."""
        raise NotImplementedError

    # Numbers of a record that are held between the two.
    held = 0

    def squared_norm(self, inputs, delta):
        """`(n,)` squared Frobenius norms of the coefficients."""
        return self.measured(inputs, delta)[0]


class DenseMap(CoefficientMap):
    """`inputs @ kernel + bias` of a `keras.layers.Dense`.

    Args:
        layer: the layer.
        input_shape: shape of what it reads, without the batch.
    """

    names = ("kernel", "bias")

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
        (inputs, delta), scale = found, ops.expand_dims(scale, 1)
        # The narrower one is scaled, and comes first in the product.
        if self.input_shape[0] < self.layer.units:
            kernel = ops.matmul(ops.transpose(inputs * scale), delta)
            bias = ops.matmul(ops.transpose(scale), delta)[0]
        else:
            delta = delta * scale
            kernel = ops.transpose(ops.matmul(ops.transpose(delta), inputs))
            bias = ops.sum(delta, axis=0)
        return [kernel, bias][: 1 + self.layer.use_bias]

    def augmented(self, inputs):
        """Inputs with the constant entry: `(n, m)`."""
        if not self.layer.use_bias:
            return inputs
        return ops.concatenate([inputs, ops.ones_like(inputs[:, :1])], axis=1)

    def input_bound(self, norm):
        """Bound on `||[u; 1]||` from one on the norm of the inputs."""
        return math.hypot(norm, 1.0) if self.layer.use_bias else norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Weights of a layer by which it reads every position by itself.

    Attributes:
        filters: what it makes of one.
        use_bias: whether with a bias.
    """

    filters: int
    use_bias: bool


class ConvolutionMap(CoefficientMap):
    """The correlation of a convolution, unfolded.

    What a kernel sees at every position are columns `(n, positions, fan_in)`,
    of which a few are made at a time.

    Args:
        layer: the layer: `Conv2D`, `Conv1D`, or `Dense` of several positions.
        input_shape: shape of what it reads, without the batch.
        part: `None`, or a `Part` of another layer.

    Raises:
        ValueError: if the layer is of another kind or has other options than
            are known, naming it.
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
            image = (1, math.prod(input_shape[:-1]))
        else:
            _check_options(layer)
            self.filters, self.padding = layer.filters, layer.padding
            self.use_bias = layer.use_bias
            # A sequence is one row of an image.
            ones = (1,) * (2 - layer.rank)
            size = (*ones, *layer.kernel_size)
            strides = (*ones, *layer.strides)
            image = (*ones, *input_shape[:-1])
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
        self.output_shape = (*outputs, self.filters)
        self.positions = math.prod(outputs)
        work = self.positions * (self.fan_in + self.filters)
        self._is_formed = work >= self.fan_in * self.filters
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
            if found and width + part.shape[-1] > _COLUMNS:
                yield ops.concatenate(found, axis=-1)
                found, width = [], 0
            found.append(part)
            width += part.shape[-1]
        yield ops.concatenate(found, axis=-1)

    def measured(self, inputs, delta):
        """Norms either from the P x P products between positions, or from
        the coefficients, whichever is less work. What positions give may
        cancel where their rounding does not: that is added.
        """
        inputs = self._image(inputs)
        delta = ops.reshape(delta, (-1, self.positions, self.filters))
        squared = self._without_cancelling(inputs, delta)
        if self.use_bias:
            bias = ops.sum(delta, axis=1)
            squared = squared + squared_length(bias)
        if not self._is_formed:
            more = self._norm_by_products(inputs, delta)
            return squared + more, (inputs, delta)
        blocks = self._blocks(inputs, delta)
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
        """Of how many patches an entry of the input is part at most."""
        return math.prod(
            math.ceil(kernel / stride)
            for kernel, stride in zip(self.kernel_size, self.strides)
        )

    def _norm_by_products(self, inputs, delta):
        between = sum(
            ops.matmul(part, ops.transpose(part, (0, 2, 1)))
            for part in self._columns(inputs)
        )
        returned = ops.matmul(delta, ops.transpose(delta, (0, 2, 1)))
        return joined(between, returned, self.fan_in + self.filters)

    def _blocks(self, inputs, delta):
        """List of `(n, filters, columns)` of the coefficients, a few columns
        at a time."""
        if keras.backend.backend() == "torch" and not self._is_product:
            # What is unfolded of all records is new memory in every step.
            width = max(self.fan_in // self.kernel_size[0], _COLUMNS)
            size = max(_AT_ONCE // (self.positions * width), 1)
            pieces = [
                self._formed(inputs[i : i + size], delta[i : i + size])
                for i in range(0, len(inputs), size)
            ]
            return [ops.concatenate(parts) for parts in zip(*pieces)]
        return self._formed(inputs, delta)

    def _formed(self, inputs, delta):
        # This way round, which is the faster of the two.
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
        return [ops.concatenate(rows), *biases]

    def sums_of(self, found, scale):
        found = self.coefficients(found, scale)
        shapes = [w.shape for w in weights_of(self.layer, self.names)]
        return [ops.reshape(*pair) for pair in zip(found, shapes)]

    def _sums_at_once(self, inputs, delta):
        """From what positions read: XLA takes long for the derivative of a
        convolution by its kernel."""
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
    """The map of a layer, with a way back; the arguments are those of the
    maps, which refuse other kinds than theirs."""
    # Subclasses may do anything in `call`.
    if type(layer) is keras.layers.Dense and len(input_shape) == 1:
        return DenseMap(layer, input_shape)
    return ConvolutionMap(layer, input_shape)
