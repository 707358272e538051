from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.public.adapted_layer import AdaptedLayer
from keras_fm.public.patch_responses import PatchResponses

# Public patches for each filter, and the fewest in all.
_PATCHES, _FEWEST = 25, 20_000
# Images whose patches are processed together while adapting.
_IMAGES = 256


@keras.saving.register_keras_serializable(package="keras_fm")
class PatchDictionary(PatchResponses, AdaptedLayer):
    """Public image features: pooled responses to a dictionary of patches.

    Every patch of an image is centred, divided by its own `sqrt(variance +
    epsilon)` and whitened by the covariance of public patches. Its products `z`
    with `filters` directions of unit length are split into `max(z - threshold,
    0)` and `max(-z - threshold, 0)`. Both are averaged over `cells x cells`
    regions of the image. The averages are raised to `exponent`, so that a few
    strong responses do not dominate. Each record is mapped on its own and all
    constants come from public data, so the layer uses no privacy.

    `adapt` finds whitening and directions in public images: eigenvectors of
    the patches' covariance scaled by `(variance + whitening)**-1/2`, then
    `rounds` of spherical k-means. Directions that differ only in sign give the
    same features, and with `flip` so do mirror images; k-means treats them as
    one.

    With `shift` responses are also averaged over the image moved by as many
    strides up and down, to both sides and along the diagonals; at its edges it
    is continued by reflection. Regions then end smoothly, and patches at edges
    count as much as others.

    With `flip` the features are means over the image and its mirror image. The
    mirrored responses take additions only: mirroring changes the sign of the
    odd components of whitened patches and leaves the even ones.

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
        cells: int, number of regions down and across; neighbours overlap by
            half.
        flip: bool, whether responses are averaged over a left-right flip.
        exponent: number in (0, 1]; 1 leaves the averages as they are.
        components: int, the most components of a whitened patch to keep; with
            `flip` half of them even and half odd.
        epsilon: number > 0, added to a patch's variance; the default is for
            pixels in [0, 1].
        whitening: number > 0, added to the components' variances.
        rounds: int >= 0, of k-means; 0 keeps random public patches.
        seed: int, of the choice of public patches.
        data_format: `"channels_last"`, `"channels_first"`, or `None` for
            the Keras setting.
        shift: int >= 0, in strides; 0 takes the image as it is alone.
        public_data: `None`, or the description of the data of `adapt`, from the
            config of an adapted layer.

    Input shape: `(batch, height, width, channels)`, height and width known
    and at least `patch_size + strides * (cells - 1)` and `shift * strides + 1`.

    Output shape: `(batch, cells, cells, 2 * filters)`: the positive parts of
    all filters, then the negative parts. With `"channels_first"` the channel
    axis comes second in both.

    Raises:
        ValueError: if an argument is not as above, images are too small or
            of unknown size, or the layer is called before `adapt`.

    Example:

    >>> layer = PatchDictionary(20, patch_size=5)
    >>> layer.adapt(
    ...     drawn_scenes.load(50), description="drawn scenes"
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
        shift: int = 0,
        public_data: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
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
            shift,
            public_data=public_data,
            **kwargs,
        )
        self.rounds = checks.natural("rounds", rounds)

    _add_map_weight = AdaptedLayer._add_public_weight
    _check_ready = AdaptedLayer._check_adapted

    # Public data ----------------------------------------------------------

    def adapt(self, public_images, description="not stated"):
        """Fits whitening and directions to public images.

        Args:
            public_images: array of the input's shape, in its units; with
                `"channels_first"` the channels come second.
            description: str, names the public data in reports.

        Raises:
            ValueError: if the images are not finite, or their patches do not
                vary.
        """
        self._check_description(description)
        x = ops.convert_to_numpy(public_images)
        checks.finite("public_images", x)
        if not self.built:
            self.build((None, *x.shape[1:]))
        if self.data_format == "channels_first":
            x = x.transpose(0, 2, 3, 1)
        rng = np.random.default_rng(self.seed)
        patches = self._sampled(rng, x)
        whitener, centre, even = self._whitening(
            patches.mean(axis=0),
            patches.T @ patches / len(patches),
            x.shape[-1],
        )
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
        return self._normalized(found.reshape(k, -1).astype(np.float64))

    def _clustered(self, rng, z, even):
        """Unit directions `(filters, components)` by spherical k-means."""
        z = z.astype(np.float32)
        first = rng.choice(len(z), self.filters, len(z) < self.filters)
        d = unit_rows(z[first])
        for _ in range(self.rounds):
            sums = np.zeros_like(d)
            for start in range(0, len(z), 4096):
                rows = z[start : start + 4096]
                # A direction, its opposite and their mirror images count as
                # one: the signs of the even and the odd part are free.
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
            d = unit_rows(sums)
        return d


def unit_rows(rows):
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(length, 1e-12)
