import math

import numpy as np
from keras import ops

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel.reads import columns
from keras_fm.papers.dpa.reconstruction import ReconstructionQuery
from keras_fm.parts.step import Step
from keras_fm.private_maps.pretrained_layer import PretrainedLayer
from keras_fm.private_maps.second_moment import SecondMomentQuery

# The constant entry beside a code in the unit ball.
_CODE_CONSTANT = 0.3
# Made records for each unit that the decoder is fitted to.
_FIT_RECORDS = 20
_FIT_DRAWS = 4096
# Draws at a time: several arrays of as many rows and all units.
_FIT_BLOCK = 512


class ReleasedEncoder(PretrainedLayer):
    """Weights of an encoder and its decoder from releases: moments of the
    inputs, or rounds of reconstruction. What they are released with are
    arguments of `PrivateEncoder`."""

    def release_names(self):
        moments = self.source == "moments"
        if self.rounds == 1:
            kind = "moments" if moments else "reconstruction"
            return [f"{self.name} ({kind})"]
        first = "moments" if moments else "round 1"
        rest = [f"{self.name} (round {r})" for r in range(2, self.rounds + 1)]
        return [f"{self.name} ({first})", *rest]

    def default_shares(self, alike):
        # Of the budget, for all encoders of a model together.
        return [0.3 / alike / self.rounds] * self.rounds

    def steps(self, reading):
        """The releases of the layer, in order: its moments, or rounds of
        reconstruction."""
        start, stop = self.visible_range
        centre, bound = self.centre, self.input_bound
        if self.form == "cross_entropy":
            # Visible units are probabilities: in the cube about 1/2.
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
                # The decoder belongs to the encoder before.
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
            if release.objective.form == "cross_entropy":
                weights = weights / 4  # values are 1/2 + z/4
            self.set_decoder(weights, centre)
            reading.keep(self, release)

        def step(index, name):
            first = index == 0 and self.source == "moments"
            read = read_moments if first else read_codes
            if self.source == "random":
                read = read_tied if index else read_random
            return Step(
                name=name,
                query=moments if first else decoder,
                clip=self.clip,
                read=read,
                learn=learn_moments if first else learn_decoder,
            )

        return [step(i, name) for i, name in enumerate(self.release_names())]

    def augment(self, inputs):
        """`[v - centre; c]`, what the second moment is taken of; NumPy."""
        inputs = columns.floats(inputs)
        centred = inputs - np.asarray(self.centre, inputs.dtype)
        constant = np.full((len(inputs), 1), self.bias_feature, inputs.dtype)
        return np.concatenate([centred, constant], axis=1)

    def code_features(self, code):
        """Codes in the unit ball and a constant entry, what A of the
        decoder's objective is taken of; NumPy `(n, b)` to `(n, b + 1)`."""
        slope, offset = self._code_map()
        code = np.asarray(code, np.float64) * slope + offset
        code = bounds_lib.project_to_ball(code, 1.0, clip=True)
        constant = np.full((len(code), 1), _CODE_CONSTANT)
        return np.concatenate([code, constant], axis=1)

    def _code_map(self):
        """Slope and offset that bring a code to a norm of about 1."""
        scale = self.code_scale * math.sqrt(self.units)
        if self.activation == "sigmoid":
            return 2 / scale, -1 / scale
        return 1 / scale, 0.0

    @property
    def code_bound(self):
        """L2 bound on a row of `code_features`."""
        return math.hypot(1.0, _CODE_CONSTANT)

    def set_principal(self, mean, directions, variances, above_noise):
        """Encoder and decoder from released moments.

        Args:
            mean: `(inputs,)`, of `v - centre`.
            directions: orthonormal columns `(inputs, k)`.
            variances: `(k,)`, positive, descending.
            above_noise: int, how many variances are above the noise.
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
        # The decoder: least squares on a Gaussian with these moments, in the
        # principal coordinates, by normal equations: a few draws at a time.
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
        # Of singular values 1e-6 apart.
        solution = np.linalg.lstsq(squares, products, rcond=1e-12)[0]
        start, stop = self.visible_range
        read_out = solution @ directions[start:stop].T
        read_out[-1] += mean[start:stop] + self.centre
        self._set_decoder(read_out[:-1], read_out[-1])

    def set_decoder(self, minimiser, centre):
        """The decoder from the minimiser of a released objective.

        Args:
            minimiser: `(units + 1, visible)` weights of `code_features` such
                that they predict `v - centre`.
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
        """Back to the public random encoder of `source="random"`."""
        self.kernel.assign(self._random_encoder())
        self.bias.assign(np.zeros(self.units))

    def tie_encoder(self):
        """The next round's encoder: the decoder's transpose, scaled so that
        a record at its bound, along a direction, gets logit `4 gain`."""
        kernel = ops.convert_to_numpy(self.decoder_kernel).T.astype(np.float64)
        lengths = np.linalg.norm(kernel, axis=0)
        kernel = kernel / np.where(lengths > 0, lengths, 1.0)
        self.kernel.assign(kernel * 4 * self._gain(False) / self.input_bound)
        self.bias.assign(np.zeros(self.units))
