"""What the perturbed first layers of AdLM and ILM share: noise on the input."""

import math

import keras
import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.papers.adlm import claims
from keras_fm.papers.adlm.relevance import layer_wise, pictures
from keras_fm.parts.private_part import ReleasedLayer
from keras_fm.parts.step import NOISE, Claim

RELEVANCE_FORMS = ("paper", "code")
# eps1, eps2, eps3 of the authors' code: 0.075, 0.075, 0.15 of 0.3.
_ADAPTIVE_SHARES = (0.25, 0.25, 0.5)


class PerturbedInputLayer(ReleasedLayer):
    """A first layer whose inputs and bias are shifted by Laplace noise.

    One noise value for each input feature and one for each bias entry, the
    same for all records (Phan et al., ICDM 2017, Algorithm 1). It acts only
    while training and only after `fix_noise`, which
    `keras_fm.callbacks.PrivateModel` with `Published(lot=...)` calls.

    Args:
        adaptive: whether the noise of a feature follows its relevance
            (AdLM); `False` gives every feature the same scale (ILM).
        noise: `"once"` draws the noise before fit (the paper);
            `"per_step"` draws it again at every step (the authors' code).
        input_bound: `None`, or a number > 0: perturbed inputs are clipped
            to [-input_bound, input_bound] while training (the authors' code
            has 10).
        relevance_form: of `adaptive=True`: `"paper"` min-max normalises
            every record's relevance and averages (Eq. 7); `"code"` averages
            first, normalises the average and takes its fourth power, as the
            authors' code does.
        relevance_floor: of `adaptive=True`: smallest noisy relevance, so
            that no noise scale is infinite (1e-5 in the authors' code).
        activation, use_bias, kernel_initializer, bias_initializer: as in
            Keras' layers.
    """

    unproven = (
        "no proof covers one noise vector that all records share. Use "
        "`keras.layers.Dense(..., trainable=False)` (or Conv2D) with public "
        "weights, or train all layers with noisy steps, "
        "`keras_fm.models.GradientNet`"
    )

    def _how_it_trains(self):
        return (
            "The layer trains in the published form alone, whose epsilon is "
            "claimed by the paper and not proven: give fit `callbacks=["
            "keras_fm.callbacks.PrivateModel(epsilon=1.0, delta=0, "
            "data=(x, y), "
            "guarantee=keras_fm.Published(lot=batch_size))]` with the "
            "`batch_size` of fit. For a proof write "
            "`keras.layers.Dense(..., trainable=False)` (or Conv2D) with "
            "public weights, or `keras_fm.models.GradientNet`."
        )

    def __init__(
        self,
        activation=None,
        use_bias=True,
        adaptive=False,
        noise="once",
        input_bound=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        relevance_form="paper",
        relevance_floor=1e-5,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.relevance_form, self.relevance_floor = check_relevance(
            relevance_form, relevance_floor
        )
        self.relevance_of(None)
        self.relevance = None
        wanted = "None or a finite number greater than 0"
        self.noise = checks.one_of("noise", noise, NOISE)
        self.input_bound = checks.optional(
            checks.number, "input_bound", input_bound, above=0, wanted=wanted
        )
        self.adaptive = bool(adaptive)
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def _add_weights(self, record_shape, kernel_shape):
        self.record_shape = tuple(record_shape)
        self.bias_units = kernel_shape[-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=kernel_shape,
            initializer=self.kernel_initializer,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.bias_units,),
                initializer=self.bias_initializer,
            )

    def affine(self, inputs, bias):
        """The layer without noise and activation."""
        raise NotImplementedError

    def linear_part(self, x):
        """What comes before the activation, for layer-wise relevance."""
        return self.affine(x, self.bias)

    def claimed_sensitivity(self, neighbours):
        """The paper's Delta_h0; subclasses say which."""
        raise NotImplementedError

    @property
    def is_perturbed(self):
        """Whether noise was fixed."""
        return self._has_hidden("input_noise")

    def fix_noise(self, input_noise, bias_noise):
        """Fixes the noise, already divided by the lot size.

        Args:
            input_noise: one record's shape; with `noise="per_step"` the
                Laplace scales instead of a draw.
            bias_noise: `(units,)`, likewise; ignored without a bias.

        Raises:
            ValueError: if a shape is wrong, a number is not finite or noise
                was fixed before: the objective of a fit is perturbed exactly
                once.
        """
        given = np.shape(input_noise), np.shape(bias_noise)
        wanted = tuple(self.record_shape), (self.bias_units,)
        if given != wanted:
            raise ValueError(
                f"Noise must have shapes {wanted[0]} and {wanted[1]}. "
                f"Received: {given[0]} and {given[1]}"
            )
        if self.is_perturbed:
            raise ValueError(
                f"The noise of layer '{self.name}' is fixed already."
            )
        checks.all_finite(input_noise=input_noise, bias_noise=bias_noise)
        self._set_hidden("input_noise", np.asarray(input_noise))
        self._set_hidden("bias_noise", np.asarray(bias_noise))
        if self.noise == "per_step":
            self._set_hidden_seed("seed_state")

    def _drawn(self, name):
        if self.noise == "once":
            return self._get_hidden(name)
        return self._draw_laplace(name)

    # Published: what it is charged -----------------------------------------

    def relevance_of(self, pretrained):
        """Names the network whose relevance an adaptive layer follows.

        Args:
            pretrained: a trained `keras_fm.models.unprotected_twin` of the
                model, or any trained model with the same inputs.
        """
        # Hidden from Keras: the other network is no part of this one.
        self.__dict__["_pretrained"] = lambda: pretrained

    def published_shares(self, names):
        """Default shares of a model with this layer, or `None`: equal."""
        return _ADAPTIVE_SHARES if self.adaptive and len(names) == 3 else None

    def check_published(self):
        """Nothing: the layer has a published form only."""

    def claims(self, publishing):
        """What `guarantee="published"` is charged: with `adaptive=True` the
        relevance (eps1), and the noise on inputs and bias (eps2)."""
        made = []
        if self.adaptive:
            made.append(self._relevance_claim(publishing))
        sensitivity = self.claimed_sensitivity(publishing.neighbours)
        how = "drawn again at every step" if self.noise == "per_step" else None

        def fix(scale, laplace):
            shape = tuple(self.record_shape)
            scales = np.full(shape, scale)
            if self.adaptive:
                shares = claims.adaptive_epsilons(
                    self.relevance.reshape(-1), 1.0, floor=self.relevance_floor
                )
                scales = scale / shares.reshape(shape)
            made = []
            for s, size in ((scales, shape), (scale, (self.bias_units,))):
                if self.noise == "once":
                    made.append(laplace(s, size))
                else:
                    made.append(np.broadcast_to(s, size).copy())
            self.fix_noise(*made)

        made.append(
            Claim(
                name=self.name,
                sensitivity=sensitivity,
                reads="every record at every step, shifted by one noise vector "
                f"({how or 'fixed'})",
                reason=claims.AFFINE_REASON,
                fix=fix,
            )
        )
        return made

    def _relevance_claim(self, publishing):
        def read():
            self._check_pretrained(publishing)
            return self._average_relevance(publishing)

        def sensitivity(found):
            if found is None:
                return None
            return claims.relevance_sensitivity(
                math.prod(self.record_shape),
                found[1],
                neighbours=publishing.neighbours,
            )

        def fix(scale, laplace, found):
            noisy = found[0] + laplace(scale, found[0].shape)
            self.relevance = noisy.reshape(self.record_shape)

        return Claim(
            name=f"{self.name} (relevance)",
            sensitivity=sensitivity,
            reads="every record's relevance in a network pre-trained on "
            "the records, averaged, once",
            reason=claims.RELEVANCE_REASON,
            fix=fix,
            read=read,
            per_lot=False,
        )

    def _check_pretrained(self, publishing):
        pretrained = self._pretrained()
        if pretrained is None or publishing.data is None:
            raise ValueError(
                f"Layer '{self.name}' has `adaptive=True`: its noise follows "
                "the relevance of a network that was trained before. Train "
                "`keras_fm.models.unprotected_twin(model)`, name it by "
                f"`model.get_layer({self.name!r}).relevance_of(twin)`, and "
                "give PrivateModel `data=(x, y)`."
            )
        if not isinstance(pretrained, keras.Model) or not pretrained.built:
            raise ValueError(
                "`pretrained` must be a built and trained Keras model. "
                f"Received: {type(pretrained).__name__}"
            )
        given, own = pretrained.input_shape[1:], publishing.input_shape
        if given != own:
            raise ValueError(
                "`pretrained` must have the model's inputs. Received: "
                f"{given}, expected {own}"
            )

    def _average_relevance(self, publishing):
        """The exact normalised average relevance `(d,)`, private, and n."""
        total, count = 0.0, 0
        network = self._pretrained()
        known = [layer.name for layer in network.layers]
        layer = self.name if self.name in known else None
        for x in publishing.batches():
            found = layer_wise(network, x, layer=layer)
            rows = found.reshape(len(found), -1).astype(np.float64)
            if self.relevance_form == "paper":
                rows = claims.normalised_relevance(rows)
            total, count = total + rows.sum(axis=0), count + len(found)
        if not count:
            raise ValueError("`data` holds no record.")
        expected = math.prod(self.record_shape)
        if np.shape(total) != (expected,):
            raise ValueError(
                f"The relevance at the input of `pretrained` has "
                f"{np.size(total)} entries, but layer '{self.name}' has "
                f"{expected} input features. Pre-train an unprotected twin of "
                "the model, and flatten records of several axes before an "
                "adaptive PerturbedAffine."
            )
        if self.relevance_form == "code":
            total = claims.normalised_relevance(total[None])[0] ** 4
            return total, count
        return total / count, count

    def pictures(self):
        return pictures(self.relevance)

    def call(self, inputs, training=None):
        training = self.in_training(training)
        inputs, bias = self._perturb(inputs, self.bias, training)
        return self.activation(self.affine(inputs, bias))

    def _perturb(self, inputs, bias, training):
        if not (training and self.is_perturbed):
            return inputs, bias
        inputs = inputs + ops.cast(self._drawn("input_noise"), inputs.dtype)
        if self.input_bound is not None:
            inputs = ops.clip(inputs, -self.input_bound, self.input_bound)
        if bias is not None:
            noise = ops.cast(self._drawn("bias_noise"), self.compute_dtype)
            bias = ops.add(bias, noise)
        return inputs, bias

    def get_config(self):
        return {
            **super().get_config(),
            "adaptive": self.adaptive,
            "relevance_form": self.relevance_form,
            "relevance_floor": self.relevance_floor,
            "noise": self.noise,
            "input_bound": self.input_bound,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "bias_initializer": keras.initializers.serialize(
                self.bias_initializer
            ),
        }


def check_relevance(form, floor):
    """Both as they are, or an error worded as Keras words it."""
    checks.one_of("relevance_form", form, RELEVANCE_FORMS)
    return form, checks.positive("relevance_floor", floor)
