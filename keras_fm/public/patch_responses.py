"""Pooled responses to a dictionary of image patches.

The common part of `PatchDictionary` and `PrivatePatches`: a map of single
images by a given whitening and given directions.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_fm.core import layer_arguments
from keras_fm.core.configured_layer import ConfiguredLayer
from keras_fm.kernel import checks
from keras_fm.public.pieces import in_pieces

# Filters applied at a time, so that their responses stay in the cache.
_FILTERS = 64


class PatchResponses(ConfiguredLayer):
    """Pooled responses of whitened patches to directions.

    A subclass makes the weights by `_add_map_weight` and fills them; the
    arguments are those of `keras_fm.layers.PatchDictionary`.
    """

    def __init__(
        self,
        filters,
        patch_size,
        strides,
        threshold,
        cells,
        flip,
        exponent,
        components,
        epsilon,
        whitening,
        seed,
        data_format,
        shift=0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = checks.count("filters", filters)
        self.patch_size = checks.integer("patch_size", patch_size, at_least=2)
        self.strides = checks.count("strides", strides)
        self.threshold = checks.nonnegative("threshold", threshold)
        self.cells = checks.count("cells", cells)
        self.flip = checks.boolean("flip", flip)
        self.exponent = checks.number("exponent", exponent, above=0, at_most=1)
        self.components = checks.integer("components", components, at_least=2)
        self.epsilon = checks.positive("epsilon", epsilon)
        self.whitening = checks.positive("whitening", whitening)
        self.seed = checks.natural("seed", seed)
        self.shift = checks.natural("shift", shift)
        self.data_format = layer_arguments.data_format(data_format)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def _add_map_weight(self, name, shape):
        raise NotImplementedError

    def _check_ready(self):
        """Refuses a call before the map is set."""

    # Shapes ---------------------------------------------------------------

    def _image_shape(self, input_shape):
        """`(height, width, channels)` of a full input shape, checked."""
        smallest, what = max(
            (
                self.patch_size + self.strides * (self.cells - 1),
                "`patch_size + strides * (cells - 1)`",
            ),
            (self.shift * self.strides + 1, "`shift * strides + 1`"),
        )
        return layer_arguments.image_shape(
            input_shape, self.data_format, smallest, what
        )

    def _bases(self, channels):
        """Even and odd patches, `(d, even)` and `(d, odd)` float64 of
        orthonormal columns that are centred; without `flip` all are even."""
        p = self.patch_size
        place = np.arange(p * p * channels).reshape(p, p, channels)
        mirror = place[:, ::-1] if self.flip else place
        mirror = np.eye(place.size)[mirror.ravel()]
        centre = np.eye(place.size) - 1 / place.size
        found = []
        for sign in (1, -1):
            part = centre @ (np.eye(place.size) + sign * mirror) / 2
            values, vectors = np.linalg.eigh(part)
            found.append(vectors[:, values > 0.5])
        return found

    def _ranks(self, channels):
        """Numbers of even and of odd components that are kept."""
        even, odd = (part.shape[1] for part in self._bases(channels))
        if not self.flip:
            return min(self.components, even), 0
        half = self.components // 2
        return min(half, even), min(half, odd)

    def build(self, input_shape):
        height, width, channels = self._image_shape(input_shape)
        p, ranks = self.patch_size, self._ranks(channels)
        if self.flip and (width - p) % self.strides:
            # The mirrored grid of patches would not be the same grid.
            raise ValueError(
                "With `flip`, the width less `patch_size` must be a multiple "
                f"of `strides`. Received: width={width}, patch_size={p}, "
                f"strides={self.strides}"
            )
        self.whitener = self._add_map_weight(
            "whitener", (p, p, channels, sum(ranks))
        )
        self.centre = self._add_map_weight("centre", (sum(ranks),))
        self.directions = self._add_map_weight(
            "directions", (sum(ranks), self.filters)
        )
        self._even = ranks[0]
        # Plain arrays, not weights: they follow from the arguments.
        self._down, across = (
            regions((length - p) // self.strides + 1, self.cells, self.shift)
            for length in (height, width)
        )
        # The mirror image of a response, in the region's mirror image.
        self._across = [across, across[:, ::-1]][: 1 + self.flip]

    def compute_output_shape(self, input_shape):
        self._image_shape(input_shape)
        shape = [input_shape[0], self.cells, self.cells, 2 * self.filters]
        if self.data_format == "channels_first":
            shape = [shape[i] for i in (0, 3, 1, 2)]
        return tuple(shape)

    # Features -------------------------------------------------------------

    def call(self, inputs):
        self._check_ready()
        return in_pieces(self._features, inputs, 1)

    def _features(self, inputs):
        # Half precision would lose the variance of a patch.
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        x = ops.cast(inputs, dtype)
        if self.data_format == "channels_first":
            x = ops.transpose(x, (0, 2, 3, 1))
        if m := self.shift * self.strides:
            x = ops.pad(x, [(k, k) for k in (0, m, m, 0)], mode="reflect")
        patches = self._whitened(x, self.strides)
        directions = ops.cast(self.directions, dtype)
        t = self.threshold
        agree, oppose = [], []
        for first in range(0, self.filters, _FILTERS):
            some = directions[:, first : first + _FILTERS]
            seen = self._responses(patches, some)
            # The mean of max(z - t, 0) is that of max(z, t), less t.
            agree.append(self._pooled([ops.maximum(z, t) for z in seen]) - t)
            oppose.append(-self._pooled([ops.minimum(z, -t) for z in seen]) - t)
        y = ops.concatenate([*agree, *oppose], axis=-1)
        if self.exponent < 1:
            # Rounding may leave a mean of zeros slightly negative.
            y = ops.power(ops.maximum(y, 0.0), self.exponent)
        y = ops.reshape(y, (-1, self.cells, self.cells, 2 * self.filters))
        if self.data_format == "channels_first":
            y = ops.transpose(y, (0, 3, 1, 2))
        return ops.cast(y, self.compute_dtype)

    def _whitened(self, x, strides):
        """Components of the patches at this stride, `(n, rows, columns,
        components)`."""
        # Centring and whitening are linear; a patch has one deviation for all
        # its components.
        y = ops.conv(
            x,
            ops.cast(self.whitener, x.dtype),
            strides=strides,
            padding="valid",
            data_format="channels_last",
        )

        def means(values):
            return ops.average_pool(
                ops.mean(values, axis=-1, keepdims=True),
                self.patch_size,
                strides=strides,
                padding="valid",
                data_format="channels_last",
            )

        # Around the image's own mean: squares of large offsets lose digits.
        x = x - ops.mean(x, axis=(1, 2, 3), keepdims=True)
        variance = ops.maximum(means(x * x) - ops.square(means(x)), 0.0)
        y = y * ops.rsqrt(variance + self.epsilon)
        return y - ops.cast(self.centre, x.dtype)

    def _responses(self, patches, directions):
        """Responses at all positions; with `flip` also of the mirrored
        filters."""
        k = self._even
        even = ops.matmul(patches[..., :k], directions[:k])
        if not self.flip:
            return [even]
        odd = ops.matmul(patches[..., k:], directions[k:])
        return [even + odd, even - odd]

    def _pooled(self, maps):
        """Means over regions, `(n, cells**2, filters)`."""
        total = 0.0
        for z, across in zip(maps, self._across):
            height, width, filters = z.shape[1:]
            across = ops.convert_to_tensor(across / len(maps), dtype=z.dtype)
            down = ops.convert_to_tensor(self._down, dtype=z.dtype)
            z = ops.reshape(z, (-1, height, width * filters))
            z = ops.reshape(ops.matmul(down, z), (-1, width, filters))
            total = total + ops.matmul(across, z)
        return ops.reshape(total, (-1, self.cells**2, filters))

    # Whitening ------------------------------------------------------------

    def _whitening(self, mean, second, channels, noise=0.0):
        """`(whitener, centre, even)`: the map, its output for the mean patch,
        and the number of its even columns.

        Args:
            mean: `(d,)`, of patches.
            second: `(d, d)`, their second moment.
            channels: int, of the images.
            noise: possible error of the second moment in any direction; a
                component with less variance is not raised above it.

        Raises:
            ValueError: if the patches do not vary.
        """
        columns, centre = [], []
        bases, ranks = self._bases(channels), self._ranks(channels)
        for basis, rank, is_odd in zip(bases, ranks, (False, True)):
            # Patches and their mirror images together have an odd part of mean
            # 0.
            here = np.zeros(basis.shape[1]) if is_odd else mean @ basis
            moment = basis.T @ second @ basis - np.outer(here, here)
            values, vectors = np.linalg.eigh(moment)
            values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
            if not (is_odd or noise or values[0] > 1e-12):
                raise ValueError("The public images must have some contrast.")
            scale = np.maximum(values, 0) + self.whitening + noise
            scale = scale**-0.5
            columns.append(basis @ vectors * scale)
            centre.append(here @ vectors * scale)
        return (
            np.concatenate(columns, axis=1),
            np.concatenate(centre),
            ranks[0],
        )

    def _normalized(self, patches):
        """Patches `(..., d)`, centred and divided by `sqrt(variance +
        epsilon)` of their own, in place."""
        patches -= patches.mean(axis=-1, keepdims=True)
        variance = np.mean(patches * patches, axis=-1, keepdims=True)
        patches /= np.sqrt(variance + self.epsilon)
        return patches


def regions(length, cells, shift=0):
    """Averages over overlapping regions of a line, as a matrix.

    Args:
        length: int, points on the line, at least `cells`.
        cells: int, number of regions; each is as long as two of the `cells
            + 1` equal parts of the line.
        shift: int, points that the line has more at each end. Averages are
            then over the regions and these moved by so much both ways.

    Returns:
        float64 array `(cells, length + 2 * shift)`, rows of sum 1, unchanged by
        a rotation by 180 degrees.

    Example:

    >>> regions(6, 2)
    array([[0.25, 0.25, 0.25, 0.25, 0.  , 0.  ],
           [0.  , 0.  , 0.25, 0.25, 0.25, 0.25]])
    """
    places = {0, shift, 2 * shift}
    found = np.zeros((cells, length + 2 * shift))
    for i in range(cells):
        start = math.floor(i * length / (cells + 1) + 0.5)
        end = length - math.floor((cells - 1 - i) * length / (cells + 1) + 0.5)
        for at in places:
            found[i, at + start : at + end] += 1 / (end - start) / len(places)
    return found
