"""Layers without weights between those that are trained, as functions of a
batch that treat records one by one."""

import keras
from keras import ops

from keras_fm.public import activations

KINDS = (
    keras.layers.Activation,
    keras.layers.ReLU,
    keras.layers.UnitNormalization,
    keras.layers.MaxPooling2D,
    keras.layers.AveragePooling2D,
    keras.layers.GlobalAveragePooling2D,
    keras.layers.Flatten,
    keras.layers.Reshape,
)


def _unit_normalization(z):
    """Every record as a vector of length one; one of zeros stays."""
    squared = ops.sum(ops.square(z), axis=1, keepdims=True)
    # As in Keras.
    return z / ops.sqrt(ops.maximum(squared, 1e-24))


def _pooling(pool, layer):
    def function(z):
        return pool(
            z,
            layer.pool_size,
            strides=layer.strides,
            padding=layer.padding,
            data_format="channels_last",
        )

    return function


def of_layer(layer, input_shape):
    """The passage through a layer, or `None` if it changes shapes alone.

    Args:
        layer: a Keras layer without weights.
        input_shape: shape of what it reads, without the batch.

    Returns:
        a function of tensors whose records may have any shape of that size.

    Raises:
        ValueError: if it is not known to treat records one by one, naming it.
    """
    # Subclasses may do anything in `call`.
    kind = type(layer)
    if getattr(layer, "data_format", None) == "channels_first":
        raise _refusal(layer, "is of data_format='channels_first'")
    if kind in (keras.layers.Flatten, keras.layers.Reshape):
        return None
    function = _function(kind, layer, input_shape)
    return lambda z: function(ops.reshape(z, (-1, *input_shape)))


def _function(kind, layer, input_shape):
    if kind is keras.layers.Activation:
        known = activations.get(layer.activation)
        if known is None:
            raise _refusal(
                layer, f"must have one of the activations {activations.NAMES}"
            )
        return known.value
    if kind is keras.layers.ReLU:
        given = layer.max_value, layer.negative_slope, layer.threshold
        if given != (None, 0.0, 0.0):
            raise _refusal(layer, "must be a plain `ReLU()`")
        return ops.relu
    if kind is keras.layers.UnitNormalization:
        vectors = len(input_shape) == 1 and layer.axis in (-1, 1, [1], [-1])
        if not vectors:
            raise _refusal(layer, "must read vectors")
        return _unit_normalization
    if kind is keras.layers.MaxPooling2D:
        return _pooling(ops.max_pool, layer)
    if kind is keras.layers.AveragePooling2D:
        return _pooling(ops.average_pool, layer)
    if kind is keras.layers.GlobalAveragePooling2D:
        return lambda z: ops.mean(z, axis=(1, 2))
    raise _refusal(layer, "is not known here")


def _refusal(layer, why):
    return ValueError(
        f"Layer '{layer.name}' ({type(layer).__name__}) {why}. Public or "
        "frozen layers go into `below`."
    )
