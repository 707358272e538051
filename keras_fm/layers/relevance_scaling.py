import math

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="keras_fm")
class RelevanceScaling(keras.layers.Layer):
    """Scales every feature by its released relevance.

    The proven form of AdLM's "less noise where the relevance is larger":
    noise of the release is the same in every coordinate, so a feature that
    takes more of a record's unit norm is read more precisely. The layer
    multiplies feature j by

        max(beta_j, floor)^power,   beta_j = d R_j / sum R,

    with R the noisy average relevance. `keras_fm.callbacks.PrivateModel`
    releases a first model and its relevance at this layer's input, sets the
    scales, and then releases the model that is kept; all three are charged.
    Put `NormalizationLayer` after it: the scaled record must be in the unit
    ball again. Until then, and without the callback, the scales are 1.

    Args:
        power: number >= 0; 0 changes nothing.
        floor: number >= 0, smallest share; features below it keep this
            much, 0 only what the noise's own floor leaves.

    Input and output shape: `(batch, ...)`, of a known record shape.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> layer = RelevanceScaling()
    >>> y = layer(np.ones((1, 2)))
    >>> layer.set_shares(np.array([1.5, 0.5]))
    """

    def __init__(self, power=1.0, floor=0.0, **kwargs):
        super().__init__(**kwargs)
        for name, value in (("power", power), ("floor", floor)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"`{name}` must be a finite number of at least 0. "
                    f"Received: {name}={value}"
                )
        self.power, self.floor = float(power), float(floor)

    def build(self, input_shape):
        self.scale = self.add_weight(
            name="scale",
            shape=input_shape[1:],
            initializer="ones",
            trainable=False,
        )

    def set_shares(self, shares):
        """Sets the scales from released relevance shares.

        Args:
            shares: one record's shape, all > 0, mean 1.

        Raises:
            ValueError: if the shape is wrong or a share is not > 0.
        """
        shares = np.asarray(shares, np.float64)
        if shares.shape != tuple(self.scale.shape):
            raise ValueError(
                f"Shares must have shape {tuple(self.scale.shape)}. "
                f"Received: {shares.shape}"
            )
        if not np.all(np.isfinite(shares) & (shares > 0)):
            raise ValueError("Shares must be finite and greater than 0.")
        self.scale.assign(np.maximum(shares, self.floor) ** self.power)

    def reset(self):
        """Sets all scales back to 1."""
        self.scale.assign(np.ones(self.scale.shape))

    def call(self, inputs):
        return inputs * ops.cast(self.scale, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "power": self.power,
            "floor": self.floor,
        }
