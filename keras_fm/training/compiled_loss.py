"""Whether what was compiled fits the targets and outputs of a private model.

Training minimises the released objective; the compiled loss and metrics are
what `evaluate` and `validation_data` show.
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
    compiled = getattr(model, "_compile_loss", None)
    made_up = _made_up(model, y)
    if made_up is None or compiled is None:
        return
    shape, outputs = y.shape, model.outputs
    try:
        compiled(*made_up)
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


def check_evaluates(model):
    """Refuses a model that Keras stops at when it first evaluates: one that
    was compiled without a loss and has none of its own.

    Raises:
        ValueError: saying what to compile with.
    """
    own = type(model).compute_loss is not keras.Model.compute_loss
    if own or model.losses or getattr(model, "_compile_loss", None) is not None:
        return
    raise ValueError(
        "`validation_data` need a compiled loss, without which Keras evaluates "
        "no model. Compile it with `keras_fm.losses.TaylorCrossEntropy()`, or "
        '"mse" for numbers. Received: loss=None'
    )


def _made_up(model, y):
    """Labels of every class and outputs in the form of a model's, or `None`
    where that is not known."""
    outputs = getattr(model, "outputs", None)
    shape, dtype = (getattr(y, name, None) for name in ("shape", "dtype"))
    # A data frame has a type for each column.
    if not outputs or dtype is None or getattr(shape, "rank", 0) is None:
        return None
    axes = [*shape[1:], *outputs[0].shape[1:]]
    if None in axes or replicas.of_strategy(model)[0] > 1:
        # Losses are scaled within a replica only.
        return None
    # As many rows as no other axis has, so that nothing is broadcast.
    rows, wide = 2 + max(axes, default=0), tuple(shape[1:])
    units = max(2, axes[-1] if axes else 1)
    # Every class comes: metrics may fail on one alone.
    if wide in ((), (1,)):
        labels = (np.arange(rows) % units).reshape(rows, *wide)
    elif len(wide) == 1:
        labels = np.arange(rows)[:, None] % wide[0] == np.arange(wide[0])
    else:
        labels = np.zeros((rows, *wide))
    kind = keras.backend.standardize_dtype(dtype)
    logits = np.zeros((rows, *outputs[0].shape[1:]), "float32")
    return (
        ops.convert_to_tensor(labels.astype(kind)),
        ops.convert_to_tensor(logits),
    )


def check_metrics(model, y):
    """Refuses compiled metrics that cannot compare labels with the output.

    They are tried on made-up labels, and keep nothing of them.

    Args:
        model: a compiled model.
        y: the labels they are given; only their shape and type are looked at.

    Raises:
        ValueError: naming the metrics.
    """
    compiled = getattr(model, "_compile_metrics", None)
    made_up = _made_up(model, y)
    if compiled is None or made_up is None:
        return
    given = compiled._user_metrics, compiled._user_weighted_metrics
    if not compiled.built:
        # Built on other labels than theirs, they would be other metrics.
        try:
            copies = keras.tree.map_structure(_copied, given)
        except Exception:
            # Of a class of one's own, which does not say how it is made.
            return
        compiled = type(compiled)(*copies, output_names=compiled.output_names)
        compiled.build(*made_up)
    try:
        with keras.StatelessScope():
            compiled.update_state(*made_up)
    except Exception as e:
        names = [_named(v) for v in keras.tree.flatten(given) if v is not None]
        raise ValueError(
            "The compiled metrics cannot compare these labels with the output "
            'of the model. "accuracy" fits most labels. Received: '
            f"metrics={names}, labels of shape {tuple(y.shape)}, output of "
            f"shape {tuple(model.outputs[0].shape)}"
        ) from e


def _copied(metric):
    if not isinstance(metric, keras.metrics.Metric):
        return metric
    return type(metric).from_config(metric.get_config())


def _named(metric):
    return (
        metric
        if isinstance(metric, str)
        else (getattr(metric, "name", None) or getattr(metric, "__name__", "?"))
    )


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
