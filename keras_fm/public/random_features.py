import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core.configured_layer import ConfiguredLayer
from keras_fm.kernel import checks

_KINDS = ("projection", "fourier")


@keras.saving.register_keras_serializable(package="keras_fm")
class RandomFeatures(ConfiguredLayer):
    """Random features, drawn from a seed without using data.

    With `W` and `b` drawn once from `seed`, neither ever trained:

    * `"projection"`: `W x / sqrt(units)`, `W` standard normal; keeps
      lengths and angles in expectation (Johnson and Lindenstrauss, 1984).
    * `"fourier"`: `sqrt(2 / units) cos(W x / scale + b)`, `b` uniform on
      [0, 2 pi); inner products approximate the Gaussian kernel
      `exp(-|x - y|**2 / (2 scale**2))` (Rahimi and Recht, 2007).

    The seed is public, and so is the map; it uses no privacy. The L2 norm of
    `"fourier"` features is at most `sqrt(2)`; that of `"projection"` is not
    bounded: put `NormalizationLayer` after it.

    Args:
        units: int >= 1, number of features.
        kind: see above.
        scale: number > 0, the length on which `"fourier"` features change.
        seed: int, a public constant.

    Input shape: `(..., features)`. Output shape: `(..., units)`.

    Raises:
        ValueError: if an argument is not as above.

    Example:

    >>> layer = RandomFeatures(800, kind="fourier", scale=2.0, seed=7)
    >>> layer(np.zeros((2, 50), "float32")).shape
    (2, 800)
    """

    def __init__(
        self,
        units: int,
        kind: str = "projection",
        scale: float = 1.0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = checks.count("units", units)
        self.kind = checks.one_of("kind", kind, _KINDS)
        self.scale = checks.positive("scale", scale)
        wanted = "an integer >= 0, a public constant"
        self.seed = checks.integer("seed", seed, at_least=0, wanted=wanted)

    @property
    def public_data(self):
        """How the layer was made, for the privacy statement."""
        return f"random weights ({self.kind}, seed {self.seed})"

    def build(self, input_shape):
        features = input_shape[-1]
        # NumPy draws them, so that a seed gives the same features on all
        # backends.
        rng = np.random.default_rng(self.seed)
        kernel = rng.standard_normal((features, self.units))
        projects = self.kind == "projection"
        kernel /= math.sqrt(self.units) if projects else self.scale
        self.kernel, self.bias = self._constant("kernel", kernel), None
        if not projects:
            bias = rng.uniform(0, 2 * math.pi, self.units)
            self.bias = self._constant("bias", bias)

    def _constant(self, name, value):
        return self.add_weight(
            name=name,
            shape=value.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(
                value, dtype
            ),
            trainable=False,
        )

    def linear_part(self, x):
        """The part before the activation, for layer-wise relevance."""
        outputs = ops.matmul(x, self.kernel)
        if self.bias is None:
            return outputs
        return ops.add(outputs, ops.cast(self.bias, outputs.dtype))

    def call(self, inputs):
        y = self.linear_part(inputs)
        if self.kind == "projection":
            return y
        return math.sqrt(2 / self.units) * ops.cos(y)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)
