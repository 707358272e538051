"""Whether the compiled loss fits the targets and outputs of a private model.

Training minimises the released objective; the compiled loss is what `evaluate`
and `validation_data` show.
"""

import keras
import numpy as np
from keras import ops

from keras_fm.losses import TaylorCrossEntropy
from keras_fm.parts import replicas

_OF_NUMBERS = (
    "mean_squared_error",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_logarithmic_error",
    "log_cosh",
    "huber",
)
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
    "dice": None,
    "tversky": None,
}
_OF_LABELS = (
    *_OF_PROBABILITIES,
    "hinge",
    "squared_hinge",
    "categorical_hinge",
)


def check(model, y):
    """Refuses a compiled loss that cannot compare labels with the output.

    It would stop at the first step, after the fit was paid for.

    Args:
        model: a compiled model.
        y: the labels of the fit; only their shape and type are looked at.

    Raises:
        ValueError: saying what was compared, and what to write instead.
    """
    check_kind(model)
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
            '`keras_fm.losses.TaylorCrossEntropy()`, or "mse" for numbers. '
            f"Received: loss={model.loss!r}, labels of shape "
            f"{tuple(shape)}, output of shape "
            f"{tuple(outputs[0].shape)}"
        ) from e


def check_kind(model):
    """Refuses a loss of labels above a layer that predicts numbers, the
    reverse, and a loss of probabilities above one that gives logits.

    Its values would mean nothing, and early stopping on them neither. Losses
    that are not Keras' own, nor of this package, pass: what they compare is
    not known.

    Raises:
        ValueError: saying what to write instead.

    Example:

    >>> logits = keras_fm.layers.PrivateDense(3)
    >>> model = keras.Sequential([keras.Input((4,)), logits])
    >>> model.compile("adam", "sparse_categorical_crossentropy")
    >>> check_kind(model)
    Traceback (most recent call last):
    ...
    ValueError: The compiled loss takes probabilities, but 'private_dense' ...
    """
    outputs = getattr(model, "outputs", None)
    layer = outputs[0]._keras_history[0] if outputs else None
    predicts = getattr(layer, "predicts", None)
    if predicts is None:
        return
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        _check_kind(loss, layer.name, predicts)


def _check_kind(loss, layer, predicts):
    given = loss
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    taylor = isinstance(loss, TaylorCrossEntropy)
    if predicts == "numbers":
        if taylor or _name(loss, _OF_LABELS):
            raise ValueError(
                f"The compiled loss is of labels, but '{layer}' predicts "
                'numbers. Compile with "mse", "mae" or "huber"; training '
                "minimises the released objective with either. Received: "
                f"loss={given!r}"
            )
        return
    instead = "`keras_fm.losses.TaylorCrossEntropy()`"
    if _name(loss, _OF_NUMBERS):
        raise ValueError(
            f"The compiled loss is of numbers, but '{layer}' predicts "
            f"{predicts}. Compile with {instead}; or for numbers build "
            '`PrivateDense(..., loss="squared_error", target_bounds=(low, '
            f"high))`. Received: loss={given!r}"
        )
    name = _name(loss, _OF_PROBABILITIES)
    if name is None or getattr(loss, "from_logits", False):
        return
    kind = _OF_PROBABILITIES[name]
    if kind is not None:
        instead = f"`keras.losses.{kind}(from_logits=True)` or {instead}"
    raise ValueError(
        f"The compiled loss takes probabilities, but '{layer}' gives "
        f"logits, so its values would mean nothing. Compile with {instead};"
        " training minimises the released objective with either. "
        f"Received: loss={given!r}"
    )


def _name(loss, names):
    """Which of some functions of Keras a loss is, or is made of."""
    if isinstance(loss, keras.losses.Loss):
        loss = getattr(loss, "fn", None)
    if loss is None:
        return None
    known = (n for n in names if loss is getattr(keras.losses, n, None))
    return next(known, None)
