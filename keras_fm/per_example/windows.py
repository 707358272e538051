"""Windows that slide over images: their positions and contents."""

import itertools
import math

import keras
import numpy as np

from keras_fm.per_example import direct_ops as ops

# With so many channels TensorFlow copies windows faster row by row.
_MANY = 8
# Columns of an unfolded input that are multiplied at a time.
COLUMNS = 64


class Windows:
    """The windows of a convolution or a pooling, of `channels_last` images.

    Args:
        input_shape: `(rows, columns, channels)`.
        size, strides: pairs of ints.
        padding: `"valid"` or `"same"`.

    Attributes:
        outputs: number of windows along each side.
        turned: whether columns of a window come before its rows.
    """

    def __init__(self, input_shape, size, strides, padding):
        self.size, self.strides = tuple(size), tuple(strides)
        sides = [
            side(*one, padding)
            for one in zip(input_shape[:2], self.size, self.strides)
        ]
        self.outputs = tuple(outputs for outputs, _, _ in sides)
        by_index = keras.backend.backend() == "tensorflow"
        self.turned = by_index and input_shape[-1] < _MANY
        self._pads = tuple((low, high) for _, low, high in sides)
        # For the derivatives at the windows.
        self._back = [
            (size - 1 - low, width + low - 1 - (count - 1) * stride)
            for width, size, stride, (count, low, _) in zip(
                input_shape, self.size, self.strides, sides
            )
        ]

    def rows(self, inputs):
        """Contents of all windows, for one or a few window rows after the
        other: `(n, windows, columns x channels)`.

        For every column of a window, the entries of all image rows are cut out
        at once. The rows of the windows are then views of these, without
        copies. `in_order` brings their coefficients into a kernel's order.
        """
        padded = ops.pad(inputs, [(0, 0), *self._pads, (0, 0)])
        down, (high, wide) = self.strides[0], self.outputs
        if keras.backend.backend() == "tensorflow":
            # Its slices with steps are slow: indices are faster.
            found = self._columns if self.turned else self._rows
            yield from found(padded)
            return
        cut = [
            self._side_by_side(padded[:, rest::down])
            for rest in range(min(down, self.size[0]))
        ]
        for i in range(self.size[0]):
            first, rest = divmod(i, down)
            part = cut[rest][:, first : first + high]
            yield ops.reshape(part, (-1, high * wide, part.shape[-1]))

    def _rows(self, padded):
        (size, width), (high, wide) = self.size, self.outputs
        down, across = self.strides
        places = across * np.arange(wide)[:, None] + np.arange(width)
        cut = ops.take(padded, np.ravel(places), axis=2)
        row = width * padded.shape[-1]
        cut = ops.reshape(cut, (-1, padded.shape[1], wide * row))
        step = max(COLUMNS // row, 1)
        for i in range(0, size, step):
            some = np.arange(i, min(i + step, size))
            places = down * np.arange(high)[:, None] + some
            part = ops.take(cut, np.ravel(places), axis=1)
            part = ops.reshape(part, (-1, high, len(some), wide, row))
            part = ops.transpose(part, (0, 1, 3, 2, 4))
            yield ops.reshape(part, (-1, high * wide, len(some) * row))

    def _columns(self, padded):
        (size, width), (high, wide) = self.size, self.outputs
        down, across = self.strides
        places = down * np.arange(high)[:, None] + np.arange(size)
        cut = ops.take(padded, np.ravel(places), axis=1)
        cut = ops.reshape(cut, (-1, high, size, *padded.shape[2:]))
        cut = ops.transpose(cut, (0, 1, 3, 2, 4))
        # Of adjacent columns as many as windows always have together.
        unit = math.gcd(width, across)
        cut = cut[:, :, : across * (wide - 1) + width]
        tall = unit * size * padded.shape[-1]
        cut = ops.reshape(cut, (-1, high, cut.shape[2] // unit, tall))
        step = max(COLUMNS // tall, 1)
        for i in range(0, width // unit, step):
            some = np.arange(i, min(i + step, width // unit))
            places = across // unit * np.arange(wide)[:, None] + some
            part = ops.take(cut, np.ravel(places), axis=2)
            yield ops.reshape(part, (-1, high * wide, len(some) * tall))

    def in_order(self, coefficients):
        """Those of the columns of `rows`, `(fan_in, filters)`, in the order of
        a kernel's."""
        if not self.turned:
            return coefficients
        fan_in, filters = coefficients.shape
        shape = (*self.size[::-1], fan_in // math.prod(self.size), filters)
        turned = ops.transpose(ops.reshape(coefficients, shape), (1, 0, 2, 3))
        return ops.reshape(turned, (fan_in, filters))

    def correlation(self, images, kernel):
        """A convolution on JAX. Inside a loop, XLA is fast only for derivatives
        in the form of a convolution; others take ten times as long."""
        import jax

        def by(images, kernel, strides, pads, apart):
            form = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(
                images, kernel, strides, pads, apart, dimension_numbers=form
            )

        def forward(images, kernel):
            return by(images, kernel, self.strides, self._pads, (1, 1))

        def back(given, delta):
            images, kernel = given
            turned = ops.transpose(kernel[::-1, ::-1], (0, 1, 3, 2))
            found = by(delta, turned, (1, 1), self._back, self.strides)
            # Not computed if it is not used.
            _, of_kernel = jax.vjp(lambda v: forward(images, v), kernel)
            return found, *of_kernel(delta)

        found = jax.custom_vjp(forward)
        found.defvjp(lambda *given: (forward(*given), given), back)
        return found(images, kernel)

    def _side_by_side(self, rows):
        """Contents of windows in some rows: `(n, rows, windows, columns x
        channels)`."""
        size, stride, wide = self.size[1], self.strides[1], self.outputs[1]
        if keras.backend.backend() == "torch":
            # Overlapping parts of a row are copied at once.
            seen = rows.unfold(2, size, stride).transpose(3, 4)
            return ops.reshape(seen, (*seen.shape[:3], -1))
        ends = [at + (wide - 1) * stride + 1 for at in range(size)]
        return ops.concatenate(
            [rows[:, :, i:end:stride] for i, end in enumerate(ends)], axis=-1
        )


def side(size, window, stride, padding):
    """Outputs, and padding before and after, along one side."""
    if padding == "valid":
        return (size - window) // stride + 1, 0, 0
    outputs = -(-size // stride)
    pad = max((outputs - 1) * stride + window - size, 0)
    low = window - 1 if padding == "causal" else pad // 2
    return outputs, low, max(pad - low, 0)


def cuts(x, size, strides, pads=()):
    """What a window of any rank reads of `(n, ..., channels)` at each of its
    places, in order: a list of `(n, ..., channels)`.

    Args:
        x: images.
        size, strides, pads: of every side; pads are pairs.
    """
    if pads:
        x = ops.pad(x, [(0, 0), *pads, (0, 0)])
    ends = [n - window + 1 for n, window in zip(x.shape[1:], size)]

    def cut(place):
        sides = zip(place, ends, strides)
        sides = [slice(i, i + end, step) for i, end, step in sides]
        return x[tuple([slice(None), *sides])]

    return [cut(place) for place in itertools.product(*map(range, size))]
