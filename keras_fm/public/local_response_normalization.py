from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core import layer_arguments
from keras_fm.core.configured_layer import ConfiguredLayer
from keras_fm.kernel import checks

# Largest square: sums of them stay finite in single precision.
_LARGEST = 1e34


@keras.saving.register_keras_serializable(package="keras_fm")
class LocalResponseNormalization(ConfiguredLayer):
    """Divides each feature by the energy of its neighbouring maps.

        h / max(|h|, (q + a * sum of h'^2)^beta),

    the sum over the `size` maps around h at the same position (AdLM Eq. 22;
    the denominator is pCDBN's Z). Outputs lie in [-1, 1]. Every record is
    treated on its own, so the layer uses no privacy.

    Args:
        size: positive odd int l, number of maps in the sum.
        q, a, beta: numbers > 0.

    Input and output shape: `(batch, ..., maps)`, channels last.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> layer = LocalResponseNormalization()
    >>> float(layer(np.full((1, 1), 100.0))[0, 0])
    1.0
    """

    relevance_rule = "same_entry"

    def __init__(
        self,
        size: int = 5,
        q: float = 2.0,
        a: float = 1e-4,
        beta: float = 0.75,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.size = layer_arguments.odd("size", size)
        self.q = checks.positive("q", q)
        self.a = checks.positive("a", a)
        self.beta = checks.positive("beta", beta)

    def call(self, inputs):
        h = local_response(inputs, self.size, self.q, self.a, self.beta)
        return ops.cast(h, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape


def local_response(h, size, q, a, beta):
    """`h / max(|h|, (q + a sum h'^2)^beta)`, the last axis holds the maps."""
    dtype = h.dtype
    # Half precision overflows in the squares.
    h = ops.cast(h, "float32")
    places = np.arange(h.shape[-1])
    near = np.abs(places[:, None] - places) <= size // 2
    # A matrix product goes over the maps once, sums `size` times. It must get
    # no infinity.
    squares = ops.minimum(h * h, _LARGEST)
    energy = ops.matmul(squares, ops.convert_to_tensor(near, "float32"))
    floor = _power(q + a * energy, beta)
    return ops.cast(ops.clip(h / floor, -1.0, 1.0), dtype)


def _power(x, beta):
    # Roots are faster than exponential and logarithm, these than a power.
    if beta == 0.75:
        root = ops.sqrt(x)
        return root * ops.sqrt(root)
    return ops.exp(beta * ops.log(x))
