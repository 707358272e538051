"""What a model must look like before private records may be read for it."""

import keras
import numpy as np
from keras import ops

from keras_fm import relevance as relevance_lib
from keras_fm import replicas
from keras_fm.layers.dp_pca import DPPCA
from keras_fm.layers.normalization_layer import NormalizationLayer
from keras_fm.layers.perturbed_input import PerturbedInputLayer
from keras_fm.layers.pretrained_layer import PretrainedLayer
from keras_fm.layers.private_dense import PrivateDense
from keras_fm.layers.relevance_scaling import RelevanceScaling

_BATCH_STATE = (
    keras.layers.BatchNormalization,
    keras.layers.SpectralNormalization,
)


def check_built(model):
    """Refuses a model whose layers are not connected yet.

    Raises:
        ValueError: saying how to build it.
    """
    if not model.built:
        raise ValueError(
            "The model must be built before its privacy can be planned: "
            "begin it with `keras.Input(shape)` or call "
            "`model.build((None, ...))`."
        )


def check_one_process(model):
    """Refuses to draw noise in each of several processes.

    They would read different records, or draw twice for the same ones, and
    train on different objectives. Several devices of one process are fine.

    Raises:
        ValueError: saying how several processes share one release.
    """
    count = replicas.processes(model)
    if count > 1:
        raise ValueError(
            "Noise must be drawn once, but this training runs in several "
            "processes. Add up their statistics "
            "(`keras_fm.partial_statistics`), release them in one process, "
            "and let the layer learn that release in all of them: "
            "`layer.learn(release, ledger)`; see docs/scale.md. Received: "
            f"{count} processes"
        )


def check_loss(model, y):
    """Refuses a compiled loss that cannot compare labels with the output.

    It would stop at the first step, after the fit was paid for.

    Args:
        model: a compiled model.
        y: the labels of the fit; only their shape and type are looked at.

    Raises:
        ValueError: saying what was compared.
    """
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


def output_layer(model, needed=True):
    """The model's one PrivateDense output layer, and the tensor it reads.

    Args:
        model: a Keras model.
        needed: `False` accepts a model without one.

    Returns:
        tuple `(layer, inputs)`, `inputs` a symbolic tensor; `(None, None)`
        if there is none and none is needed.

    Raises:
        ValueError: if the model is not built, not functional or sequential,
            has several inputs or outputs, or another output layer.
    """
    check_built(model)
    inputs = getattr(model, "inputs", None)
    outputs = getattr(model, "outputs", None)
    if not inputs or not outputs:
        raise ValueError(
            "PrivateModel needs a functional or sequential model, so that "
            "it can see what lies under the private layer. A sequential "
            "model must be built with `keras.Input(shape)` or "
            "`model.build((None, ...))`. Received: "
            f"{type(model).__name__}"
        )
    if len(inputs) != 1 or len(outputs) != 1:
        raise ValueError(
            "PrivateModel supports one input and one output. Received a "
            f"model with {len(inputs)} inputs and {len(outputs)} outputs"
        )
    layer, node, _ = outputs[0]._keras_history
    if not isinstance(layer, PrivateDense):
        if not needed:
            return None, None
        raise ValueError(
            "The last layer of the model must be "
            "`keras_fm.layers.PrivateDense` (it gives logits; leave the "
            f"softmax to the loss). Received: '{layer.name}' "
            f"({type(layer).__name__})"
        )
    return layer, layer._inbound_nodes[node].input_tensors[0]


def pretrained_layers(model):
    """The model's layers that learn before its output layer, and the tensors
    they read, from the input upwards.

    Raises:
        ValueError: if the model is not built, or one is inside a nested
            model.
    """
    check_built(model)
    found = [
        layer
        for layer in model._flatten_layers(include_self=False)
        if isinstance(layer, PretrainedLayer)
    ]
    for layer in found:
        if layer not in model.layers:
            raise ValueError(
                f"{type(layer).__name__} '{layer.name}' must be in the model "
                "itself, not inside a nested one."
            )
    # `layers` of a functional model are ordered from the inputs upwards.
    read = []
    for layer in model.layers:
        if layer in found:
            inputs = relevance_lib.layer_inputs(model, layer.name)
            read.append((layer, inputs[0] if len(inputs) == 1 else inputs))
    return read


def relevance_scaling(model):
    """The model's one RelevanceScaling layer and the tensor it reads.

    Returns:
        tuple `(layer, inputs)`, or `(None, None)` without such a layer.

    Raises:
        ValueError: if there are several, one is called several times, or it
            is inside a nested model.
    """
    found = [
        layer
        for layer in model._flatten_layers(include_self=False)
        if isinstance(layer, RelevanceScaling)
    ]
    if not found:
        return None, None
    layer = found[0]
    if len(found) > 1 or layer not in model.layers:
        raise ValueError(
            "A model can have one RelevanceScaling layer, called once, in "
            "the model itself and not inside a nested one. Received: "
            f"{[layer.name for layer in found]}"
        )
    return layer, relevance_lib.layer_input(model, layer.name)


def layers_below(model, head):
    """All layers of the model but its output layer, flattened."""
    return [
        layer
        for layer in model._flatten_layers(include_self=False)
        if layer is not head
    ]


def check_proven(model, head):
    """Refuses every layer under `head` that no proof covers.

    Raises:
        ValueError: naming the layer, the reason and the way out.
    """
    for layer in layers_below(model, head):
        name = f"'{layer.name}' ({type(layer).__name__})"
        if isinstance(layer, PerturbedInputLayer):
            raise ValueError(
                f"Layer {name} cannot be part of a proven model: no proof "
                "covers one noise vector that all records share. Use "
                "`keras.layers.Dense(..., trainable=False)` (or Conv2D) with "
                "public weights, or "
                '`PrivateModel(guarantee="published")`, whose epsilon is '
                "only claimed."
            )
        if isinstance(layer, _BATCH_STATE) or (
            isinstance(layer, NormalizationLayer) and layer.depends_on_data
        ):
            raise ValueError(
                f"Layer {name} mixes records or keeps statistics of what it "
                "saw, so a record's influence is not bounded. Use "
                "`keras.layers.GroupNormalization` or "
                "`keras_fm.layers.NormalizationLayer` (unit norm or public "
                "bounds), which treat every record on its own."
            )
        if _is_adapted(layer):
            raise ValueError(
                f"Layer {name} was adapted to data that the ledger does not "
                "know. Build it from public constants (for example "
                "`keras.layers.Normalization(mean=..., variance=...)`)."
            )
        if isinstance(layer, PretrainedLayer) and layer.is_perturbed:
            raise ValueError(
                f"Layer {name} carries published noise and was trained on "
                "the records without a proof. Build a new model for "
                'guarantee="proven".'
            )
        if any(v.trainable for v in layer.weights):
            raise ValueError(
                f"Layer {name} has trainable weights under the private "
                "layer: features that train on records make every step a "
                "new query. Set `trainable = False` (its weights then count "
                "as public), or use "
                '`PrivateModel(guarantee="published")`.'
            )


def check_bounded_above_pca(model, head):
    """Refuses features whose length is found out only after a release below
    was paid for: a whitened component has no bound known beforehand.

    Raises:
        ValueError: naming the layer and the way out.
    """
    whitening = None
    for layer in model.layers:
        if isinstance(layer, DPPCA) and layer.whitening > 0:
            whitening = layer
        elif isinstance(layer, NormalizationLayer):
            whitening = None
    if whitening is not None:
        raise ValueError(
            f"The components of layer '{whitening.name}' are scaled by its "
            "release, so their length has no public bound. Put "
            "`keras_fm.layers.NormalizationLayer()` after it, or give layer "
            f"'{head.name}' `clip=True`."
        )


def _is_adapted(layer):
    if not hasattr(layer, "adapt") or hasattr(layer, "public_data"):
        return False
    if isinstance(layer, keras.layers.Normalization):
        return layer.input_mean is None
    return not type(layer).__module__.startswith("keras_fm")


def check_records_independent(features, input_shape, dtype):
    """Refuses a feature map in which one record changes another's features.

    Two batches that share half of their (random, public) records must give
    these the same features. A test of the map itself, so it also finds
    custom layers that mix a batch.

    Args:
        features: function from a `(4, ...)` batch to `(4, m)`.
        input_shape: shape of one record.
        dtype: input dtype name.

    Raises:
        ValueError: if features of a record depend on its neighbours.
    """
    if any(d is None for d in input_shape):
        return
    generator = np.random.default_rng(0)

    def draw(rows):
        shape = (rows, *input_shape)
        if "int" in dtype or "bool" in dtype:
            return generator.integers(0, 2, shape).astype(dtype)
        return generator.random(shape).astype(dtype)

    fixed = draw(2)
    first = features(np.concatenate([fixed, draw(2)]))[:2]
    second = features(np.concatenate([fixed, 1 - draw(2)]))[:2]
    scale = max(float(np.abs(first).max()), 1e-6)
    if np.abs(first - second).max() > 1e-2 * scale:
        raise ValueError(
            "The layers under the private layer mix the records of a batch: "
            "a record's features changed when other records changed. Every "
            "layer must treat each record on its own."
        )


def public_facts(model, head):
    """What the proof takes as public, for the ledger."""
    facts = []
    for layer in layers_below(model, head):
        public = getattr(layer, "public_data", None)
        if isinstance(layer, RelevanceScaling):
            facts.append(
                f"scales of layer '{layer.name}': from the released relevance"
            )
        elif isinstance(layer, PretrainedLayer):
            facts.append(
                f"weights of layer '{layer.name}': from its own release"
            )
        elif public:
            facts.append(f"public data of layer '{layer.name}': {public}")
        elif getattr(layer, "_layers", None):
            continue
        elif layer.weights:
            facts.append(
                f"public by declaration: frozen weights of layer "
                f"'{layer.name}' ({type(layer).__name__})"
            )
    return facts
