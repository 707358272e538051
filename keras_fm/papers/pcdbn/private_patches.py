"""Image features learned from releases of the records' own patches."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core import layer_arguments
from keras_fm.core.planned_release import PlannedRelease
from keras_fm.kernel import checks
from keras_fm.papers.pcdbn.patch_clusters import PatchClustersQuery
from keras_fm.papers.pcdbn.patch_moments import PatchMomentQuery
from keras_fm.preprocessing.proven_map import ProvenMap
from keras_fm.public.patch_dictionary import unit_rows
from keras_fm.public.patch_responses import PatchResponses

# Numbers in the largest array of patches.
_CHUNK = 2**23
# Concentration of the mixture that assigns patches to directions: close to
# k-means, but flat enough that rounding does not reassign a patch.
_CONCENTRATION = 30.0
# Shares of the budget: few moments, each an average over many patches, and
# sums of many records.
_MOMENTS, _CLUSTERS = 0.05, 0.03


@keras.saving.register_keras_serializable(package="keras_fm")
class PrivatePatches(PatchResponses, ProvenMap):
    """Pooled responses to image patches, whitened by a released moment.

    The layer works like `PatchDictionary`, but needs no public images.
    `keras_fm.callbacks.PrivateModel` releases the second moment of the
    records' patches once, with noise; each image counts as the mean over its
    patches. The patches are whitened by this moment. A component hidden by
    noise is not raised above that noise. Directions are drawn at random, then
    moved by `rounds` of soft spherical k-means. Each round releases the sums
    of the patches that are near a direction. Before its releases the layer
    does not whiten.

    Each patch is divided by its own `sqrt(variance + epsilon)`. With d
    numbers in a patch its length is therefore below `sqrt(d)` for any image:
    you need no bound on pixels.

    With few records (n epsilon below 5,000, say) the noise of a round hides
    the records, and the round only replaces random directions by others.
    `rounds=0` then leaves more of the budget to the layers above.

    Pass its `cells**2 * 2 * filters` outputs through a public projection
    (such as `RandomFeatures`), `NormalizationLayer()` and `DPPCA` to the
    head. More filters cost time, not privacy, but make the sums of a round
    noisier.

    Source: the moments are those of `ChebyshevCRBM`; mixtures on the sphere:
    Banerjee, Dhillon, Ghosh and Sra, JMLR 2005; noisy sums of clusters: Blum,
    Dwork, McSherry and Nissim, Practical Privacy, 2005. Proofs:
    docs/proofs/patch_moments.md; responses: see `PatchDictionary`.

    Args:
        filters: int, number of directions.
        patch_size: int >= 2, height and width of a patch.
        strides: int, pixels from one patch to the next.
        threshold: number >= 0.
        cells: int, number of regions down and across.
        flip: bool, whether responses are averaged over a flip from left to
            right.
        exponent: number in (0, 1].
        components: int, largest number of components kept of a whitened
            patch.
        epsilon: number > 0, added to a patch's variance; the default is for
            pixels in [0, 1].
        whitening: number > 0, added to the components' variances.
        seed: int, of the directions to begin with.
        data_format: `"channels_last"`, `"channels_first"`, or `None` for
            the Keras setting.
        rounds: int >= 0, rounds of k-means.
        moment_strides: `None` (`strides`), or the steps down and across
            between the patches that releases average over. Fewer patches
            take less time and are nearly as good.
        unprotected: `True` in a non-private twin: the layer stays as it is
            before a release.

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
        rounds: int = 3,
        moment_strides: int | Sequence[int] | None = None,
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
        self.rounds = checks.natural("rounds", rounds)
        self.moment_strides = checks.optional(
            layer_arguments.pair, "moment_strides", moment_strides
        )

    def _add_map_weight(self, name, shape):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer="zeros",
            # Even if `trainable` is set on a model around it.
            trainable=False,
        )

    def build(self, input_shape):
        super().build(input_shape)
        self.channels = self.whitener.shape[2]
        self._begin()
        # Before a release all components have the same weight.
        self._assign(np.zeros(self.patch_entries), np.eye(self.patch_entries))

    def _begin(self):
        """Draws the directions at random."""
        rng = np.random.default_rng(self.seed)
        directions = rng.standard_normal(self.directions.shape[::-1])
        self.directions.assign(unit_rows(directions).T)

    def call(self, inputs, training=None):
        self.in_training(training)
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

    @property
    def cluster_bound(self):
        """L2 bound on a record's sums of all directions together."""
        return 1 / math.sqrt(self.filters)

    def release_names(self):
        rounds = range(1, self.rounds + 1)
        return [
            f"{self.name} (patch moments)",
            *(f"{self.name} (patch clusters, {i})" for i in rounds),
        ]

    def default_shares(self, alike):
        return [_MOMENTS] + [_CLUSTERS] * self.rounds

    def planned_releases(self, reading):
        """The releases of the layer: the second moment of its patches, then
        their sums by direction in every round."""

        def read_clusters():
            for inputs, rows, *owners in reading.unlabelled(self):
                yield self.clusters(inputs)[rows], *owners

        def whiten(release):
            count, moment = release.count(), release.moment(2)
            # Nothing from an earlier release may be left.
            self._begin()
            self._assign(
                moment[:-1, -1] / self.constant / count,
                moment[:-1, :-1] / count,
                release.noise_edge() / count,
            )
            reading.keep(self, release)

        def move(release):
            old = ops.convert_to_numpy(self.directions).T
            self.directions.assign(release.directions(old).T)
            reading.keep(self, release)

        moments = PatchMomentQuery(
            num_features=self.patch_entries + 1,
            order=2,
            feature_bound=math.hypot(self.patch_bound, self.constant),
            constant=self.constant,
            **reading.privacy_unit,
        )
        clusters = PatchClustersQuery(
            directions=self.filters,
            components=self.directions.shape[0],
            clip=self.cluster_bound,
            **reading.privacy_unit,
        )
        first, *others = self.release_names()
        return [
            PlannedRelease(
                name=first,
                query=moments,
                clip=True,
                read=partial(reading.in_pieces(self), self.patches),
                learn=whiten,
            ),
            *(
                PlannedRelease(
                    name=name,
                    query=clusters,
                    clip=True,
                    read=read_clusters,
                    learn=move,
                )
                for name in others
            ),
        ]

    @property
    def _release_strides(self):
        return self.moment_strides or (self.strides, self.strides)

    def patches(self, inputs, chunks=True):
        """Normalised patches with their constant entry.

        Args:
            inputs: NumPy `(n, height, width, channels)`, or as
                `data_format` says.
            chunks: `True` yields a few records at a time to bound memory,
                `False` all at once.

        Yields:
            NumPy `(m, positions, d + 1)`.
        """
        x = np.asarray(inputs)
        if self.data_format == "channels_first":
            x = x.transpose(0, 2, 3, 1)
        p, d = self.patch_size, self.patch_entries
        down, across = self._release_strides
        views = np.lib.stride_tricks.sliding_window_view(x, (p, p), (1, 2))
        # (n, i, j, channels, p, p) to the order of the whitener.
        views = np.moveaxis(views[:, ::down, ::across], 3, -1)
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

    def clusters(self, inputs):
        """Each record's sums by direction, see `PatchClustersQuery`.

        As many records are computed at a time in every batch of one size. The
        result for a record depends on it and its row, not on other records.

        Args:
            inputs: see `patches`.

        Returns:
            NumPy `(n, filters, components)`.
        """
        x = np.asarray(inputs, "float32")
        if self.data_format == "channels_first":
            x = x.transpose(0, 2, 3, 1)
        positions = math.prod(
            (size - self.patch_size) // stride + 1
            for size, stride in zip(x.shape[1:3], self._release_strides)
        )
        step = max(1, _CHUNK // (2 * self.filters * positions))
        parts = [
            ops.convert_to_numpy(self._clustered(x[first : first + step]))
            for first in range(0, len(x), step)
        ]
        return np.concatenate(parts)

    def _clustered(self, x):
        """`clusters` of a few images."""
        z = self._whitened(ops.convert_to_tensor(x), self._release_strides)
        z = ops.reshape(z, (len(x), -1, z.shape[-1]))
        # The weight, how far a patch is from flat, before it is centred.
        length = ops.norm(
            z + ops.cast(self.centre, z.dtype), axis=-1, keepdims=True
        )
        u = z / (ops.norm(z, axis=-1, keepdims=True) + 1e-6)
        directions = ops.cast(self.directions, z.dtype)
        # In a patch's mirror image odd components change their sign.
        sign = np.ones((z.shape[-1], 1), "float32")
        sign[self._even :] = -1.0
        sign = ops.convert_to_tensor(sign)
        found = [directions, ops.multiply(sign, directions)][: 1 + self.flip]
        q = ops.matmul(u, ops.concatenate(found, axis=1))
        # A share of every direction: rounding does not reassign a patch.
        q = ops.softmax(_CONCENTRATION * q, axis=-1)
        u = u * (length / (1.0 + length)) / z.shape[1]
        sums = ops.matmul(ops.transpose(q, (0, 2, 1)), u)
        if self.flip:
            here, mirrored = ops.split(sums, 2, axis=1)
            sums = here + ops.multiply(mirrored, sign[:, 0])
        return sums
