import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core.planned_release import PlannedRelease
from keras_fm.core.second_moment import SecondMomentQuery
from keras_fm.kernel import checks
from keras_fm.kernel.access import columns
from keras_fm.kernel.noise_mechanisms import GaussianMechanism
from keras_fm.preprocessing.proven_map import ProvenMap


@keras.saving.register_keras_serializable(package="keras_fm")
class DPPCA(ProvenMap):
    """Principal components of a released second moment: `(v - m) V S`.

    `keras_fm.callbacks.PrivateModel` releases A = sum v v^T once, with
    symmetric Gaussian noise. V holds the eigenvectors of the noisy A with the
    largest eigenvalues. `whitening` also scales the components (S), which helps
    the layers above to train. Before its release the layer outputs the first
    `units` inputs.

    Put public scaling before it (`NormalizationLayer`, `Rescaling` by public
    constants), so that records obey `input_bound`; the noise grows with the
    square of that bound.

    Args:
        units: int k >= 1, number of components, at most that of the inputs.
        whitening: float in [0, 1/2]: a component with released eigenvalue s
            is scaled by `(s / s_1)^-whitening`; 1/2 makes all components equal
            in size. The outputs' norm is then not bounded: put
            `NormalizationLayer()` after the layer.
        ridge_factor: float >= 0: s is the released eigenvalue (at least 0) plus
            this many times the spectral edge of the noise (about its largest
            eigenvalue).
        center: whether the released mean m is subtracted. It is computed from a
            constant entry beside the inputs.
        input_bound: public bound C on the L2 norm of an input.
        clip: whether the release scales inputs beyond the bound back instead of
            refusing them.
        noise_multiplier: `None` for the noise that the layer's share of the
            budget pays for, or the noise's standard deviation over the
            sensitivity.
        unprotected: `True` in a non-private twin: the layer then stays as it is
            before a release.

    Input shape: `(batch, inputs)`. Output shape: `(batch, units)`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> layer = DPPCA(2)
    >>> layer(np.ones((3, 5), "float32") / 5).shape
    (3, 2)

    Source: Dwork, Talwar, Thakurta and Zhang, "Analyze Gauss", 2014; its
    place before a private network: Abadi et al. 2016, DP-MAC. Sensitivity:
    `keras_fm.queries.SecondMomentQuery`.
    """

    def __init__(
        self,
        units: int,
        whitening: float = 0.0,
        ridge_factor: float = 0.5,
        center: bool = False,
        input_bound: float = 1.0,
        clip: bool = False,
        noise_multiplier: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = checks.count("units", units)
        self.center = bool(center)
        self.whitening = checks.number(
            "whitening", whitening, at_least=0, at_most=0.5
        )
        self.ridge_factor = checks.nonnegative("ridge_factor", ridge_factor)
        self.input_bound = checks.norm_bound("input_bound", input_bound)
        self.clip = bool(clip)
        self.noise_multiplier = checks.optional(
            checks.norm_bound, "noise_multiplier", noise_multiplier
        )
        self.input_spec = keras.layers.InputSpec(ndim=2)

    def build(self, input_shape):
        inputs = input_shape[-1]
        if inputs is None or inputs < self.units:
            raise ValueError(
                "The number of inputs must be known and at least `units`. "
                f"Received: input_shape={tuple(input_shape)}, "
                f"units={self.units}"
            )
        self.input_dim = inputs
        self.kernel = self.add_weight(
            name="kernel",
            shape=(inputs, self.units),
            # JAX would compile seven functions for its own `eye`.
            initializer=lambda shape, dtype: np.eye(*shape),
            # Even if `trainable` of the model is set.
            trainable=False,
        )
        self.bias = None
        if self.center:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer="zeros",
                trainable=False,
            )

    def call(self, inputs, training=None):
        self.in_training(training)
        outputs = ops.matmul(inputs, self.kernel)
        return outputs if self.bias is None else ops.add(outputs, self.bias)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.units)

    # What the release uses -----------------------------------------------

    @property
    def constant(self):
        """The constant entry beside the inputs, or `None`."""
        return self.input_bound / 3 if self.center else None

    @property
    def moment_bound(self):
        """L2 bound on the vectors of the second moment."""
        return math.hypot(self.input_bound, self.constant or 0.0)

    @property
    def num_features(self):
        """Length of the vectors of the second moment."""
        return self.input_dim + self.center

    def augment(self, inputs):
        """`[v; c]` if `center`, else v; NumPy."""
        inputs = columns.floats(inputs)
        if not self.center:
            return inputs
        return np.pad(inputs, ((0, 0), (0, 1)), constant_values=self.constant)

    def set_components(self, mean, directions, variances):
        """Sets the weights from a release.

        Args:
            mean: `(inputs,)`.
            directions: orthonormal columns `(inputs, units)`.
            variances: `(units,)`, at least 0, descending.
        """
        # A direction of released variance 0 did not exceed the noise: whitening
        # would divide by it.
        scale = np.full(len(variances), float(self.whitening == 0))
        found = variances > 0
        scale[found] = (variances[found] / variances[0]) ** -self.whitening
        kernel = directions * scale
        self.kernel.assign(kernel)
        if self.bias is not None:
            self.bias.assign(-mean @ kernel)

    # A release of the layer ----------------------------------------------

    def release_names(self):
        return [f"{self.name} (second moment)"]

    def planned_releases(self, reading):
        """The one release of the layer: the second moment of its inputs."""

        def read():
            for inputs, rows, *owners in reading.unlabelled(self, True):
                yield self.augment(inputs[rows]), None, *owners

        def learn(release):
            self.set_components(
                *release.principal(self.units, self.constant, self.ridge_factor)
            )
            reading.keep(self, release)

        (name,) = self.release_names()
        query = SecondMomentQuery(
            num_features=self.num_features,
            feature_bound=self.moment_bound,
            **reading.privacy_unit,
        )
        mechanism = None
        if self.noise_multiplier is not None:
            mechanism = GaussianMechanism(
                sensitivity=query.sensitivity(
                    "l2", neighbours=reading.ledger.neighbours
                ),
                noise_multiplier=self.noise_multiplier,
            )
        return [
            PlannedRelease(
                name=name,
                query=query,
                clip=self.clip,
                read=read,
                learn=learn,
                mechanism=mechanism,
            )
        ]
