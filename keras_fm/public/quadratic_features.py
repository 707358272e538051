import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core.configured_layer import ConfiguredLayer
from keras_fm.kernel import checks


@keras.saving.register_keras_serializable(package="keras_fm")
class QuadraticFeatures(ConfiguredLayer):
    """A record's features, and all products of two of the leading ones.

    For features `x` and the first `leading` of them, `g`, the output is

        `[sqrt(1 - share) x, sqrt(share) (g g^T) / |g|**2]`,

    of the symmetric product each entry once, those off the diagonal times
    `sqrt(2)`. A linear layer on it is a quadratic classifier. If `x` has norm 1
    at most, so has the output: put it behind `NormalizationLayer`, and that
    behind a map whose leading directions are public, such as
    `PrincipalProjection`. What `DPPCA` finds at a small epsilon is mostly
    noise. Each record is mapped on its own, so the layer uses no privacy.

    More products tell more, but the noise of a release grows with their
    `share`, for the features themselves are then scaled down.

    Source: the kernel is that of a polynomial of degree two, see Boser, Guyon
    and Vapnik, A Training Algorithm for Optimal Margin Classifiers, 1992.

    Args:
        leading: int, number k of features that are multiplied; there are k (k +
            1) / 2 products. All features if there are fewer.
        share: number in (0, 1), of the products in the squared norm of the
            output for features of norm 1.

    Input shape: `(..., features)`. Output shape: `(..., features + k (k + 1)
    / 2)`.

    Raises:
        ValueError: if an argument is not as above.

    Example:

    >>> layer = QuadraticFeatures(leading=2, share=0.5)
    >>> layer(np.array([[0.6, 0.0, 0.8]], "float32")).shape
    (1, 6)
    """

    def __init__(
        self, leading: int = 100, share: float = 0.25, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.leading = checks.count("leading", leading)
        self.share = checks.number("share", share, above=0, below=1)
        self.input_spec = keras.layers.InputSpec(min_ndim=2)

    def call(self, inputs):
        # Half precision loses the products of small features.
        wide = "float64" if self.compute_dtype == "float64" else "float32"
        x = ops.cast(inputs, wide)
        g = ops.normalize(x[..., : self.leading], axis=-1)
        first, second = np.triu_indices(g.shape[-1])
        scale = np.where(first == second, 1, math.sqrt(2))
        scale = (math.sqrt(self.share) * scale).astype(wide)
        products = ops.take(g, first, axis=-1) * ops.take(g, second, axis=-1)
        x = math.sqrt(1 - self.share) * x
        y = ops.concatenate([x, products * scale], axis=-1)
        return ops.cast(y, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        k = min(self.leading, input_shape[-1])
        return (*input_shape[:-1], input_shape[-1] + k * (k + 1) // 2)
