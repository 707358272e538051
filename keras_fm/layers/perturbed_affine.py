import keras
import numpy as np
from keras import ops

from keras_fm.layers.hidden_state import HiddenStateLayer


@keras.saving.register_keras_serializable(package="keras_fm")
class PerturbedAffine(HiddenStateLayer):
    """Dense first layer whose inputs and bias are shifted by fixed noise.

    The published AdLM / ILM form (Phan et al., ICDM 2017, Algorithm 1): with
    lots of |L| records,

        h = activation(W^T (x + noise_x / |L|) + b + noise_b / |L|),

    one noise vector for all records, drawn once before fit by a
    `keras_fm.callbacks.PrivateModel(guarantee="published")`. Noise acts only
    while training; without the callback, and at inference, this is
    `keras.layers.Dense`.

    No proof covers one noise vector that all records share, so a proven
    model refuses this layer: use `keras.layers.Dense(..., trainable=False)`
    with public weights instead.

    Args:
        units: positive int, number of hidden units |h0|.
        activation: activation function, default none.
        use_bias: whether to add a bias.
        kernel_initializer, bias_initializer: initializers.

    Input shape: `(batch, ..., inputs)`. Output shape: `(batch, ..., units)`.

    Raises:
        ValueError: if `units` is not a positive integer.

    Example:

    >>> layer = PerturbedAffine(32, activation="relu")
    >>> layer(np.ones((2, 64))).shape
    (2, 32)
    """

    def __init__(
        self,
        units,
        activation=None,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(units, int) or units <= 0:
            raise ValueError(
                "Received an invalid value for `units`, expected a positive "
                f"integer. Received: units={units}"
            )
        self.units = units
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape):
        self.inputs_dim = input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.inputs_dim, self.units),
            initializer=self.kernel_initializer,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
            )

    @property
    def is_perturbed(self):
        """Whether noise was fixed."""
        return self._has_hidden("input_noise")

    def fix_noise(self, input_noise, bias_noise):
        """Fixes the noise, already divided by the lot size.

        Args:
            input_noise: `(inputs,)`.
            bias_noise: `(units,)`; ignored without a bias.

        Raises:
            ValueError: if a shape is wrong or noise was fixed before: the
                objective of a fit is perturbed exactly once.
        """
        input_noise, bias_noise = (
            np.asarray(input_noise),
            np.asarray(bias_noise),
        )
        if input_noise.shape != (self.inputs_dim,) or bias_noise.shape != (
            self.units,
        ):
            raise ValueError(
                "Noise must have shapes "
                f"{(self.inputs_dim,)} and {(self.units,)}. Received: "
                f"{input_noise.shape} and {bias_noise.shape}"
            )
        if self.is_perturbed:
            raise ValueError(
                f"The noise of layer '{self.name}' is fixed already."
            )
        self._set_hidden("input_noise", input_noise)
        self._set_hidden("bias_noise", bias_noise)

    def call(self, inputs, training=False):
        bias = self.bias
        if training and self.is_perturbed:
            noise = self._get_hidden("input_noise")
            inputs = inputs + ops.cast(noise, inputs.dtype)
            if bias is not None:
                noise = self._get_hidden("bias_noise")
                bias = ops.add(bias, ops.cast(noise, self.compute_dtype))
        outputs = ops.matmul(inputs, self.kernel)
        if bias is not None:
            outputs = ops.add(outputs, bias)
        return self.activation(outputs)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "bias_initializer": keras.initializers.serialize(
                self.bias_initializer
            ),
        }
