"""Whether layers that a model is built of were trained before."""

import random

import keras
import numpy as np
from keras import ops


def are_first(layers):
    """Whether all weights of layers are those that they were built with.

    Layers that are not built have none yet. Others are built once more, with
    the same initializers: those of Keras draw the same numbers at every call.

    Args:
        layers: list of layers, or one model.

    Example:

    >>> dense = keras.layers.Dense(3)
    >>> dense.build((None, 2))
    >>> are_first([dense])
    True
    >>> dense.kernel.assign(np.ones((2, 3)))
    >>> are_first([dense])
    False
    """
    layers = layers if isinstance(layers, list) else [layers]
    # What is no layer is refused elsewhere.
    held = [v for v in layers if isinstance(v, keras.layers.Layer)]
    inner = [v for layer in held for v in layer._flatten_layers()]
    # New initializers take a seed from here, which these do not keep.
    state = random.getstate()
    try:
        return all(_is_first(v) for v in inner if _own_weights(v))
    finally:
        random.setstate(state)


def _own_weights(layer):
    """Not those of layers in it."""
    return layer._trainable_variables + layer._non_trainable_variables


def _is_first(layer):
    try:
        twin = type(layer).from_config(layer.get_config())
        for name, value in vars(layer).items():
            if name.endswith("_initializer"):
                setattr(twin, name, value)
        twin.build_from_config(layer.get_build_config())
    # What cannot be built again is not known.
    except Exception:
        return False
    mine, drawn = _own_weights(layer), _own_weights(twin)
    return len(mine) == len(drawn) and all(
        np.array_equal(ops.convert_to_numpy(a), ops.convert_to_numpy(b))
        for a, b in zip(mine, drawn)
    )
