"""Windows that slide over images: where they are, what they see, and where
what comes back from them belongs."""

import keras

from keras_fm.per_example import direct_ops as ops


class Windows:
    """The windows of a convolution or a pooling, of `channels_last` images.

    Args:
        input_shape: `(rows, columns, channels)`.
        size, strides: pairs of ints.
        padding: `"valid"` or `"same"`.

    Attributes:
        outputs: how many windows there are along each side.
    """

    def __init__(self, input_shape, size, strides, padding):
        self.input_shape = tuple(input_shape)
        self.size, self.strides = tuple(size), tuple(strides)
        sides = [
            _side(*side, padding)
            for side in zip(input_shape[:2], self.size, self.strides)
        ]
        self.outputs = tuple(outputs for outputs, _, _ in sides)
        self._pads = tuple((low, high) for _, low, high in sides)

    def rows(self, inputs):
        """What all windows hold in one of their rows after the other:
        `(n, windows, columns x channels)`.

        Of the rows of an image what stands at each column of a window is cut
        out at once, for all windows that any of them is in: the rows of the
        windows are then parts of that, which are not copied.
        """
        sides, seen = [], []
        for axis in range(2):
            low, high = self._pads[axis]
            stride, size = self.strides[axis], self.input_shape[axis]
            count = self.outputs[axis] - 1 - (-self.size[axis] // stride)
            more = count * stride - low - size
            seen.append((slice(0, min(size, size + more)), (low, max(more, 0))))
            sides += [count, stride]
        (rows, above), (columns, before) = seen
        padded = ops.pad(
            inputs[:, rows, columns], [(0, 0), above, before, (0, 0)]
        )
        padded = ops.reshape(padded, (-1, *sides[:2], *padded.shape[2:]))
        cut = [
            self._side_by_side(padded[:, :, rest])
            for rest in range(min(self.strides[0], self.size[0]))
        ]
        high, wide = self.outputs
        for i in range(self.size[0]):
            first, rest = divmod(i, self.strides[0])
            part = cut[rest][:, first : first + high]
            yield ops.reshape(part, (-1, high * wide, part.shape[-1]))

    def _side_by_side(self, rows):
        """What windows hold of some rows: `(n, rows, windows, columns x
        channels)`."""
        size, stride, wide = self.size[1], self.strides[1], self.outputs[1]
        channels = rows.shape[-1]
        if keras.backend.backend() == "torch":
            # Parts of a row that overlap are copied at once.
            seen = rows.unfold(2, size, stride).transpose(3, 4)
            return ops.reshape(seen, (*seen.shape[:3], size * channels))
        columns = (rows.shape[1], rows.shape[2] // stride, stride, channels)
        rows = ops.reshape(rows, (-1, *columns))
        places = [divmod(at, stride) for at in range(size)]
        return ops.concatenate(
            [rows[:, :, i : i + wide, j] for i, j in places], axis=-1
        )

    def of_inputs(self, covered):
        """`(n, *input_shape)` of what the windows cover: without padding, and
        with the inputs at the end that no window sees."""
        ends, cut = [], []
        for axis in range(2):
            low, high = self._pads[axis]
            size = self.input_shape[axis]
            seen = (self.outputs[axis] - 1) * self.strides[axis]
            seen += self.size[axis]
            ends.append((0, max(low + size + high - seen, 0)))
            cut.append(slice(low, low + size))
        found = ops.pad(covered, [(0, 0), *ends, (0, 0)])
        return ops.reshape(found[:, cut[0], cut[1]], (-1, *self.input_shape))


def _side(size, window, stride, padding):
    """Outputs, and padding before and after, along one side."""
    if padding == "valid":
        return (size - window) // stride + 1, 0, 0
    outputs = -(-size // stride)
    pad = max((outputs - 1) * stride + window - size, 0)
    return outputs, pad // 2, pad - pad // 2
