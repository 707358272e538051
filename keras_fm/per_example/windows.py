"""Windows that slide over images: where they are, what they see, and where
what comes back from them belongs."""

import numpy as np
from keras import ops


class Windows:
    """The windows of a convolution or a pooling, of `channels_last` images.

    Args:
        input_shape: `(rows, columns, channels)`.
        size, strides: pairs of ints.
        padding: `"valid"` or `"same"`.

    Attributes:
        outputs: how many windows there are along each side.
        places: `(size[0] * size[1],)` ints, for every place in a window, row
            by row, where its channels stand in `blocks`.
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
        columns = self.size[1]
        order = [
            (at_row + i) * columns + at_column + j
            for at_row, at_column, height, width in self._tiles()
            for i in range(height)
            for j in range(width)
        ]
        self.places = np.argsort(order)

    def _tiles(self):
        """A window in pieces of at most a stride: `(row, column, height,
        width)`."""
        rows, columns = self.size
        down, across = self.strides
        for i in range(0, rows, down):
            for j in range(0, columns, across):
                yield i, j, min(down, rows - i), min(across, columns - j)

    def blocks(self, inputs):
        """What all windows hold, a piece of the window after the other:
        `(n, *outputs, places in the piece x channels)`.

        With an image in squares of a stride, the next window is the next
        square: whole squares are cut out, which is much faster than every
        place on its own.
        """
        squares, seen = [], []
        for axis in range(2):
            low, high = self._pads[axis]
            stride, size = self.strides[axis], self.input_shape[axis]
            count = self.outputs[axis] - 1 - (-self.size[axis] // stride)
            more = count * stride - low - size
            seen.append((slice(0, min(size, size + more)), (low, max(more, 0))))
            squares += [count, stride]
        (rows, above), (columns, before) = seen
        padded = ops.pad(
            inputs[:, rows, columns], [(0, 0), above, before, (0, 0)]
        )
        channels = self.input_shape[-1]
        squares = ops.transpose(
            ops.reshape(padded, (-1, *squares, channels)), (0, 1, 3, 2, 4, 5)
        )
        down, across = self.strides
        whole = ops.reshape(
            squares, (-1, *squares.shape[1:3], down * across * channels)
        )
        for i, j, height, width in self._tiles():
            at = [
                slice(first // stride, first // stride + count)
                for first, stride, count in zip(
                    (i, j), self.strides, self.outputs
                )
            ]
            if (height, width) == (down, across):
                yield whole[:, at[0], at[1]]
            else:
                part = squares[:, at[0], at[1], :height, :width]
                yield ops.reshape(
                    part, (-1, *self.outputs, height * width * channels)
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
