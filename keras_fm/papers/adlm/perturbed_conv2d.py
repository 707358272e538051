import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_fm.kernel import checks
from keras_fm.papers.adlm import claims
from keras_fm.papers.adlm.perturbed_input import PerturbedInputLayer
from keras_fm.parts import layer_arguments


@keras.saving.register_keras_serializable(package="keras_fm")
class PerturbedConv2D(PerturbedInputLayer):
    """Convolutional first layer whose inputs and bias are shifted by noise.

    The convolutional form of `PerturbedAffine` (Phan et al., ICDM 2017): one
    Laplace(Delta_h0 / eps_j) / |L| value for each input pixel and channel,
    the same for all records, and one for each filter's bias, for inputs in
    [0, 1]. The layer trains under a `keras_fm.callbacks.PrivateModel` with
    `Published(lot=...)`, and without it refuses to train. At inference, and
    with `unprotected=True`, it is `keras.layers.Conv2D`. A proven model
    refuses it.

    Args:
        filters: positive int, number of feature maps.
        kernel_size: int or pair.
        strides: int or pair.
        padding: `"same"` or `"valid"`.
        activation: activation function, default none.
        use_bias: whether to add a bias.
        sensitivity: `"paper"` (2 |h0| d, every neuron of every map) or
            `"patch"` (2 x positions x patch, the authors' code).
        feature_map: `None`, or the `(height, width)` that the sensitivity
            counts as positions; the authors count a map after pooling
            (14 x 14 for MNIST). `None` counts this layer's output.
        adaptive, noise, input_bound: as in `PerturbedAffine`.
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
        sensitivity: str = "paper",
        feature_map: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activation=activation, **kwargs)
        self.filters = layer_arguments.positive_integer("filters", filters)
        self.kernel_size = layer_arguments.pair("kernel_size", kernel_size)
        self.strides = layer_arguments.pair("strides", strides)
        self.feature_map = checks.optional(
            layer_arguments.pair, "feature_map", feature_map
        )
        self.padding = checks.either("padding", padding, ("same", "valid"))
        self.sensitivity = checks.one_of(
            "sensitivity", sensitivity, claims.SENSITIVITY_FORMS
        )

    def build(self, input_shape):
        if len(input_shape) != 4 or None in input_shape[1:]:
            raise ValueError(
                "PerturbedConv2D expects inputs of a known shape (batch, "
                "height, width, channels). Received: "
                f"input_shape={tuple(input_shape)}"
            )
        if min(self.compute_output_shape(input_shape)[1:3]) < 1:
            raise ValueError(
                "`kernel_size` must not exceed the image with "
                f'padding="valid". Received: kernel_size={self.kernel_size}, '
                f"input_shape={tuple(input_shape)}"
            )
        self._add_weights(
            input_shape[1:],
            (*self.kernel_size, input_shape[-1], self.filters),
        )

    def claimed_sensitivity(self, neighbours):
        """Delta_h0 in the form of `sensitivity`, see `claims`."""
        shape = self.compute_output_shape((None, *self.record_shape))
        return claims.convolution_sensitivity(
            form=self.sensitivity,
            filters=self.filters,
            positions=math.prod(self.feature_map or shape[1:3]),
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
        sizes = []
        for size, kernel, stride in zip(
            input_shape[1:3], self.kernel_size, self.strides
        ):
            if size is not None:
                reach = 0 if self.padding == "same" else kernel - 1
                size = -(-(size - reach) // stride)
            sizes.append(size)
        return (input_shape[0], *sizes, self.filters)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "sensitivity": self.sensitivity,
            "feature_map": self.feature_map,
        }
