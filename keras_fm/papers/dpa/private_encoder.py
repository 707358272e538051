import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core.planned_release import PlannedRelease
from keras_fm.core.second_moment import SecondMomentQuery
from keras_fm.heads import coefficient_noise
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel.access import columns
from keras_fm.papers.dpa import claims
from keras_fm.papers.dpa.reconstruction import FORMS, ReconstructionQuery
from keras_fm.preprocessing.pretrained_layer import PretrainedLayer

SOURCES = ("moments", "random")
# Standard deviation of a unit's logit. It keeps units nearly linear if every
# principal direction has its own unit, and saturates units that mix them.
_GAIN = {False: 0.5, True: 4.0}
# The constant entry beside a code in the unit ball.
_CODE_CONSTANT = 0.3
# Synthetic records for each unit, to which the decoder is fitted.
_FIT_RECORDS = 20
_FIT_DRAWS = 4096
# Draws at a time: several arrays have this many rows and all units.
_FIT_BLOCK = 512


@keras.saving.register_keras_serializable(package="keras_fm")
class PrivateEncoder(PretrainedLayer):
    """One private auto-encoder (dPA): `h = activation(W^T v + b)`.

    The layer outputs the code h; `decode(h)` reconstructs v. Until a
    `keras_fm.callbacks.PrivateModel` uses it, it is an ordinary dense
    auto-encoder.

    Proven (the default): its weights are computed from a release (a noisy
    statistic of the records), never from a record.

    * `source="moments"`: the second moment of the inputs is released once.
      The encoder uses its principal directions. The decoder is the least
      squares fit for a Gaussian with the released moments. Both are
      post-processing, which uses no more budget, for any number of units.
    * `source="random"`: the encoder is public and random. The reconstruction
      objective's coefficients A = sum h h^T (shared by all visible units)
      and S = sum h t^T are released once. The decoder minimises the noisy
      objective.
      With `rounds=R` the decoder's transpose becomes the next round's
      encoder (tied weights) and A, S are released again; the share of the
      budget is split. `rounds` > 1 with `source="moments"` releases the
      decoder of the last encoder R - 1 times.

    Published (`guarantee="published"`): the paper's algorithm, whose epsilon
    is claimed, not proven. The decoder is the encoder's transpose, and every
    step uses the records. Fixed Laplace noise is added to the coefficients
    lambda^(1) and lambda^(2) of the Taylor objective (dPA Eq. 11, Lemma 2),
    or to every code (the authors' code), see `keras_fm.models.PublishedDPA`.

    Args:
        units: int b, length of the code.
        activation: `"sigmoid"` or `"linear"`.
        source, rounds: see above.
        components: for `source="moments"`: `None`, or the number of principal
            directions to keep. If it is below `units`, every unit is a random
            mixture of all directions with a random offset (features to
            classify on). If it equals `units`, every unit is one direction
            (the best reconstruction). `None` keeps `units` directions if
            there are so many inputs, else mixes those above the noise.
        gain: `None`, or the standard deviation of the largest unit's logit.
        whitening: float in [0, 1/2], for `source="moments"`: a direction with
            released variance s is scaled by `s^-whitening`; 0 keeps the
            proportions of the data, 1/2 makes all variances equal.
        input_bound: public bound C on the L2 norm of `v - centre`.
        centre: public constant subtracted from the inputs.
        bias_feature: `None` (a third of `input_bound`), or the constant
            entry beside the inputs, which gives the released mean and count.
        clip: whether a release scales inputs outside the bound back, instead
            of refusing them.
        visible: `None`, or `(start, stop)`, the inputs that are
            reconstructed (others only condition the code, as in dPAH).
        form: `"cross_entropy"` (visible units in [0, 1], the decoder gives
            logits; always in the published form) or `"squared_error"` (the
            decoder gives values).
        seed: int, public, for random directions.
        guarantee: `"proven"` or `"published"`.

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
        seed: int = 0,
        guarantee: str = "proven",
        **kwargs: Any,
    ) -> None:
        super().__init__(guarantee, **kwargs)
        self.units = checks.count("units", units)
        self.rounds = checks.count("rounds", rounds)
        self.activation = checks.one_of(
            "activation", activation, ("sigmoid", "linear")
        )
        self.source = checks.one_of("source", source, SOURCES)
        form = "cross_entropy" if self.is_published else form
        self.form = checks.one_of("form", form, FORMS)
        self.gain = checks.optional(checks.norm_bound, "gain", gain)
        self.input_bound = checks.norm_bound("input_bound", input_bound)
        self.bias_feature = checks.norm_bound(
            "bias_feature",
            self.input_bound / 3 if bias_feature is None else bias_feature,
        )
        self.whitening = checks.number(
            "whitening", whitening, at_least=0, at_most=0.5
        )
        self.centre = checks.number("centre", centre)
        self.seed = checks.natural("seed", seed)
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
        if visible is not None and source == "random" and rounds > 1:
            raise ValueError(
                "`visible` and `rounds` > 1 cannot be combined with "
                '`source="random"`: the next encoder is the transpose of a '
                f"decoder of all inputs. Received: visible={visible}"
            )
        self.components = components
        self.clip, self.visible = bool(clip), visible
        self.input_spec = keras.layers.InputSpec(ndim=2)

    def build(self, input_shape):
        inputs = input_shape[-1]
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
        # Decoders learn only in `Autoencoder`. Elsewhere they are not part of
        # the output and would have no gradient.
        self.decoder_kernel = None
        if not self.is_published:
            self.decoder_kernel = self._weight(
                "decoder_kernel", (self.units, self.visible_dim)
            )
        self.decoder_bias = self._weight("decoder_bias", (self.visible_dim,))
        self.set_pretraining(False)

    def set_pretraining(self, value):
        """Sets whether the decoder's own weights train with the layer."""
        for weight in (self.decoder_kernel, self.decoder_bias):
            if weight is not None:
                weight.trainable = value

    def _weight(self, name, shape, value=None):
        initializer = "glorot_uniform" if len(shape) == 2 else "zeros"
        if value is not None:
            initializer = keras.initializers.Constant(value)
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
        """Public value that the root mean square of `2 h - 1` hardly exceeds.

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
            noise = self._get_hidden("hidden_noise")
            code = code + ops.cast(noise, code.dtype)
        return code

    def decode(self, code, logits=False):
        """Reconstructs the visible inputs.

        Args:
            code: `(batch, units)`.
            logits: with `form="cross_entropy"`: `True` returns logits z, for
                `PerturbedReconstruction`. `False` returns `1/2 + z/4`, the
                values at the Taylor optimum (`sigmoid(z)` in the published
                form).

        Returns:
            `(batch, visible)`.
        """
        kernel = self._decoder()
        z = ops.matmul(code, ops.cast(kernel, code.dtype))
        z = z + ops.cast(self.decoder_bias, code.dtype)
        if logits or self.form == "squared_error":
            return z
        return ops.sigmoid(z) if self.is_published else 0.5 + z / 4

    def _decoder(self):
        if not self.is_published:
            return self.decoder_kernel
        start, stop = self.visible_range
        return ops.transpose(ops.convert_to_tensor(self.kernel)[start:stop])

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.units)

    # Published: fixed noise ----------------------------------------------

    claim_reason = claims.RECONSTRUCTION_REASON
    settings_class = claims.PublishedDPA
    noise_names = ("linear_noise", "hidden_noise")
    _view = "Autoencoder"
    _compiled_with = '"adam", keras_fm.losses.PerturbedReconstruction()'

    def noise_shapes(self, settings):
        """Shapes of the noise on lambda^(1) and lambda^(2), or on a code."""
        units, visible = self.units, self.visible_dim
        if settings.noise_on == "hidden":
            return {"hidden_noise": (units,)}
        return {
            "linear_noise": (units, visible),
            "quadratic_noise": (visible, units, units),
        }

    def claimed_sensitivity(self, neighbours, settings=None):
        """dPA's Delta, see `claims.reconstruction_sensitivity`."""
        return claims.reconstruction_sensitivity(
            self.visible_dim, self.units, neighbours=neighbours
        )

    def claim_uses(self, settings):
        where = {
            "coefficients": "the coefficients of the reconstruction",
            "hidden": "the codes (as the authors' code)",
        }[settings.noise_on]
        return f"every record at every step; fixed noise on {where}"

    def kept_noise(self, name, value):
        if name == "quadratic_noise":
            return coefficient_noise.symmetric(value)
        return value

    def noise_loss(self):
        """The noise on lambda^(1) and lambda^(2) as a term of the loss.

        `<N1, W> + sum_j w_j^T N2_j w_j`, or `None` without such noise.
        `keras_fm.models.Autoencoder` adds it to its loss. Fine-tuning has no
        reconstruction, hence no noise on it.
        """
        if not self._has_hidden("linear_noise"):
            return None
        # Half precision is too coarse for a sum of d b^2 terms.
        weights = ops.cast(self._decoder(), self.variable_dtype)
        return coefficient_noise.loss(
            weights,
            self._get_hidden("linear_noise"),
            self._get_hidden("quadratic_noise"),
        )

    # Proven: weights from releases -----------------------------------------

    def release_names(self):
        moments = self.source == "moments"
        if self.rounds == 1:
            kind = "moments" if moments else "reconstruction"
            return [f"{self.name} ({kind})"]
        first = "moments" if moments else "round 1"
        rest = [f"{self.name} (round {r})" for r in range(2, self.rounds + 1)]
        return [f"{self.name} ({first})", *rest]

    def default_shares(self, alike):
        # 0.3 of the budget goes to all encoders of a model together.
        return [0.3 / alike / self.rounds] * self.rounds

    def planned_releases(self, reading):
        """The releases of the layer, in order: its moments, or rounds of
        reconstruction."""
        start, stop = self.visible_range
        centre, bound = self.centre, self.input_bound
        if self.form == "cross_entropy":
            # Visible units are probabilities, in the unit cube around 1/2.
            centre, bound = 0.5, (stop - start) ** 0.5 / 2
        moments = SecondMomentQuery(
            num_features=self.input_dim + 1,
            feature_bound=self.moment_bound,
            **reading.privacy_unit,
        )
        decoder = ReconstructionQuery(
            num_features=self.units + 1,
            num_visible=stop - start,
            feature_bound=self.code_bound,
            visible_bound=bound,
            centre=centre,
            form=self.form,
            quadratic_scale=self.code_bound / bound,
            **reading.privacy_unit,
        )

        def read_moments():
            for inputs, rows, *owners in reading.unlabelled(self):
                yield self.augment(inputs[rows]), None, *owners

        def read_codes():
            for inputs, rows, *owners in reading.unlabelled(self):
                code = ops.convert_to_numpy(self(inputs))[rows]
                visible = inputs[rows, start:stop]
                yield self.code_features(code), visible, *owners

        def read_tied():
            before = self.get_weights()
            self.tie_encoder()
            try:
                yield from read_codes()
            except BaseException:
                # This decoder belongs to the previous encoder.
                self.set_weights(before)
                raise

        def read_random():
            self.reset_encoder()
            return read_codes()

        def learn_moments(release):
            constant = self.bias_feature
            count = release.moments(constant)[2]
            mean, directions, variances = release.principal(
                self.input_dim, constant
            )
            above = int(np.sum(variances > release.noise_edge() / count))
            self.set_principal(mean, directions, variances, above)
            reading.keep(self, release)

        def learn_decoder(release):
            weights = release.minimise(reading.ridge_factor)[1]
            if release.query.form == "cross_entropy":
                weights = weights / 4  # values are 1/2 + z/4
            self.set_decoder(weights, centre)
            reading.keep(self, release)

        def step(index, name):
            first = index == 0 and self.source == "moments"
            read = read_moments if first else read_codes
            if self.source == "random":
                read = read_tied if index else read_random
            return PlannedRelease(
                name=name,
                query=moments if first else decoder,
                clip=self.clip,
                read=read,
                learn=learn_moments if first else learn_decoder,
            )

        return [step(i, name) for i, name in enumerate(self.release_names())]

    def augment(self, inputs):
        """`[v - centre; c]`, whose second moment is released; NumPy."""
        inputs = columns.floats(inputs)
        centred = inputs - np.asarray(self.centre, inputs.dtype)
        entry = ((0, 0), (0, 1))
        return np.pad(centred, entry, constant_values=self.bias_feature)

    def code_features(self, code):
        """Codes in the unit ball with a constant entry: the features h in A
        of the decoder's objective; NumPy `(n, b)` to `(n, b + 1)`."""
        slope, offset = self._code_map()
        code = np.asarray(code, np.float64) * slope + offset
        code = bounds_lib.project_to_ball(code, 1.0, clip=True)
        return np.pad(code, ((0, 0), (0, 1)), constant_values=_CODE_CONSTANT)

    def _code_map(self):
        """Slope and offset that scale a code to a norm of about 1."""
        scale = self.code_scale * math.sqrt(self.units)
        if self.activation == "sigmoid":
            return 2 / scale, -1 / scale
        return 1 / scale, 0.0

    @property
    def code_bound(self):
        """L2 bound on a row of `code_features`."""
        return math.hypot(1.0, _CODE_CONSTANT)

    def set_principal(self, mean, directions, variances, above_noise):
        """Sets encoder and decoder from released moments.

        Args:
            mean: `(inputs,)`, of `v - centre`.
            directions: orthonormal columns `(inputs, k)`.
            variances: `(k,)`, positive, descending.
            above_noise: int, number of variances above the noise.
        """
        mixed = self._is_mixed(self.input_dim)
        keep = self.components or min(self.units, self.input_dim)
        if mixed and self.components is None:
            keep = max(1, min(keep, above_noise))
        directions, variances = directions[:, :keep], variances[:keep]
        rng = np.random.default_rng(self.seed)
        gain = self._gain(mixed)
        # Variances after whitening, the largest first.
        scaling = variances**-self.whitening
        scaled = variances * scaling**2
        if mixed:
            mixing = rng.standard_normal((keep, self.units))
            mixing *= gain / math.sqrt(scaled.sum())
            offset = rng.uniform(-gain / 2, gain / 2, self.units)
        else:
            mixing = np.eye(keep, self.units) * gain / math.sqrt(scaled[0])
            offset = np.zeros(self.units)
        mixing = scaling[:, None] * mixing
        kernel = directions @ mixing
        self.kernel.assign(kernel)
        self.bias.assign(offset - mean @ kernel)
        # The decoder is fitted by least squares to draws from a Gaussian with
        # these moments, in principal coordinates. Normal equations allow a
        # few draws at a time.
        draws = max(_FIT_DRAWS, _FIT_RECORDS * self.units)
        squares = np.zeros((self.units + 1, self.units + 1))
        products = np.zeros((self.units + 1, keep))
        for first in range(0, draws, _FIT_BLOCK):
            count = min(_FIT_BLOCK, draws - first)
            scores = rng.standard_normal((count, keep)) * np.sqrt(variances)
            code = scores @ mixing + offset
            if self.activation == "sigmoid":
                code = 1 / (1 + np.exp(-code))
            rows = np.concatenate([code, np.ones((count, 1))], axis=1)
            squares += rows.T @ rows
            products += rows.T @ scores
        # Normal equations square singular values: 1e-6 of the largest.
        solution = np.linalg.lstsq(squares, products, rcond=1e-12)[0]
        start, stop = self.visible_range
        read_out = solution @ directions[start:stop].T
        read_out[-1] += mean[start:stop] + self.centre
        self._set_decoder(read_out[:-1], read_out[-1])

    def set_decoder(self, minimiser, centre):
        """Sets the decoder from the minimiser of a released objective.

        Args:
            minimiser: `(units + 1, visible)` weights with which
                `code_features` predict `v - centre`.
            centre: the objective's centre.
        """
        weights, constant = minimiser[:-1], minimiser[-1] * _CODE_CONSTANT
        slope, offset = self._code_map()
        constant = constant + offset * weights.sum(axis=0)
        self._set_decoder(slope * weights, constant + centre)

    def _set_decoder(self, weights, values):
        # Logits z of the Taylor optimum: values are 1/2 + z/4.
        if self.form == "cross_entropy":
            weights, values = 4 * weights, 4 * (values - 0.5)
        self.decoder_kernel.assign(weights)
        self.decoder_bias.assign(values)

    def reset_encoder(self):
        """Restores the public random encoder of `source="random"`."""
        self.kernel.assign(self._random_encoder())
        self.bias.assign(np.zeros(self.units))

    def tie_encoder(self):
        """Sets the next round's encoder: the decoder's transpose, scaled so
        that a record at its bound, along a direction, gets logit `4 gain`."""
        kernel = ops.convert_to_numpy(self.decoder_kernel).T.astype(np.float64)
        lengths = np.linalg.norm(kernel, axis=0)
        kernel = kernel / np.where(lengths > 0, lengths, 1.0)
        self.kernel.assign(kernel * 4 * self._gain(False) / self.input_bound)
        self.bias.assign(np.zeros(self.units))
