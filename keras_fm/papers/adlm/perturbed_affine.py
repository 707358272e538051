from typing import Any

import keras
from keras import ops

from keras_fm.papers.adlm import claims
from keras_fm.papers.adlm.perturbed_input import PerturbedInputLayer
from keras_fm.parts import layer_arguments


@keras.saving.register_keras_serializable(package="keras_fm")
class PerturbedAffine(PerturbedInputLayer):
    """Dense first layer whose inputs and bias are shifted by fixed noise.

    The published AdLM / ILM form (Phan et al., ICDM 2017, Algorithm 1): with
    lots of |L| records,

        h = activation(W^T (x + noise_x / |L|) + b + noise_b / |L|),

    one noise vector for all records, Laplace(Delta_h0 / eps_j) on feature j
    with Delta_h0 = 2 |h0| d, for inputs in [0, 1]^d. The layer trains under a
    `keras_fm.callbacks.PrivateModel` with `Published(lot=...)`, and without it
    refuses to train. At inference, and with `unprotected=True`, it is
    `keras.layers.Dense`.

    No proof covers one noise vector that all records share, so a proven
    model refuses this layer: use `keras.layers.Dense(..., trainable=False)`
    with public weights instead.

    Args:
        units: positive int, number of hidden units |h0|.
        activation: activation function, default none.
        use_bias: whether to add a bias.
        adaptive: whether the noise of a feature follows its relevance
            (AdLM); `False` gives every feature the same scale (ILM).
        noise: `"once"` draws before fit (the paper), `"per_step"` at every
            step (the authors' code).
        input_bound: `None`, or the bound that perturbed inputs are clipped
            to while training (10 in the authors' code).
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
        self.units = layer_arguments.positive_integer("units", units)

    def build(self, input_shape):
        self.inputs_dim = input_shape[-1]
        self._add_weights((self.inputs_dim,), (self.inputs_dim, self.units))

    def claimed_sensitivity(self, neighbours):
        """Delta_h0 = 2 |h0| d, see `claims`."""
        return claims.affine_sensitivity(
            self.units, self.inputs_dim, neighbours=neighbours
        )

    def affine(self, inputs, bias):
        outputs = ops.matmul(inputs, self.kernel)
        return outputs if bias is None else ops.add(outputs, bias)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
        }
