import math

import keras
from keras import ops

_KINDS = ("projection", "fourier", "sigmoid")


@keras.saving.register_keras_serializable(package="keras_fm")
class RandomFeatures(keras.layers.Layer):
    """Features with random weights that no data touched: public.

    With W `(inputs, units)` of independent standard normals and b uniform:

    * `"projection"`: `x W / sqrt(units)`, which keeps lengths in the mean
      (Johnson and Lindenstrauss 1984).
    * `"fourier"`: `sqrt(2 / units) cos(x W / scale + b)`, b in [0, 2 pi):
      inner products approach the Gaussian kernel
      `exp(-||x - x'||^2 / (2 scale^2))` (Rahimi and Recht 2007). L2 norm at
      most `sqrt(2)`.
    * `"sigmoid"`: `sigmoid(x W / scale + b) - 1/2`, b in [-1, 1): a hidden
      layer with public weights, centred at its public range.

    The weights are not trainable. They are drawn from `seed`, a public
    constant, and saved with the model.

    Args:
        units: positive int, number of features.
        kind: see above.
        scale: float > 0, the length over which features change.
        seed: int.

    Input shape: `(batch, ..., inputs)`. Output shape: `(batch, ..., units)`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> layer = RandomFeatures(100, kind="fourier", scale=0.5)
    >>> layer(np.ones((2, 64)) / 8).shape
    (2, 100)
    """

    def __init__(self, units, kind="projection", scale=1.0, seed=0, **kwargs):
        kwargs.setdefault("trainable", False)
        super().__init__(**kwargs)
        if not isinstance(units, int) or units <= 0:
            raise ValueError(
                "Received an invalid value for `units`, expected a positive "
                f"integer. Received: units={units}"
            )
        if kind not in _KINDS:
            raise ValueError(
                f"`kind` must be one of {_KINDS}. Received: kind={kind!r}"
            )
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(
                "`scale` must be a finite number greater than 0. Received: "
                f"scale={scale}"
            )
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(
                "`seed` must be an integer of at least 0. Received: "
                f"seed={seed}"
            )
        self.units, self.kind = units, kind
        self.scale, self.seed = float(scale), seed

    @property
    def public_data(self):
        """What the layer was made from, for the privacy statement."""
        return f"random weights ({self.kind}, seed {self.seed})"

    def build(self, input_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], self.units),
            initializer=keras.initializers.RandomNormal(
                stddev=1.0, seed=self.seed
            ),
            trainable=False,
        )
        self.bias = None
        low, high = {"fourier": (0.0, 2 * math.pi), "sigmoid": (-1.0, 1.0)}.get(
            self.kind, (0.0, 0.0)
        )
        if self.kind != "projection":
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=keras.initializers.RandomUniform(
                    low, high, seed=self.seed + 1
                ),
                trainable=False,
            )

    def call(self, inputs):
        x = ops.matmul(inputs, self.kernel)
        if self.kind == "projection":
            return x / self.units**0.5
        x = x / self.scale + self.bias
        if self.kind == "fourier":
            return (2 / self.units) ** 0.5 * ops.cos(x)
        return ops.sigmoid(x) - 0.5

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "kind": self.kind,
            "scale": self.scale,
            "seed": self.seed,
        }
