"""What the perturbed first layers of AdLM and ILM share: noise on the input."""

import math

import keras
import numpy as np
from keras import ops

from keras_fm import domain
from keras_fm.layers.hidden_state import HiddenStateLayer

NOISE = ("once", "per_step")


def positive_integer(name, value):
    """`value` as an int, or an error worded as Keras words it."""
    whole = isinstance(value, (int, np.integer))
    if not whole or isinstance(value, bool) or value <= 0:
        raise ValueError(
            f"Received an invalid value for `{name}`, expected a positive "
            f"integer. Received: {name}={value}"
        )
    return int(value)


class PerturbedInputLayer(HiddenStateLayer):
    """A first layer whose inputs and bias are shifted by Laplace noise.

    One noise value for each input feature and one for each bias entry, the
    same for all records (Phan et al., ICDM 2017, Algorithm 1). It acts only
    while training and only after `fix_noise`, which
    `keras_fm.callbacks.PrivateModel(guarantee="published")` calls.

    Args:
        adaptive: whether the noise of a feature follows its relevance
            (AdLM); `False` gives every feature the same scale (ILM).
        noise: `"once"` draws the noise before fit (the paper);
            `"per_step"` draws it again at every step (the authors' code).
        input_bound: `None`, or a number > 0: perturbed inputs are clipped
            to [-input_bound, input_bound] while training (the authors' code
            has 10).
        activation, use_bias, kernel_initializer, bias_initializer: as in
            Keras' layers.
    """

    def __init__(
        self,
        activation=None,
        use_bias=True,
        adaptive=False,
        noise="once",
        input_bound=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if noise not in NOISE:
            raise ValueError(
                f"`noise` must be one of {NOISE}. Received: noise={noise!r}"
            )
        if input_bound is not None and not (
            math.isfinite(input_bound) and input_bound > 0
        ):
            raise ValueError(
                "`input_bound` must be None or a finite number greater than "
                f"0. Received: input_bound={input_bound}"
            )
        self.adaptive, self.noise = bool(adaptive), noise
        self.input_bound = None if input_bound is None else float(input_bound)
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
        domain.check_noise(input_noise=input_noise, bias_noise=bias_noise)
        self._set_hidden("input_noise", np.asarray(input_noise))
        self._set_hidden("bias_noise", np.asarray(bias_noise))
        if self.noise == "per_step":
            self._set_hidden_seed("seed_state")

    def _drawn(self, name):
        if self.noise == "once":
            return self._get_hidden(name)
        return self._draw_laplace(name)

    def call(self, inputs, training=False):
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
