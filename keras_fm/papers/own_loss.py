"""What models with a loss of their own have in common."""

import keras
from keras import ops

from keras_fm.per_example import layer_stack
from keras_fm.per_example.stages import constant


def metrics_of(model, head, loss, metrics):
    """The metrics of `compile`, which is given no loss.

    Raises:
        ValueError: if it is.
    """
    if loss is not None:
        raise ValueError(
            f"A {type(model).__name__} has its own loss, given when it is "
            f"built: `compile` it without one. Received: loss={loss!r}"
        )
    if head.labels and head.units == 1 and metrics is not None:
        # Keras would compare the logit with 0.5 instead of 0.
        metrics = keras.tree.map_structure(layer_stack.of_logit, metrics)
    return metrics


def features(below, x, weight):
    """Inputs of the first trained layer, as constants; `weight` is its."""
    found = constant(below(x))
    # The dtype's name: in a symbolic step a weight has no value.
    kind = keras.backend.standardize_dtype(weight.dtype)
    found = ops.cast(found, "float64" if kind == "float64" else "float32")
    return ops.reshape(found, (-1, *below.shape))


def weights_of_rows(sample_weight, features):
    """`(n,)` weights of records."""
    if sample_weight is None:
        return ops.ones((ops.shape(features)[0],), features.dtype)
    return ops.cast(ops.reshape(sample_weight, (-1,)), features.dtype)
