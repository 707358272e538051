"""Stacks of layers whose per-record coefficients are known."""

import functools

import keras
from keras import ops

from keras_fm.core import record_alone, replicas
from keras_fm.per_example import affine_maps, output_losses
from keras_fm.per_example.stages import Stage
from keras_fm.public import activations
from keras_fm.public.normalization_layer import NormalizationLayer

_RESHAPES = (keras.layers.Flatten, keras.layers.Reshape)


def as_list(**layers):
    """Copies the one list of layers that is passed by name; a
    `keras.Sequential` gives its layers.

    Raises:
        ValueError: if it is not a list of layers (a single layer, for example).
    """
    ((name, given),) = layers.items()
    if type(given) is keras.Sequential:
        given = given.layers
    try:
        found = list(given)
    except TypeError as e:
        raise ValueError(
            f"`{name}` must be a list of layers. Received: {name}={given!r}"
        ) from e
    if any(isinstance(layer, keras.KerasTensor) for layer in found):
        raise ValueError(
            f"`{name}` must be a list of layers without `keras.Input`: the "
            "shape of a record is `input_shape`."
        )
    return found


def check_layers(layers, dense_only=False):
    """The trained layers in the list.

    Args:
        layers: list of layers.
        dense_only: bool, whether to refuse all but Dense layers.

    Raises:
        ValueError: if coefficients of the stack are not known.
    """
    trained = (keras.layers.Dense, keras.layers.Conv2D)[: 2 - dense_only]
    between = () if dense_only else _RESHAPES
    supported = ", ".join(kind.__name__ for kind in (*trained, *between))
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(
                "`layers` must be Keras layers, such as `keras.layers.Dense`. "
                f"Received: layers={layers}"
            )
        kind = f"'{layer.name}' ({type(layer).__name__})"
        if type(layer) in between:
            if getattr(layer, "data_format", None) == "channels_first":
                raise ValueError(
                    f"Layer {kind} must be of data_format='channels_last'."
                )
        elif type(layer) not in trained:
            raise ValueError(
                f"Layer {kind} is not supported in `layers`, which takes "
                f"{supported}. Put public or frozen layers into `below`."
            )
        check_layer(layer, seen=layers.count(layer) > 1)
    if not layers or type(layers[-1]) is not keras.layers.Dense:
        raise ValueError(
            "`layers` must end with a `keras.layers.Dense`. Received: "
            f"layers={layers}"
        )
    return [layer for layer in layers if type(layer) in trained]


def check_layer(layer, seen):
    """Refuses a layer that a stack cannot contain.

    Args:
        layer: the layer.
        seen: bool, whether it is already in the stack.
    """
    kind = f"'{layer.name}' ({type(layer).__name__})"
    if getattr(layer, "lora_rank", None):
        raise ValueError(
            f"Layer {kind} has LoRA weights, which are not supported here. "
            "Use `keras_fm.make_private(model)`."
        )
    if getattr(layer, "quantization_mode", None) is not None:
        raise ValueError(
            f"Layer {kind} is quantized ({layer.quantization_mode}) and "
            "cannot be trained. Quantize the model after the training."
        )
    if getattr(layer, "activity_regularizer", None) is not None:
        raise ValueError(
            f"`activity_regularizer` of layer {kind} would use records without "
            "clipping. Remove it."
        )
    if seen:
        raise ValueError(
            f"Layer {kind} is in `layers` twice. Build a layer for each "
            "place: shared weights cannot be clipped by layer."
        )


def connect(layers, trained, features):
    """Outputs of the layers for `features`, and their stages.

    Args:
        layers: list of layers.
        trained: the trained ones, from `check_layers`.
        features: symbolic tensor.

    Raises:
        ValueError: if derivatives of a layer are not known.
    """
    outputs, stages = features, []
    for layer in layers:
        if layer in trained:
            made = affine_maps.of_layer(layer, outputs.shape[1:])
            if len(made.input_shape) > 1 and type(layer) is keras.layers.Dense:
                raise ValueError(
                    f"Layer '{layer.name}' (Dense) must have vectors as "
                    "input: put `keras.layers.Flatten()` before it. Received: "
                    f"input_shape={tuple(outputs.shape[1:])}"
                )
            stages.append(Stage(map=made, activation=activation_of(layer)))
        outputs = layer(outputs)
    return outputs, stages


def activation_of(layer):
    """The `Activation` of a layer, with its derivatives.

    Raises:
        ValueError: if they are not known.
    """
    found = activations.get(layer.activation)
    if found is None:
        # Not the `repr` of a function, which shows its address.
        name = getattr(layer.activation, "__name__", layer.activation)
        raise ValueError(
            f"The activation of layer '{layer.name}' must be one of "
            f"{activations.NAMES}, whose derivatives are known. For classes, "
            f"the last layer must give logits. Received: activation={name!r}"
        )
    return found


def apply_public(below, inputs, input_bound):
    """Outputs of layers with public weights.

    Args:
        below: list of layers.
        inputs: symbolic tensor.
        input_bound: `None`, or an L2 bound; longer outputs are scaled back to
            it.

    Raises:
        ValueError: if a layer has trainable weights.
    """
    outputs = inputs
    for layer in below:
        outputs = layer(outputs)
        if any(weight.trainable for weight in layer.weights):
            raise ValueError(
                f"Layer '{layer.name}' ({type(layer).__name__}) in `below` "
                "has trainable weights: put it into `layers`, or set "
                "`trainable = False`; its weights then count as public."
            )
    if input_bound is not None:
        for layer in (
            keras.layers.Rescaling(1 / input_bound, name="to_unit"),
            NormalizationLayer(mode="ball", name="input_ball"),
            keras.layers.Rescaling(input_bound, name="from_unit"),
        ):
            outputs = layer(outputs)
    return outputs


class Below:
    """Maps each record, by itself, to the input of the first trained layer.

    Args:
        inputs: symbolic tensor of records.
        features: output of `apply_public`.

    Attributes:
        model: the layers.
        shape: of the features of one record.
    """

    def __init__(self, inputs, features):
        self.model = keras.Model(inputs, features)
        self.shape = tuple(features.shape[1:])
        self._call = functools.partial(self.model, training=False)
        if record_alone.unlisted(self.model) is not None:
            self._call = functools.partial(record_alone.each_alone, self.model)

    def __call__(self, x):
        return self._call(x)


def of_logit(metric):
    """Turns a metric of probabilities into one of logits, with threshold 0."""
    if metric in ("accuracy", "acc", "binary_accuracy"):
        return keras.metrics.BinaryAccuracy(name=metric, threshold=0.0)
    return metric


def targets(loss, y, features):
    """Targets `(n, units)`, as constants, from the data of `fit`.

    Args:
        loss: of `output_losses`.
        y: labels or targets, or `None` to use the features, for a loss without
            labels.
        features: `(n, ...)`.

    Raises:
        ValueError: if labels are missing, or their shape does not fit.
    """
    if y is None and loss.labels:
        raise ValueError(
            "The loss of this model needs labels. Received: y=None"
        )
    y = features if y is None else y
    # Keras passes a list of one for one output.
    y = ops.convert_to_tensor(keras.tree.flatten(y)[0])
    y = output_losses.targets(loss.labels, y, loss.units, features.dtype)
    return ops.stop_gradient(y)


def total(rows):
    """The sum of the records' weights over the whole batch and all replicas; a
    batch may be all padding."""
    (found,) = replicas.total([ops.sum(rows)])
    return ops.maximum(found, 1e-7)


def mean(values, rows):
    """Weighted mean over the records of the whole batch; padding may hold any
    values."""
    values = ops.where(rows != 0, values, ops.zeros_like(values))
    (found,) = replicas.total([ops.sum(values * rows)])
    return found / total(rows)
