"""The public map of a table: from columns to features in the unit ball.

Columns are scaled before a model sees them: its float32 would lose them where
they are far from 0, as times are.
"""

import keras
import numpy as np

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.parts.private_part import PrivatePart
from keras_fm.public.normalization_layer import NormalizationLayer


def layers(features, bounds, num_columns):
    """Layers from a record's columns, `scaled` where there are `bounds`, to
    features of L2 norm at most 1.

    Args:
        features: `None`, a layer, several, or a function that makes them.
        bounds: `None`, or `(low, high)`, public.
        num_columns: int.

    Returns:
        list of layers, fresh where they may learn.

    Raises:
        ValueError: if neither is given, or one is not as above.
    """
    if features is None:
        if bounds is None:
            raise ValueError(
                "`bounds` must be (low, high), the public range of every "
                "column (numbers, or one for each column). It is never read "
                "from the records. Received: bounds=None"
            )
        # All of the box [-1, 1]^d, without a loss.
        return [keras.layers.Rescaling(num_columns**-0.5)]
    return [*_made(features), NormalizationLayer(mode="ball")]


def takes_missing(features, bounds):
    """Whether the first layer knows what to do with NaN."""
    if features is None or bounds is not None:
        return False
    return getattr(_made(features)[0], "takes_missing", False)


def scaled(x, bounds):
    """Columns in [-1, 1], float32; values outside count as the nearest.

    Args:
        x: float64 `(n, d)`, finite.
        bounds: `(low, high)`, public.

    Raises:
        ValueError: if they are not as above.
    """
    num_columns = x.shape[1]
    try:
        low, high = bounds_lib.checked_pair("bounds", bounds)
        low, high = (np.broadcast_to(b, (num_columns,)) for b in (low, high))
        # Halves first: a difference of large numbers would overflow.
        half = high / 2 - low / 2
        if not np.all(half > 0):
            raise ValueError("further apart than rounding")
    except ValueError:
        raise ValueError(
            "`bounds` must be (low, high), two finite numbers, the first the "
            "smaller, or two arrays of one for each of the "
            f"{num_columns} columns; not a pair for each. Received: "
            f"bounds={bounds!r}"
        ) from None
    x = (np.clip(x, low, high) / 2 - low / 2) / half
    return (2 * x - 1).astype(np.float32)


def _made(features):
    if isinstance(features, keras.layers.Layer):
        features = [features]
    elif callable(features):
        features = features()
        if isinstance(features, keras.layers.Layer):
            features = [features]
    found = list(features) if isinstance(features, (list, tuple)) else [None]
    if not found or not all(isinstance(f, keras.layers.Layer) for f in found):
        checks.refuse(
            "features",
            features,
            "a Keras layer, several in a list, or a function that returns them",
        )
    return [_fresh(layer) for layer in found]


def _fresh(layer):
    """The layer itself where it is public and has weights, which its copy
    would lose; a new one where a fit may release it."""
    if layer.weights and not isinstance(layer, PrivatePart):
        return layer
    return type(layer).from_config(layer.get_config())
