"""Windows that slide over images: where they are, what they see, and where
what comes back from them belongs."""

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
        channels, (down, across) = self.input_shape[-1], self.strides
        padded = ops.pad(
            inputs[:, rows, columns], [(0, 0), above, before, (0, 0)]
        )
        image = ops.reshape(padded, (-1, *sides, channels))
        high, wide = self.outputs
        places = [divmod(j, across) for j in range(self.size[1])]
        cut = [
            ops.concatenate(
                [
                    image[:, :, rest, first : first + wide, at]
                    for first, at in places
                ],
                axis=-1,
            )
            for rest in range(min(down, self.size[0]))
        ]
        for i in range(self.size[0]):
            part = cut[i % down][:, i // down : i // down + high]
            yield ops.reshape(part, (-1, high * wide, part.shape[-1]))

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
