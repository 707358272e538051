"""The public map of a table: from columns to features in the unit ball."""

import keras
import numpy as np

from keras_fm.core.private_part import PrivatePart
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.public.normalization_layer import NormalizationLayer


def layers(features, bounds, num_columns):
    """Layers from a record's columns to features of L2 norm at most 1.

    Args:
        features: `None`, a layer, several, or a function that returns them.
        bounds: `None`, or `(low, high)`, public.
        num_columns: int.

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
        # Fits all of the box [-1, 1]^d into the ball; nothing is clipped.
        return [*found, keras.layers.Rescaling(num_columns**-0.5)]
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
