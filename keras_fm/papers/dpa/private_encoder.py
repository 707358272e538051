import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.heads import coefficient_noise
from keras_fm.kernel import checks
from keras_fm.papers.dpa import claims
from keras_fm.papers.dpa.released_encoder import ReleasedEncoder

SOURCES = ("moments", "random")
FORMS = ("cross_entropy", "squared_error")
NOISE_ON = ("coefficients", "hidden")
# Standard deviation of a unit's logit: nearly linear where every principal
# direction has its own unit, well into saturation where units mix them.
_GAIN = {False: 0.5, True: 4.0}


@keras.saving.register_keras_serializable(package="keras_fm")
class PrivateEncoder(ReleasedEncoder):
    """One private auto-encoder (dPA): `h = activation(W^T v + b)`.

    The layer outputs the code h; `decode(h)` reconstructs v. It is an
    ordinary dense auto-encoder until a `keras_fm.callbacks.PrivateModel`
    acts on it.

    Proven (`trainable=False`, the default): its weights are functions of a
    release, never of a record.

    * `source="moments"`: the second moment of the inputs is released once.
      The encoder takes its principal directions, the decoder is the least
      squares read-out of a Gaussian with the released moments. Both are
      post-processing, for any number of units.
    * `source="random"`: the encoder is public and random; the reconstruction
      objective's coefficients A = sum h h^T (shared by all visible units)
      and S = sum h t^T are released once, the decoder is its minimiser.
      With `rounds=R` the decoder's transpose becomes the next round's
      encoder (tied weights) and A, S are released again; the share of the
      budget is split. `rounds` > 1 with `source="moments"` releases the
      decoder of the last encoder R - 1 times.

    Published (`trainable=True, tied=True`): records drive every step, and
    fixed Laplace noise is added to the coefficients lambda^(1) and
    lambda^(2) of the Taylor objective (dPA Eq. 11, Lemma 2), or, with
    `noise_on="hidden"`, one noise vector to every code (the authors' code).
    That is claimed, not proven.

    Args:
        units: int b, length of the code.
        activation: `"sigmoid"` or `"linear"`.
        source, rounds: see above.
        components: of `source="moments"`: `None`, or how many principal
            directions are kept. With fewer components than units, every unit
            is a random mixture of all of them with a random offset (features
            to classify on); with as many, every unit is one direction (the
            best reconstruction). `None` keeps `units` directions if there
            are so many inputs, else mixes those above the noise.
        gain: `None`, or the standard deviation of the largest unit's logit.
        whitening: float in [0, 1/2], of `source="moments"`: a direction with
            released variance s is scaled by `s^-whitening`; 0 keeps the
            proportions of the data, 1/2 makes all variances equal.
        input_bound: public bound C on the L2 norm of `v - centre`.
        centre: public constant subtracted from the inputs.
        bias_feature: `None` (a third of `input_bound`), or the constant
            entry beside the inputs from which mean and count are read.
        clip: whether inputs outside the bound are scaled back at a release
            instead of refused.
        visible: `None`, or `(start, stop)`, the inputs that are
            reconstructed (others only condition the code, as in dPAH).
        form: `"cross_entropy"` (visible units in [0, 1], the decoder gives
            logits) or `"squared_error"` (the decoder gives values).
        tied: whether the decoder is the encoder's transpose.
        noise_on: of the published form, see above.
        seed: int, public, of random directions.

    Input shape: `(batch, inputs)`. Output shape: `(batch, units)`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> layer = PrivateEncoder(8, input_bound=3.0)
    >>> code = layer(np.zeros((2, 20), "float32"))
    >>> layer.decode(code).shape
    (2, 20)
    """

    def __init__(
        self,
        units: int,
        activation: Any = "sigmoid",
        source: str = "moments",
        rounds: int = 1,
        components: int | None = None,
        gain: float | None = None,
        whitening: float = 0.0,
        input_bound: float = 1.0,
        centre: float = 0.0,
        bias_feature: float | None = None,
        clip: bool = False,
        visible: Any = None,
        form: str = "squared_error",
        tied: bool = False,
        noise_on: str = "coefficients",
        seed: int = 0,
        trainable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable=trainable, **kwargs)
        self.units = checks.count("units", units)
        self.rounds = checks.count("rounds", rounds)
        self.activation = checks.one_of(
            "activation", activation, ("sigmoid", "linear")
        )
        self.source = checks.one_of("source", source, SOURCES)
        self.form = checks.one_of("form", form, FORMS)
        self.noise_on = checks.one_of("noise_on", noise_on, NOISE_ON)
        self.gain = checks.optional(checks.norm_bound, "gain", gain)
        self.input_bound = checks.norm_bound("input_bound", input_bound)
        self.bias_feature = checks.norm_bound(
            "bias_feature",
            self.input_bound / 3 if bias_feature is None else bias_feature,
        )
        self.whitening = checks.number(
            "whitening",
            whitening,
            at_least=0,
            at_most=0.5,
            wanted="between 0 and 1/2",
        )
        self.centre = checks.number("centre", centre)
        self.seed = checks.integer(
            "seed", seed, at_least=0, wanted="an integer >= 0"
        )
        if components is not None:
            components = checks.count("components", components)
            if components > self.units:
                raise ValueError(
                    "`components` must be at most `units`. Received: "
                    f"components={components}, units={units}"
                )
        if visible is not None:
            visible = tuple(int(v) for v in visible)
            if len(visible) != 2 or not 0 <= visible[0] < visible[1]:
                checks.refuse(
                    "visible", visible, "(start, stop) with 0 <= start < stop"
                )
        if tied and not trainable:
            raise ValueError(
                "`tied=True` belongs to the published form "
                "(`trainable=True`): a released decoder has weights of its "
                'own. `source="random", rounds=R` ties the next encoder to it.'
            )
        if visible is not None and source == "random" and rounds > 1:
            raise ValueError(
                "`visible` and `rounds` > 1 exclude each other with "
                '`source="random"`: the next encoder is the transpose of a '
                f"decoder of all inputs. Received: visible={visible}"
            )
        self.activation, self.source = activation, source
        self.components, self.tied = components, bool(tied)
        self.clip, self.visible = bool(clip), visible
        self.input_spec = keras.layers.InputSpec(ndim=2)

    def build(self, input_shape):
        inputs = input_shape[-1]
        if inputs is None:
            raise ValueError(
                "The last axis of the input must be known. "
                f"Received: input_shape={tuple(input_shape)}"
            )
        self.input_dim = inputs
        if self.visible is not None and self.visible[1] > inputs:
            raise ValueError(
                f"`visible` must lie within the {inputs} inputs. Received: "
                f"visible={self.visible}"
            )
        if self.components is not None and self.components > inputs:
            checks.refuse(
                "components", self.components, f"at most the {inputs} inputs"
            )
        start = self._random_encoder() if self.source == "random" else None
        self.kernel = self._weight("kernel", (inputs, self.units), start)
        self.bias = self._weight("bias", (self.units,))
        # Decoders learn in `Autoencoder` only; elsewhere they are no part of
        # the output and would have no gradient.
        self.decoder_kernel = None
        if not self.tied:
            self.decoder_kernel = self._weight(
                "decoder_kernel", (self.units, self.visible_dim)
            )
        self.decoder_bias = self._weight("decoder_bias", (self.visible_dim,))
        self.set_pretraining(False)

    def set_pretraining(self, value):
        """Whether the decoder's own weights train with the layer."""
        for weight in (self.decoder_kernel, self.decoder_bias):
            if weight is not None:
                weight.trainable = value

    def _weight(self, name, shape, value=None):
        if value is not None:
            initializer = lambda shape, dtype: ops.convert_to_tensor(  # noqa: E731
                value, dtype
            )
        else:
            initializer = "glorot_uniform" if len(shape) == 2 else "zeros"
        return self.add_weight(name=name, shape=shape, initializer=initializer)

    def _random_encoder(self):
        # A record at its bound gets logits of standard deviation `gain`.
        rng = np.random.default_rng(self.seed)
        kernel = rng.standard_normal((self.input_dim, self.units))
        return kernel * self._gain(mixed=False) / self.input_bound

    def _gain(self, mixed):
        return _GAIN[mixed] if self.gain is None else float(self.gain)

    # Shapes and public constants -----------------------------------------

    @property
    def visible_range(self):
        """`(start, stop)` of the inputs that are reconstructed."""
        return self.visible or (0, self.input_dim)

    @property
    def visible_dim(self):
        start, stop = self.visible_range
        return stop - start

    @property
    def code_scale(self):
        """Public root mean square that `2 h - 1` hardly exceeds.

        `|2 sigmoid(u) - 1| <= min(1, |u| / 2)`, and u has standard deviation
        `gain`.
        """
        if self.activation == "linear":
            return self._gain(False)
        mixed = self.source == "moments" and self._is_mixed(self.input_dim)
        return min(1.0, self._gain(mixed) / 2)

    def _is_mixed(self, available):
        if self.components is None:
            return self.units > available
        return self.components < self.units

    @property
    def moment_bound(self):
        """L2 bound on an input with its constant entry."""
        return math.hypot(self.input_bound, self.bias_feature)

    # Encoding and decoding -----------------------------------------------

    def call(self, inputs, training=None):
        training = self.in_training(training)
        centred = inputs - ops.cast(self.centre, inputs.dtype)
        code = ops.add(ops.matmul(centred, self.kernel), self.bias)
        if self.activation == "sigmoid":
            code = ops.sigmoid(code)
        if training and self._has_hidden("hidden_noise"):
            self.objective_in_use = True
            noise = self._get_hidden("hidden_noise")
            code = code + ops.cast(noise, code.dtype)
        return code

    def decode(self, code, logits=False):
        """Reconstructs the visible inputs.

        Args:
            code: `(batch, units)`.
            logits: with `form="cross_entropy"`, whether logits z are
                returned (what `PerturbedReconstruction` takes) instead of
                `1/2 + z/4`, the read-out of the Taylor optimum
                (`sigmoid(z)` if `tied`).

        Returns:
            `(batch, visible)`.
        """
        kernel = self._decoder()
        z = ops.matmul(code, ops.cast(kernel, code.dtype))
        z = z + ops.cast(self.decoder_bias, code.dtype)
        if logits or self.form == "squared_error":
            return z
        return ops.sigmoid(z) if self.tied else 0.5 + z / 4

    def _decoder(self):
        if not self.tied:
            return self.decoder_kernel
        start, stop = self.visible_range
        return ops.transpose(ops.convert_to_tensor(self.kernel)[start:stop])

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.units)

    # Published: fixed noise ----------------------------------------------

    @property
    def is_published(self):
        return (self.trainable or self.is_perturbed) and self.tied

    @property
    def noise_shapes(self):
        """On lambda^(1) and lambda^(2), or on every code."""
        if self.noise_on == "hidden":
            return {"hidden_noise": (self.units,)}
        units, visible = self.units, self.visible_dim
        return {
            "linear_noise": (units, visible),
            "quadratic_noise": (visible, units, units),
        }

    def claimed_sensitivity(self, neighbours):
        """dPA's Delta, see `claims.reconstruction_sensitivity`."""
        return claims.reconstruction_sensitivity(
            self.visible_dim, self.units, neighbours=neighbours
        )

    claim_reason = claims.RECONSTRUCTION_REASON
    _view = "Autoencoder"
    _compiled_with = '"adam", keras_fm.losses.PerturbedReconstruction()'

    @property
    def claim_reads(self):
        where = {
            "coefficients": "the coefficients of the reconstruction",
            "hidden": "the codes (as the authors' code)",
        }[self.noise_on]
        return f"every record at every step; fixed noise on {where}"

    def _kept_noise(self, name, value):
        if name == "quadratic_noise":
            return coefficient_noise.symmetric(value)
        return value

    def noise_loss(self):
        """What the noise on lambda^(1) and lambda^(2) adds to the
        reconstruction: `<N1, W> + sum_j w_j^T N2_j w_j`. `None` without such
        noise.

        `keras_fm.models.Autoencoder` adds it to its loss; fine-tuning has no
        reconstruction, and hence no noise on it.
        """
        if not self._has_hidden("linear_noise"):
            return None
        self.objective_in_use = True
        # Half precision is too coarse for a sum of d b^2 terms.
        weights = ops.cast(self._decoder(), self.variable_dtype)
        return coefficient_noise.loss(
            weights,
            self._get_hidden("linear_noise"),
            self._get_hidden("quadratic_noise"),
        )

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "activation": self.activation,
            "source": self.source,
            "rounds": self.rounds,
            "components": self.components,
            "gain": self.gain,
            "whitening": self.whitening,
            "input_bound": self.input_bound,
            "centre": self.centre,
            "bias_feature": self.bias_feature,
            "clip": self.clip,
            "visible": self.visible,
            "form": self.form,
            "tied": self.tied,
            "noise_on": self.noise_on,
            "seed": self.seed,
        }
