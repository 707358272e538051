"""Whether the compiled loss fits the labels and the logits of a private model.

Training minimises the released objective; the compiled loss is what `evaluate`
and `validation_data` show.
"""

import keras
import numpy as np
from keras import ops

from keras_fm.parts import replicas

# Losses that take probabilities unless they are told otherwise, by the names
# of their functions; `None` where there is no form for logits.
_OF_PROBABILITIES = {
    "binary_crossentropy": "BinaryCrossentropy",
    "binary_focal_crossentropy": "BinaryFocalCrossentropy",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "categorical_focal_crossentropy": "CategoricalFocalCrossentropy",
    "categorical_generalized_cross_entropy": None,
    "kl_divergence": None,
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
}


def check(model, y):
    """Refuses a compiled loss that cannot compare labels with the output.

    It would stop at the first step, after the fit was paid for.

    Args:
        model: a compiled model.
        y: the labels of the fit; only their shape and type are looked at.

    Raises:
        ValueError: saying what was compared, and what to write instead.
    """
    check_takes_logits(model)
    outputs = getattr(model, "outputs", None)
    shape = getattr(y, "shape", None)
    compiled = getattr(model, "_compile_loss", None)
    if not outputs or shape is None or compiled is None:
        return
    if replicas.of_strategy(model)[0] > 1:
        # Losses are scaled within a replica only.
        return
    # As many rows as no other axis has, so that nothing is broadcast.
    rows = 2 + max([*shape[1:], *outputs[0].shape[1:]], default=0)
    kind = keras.backend.standardize_dtype(y.dtype)
    labels = np.zeros((rows, *shape[1:]), kind)
    logits = np.zeros((rows, *outputs[0].shape[1:]), "float32")
    try:
        compiled(ops.convert_to_tensor(labels), ops.convert_to_tensor(logits))
    # Every backend has errors of its own for shapes.
    except Exception as e:
        raise ValueError(
            "The compiled loss cannot compare these labels with the output "
            "of the model. Compile it with "
            "`keras_fm.losses.TaylorCrossEntropy()`. Received: loss="
            f"{model.loss!r}, labels of shape {tuple(shape)}, output of shape "
            f"{tuple(outputs[0].shape)}"
        ) from e


def check_takes_logits(model):
    """Refuses a loss of probabilities above a layer that gives logits.

    Its values would mean nothing, and early stopping on them neither.

    Raises:
        ValueError: saying what to write instead.

    Example:

    >>> logits = keras_fm.layers.PrivateDense(3)
    >>> model = keras.Sequential([keras.Input((4,)), logits])
    >>> model.compile("adam", "sparse_categorical_crossentropy")
    >>> check_takes_logits(model)
    Traceback (most recent call last):
    ...
    ValueError: The compiled loss takes probabilities, but 'private_dense' ...
    """
    outputs = getattr(model, "outputs", None)
    layer = outputs[0]._keras_history[0] if outputs else None
    if not getattr(layer, "gives_logits", False):
        return
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        name = _of_probabilities(loss)
        if name is None:
            continue
        kind = _OF_PROBABILITIES[name]
        instead = "`keras_fm.losses.TaylorCrossEntropy()`"
        if kind is not None:
            instead = f"`keras.losses.{kind}(from_logits=True)` or {instead}"
        raise ValueError(
            f"The compiled loss takes probabilities, but '{layer.name}' gives "
            f"logits, so its values would mean nothing. Compile with {instead};"
            " training minimises the released objective with either. "
            f"Received: loss={loss!r}"
        )


def _of_probabilities(loss):
    """The name of the function of a loss of probabilities, or `None`."""
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    if not isinstance(loss, keras.losses.Loss):
        names = (n for n in _OF_PROBABILITIES if loss is _function(n))
        return next(names, None)
    if getattr(loss, "from_logits", False):
        return None
    function = getattr(loss, "fn", None)
    return next(
        (n for n in _OF_PROBABILITIES if function is _function(n)), None
    )


def _function(name):
    return getattr(keras.losses, name, None)
