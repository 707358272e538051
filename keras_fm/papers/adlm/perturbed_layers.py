"""The perturbed first layers of AdLM and ILM: noise on the input."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core import layer_arguments
from keras_fm.core.planned_release import PublishedNoise
from keras_fm.core.private_part import ReleasedLayer
from keras_fm.kernel import checks
from keras_fm.papers.adlm import claims
from keras_fm.papers.adlm.claims import PublishedAdLM
from keras_fm.papers.adlm.relevance import layer_wise, pictures

# eps1, eps2, eps3 of the authors' code: 0.075, 0.075, 0.15 of 0.3.
_ADAPTIVE_SHARES = (0.25, 0.25, 0.5)
# The authors' code clips perturbed inputs to [-10, 10].
_CLIPPED = 10.0
# Smallest noisy relevance, so that no noise scale is infinite.
_FLOOR = 1e-5


class PerturbedInputLayer(ReleasedLayer):
    """A first layer whose inputs and bias are shifted by Laplace noise.

    The `PublishedAdLM` in the callback's `Published` sets the scale of the
    noise, and how often it is drawn.

    Args:
        activation, use_bias, kernel_initializer, bias_initializer: as in
            Keras' layers.
    """

    unproven = (
        "no proof covers one noise vector that all records share. Use "
        "`keras.layers.Dense(..., trainable=False)` (or Conv2D) with public "
        "weights, or train all layers with noisy steps, "
        "`keras_fm.make_private(model)`"
    )
    noise_names = ("input_noise", "bias_noise")

    def _how_it_trains(self):
        return (
            "The layer trains in the published form only, whose epsilon is "
            "claimed by the paper and not proven: give `fit` "
            "`callbacks=[keras_fm.callbacks.PrivateModel(epsilon=1.0, delta=0, "
            "data=(x, y), guarantee=keras_fm.Published(lot=batch_size))]` with "
            "the `batch_size` of `fit`. For a proof write "
            "`keras.layers.Dense(..., trainable=False)` (or Conv2D) with "
            "public weights, or `keras_fm.make_private(model)`."
        )

    def __init__(
        self,
        activation=None,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        # Set with the noise. `_clipped` bounds the perturbed inputs.
        self.relevance = self._clipped = None

    def _add_weights(self, record_shape, kernel_shape):
        self.record_shape = tuple(record_shape)
        self.kernel = self.add_weight(
            name="kernel",
            shape=kernel_shape,
            initializer=self.kernel_initializer,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=kernel_shape[-1:],
                initializer=self.bias_initializer,
            )

    def affine(self, inputs, bias):
        """The layer without noise and activation."""
        raise NotImplementedError

    def linear_part(self, x):
        """The output before the activation, for layer-wise relevance."""
        return self.affine(x, self.bias)

    def claimed_sensitivity(self, neighbours, settings=None):
        """The paper's Delta_h0, which subclasses give."""
        raise NotImplementedError

    # Published: charges ----------------------------------------------------

    def published_shares(self, names):
        """Default shares of the budget; `None` for equal shares."""
        return _ADAPTIVE_SHARES if len(names) == 3 else None

    def claims(self, publishing):
        """Charges of the published form: for AdLM the relevance (eps1), and
        the noise on inputs and bias (eps2)."""
        settings = publishing.settings(PublishedAdLM)
        per_step = settings.noise_per_step
        how = "drawn again at every step" if per_step else "fixed"

        def fix(scale, laplace):
            shape = self.record_shape
            scales = np.full(shape, scale)
            if settings.adaptive:
                shares = claims.adaptive_epsilons(
                    self.relevance.reshape(-1), 1.0, floor=_FLOOR
                )
                scales = scale / shares.reshape(shape)
            scales = [scales, np.full(self.kernel.shape[-1:], scale)]
            if not per_step:
                scales = [laplace(s, s.shape) for s in scales]
            self._clipped = _CLIPPED if settings.is_code else None
            self.fix_noise(per_step, **dict(zip(self.noise_names, scales)))

        made = [
            PublishedNoise(
                name=self.name,
                sensitivity=self.claimed_sensitivity(
                    publishing.neighbours, settings
                ),
                uses="every record at every step, shifted by one noise vector "
                f"({how})",
                reason=claims.AFFINE_REASON,
                fix=fix,
            )
        ]
        if settings.adaptive:
            made.insert(0, self._relevance_claim(publishing, settings))
        return made

    def _relevance_claim(self, publishing, settings):
        def read():
            return self._average_relevance(publishing, settings)

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

        return PublishedNoise(
            name=f"{self.name} (relevance)",
            sensitivity=sensitivity,
            uses="every record's relevance in a network pre-trained on "
            "the records, averaged, once",
            reason=claims.RELEVANCE_REASON,
            fix=fix,
            read=read,
            per_lot=False,
        )

    def _average_relevance(self, publishing, settings):
        """The exact normalised average relevance `(d,)` (private), and n."""
        network = settings.relevance_of
        if network is None or publishing.data is None:
            raise ValueError(
                f"The noise of layer '{self.name}' follows the relevance of a "
                "network that is trained before. Train `twin = "
                "keras_fm.models.unprotected_twin(model)`, and give "
                "PrivateModel `data=(x, y)` and "
                "`guarantee=keras_fm.Published(lot=batch_size, "
                "settings=keras_fm.models.PublishedAdLM(relevance_of=twin))`. "
                "For an AdaptiveLaplace, the guarantee is "
                "`model.guarantee(lot=batch_size, relevance_of=twin)`."
            )
        total, count = 0.0, 0
        known = [layer.name for layer in network.layers]
        layer = self.name if self.name in known else None
        for x in publishing.batches():
            found = layer_wise(network, x, layer=layer)
            rows = found.reshape(len(found), -1).astype(np.float64)
            if not settings.is_code:
                rows = claims.normalised_relevance(rows)
            total, count = total + rows.sum(axis=0), count + len(found)
        expected = math.prod(self.record_shape)
        if np.shape(total) != (expected,):
            raise ValueError(
                f"`relevance_of` must be a network with the {expected} inputs "
                f"of layer '{self.name}', such as the model's unprotected "
                f"twin. Received: one of {np.size(total)} inputs"
            )
        if settings.is_code:
            return claims.normalised_relevance(total[None])[0] ** 4, count
        return total / count, count

    def pictures(self):
        return pictures(self.relevance)

    def call(self, inputs, training=None):
        bias = self.bias
        if not (self.in_training(training) and self.is_perturbed):
            return self.activation(self.affine(inputs, bias))
        noise = self.noise_now("input_noise")
        shift = ops.expand_dims(ops.cast(noise, inputs.dtype), 0)
        if bias is not None:
            noise = self.noise_now("bias_noise")
            bias = ops.add(bias, ops.cast(noise, self.compute_dtype))
        if self._clipped is not None:
            inputs = ops.clip(inputs + shift, -self._clipped, self._clipped)
            return self.activation(self.affine(inputs, bias))
        # The layer is linear: the noise passes it once, not in every record.
        outputs = self.affine(inputs, None)
        return self.activation(outputs + self.affine(shift, bias))


@keras.saving.register_keras_serializable(package="keras_fm")
class PerturbedAffine(PerturbedInputLayer):
    """Dense first layer whose inputs and bias are shifted by fixed noise.

    This is the published form of AdLM and ILM (Phan et al., ICDM 2017,
    Algorithm 1). With lots (batches) of |L| records it computes

        h = activation(W^T (x + noise_x / |L|) + b + noise_b / |L|).

    All records share one noise vector, Laplace(Delta_h0 / eps_j) on feature j
    with Delta_h0 = 2 |h0| d, for inputs in [0, 1]^d. The layer trains only
    under a `keras_fm.callbacks.PrivateModel` with `Published(lot=...)`, whose
    `settings` are a `keras_fm.models.PublishedAdLM`. At inference, and with
    `unprotected=True`, it works like `keras.layers.Dense`.

    No proof covers one noise vector that all records share. A proven model
    therefore refuses this layer: use
    `keras.layers.Dense(..., trainable=False)` with public weights instead.

    Args:
        units: positive int, number of hidden units |h0|.
        activation: activation function, default none.
        use_bias: whether to add a bias.
        kernel_initializer, bias_initializer: initializers.
        unprotected: `True` for the non-private twin.

    Input shape: `(batch, ..., inputs)`. Output shape: `(batch, ..., units)`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> layer = PerturbedAffine(32, activation="relu")
    >>> layer(np.ones((2, 64))).shape
    (2, 32)
    """

    def __init__(
        self, units: int, activation: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(activation=activation, **kwargs)
        self.units = checks.count("units", units)

    def build(self, input_shape):
        self._add_weights(input_shape[-1:], (input_shape[-1], self.units))

    def claimed_sensitivity(self, neighbours, settings=None):
        """Delta_h0 = 2 |h0| d, see `claims`."""
        return claims.affine_sensitivity(
            self.units, self.record_shape[0], neighbours=neighbours
        )

    def affine(self, inputs, bias):
        outputs = ops.matmul(inputs, self.kernel)
        return outputs if bias is None else ops.add(outputs, bias)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)


@keras.saving.register_keras_serializable(package="keras_fm")
class PerturbedConv2D(PerturbedInputLayer):
    """Convolutional first layer whose inputs and bias are shifted by noise.

    The convolutional form of `PerturbedAffine` (Phan et al., ICDM 2017), for
    inputs in [0, 1]. Each input pixel and channel gets one
    Laplace(Delta_h0 / eps_j) / |L| value, the same for all records, and each
    filter's bias gets one too. The layer trains only under a
    `keras_fm.callbacks.PrivateModel` with `Published(lot=...)`. At inference,
    and with `unprotected=True`, it works like `keras.layers.Conv2D`. A proven
    model refuses it.

    Args:
        filters: positive int, number of feature maps.
        kernel_size: int or pair.
        strides: int or pair.
        padding: `"same"` or `"valid"`.
        activation: activation function, default none.
        use_bias: whether to add a bias.
        kernel_initializer, bias_initializer: initializers.
        unprotected: `True` for the non-private twin.

    Input shape: `(batch, height, width, channels)`, channels last. Output
    shape: `(batch, new_height, new_width, filters)`.

    Raises:
        ValueError: if an argument is outside its range, or height or width
            is unknown when the layer is built.

    Example:

    >>> layer = PerturbedConv2D(32, 5, activation="relu")
    >>> layer(np.ones((2, 28, 28, 1))).shape
    (2, 28, 28, 32)
    >>> layer.claimed_sensitivity("replace_one")
    39337984.0
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "same",
        activation: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activation=activation, **kwargs)
        self.filters = checks.count("filters", filters)
        self.kernel_size = layer_arguments.pair("kernel_size", kernel_size)
        self.strides = layer_arguments.pair("strides", strides)
        self.padding = checks.either("padding", padding, ("same", "valid"))

    def build(self, input_shape):
        self._add_weights(
            input_shape[1:], (*self.kernel_size, input_shape[-1], self.filters)
        )

    def claimed_sensitivity(self, neighbours, settings=None):
        """Delta_h0 in the form of the settings, see `claims`."""
        settings = settings or PublishedAdLM()
        shape = self.compute_output_shape((None, *self.record_shape))
        return claims.convolution_sensitivity(
            form=settings.form,
            filters=self.filters,
            positions=math.prod(settings.feature_map or shape[1:3]),
            patch=math.prod(self.kernel_size) * self.record_shape[-1],
            inputs=math.prod(self.record_shape),
            neighbours=neighbours,
        )

    def affine(self, inputs, bias):
        outputs = ops.conv(
            inputs,
            self.kernel,
            strides=self.strides,
            padding=self.padding,
            data_format="channels_last",
        )
        return outputs if bias is None else ops.add(outputs, bias)

    def compute_output_shape(self, input_shape):
        return layer_arguments.map_shape(
            input_shape,
            self.kernel_size,
            self.strides,
            self.padding,
            self.filters,
        )
