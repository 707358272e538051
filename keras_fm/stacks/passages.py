"""Layers without weights between those that are trained, as functions that
treat records one by one.

A layer is taken if its kind is known to; it then runs as a twin of its own in
float32, whatever the policy of the model is.
"""

import sys

import keras
import numpy as np

from keras_fm.public import activations

_SIDES = [
    getattr(keras.layers, f"{name}{rank}D")
    for rank in (1, 2, 3)
    for name in (
        *("MaxPooling", "AveragePooling"),
        *("GlobalMaxPooling", "GlobalAveragePooling"),
        *("AdaptiveMaxPooling", "AdaptiveAveragePooling"),
        *("ZeroPadding", "Cropping", "UpSampling"),
    )
    # Adaptive ones are new in Keras.
    if hasattr(keras.layers, f"{name}{rank}D")
]
_VALUES = (
    keras.layers.Activation,
    keras.layers.ReLU,
    keras.layers.LeakyReLU,
    keras.layers.ELU,
    keras.layers.Identity,
    keras.layers.Rescaling,
)
# Normalisations without weights of their own.
_AXES = (
    keras.layers.UnitNormalization,
    keras.layers.LayerNormalization,
    keras.layers.GroupNormalization,
    keras.layers.Softmax,
)
_SHAPES = (
    keras.layers.Flatten,
    keras.layers.Reshape,
    keras.layers.Permute,
    keras.layers.RepeatVector,
)
_MERGES = (
    keras.layers.Add,
    keras.layers.Subtract,
    keras.layers.Multiply,
    keras.layers.Average,
    keras.layers.Maximum,
    keras.layers.Minimum,
    keras.layers.Concatenate,
)
_UNKNOWN = (
    "has no gradients of single records here: docs/gradient_net.md lists what "
    "`layers` takes"
)
_MIXING = {
    keras.layers.BatchNormalization: "mixes the records of a batch: take "
    "GroupNormalization or LayerNormalization",
}
KINDS = (*_VALUES, *_AXES, *_SHAPES, *_SIDES, *_MERGES)


# Of `keras.ops`: what `a + b` and its like are in a graph.
_OPERATORS = "Add Subtract Multiply TrueDivide Negative Maximum Minimum".split()


def _is_operator(kind):
    module = "keras.src.ops.numpy"
    return (
        kind.__module__ == module
        and kind.__name__ in _OPERATORS
        and vars(sys.modules[module]).get(kind.__name__) is kind
    )


def of_operation(operation, args, kwargs):
    """The passage through an operation of a graph.

    Args:
        operation: a Keras layer without weights, or an operation between
            tensors.
        args, kwargs: what it is called with, symbolic.

    Returns:
        a function of `args` and `kwargs`.

    Raises:
        ValueError: if it is not known to treat records one by one, naming it.
    """
    # Subclasses may do anything in `call`.
    kind = type(operation)
    given = keras.tree.flatten([args, kwargs])
    tensors = [v for v in given if isinstance(v, keras.KerasTensor)]
    if len({len(tensor.shape) for tensor in tensors}) > 1:
        raise _refusal(operation, "lines up tensors of different axes")
    if _is_operator(kind):
        _check_numbers(operation, given)
        return operation
    if kind not in KINDS:
        raise _refusal(operation, _MIXING.get(kind, _UNKNOWN))
    if getattr(operation, "data_format", None) == "channels_first":
        raise _refusal(operation, "must be of data_format='channels_last'")
    axes = getattr(operation, "axis", -1)
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    if any(axis in (0, -len(tensors[0].shape)) for axis in axes):
        raise _refusal(operation, "works along the records")
    if kind is keras.layers.Rescaling:
        numbers = (operation.scale, operation.offset)
        if any(isinstance(v, (list, tuple)) or np.ndim(v) for v in numbers):
            raise _refusal(operation, "must have one number for all entries")
    if kind is keras.layers.Activation:
        if activations.get(operation.activation) is None:
            names = activations.NAMES
            raise _refusal(
                operation, f"must have one of the activations {names}"
            )
    return twin(operation, args, kwargs)


def unscaled(layer, args):
    """A normalisation as it is before it learns anything, without an effect
    of its scale and offset."""
    config = layer.get_config()
    neutral = {"scale": False, "center": False}
    if config.get("rms_scaling"):
        # Has a scale whatever is said.
        neutral = {"gamma_initializer": "ones"}
    return twin(
        layer, args, {}, **{k: v for k, v in neutral.items() if k in config}
    )


def twin(layer, args, kwargs, **changes):
    """A layer of the same settings but for `changes`, built: in float32, in
    float64 if the layer itself is."""
    dtype = "float64" if layer.compute_dtype == "float64" else "float32"

    def symbolic(value):
        if isinstance(value, keras.KerasTensor):
            return keras.KerasTensor(value.shape, dtype)
        return value

    config = {**layer.get_config(), "dtype": dtype, **changes}
    made = type(layer).from_config(config)
    args, kwargs = keras.tree.map_structure(symbolic, [args, kwargs])
    made(*args, **kwargs)
    return made


def _check_numbers(operation, given):
    held = [*given, *vars(operation).values()]
    for value in held:
        if hasattr(value, "shape") and not isinstance(value, keras.KerasTensor):
            raise _refusal(operation, "holds a constant array")


def _refusal(layer, why):
    name = getattr(layer, "name", layer)
    return ValueError(
        f"Layer '{name}' ({type(layer).__name__}) {why}. Public or "
        "frozen layers go into `below`."
    )
