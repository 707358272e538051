"""The common part of layers that `adapt` fits to public data."""

import math

import keras
from keras import ops

from keras_fm.core.configured_layer import ConfiguredLayer
from keras_fm.kernel import checks


class AdaptedLayer(ConfiguredLayer):
    """A map of single records, fitted to public data that it names.

    Its weights are NaN until `adapt` or a saved file fills them, so a forgotten
    `adapt` shows. `public_data` describes the data in reports.
    """

    # The call of `adapt`, and the numbers in `public_data` beside the words.
    _adapt_call = "adapt(public_data, description=...)"
    _told: tuple[str, ...] = ("records",)

    def __init__(self, public_data=None, **kwargs):
        super().__init__(**kwargs)
        self.public_data = None if public_data is None else dict(public_data)

    def _add_public_weight(self, name, shape):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=keras.initializers.Constant(math.nan),
            trainable=False,
        )

    def _tell(self, description, **numbers):
        """Keeps a description of the public data."""
        self.public_data = {"description": description, **numbers}

    @staticmethod
    def _check_description(description):
        wanted = "a text that names the public data"
        checks.text("description", description, wanted)

    def _check_adapted(self):
        if self.public_data is None:
            raise ValueError(
                f"The layer {self.name!r} has no map yet. Call "
                f"`layer.{self._adapt_call}` with public or synthetic data, "
                "or load a saved layer, before it is used."
            )

    def load_own_variables(self, store):
        super().load_own_variables(store)
        if self.public_data is None:
            # Weights alone do not name the data they were fitted to.
            self._tell(
                "not stated (weights loaded from a file)",
                **dict.fromkeys(self._told),
            )


class AdaptedProjection(AdaptedLayer):
    """An affine map of the last axis to `units`, fitted to public data."""

    def __init__(self, units, public_data=None, **kwargs):
        super().__init__(public_data, **kwargs)
        self.units = checks.count("units", units)

    def build(self, input_shape):
        features = self._checked_features(input_shape[-1])
        self.kernel = self._add_public_weight("kernel", (features, self.units))
        self.bias = self._add_public_weight("bias", (self.units,))

    def _checked_features(self, features):
        if features is None or features < self.units:
            raise ValueError(
                "The number of input features must be known and at least "
                f"`units`. Received: {features} features, units={self.units}"
            )
        return features

    def _assign(self, kernel, mean):
        """The map `f -> (f - mean) @ kernel`."""
        if not self.built:
            self.build((None, len(kernel)))
        self.kernel.assign(kernel)
        self.bias.assign(-mean @ kernel)

    def linear_part(self, x):
        """The whole layer is linear; for layer-wise relevance."""
        return self(x)

    def call(self, inputs):
        self._check_adapted()
        return ops.matmul(inputs, self.kernel) + self.bias

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)
