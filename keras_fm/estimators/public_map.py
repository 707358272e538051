"""The map of a table: from columns to features of which most are in the unit
ball."""

import keras
import numpy as np

from keras_fm.core.private_part import PrivatePart
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.preprocessing.private_normalization import PrivateNormalization
from keras_fm.public.normalization_layer import NormalizationLayer

# The unit ball's radius, in lengths of a typical row of scaled columns.
_LENGTH = 1.25
# Rows outside are scaled back as a whole, so no column needs a limit.
_NO_LIMIT = 1e6


def layers(features, bounds, num_columns, released):
    """Layers from a record's columns to features.

    Args:
        features: `None`, a layer, several, or a function that returns them.
        bounds: `None`, or `(low, high)`, public.
        num_columns: int.
        released: whether means and scales of columns may be released.

    Returns:
        list of layers; those that may learn are new.

    Raises:
        ValueError: if both are `None`, or one is not as above.
    """
    found = _scaled(bounds, num_columns)
    if features is None:
        if not found:
            raise ValueError(
                "`bounds` must be (low, high), the public range of every "
                "column (numbers, or one for each column). It is never "
                "computed from the records. Received: bounds=None"
            )
        if not released:
            # Fits all of the box [-1, 1]^d into the ball.
            return [*found, keras.layers.Rescaling(num_columns**-0.5)]
        return [
            PrivateNormalization(bounds, limit=_NO_LIMIT),
            keras.layers.Rescaling(1 / (_LENGTH * num_columns**0.5)),
        ]
    return [*found, *_made(features), NormalizationLayer(mode="ball")]


def takes_missing(features, bounds):
    """Whether the first layer accepts NaN."""
    if features is None or bounds is not None:
        return False
    return getattr(_made(features)[0], "takes_missing", False)


def _scaled(bounds, num_columns):
    """Layers that scale to [-1, 1] and clip values outside the bounds."""
    if bounds is None:
        return []
    try:
        low, high = bounds_lib.checked_pair("bounds", bounds)
        low, high = (np.broadcast_to(b, (num_columns,)) for b in (low, high))
    except ValueError:
        raise ValueError(
            "`bounds` must be (low, high): two finite numbers with low < "
            f"high, or two arrays with one for each of the {num_columns} "
            "columns. A pair for each column is not accepted. Received: "
            f"bounds={bounds!r}"
        ) from None
    return [
        NormalizationLayer(bounds=(low, high), norm="linf"),
        keras.layers.Rescaling(2.0, -1.0),
    ]


def _made(features):
    if callable(features) and not isinstance(features, keras.layers.Layer):
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
    """A new copy of a layer that a fit may release. A public layer with
    weights is returned itself, because a copy would lose them."""
    if layer.weights and not isinstance(layer, PrivatePart):
        return layer
    return type(layer).from_config(layer.get_config())
