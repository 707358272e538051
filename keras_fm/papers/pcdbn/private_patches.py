"""Features of images that the records' own patches taught, by one release."""

import math
from typing import Any

import keras
import numpy as np

from keras_fm.papers.pcdbn.patch_moments import PatchMomentQuery
from keras_fm.parts.step import Step
from keras_fm.private_maps.proven_map import ProvenMap
from keras_fm.public.patch_dictionary import unit_rows
from keras_fm.public.patch_responses import PatchResponses

# Numbers in the largest array of patches.
_CHUNK = 2**23


@keras.saving.register_keras_serializable(package="keras_fm")
class PrivatePatches(PatchResponses, ProvenMap):
    """Pooled responses to image patches, whitened by a released moment.

    The map is that of `PatchDictionary`, without a public image:
    `keras_fm.callbacks.PrivateModel` releases the second moment of the
    records' patches once (each image counts as the mean over its patches),
    the patches are whitened by it, and the directions are drawn at random.
    Where noise hides a component it is not raised above that noise. Until
    its release the layer does not whiten.

    Patches are divided by `sqrt(variance + epsilon)` of their own, so their
    length is below `sqrt(d)`, d numbers in a patch, for any image: no bound
    on pixels is needed, and nothing is clipped.

    Its `cells**2 * 2 * filters` outputs go through a public projection (such
    as `RandomFeatures`), `NormalizationLayer()` and `DPPCA` to the head. More
    filters cost time, not privacy.

    Source: the moments and their proof are those of `ChebyshevCRBM`
    (docs/proofs/patch_moments.md); responses: see `PatchDictionary`.

    Args:
        filters: int, number of directions.
        patch_size: int >= 2, height and width of a patch.
        strides: int, pixels from one patch to the next.
        threshold: number >= 0.
        cells: int, number of regions down and across.
        flip: bool, whether responses are averaged over a flip from left to
            right.
        exponent: number in (0, 1].
        components: int, most components of a whitened patch that are kept.
        epsilon: number > 0, added to a patch's variance; the default is for
            pixels in [0, 1].
        whitening: number > 0, added to the components' variances.
        seed: int, of the directions.
        data_format: `"channels_last"`, `"channels_first"`, or `None` for
            the Keras setting.

        unprotected: `True` in a non-private twin: the layer then stays the
            map that it is before a release.

    Input shape, output shape: see `PatchDictionary`.

    Raises:
        ValueError: if an argument is not as above, or images are too small
            or of unknown size.

    Example:

    >>> layer = PrivatePatches(20, patch_size=5)
    >>> layer(np.zeros((1, 28, 28, 1), "float32")).shape
    (1, 3, 3, 40)
    """

    def __init__(
        self,
        filters: int = 200,
        patch_size: int = 7,
        strides: int = 1,
        threshold: float = 0.5,
        cells: int = 3,
        flip: bool = False,
        exponent: float = 0.7,
        components: int = 48,
        epsilon: float = 0.04,
        whitening: float = 0.1,
        seed: int = 0,
        data_format: str | None = None,
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
            **kwargs,
        )

    # Its release decides how long responses are.
    scaled_by_release = True

    def _add_map_weight(self, name, shape):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer="zeros",
            # Whatever `trainable` of a model around it is set to.
            trainable=False,
        )

    def build(self, input_shape):
        super().build(input_shape)
        self.channels = self.whitener.shape[2]
        rng = np.random.default_rng(self.seed)
        directions = rng.standard_normal(self.directions.shape[::-1])
        self.directions.assign(unit_rows(directions).T)
        # Before a release all components count alike.
        self._assign(np.zeros(self.patch_entries), np.eye(self.patch_entries))

    def call(self, inputs, training=False):
        if training:
            self.enter_training()
        return super().call(inputs)

    def _assign(self, mean, second, noise=0.0):
        whitener, centre, _ = self._whitening(
            mean, second, self.channels, noise
        )
        self.whitener.assign(np.reshape(whitener, self.whitener.shape))
        self.centre.assign(centre)

    # A release of the layer ----------------------------------------------

    @property
    def patch_entries(self):
        """d, numbers in a patch."""
        return self.patch_size**2 * self.channels

    @property
    def patch_bound(self):
        """L2 bound on a normalised patch, whatever the image."""
        return math.sqrt(self.patch_entries)

    @property
    def constant(self):
        """The constant entry beside a patch."""
        return self.patch_bound / 3

    def release_names(self):
        return [f"{self.name} (patch moments)"]

    def default_shares(self, alike):
        # Few moments, each an average over many patches.
        return [0.05]

    def steps(self, reading):
        """The one release of the layer: the second moment of its patches."""
        inputs = reading.inputs(self)

        def read():
            for x, rows, *owners in reading.unlabelled():
                found, first = inputs(x)[rows], 0
                # An owner's records must come in one piece.
                for part in self.patches(found, chunks=not owners):
                    yield part, *(o[first : first + len(part)] for o in owners)
                    first += len(part)

        def learn(release):
            count, moment = release.count(), release.moment(2)
            self._assign(
                moment[:-1, -1] / self.constant / count,
                moment[:-1, :-1] / count,
                release.noise_edge() / count,
            )
            reading.keep(self, release)

        (name,) = self.release_names()
        objective = PatchMomentQuery(
            num_features=self.patch_entries + 1,
            order=2,
            feature_bound=math.hypot(self.patch_bound, self.constant),
            constant=self.constant,
            **reading.privacy_unit,
        )
        return [
            Step(
                name=name,
                objective=objective,
                clip=True,
                read=read,
                learn=learn,
            )
        ]

    def patches(self, inputs, chunks=True):
        """Normalised patches with their constant entry.

        Args:
            inputs: NumPy `(n, height, width, channels)`, or as
                `data_format` says.
            chunks: whether few records come at a time, so that memory is
                bounded; else all at once.

        Yields:
            NumPy `(m, positions, d + 1)`.
        """
        x = np.asarray(inputs)
        if self.data_format == "channels_first":
            x = x.transpose(0, 2, 3, 1)
        p, s, d = self.patch_size, self.strides, self.patch_entries
        views = np.lib.stride_tricks.sliding_window_view(x, (p, p), (1, 2))
        # (n, i, j, channels, p, p) to the order of the whitener.
        views = np.moveaxis(views[:, ::s, ::s], 3, -1)
        positions = views.shape[1] * views.shape[2]
        step = max(1, _CHUNK // (positions * (d + 1)))
        step = step if chunks else max(1, len(x))
        for first in range(0, len(x), step):
            part = views[first : first + step]
            found = np.empty((len(part), positions, d + 1))
            found[..., :d] = part.reshape(len(part), positions, d)
            self._normalized(found[..., :d])
            found[..., d] = self.constant
            yield found
