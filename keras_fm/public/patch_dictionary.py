import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.public.adapted_layer import AdaptedLayer

# Filters that answer at a time: what they say stays near the processor.
_FILTERS = 64
# Public patches for each filter, and at least.
_PATCHES, _FEWEST = 25, 20_000
# Images whose patches are looked at together while adapting.
_IMAGES = 256


@keras.saving.register_keras_serializable(package="keras_fm")
class PatchDictionary(AdaptedLayer):
    """Responses of a dictionary of image patches, pooled: public features.

    Every patch of an image is centred and divided by `sqrt(variance +
    epsilon)` of its own, whitened by the covariance of public patches,
    compared with `filters` directions of unit length (`z`), and split into
    `max(z - threshold, 0)` and `max(-z - threshold, 0)`. Both are averaged
    over `cells x cells` regions of the image, and the averages raised to
    `exponent`, so that a few strong responses do not drown the others. Each
    record is mapped on its own and all constants come from public data, so
    the layer costs no privacy.

    `adapt` finds whitening and directions in public images: eigenvectors of
    the patches' covariance scaled by `(variance + whitening)**-1/2`, then
    `rounds` of spherical k-means. Directions that differ by the sign give
    the same features, as do mirror images if `flip`; k-means takes these
    for one.

    With `flip` the features are the means over the image and its mirror
    image. The mirrored responses cost additions only: whitened patches have
    even and odd components, and the mirror turns the sign of the odd ones.

    Source: Coates, Lee and Ng, An Analysis of Single-Layer Networks in
    Unsupervised Feature Learning, 2011; Coates and Ng, The Importance of
    Encoding Versus Training with Sparse Coding and Vector Quantization,
    2011; the exponent: Perronnin, Sanchez and Mensink, Improving the Fisher
    Kernel for Large-Scale Image Classification, 2010.

    Args:
        filters: int, number of directions.
        patch_size: int >= 2, height and width of a patch.
        strides: int, pixels from one patch to the next.
        threshold: number >= 0.
        cells: int, number of regions down and across, each half as far
            from the next as it is long.
        flip: bool, whether responses are averaged over a flip from left to
            right.
        exponent: number in (0, 1]; 1 leaves the averages as they are.
        components: int, most components of a whitened patch that are kept;
            half of them even and half odd if `flip`.
        epsilon: number > 0, added to a patch's variance; the default is for
            pixels in [0, 1].
        whitening: number > 0, added to the components' variances.
        rounds: int >= 0, of k-means; 0 keeps random public patches.
        seed: int, of the choice of public patches.
        data_format: `"channels_last"`, `"channels_first"`, or `None` for
            the Keras setting.
        public_data: `None`, or what `adapt` saw, as kept in the config of
            an adapted layer.

    Input shape: `(batch, height, width, channels)`, height and width known
    and at least `patch_size + strides * (cells - 1)`.

    Output shape: `(batch, cells, cells, 2 * filters)`: of each filter what
    agrees, then of each what opposes. With `"channels_first"` the channel
    axis comes second in both.

    Raises:
        ValueError: if an argument is not as above, images are too small or
            of unknown size, or the layer is called before `adapt`.

    Example:

    >>> layer = PatchDictionary(20, patch_size=5)
    >>> layer.adapt(
    ...     fm.datasets.drawn_scenes.load(50), description="drawn scenes"
    ... )
    >>> layer(np.zeros((1, 32, 32, 3), "float32")).shape
    (1, 3, 3, 40)
    """

    _adapt_call = "adapt(public_images, description=...)"

    def __init__(
        self,
        filters: int = 800,
        patch_size: int = 6,
        strides: int = 1,
        threshold: float = 0.5,
        cells: int = 3,
        flip: bool = True,
        exponent: float = 0.7,
        components: int = 64,
        epsilon: float = 0.04,
        whitening: float = 0.1,
        rounds: int = 10,
        seed: int = 0,
        data_format: str | None = None,
        public_data: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(public_data, **kwargs)
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
        self.rounds = checks.natural("rounds", rounds)
        self.seed = checks.natural("seed", seed)
        if data_format is None:
            data_format = keras.config.image_data_format()
        self.data_format = checks.either(
            "data_format", data_format, ("channels_last", "channels_first")
        )
        self.input_spec = keras.layers.InputSpec(ndim=4)

    # Shapes ---------------------------------------------------------------

    def _image_shape(self, input_shape):
        """`(height, width, channels)` of a full input shape, checked."""
        if self.data_format == "channels_first":
            channels, height, width = input_shape[1:]
        else:
            height, width, channels = input_shape[1:]
        smallest = self.patch_size + self.strides * (self.cells - 1)
        if None in (height, width, channels) or min(height, width) < smallest:
            raise ValueError(
                "Images must have known channels and a known height and "
                "width of at least `patch_size + strides * (cells - 1)` = "
                f"{smallest} pixels. Received: "
                f"input_shape={tuple(input_shape)}"
            )
        return height, width, channels

    def _bases(self, channels):
        """Even and odd patches, `(d, even)` and `(d, odd)` float64 of
        orthonormal columns that are centred; without `flip` all are even."""
        p = self.patch_size
        place = np.arange(p * p * channels).reshape(p, p, channels)
        mirror = np.eye(place.size)[place[:, ::-1].ravel()]
        centre = np.eye(place.size) - 1 / place.size
        if not self.flip:
            mirror = np.eye(place.size)
        found = []
        for sign in (1, -1):
            part = centre @ (np.eye(place.size) + sign * mirror) / 2
            values, vectors = np.linalg.eigh(part)
            found.append(vectors[:, values > 0.5])
        return found

    def _ranks(self, channels):
        """Components kept that are even, and odd."""
        even, odd = (part.shape[1] for part in self._bases(channels))
        if not self.flip:
            return min(self.components, even), 0
        half = self.components // 2
        return min(half, even), min(half, odd)

    def build(self, input_shape):
        height, width, channels = self._image_shape(input_shape)
        p, ranks = self.patch_size, self._ranks(channels)
        if self.flip and (width - p) % self.strides:
            # The mirror image of the grid of patches would be another one.
            raise ValueError(
                "With `flip`, the width less `patch_size` must be a multiple "
                f"of `strides`. Received: width={width}, patch_size={p}, "
                f"strides={self.strides}"
            )
        self.whitener = self._add_public_weight(
            "whitener", (p, p, channels, sum(ranks))
        )
        self.centre = self._add_public_weight("centre", (sum(ranks),))
        self.directions = self._add_public_weight(
            "directions", (sum(ranks), self.filters)
        )
        self._even = ranks[0]
        # Plain arrays, not weights: they follow from the arguments.
        down, across = (
            regions((length - p) // self.strides + 1, self.cells)
            for length in (height, width)
        )
        # Rows are added up to where a region begins or ends, then weighed.
        (ends,) = np.nonzero(np.diff(down, axis=1).any(axis=0))
        self._ends = [0, *(ends + 1).tolist(), down.shape[1]]
        down = down[:, self._ends[:-1]]
        self._pooling = [np.einsum("ih,jw->ijhw", down, across)]
        if self.flip:
            # The mirror image of a response, in the region's mirror image.
            self._pooling.append(self._pooling[0][:, ::-1])

    def compute_output_shape(self, input_shape):
        self._image_shape(input_shape)
        shape = [input_shape[0], self.cells, self.cells, 2 * self.filters]
        if self.data_format == "channels_first":
            shape = [shape[i] for i in (0, 3, 1, 2)]
        return tuple(shape)

    # Features -------------------------------------------------------------

    def call(self, inputs):
        self._check_adapted()
        # Half precision would lose the variance of a patch.
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        x = ops.cast(inputs, dtype)
        if self.data_format == "channels_first":
            x = ops.transpose(x, (0, 2, 3, 1))
        patches = self._whitened(x)
        directions = ops.cast(self.directions, dtype)
        t = self.threshold
        agree, oppose = [], []
        for first in range(0, self.filters, _FILTERS):
            found = self._responses(
                patches, directions[:, first : first + _FILTERS]
            )
            # The mean of max(z - t, 0) is that of max(z, t), less t.
            agree.append(self._pooled([ops.maximum(z, t) for z in found]) - t)
            oppose.append(-self._pooled([ops.minimum(z, -t) for z in found]))
            oppose[-1] = oppose[-1] - t
        y = ops.concatenate([*agree, *oppose], axis=-1)
        if self.exponent < 1:
            # Rounding may leave a mean of zeros below zero.
            y = ops.power(ops.maximum(y, 0.0), self.exponent)
        y = ops.reshape(y, (-1, self.cells, self.cells, 2 * self.filters))
        if self.data_format == "channels_first":
            y = ops.transpose(y, (0, 3, 1, 2))
        return ops.cast(y, self.compute_dtype)

    def _whitened(self, x):
        """Components of all patches, `(n, rows, columns, components)`."""
        # Centring and whitening are linear; a patch's deviation is one
        # number for all of its components.
        y = ops.conv(
            x,
            ops.cast(self.whitener, x.dtype),
            strides=self.strides,
            padding="valid",
            data_format="channels_last",
        )

        def means(values):
            return ops.average_pool(
                ops.mean(values, axis=-1, keepdims=True),
                self.patch_size,
                strides=self.strides,
                padding="valid",
                data_format="channels_last",
            )

        # Around the image's own mean: squares of offsets lose digits.
        x = x - ops.mean(x, axis=(1, 2, 3), keepdims=True)
        variance = ops.maximum(means(x * x) - ops.square(means(x)), 0.0)
        y = y * ops.rsqrt(variance + self.epsilon)
        return y - ops.cast(self.centre, x.dtype)

    def _responses(self, patches, directions):
        """Of all positions, and with `flip` those of the mirrored filters."""
        k = self._even
        even = ops.matmul(patches[..., :k], directions[:k])
        if not self.flip:
            return [even]
        odd = ops.matmul(patches[..., k:], directions[k:])
        return [even + odd, even - odd]

    def _pooled(self, maps):
        """Means over regions, `(n, cells**2, filters)`."""
        total = 0.0
        for z, pooling in zip(maps, self._pooling):
            height, width, filters = z.shape[1:]
            z = ops.reshape(z, (-1, height, width * filters))
            z = ops.stack(
                [
                    ops.sum(z[:, start:end], axis=1)
                    for start, end in zip(self._ends, self._ends[1:])
                ],
                axis=1,
            )
            z = ops.reshape(z, (-1, z.shape[1] * width, filters))
            pooling = pooling.reshape(self.cells**2, -1) / len(maps)
            pooling = ops.convert_to_tensor(pooling, dtype=z.dtype)
            total = total + ops.matmul(pooling, z)
        return total

    # Public data ----------------------------------------------------------

    def adapt(self, public_images, description="not stated"):
        """Fits whitening and directions to public images.

        Args:
            public_images: array of the input's shape, in its units; with
                `"channels_first"` the channels come second.
            description: str, says in reports what the public data is.

        Raises:
            ValueError: if the images are not of the input's shape, are not
                finite, or their patches do not vary.
        """
        self._check_description(description)
        x = ops.convert_to_numpy(public_images)
        if x.ndim != 4 or x.dtype.kind not in "iuf" or not len(x):
            raise ValueError(
                "Public images must be numbers of shape (n, height, width, "
                f"channels). Received: shape={x.shape}, dtype={x.dtype}"
            )
        if not np.all(np.isfinite(x)):
            raise ValueError("Public images must be finite.")
        if self.built:
            channels = self.whitener.shape[2]
            given = self._image_shape(x.shape)[2]
            if given != channels:
                raise ValueError(
                    "Public images must have as many channels as the layer's "
                    f"input. Received: {given}, input {channels}"
                )
        else:
            self.build((None, *x.shape[1:]))
        if self.data_format == "channels_first":
            x = x.transpose(0, 2, 3, 1)
        rng = np.random.default_rng(self.seed)
        patches = self._sampled(rng, x)
        whitener, centre, even = self._whitener(patches, x.shape[-1])
        z = patches @ whitener - centre
        directions = self._clustered(rng, z, even)
        self.whitener.assign(whitener.reshape(self.whitener.shape))
        self.centre.assign(centre)
        self.directions.assign(directions.T)
        self._tell(description, records=len(x))

    def _sampled(self, rng, x):
        """Normalised patches of random images and places, `(k, d)`."""
        p = self.patch_size
        k = max(_FEWEST, _PATCHES * self.filters)
        image = np.sort(rng.integers(0, len(x), size=k))
        row = rng.integers(0, x.shape[1] - p + 1, size=k)
        column = rng.integers(0, x.shape[2] - p + 1, size=k)
        views = np.lib.stride_tricks.sliding_window_view(x, (p, p), (1, 2))
        # (k, channels, p, p)
        found = views[image, row, column].transpose(0, 2, 3, 1)
        found = found.reshape(k, -1).astype(np.float64)
        found -= found.mean(axis=1, keepdims=True)
        return found / np.sqrt(found.var(axis=1, keepdims=True) + self.epsilon)

    def _whitener(self, patches, channels):
        """`(whitener, centre, even)`: the map, what it makes of the mean
        patch, and how many of its columns are even."""
        columns, centre = [], []
        bases, ranks = self._bases(channels), self._ranks(channels)
        for basis, rank, is_odd in zip(bases, ranks, (False, True)):
            x = patches @ basis
            # Of patches and their mirror images the odd part has no mean.
            mean = np.zeros(x.shape[1]) if is_odd else x.mean(axis=0)
            moment = x.T @ x / max(len(x), 1) - np.outer(mean, mean)
            values, vectors = np.linalg.eigh(moment)
            values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
            if not is_odd and not values[0] > 1e-12:
                raise ValueError("The patches of the public images are flat.")
            scale = (np.maximum(values, 0) + self.whitening) ** -0.5
            columns.append(basis @ vectors * scale)
            centre.append(mean @ vectors * scale)
        return (
            np.concatenate(columns, axis=1),
            np.concatenate(centre),
            ranks[0],
        )

    def _clustered(self, rng, z, even):
        """Unit directions `(filters, components)` by spherical k-means."""
        z = z.astype(np.float32)
        replace = len(z) < self.filters
        first = rng.choice(len(z), self.filters, replace=replace)
        d = _unit(z[first])
        for _ in range(self.rounds):
            sums = np.zeros_like(d)
            for start in range(0, len(z), 4096):
                rows = z[start : start + 4096]
                # A direction, its opposite and their mirror images are one:
                # the signs of the even and the odd part are free.
                near = np.abs(rows[:, :even] @ d[:, :even].T)
                near += np.abs(rows[:, even:] @ d[:, even:].T)
                found = near.argmax(axis=1)
                rows = rows.copy()
                for part in (slice(None, even), slice(even, None)):
                    side = np.einsum("ij,ij->i", rows[:, part], d[found, part])
                    rows[:, part] *= np.where(side < 0, -1, 1)[:, None]
                # Responses are weights, so that strong patches lead.
                rows *= near[np.arange(len(rows)), found][:, None]
                np.add.at(sums, found, rows)
            lost = np.linalg.norm(sums, axis=1) < 1e-6
            sums[lost] = d[lost]
            d = _unit(sums)
        return d

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "patch_size": self.patch_size,
            "strides": self.strides,
            "threshold": self.threshold,
            "cells": self.cells,
            "flip": self.flip,
            "exponent": self.exponent,
            "components": self.components,
            "epsilon": self.epsilon,
            "whitening": self.whitening,
            "rounds": self.rounds,
            "seed": self.seed,
            "data_format": self.data_format,
        }


def regions(length, cells):
    """Averages over overlapping regions of a line, as a matrix.

    Args:
        length: int, points on the line, at least `cells`.
        cells: int, number of regions; each is as long as two of the `cells
            + 1` equal parts of the line.

    Returns:
        float64 array `(cells, length)`, rows of sum 1; turned by half a turn
        it is the same.

    Example:

    >>> regions(6, 2)
    array([[0.25, 0.25, 0.25, 0.25, 0.  , 0.  ],
           [0.  , 0.  , 0.25, 0.25, 0.25, 0.25]])
    """
    found = np.zeros((cells, length))
    for i in range(cells):
        start = math.floor(i * length / (cells + 1) + 0.5)
        end = length - math.floor((cells - 1 - i) * length / (cells + 1) + 0.5)
        found[i, start:end] = 1 / (end - start)
    return found


def _unit(rows):
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(length, 1e-12)
