import math
from typing import Any

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

        (1 + s (beta_j - 1))^power,   beta_j = d R_j / sum R,

    with R the noisy average relevance and s in [0, 1] how much of the first
    model is signal and not noise, estimated from its release (1 with
    `shrink=False`). `keras_fm.callbacks.PrivateModel`
    releases a first model and its relevance at this layer's input, sets the
    scales, and then releases the model that is kept; all three are charged.
    Put `NormalizationLayer` after it: the scaled record must be in the unit
    ball again. Until then, and without the callback, the scales are 1.

    Args:
        power: number >= 0; 0 changes nothing.
        shrink: whether shares are drawn towards 1 where the first model is
            mostly noise, so that its accidents do not rule.

    Input and output shape: `(batch, ...)`, of a known record shape.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> layer = RelevanceScaling()
    >>> y = layer(np.ones((1, 2)))
    >>> layer.set_shares(np.array([1.5, 0.5]))
    """

    def __init__(
        self, power: float = 1.0, shrink: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if not (math.isfinite(power) and power >= 0):
            raise ValueError(
                "`power` must be a finite number of at least 0. Received: "
                f"power={power}"
            )
        self.power, self.shrink = float(power), bool(shrink)

    def build(self, input_shape):
        self.scale = self.add_weight(
            name="scale",
            shape=input_shape[1:],
            initializer="ones",
            trainable=False,
        )

    def set_shares(self, shares, signal_share=1.0):
        """Sets the scales from released relevance shares.

        Args:
            shares: one record's shape, all > 0, mean 1.
            signal_share: s in [0, 1]; not used with `shrink=False`.

        Raises:
            ValueError: if the shape is wrong, a share is not > 0, or
                `signal_share` is outside [0, 1].
        """
        shares = np.asarray(shares, np.float64)
        if shares.shape != tuple(self.scale.shape):
            raise ValueError(
                f"Shares must have shape {tuple(self.scale.shape)}. "
                f"Received: {shares.shape}"
            )
        if not np.all(np.isfinite(shares) & (shares > 0)):
            raise ValueError("Shares must be finite and greater than 0.")
        if not 0 <= signal_share <= 1:
            raise ValueError(
                "`signal_share` must be between 0 and 1. Received: "
                f"signal_share={signal_share}"
            )
        if self.shrink:
            shares = 1 + signal_share * (shares - 1)
        self.scale.assign(shares**self.power)

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
            "shrink": self.shrink,
        }
