"""Layer-wise relevance propagation through any Keras model.

Each layer hands the relevance of its outputs back to its inputs, in
proportion to the contribution of each (Bach et al. 2015, Eq. 58, the epsilon
rule). With zero biases and a small epsilon the relevances of the inputs sum
to the output.

Relevance of private records is private. Show, plot or log it only after a
release, which adds noise (`keras_fm.layers.RelevanceScaling` with
`keras_fm.callbacks.PrivateModel`).
"""

import functools

import keras
import numpy as np
from keras import ops

from keras_fm.core.model_graph import layer_input, nodes
from keras_fm.kernel import checks
from keras_fm.per_example.pull_backs import pull_back

__all__ = ["layer_wise", "plot"]
_BATCH = 1024

# Elementwise, or a division by a value of the record's own: the relevance of
# an output entry is that of the same input entry.
_SAME_ENTRY = (
    keras.layers.Activation,
    keras.layers.ReLU,
    keras.layers.LeakyReLU,
    keras.layers.PReLU,
    keras.layers.ELU,
    keras.layers.Softmax,
    keras.layers.Dropout,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.GaussianNoise,
    keras.layers.GaussianDropout,
    keras.layers.ActivityRegularization,
    keras.layers.Rescaling,
    keras.layers.Normalization,
    keras.layers.BatchNormalization,
    keras.layers.LayerNormalization,
    keras.layers.GroupNormalization,
    keras.layers.UnitNormalization,
    keras.layers.Identity,
)
_LAST_ACTIVATION = (
    keras.layers.Softmax,
    keras.layers.Activation,
    keras.layers.ReLU,
)
# Each output entry is one input entry, or the largest of several.
_SELECTION = (
    keras.layers.Flatten,
    keras.layers.Reshape,
    keras.layers.Permute,
    keras.layers.ZeroPadding1D,
    keras.layers.ZeroPadding2D,
    keras.layers.Cropping1D,
    keras.layers.Cropping2D,
    keras.layers.Concatenate,
    keras.layers.MaxPooling1D,
    keras.layers.MaxPooling2D,
    keras.layers.GlobalMaxPooling1D,
    keras.layers.GlobalMaxPooling2D,
)
_AFFINE = (
    keras.layers.Dense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.DepthwiseConv2D,
)
_LINEAR = (
    keras.layers.AveragePooling1D,
    keras.layers.AveragePooling2D,
    keras.layers.GlobalAveragePooling1D,
    keras.layers.GlobalAveragePooling2D,
)


def layer_wise(model, x, layer=None, target="prediction", epsilon=1e-6):
    """Relevance of every entry of `x`, or of a layer's input, for one output.

    Dense, convolutions, average pooling and sums use the epsilon rule. Max
    pooling gives all relevance to the largest entry. Activations,
    normalisation layers and dropout leave it unchanged, entry by entry. Shape
    layers move it with the entries. A layer of your own sets
    `relevance_rule = "same_entry"`, or has a method `linear_part(x)` that
    returns its output before the activation. A final softmax is left out: the
    logit's relevance is propagated. Nested models are propagated through.

    Args:
        model: a built functional or sequential Keras model with one input
            and one output of shape `(batch, outputs)`.
        x: array `(n, ...)` of the model's inputs.
        layer: `None` for the relevance of `x`, or the name of a layer (not
            inside a nested model) for the relevance of its input.
        target: the output to explain: `"prediction"` (each record's largest
            output) or an int array `(n,)` of outputs.
        epsilon: float >= 0, stabiliser; a little relevance is lost to it.

    Returns:
        float32 array of the shape of `x`, or of the layer's input.

    Raises:
        ValueError: if the model or a layer has no rule, or an argument is
            not as above.

    Example:

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> x = np.ones((2, 4))
    >>> relevance = layer_wise(model, x)
    >>> largest = model.predict(x, verbose=0).max(1)
    >>> np.allclose(relevance.sum(1), largest, atol=1e-5)
    True
    """
    inputs, outputs = _ends(model)
    checks.number("epsilon", epsilon, at_least=0, finite=False)
    x = np.asarray(x)
    if not isinstance(target, str):
        target = np.asarray(target, int)
    stop = inputs if layer is None else layer_input(model, layer)
    parts = []
    for start in range(0, len(x), _BATCH):
        rows = slice(start, start + _BATCH)
        wanted = target if isinstance(target, str) else target[rows]
        values = {id(inputs): ops.convert_to_tensor(x[rows], inputs.dtype)}
        walk = _Walk(model, values)
        z = walk.logits(outputs)
        if isinstance(wanted, str):
            wanted = ops.argmax(z, axis=-1)
        chosen = ops.one_hot(wanted, z.shape[-1], dtype=z.dtype)
        found = walk.back(outputs, z * chosen, stop, epsilon)
        parts.append(ops.convert_to_numpy(ops.cast(found, "float32")))
    if not parts:
        return np.zeros((0, *stop.shape[1:]), "float32")
    return np.concatenate(parts)


def _ends(model):
    inputs = getattr(model, "inputs", None)
    outputs = getattr(model, "outputs", None)
    if not inputs or not outputs:
        raise ValueError(
            "Relevance needs a built functional or sequential model. "
            f"Received: {type(model).__name__}"
        )
    if len(inputs) != 1 or len(outputs) != 1 or len(outputs[0].shape) != 2:
        raise ValueError(
            "Relevance needs a model of one input and one output of shape "
            f"(batch, outputs). Received: {len(inputs)} inputs, outputs "
            f"{[tuple(o.shape) for o in outputs]}"
        )
    return inputs[0], outputs[0]


class _Walk:
    """One forward pass that keeps every tensor, then the propagation back."""

    def __init__(self, model, values):
        self.values = values
        self.nodes = [n for n in nodes(model) if not n.is_input]
        for node in self.nodes:
            known = {id(t): values[id(t)] for t in node.input_tensors}
            args, kwargs = node.arguments.fill_in(known)
            values[id(node.outputs[0])] = node.operation(*args, **kwargs)

    def logits(self, outputs):
        """The output before a final softmax or other last activation."""
        op, index, _ = outputs._keras_history
        node = op._inbound_nodes[index]
        tensors = [self.values[id(t)] for t in node.input_tensors]
        if isinstance(op, _LAST_ACTIVATION):
            return tensors[0]
        if isinstance(op, keras.Model):
            inner_in, inner_out = _inner_ends(op)
            inner = _Walk(op, {id(inner_in): tensors[0]})
            return inner.logits(inner_out)
        linear = _linear_part(op)
        return self.values[id(outputs)] if linear is None else linear(*tensors)

    def back(self, outputs, relevance, stop, epsilon):
        """Relevance of the tensor `stop`."""
        found = {id(outputs): relevance}
        for node in reversed(self.nodes):
            given = found.get(id(node.outputs[0]))
            if given is None or node.outputs[0] is stop:
                continue
            tensors = [self.values[id(t)] for t in node.input_tensors]
            parts = _back_through(node.operation, tensors, given, epsilon)
            for tensor, part in zip(node.input_tensors, parts):
                known = found.get(id(tensor))
                if known is not None:
                    part = known + ops.cast(part, known.dtype)
                found[id(tensor)] = part
        return found[id(stop)]


def _back_through(op, tensors, relevance, epsilon):
    """Relevance of each input tensor of `op`, from that of its output."""
    if isinstance(op, keras.Model):
        inner_in, inner_out = _inner_ends(op)
        walk = _Walk(op, {id(inner_in): tensors[0]})
        return [walk.back(inner_out, relevance, inner_in, epsilon)]
    rule = getattr(op, "relevance_rule", None)
    if rule == "same_entry" or isinstance(op, _SAME_ENTRY):
        return [relevance]
    if isinstance(op, _SELECTION):
        merge = len(tensors) > 1
        return _pull_back(
            lambda *t: op(list(t)) if merge else op(t[0]),
            tensors,
            lambda z: relevance,
        )
    linear = _linear_part(op)
    if linear is None:
        raise ValueError(
            f"Layer '{op.name}' ({type(op).__name__}) has no relevance rule. "
            "Known: dense and convolutional layers, pooling, activations, "
            "dropout, normalisation and shape layers, Add and Concatenate. "
            "Put RelevanceScaling above that layer, or build the model of "
            "these."
        )

    def share(z):
        # sign(0) = +1. With epsilon = 0 a zero output hands nothing back.
        stabiliser = ops.where(z >= 0, epsilon, -epsilon)
        bottom = z + ops.cast(stabiliser, z.dtype)
        safe = ops.where(bottom == 0, ops.ones_like(bottom), bottom)
        given = ops.cast(relevance, z.dtype)
        return ops.where(bottom == 0, ops.zeros_like(z), given / safe)

    slopes = _pull_back(linear, tensors, share)
    return [t * ops.cast(s, t.dtype) for t, s in zip(tensors, slopes)]


def _inner_ends(model):
    inputs = getattr(model, "inputs", None)
    if not inputs or len(inputs) != 1 or len(model.outputs) != 1:
        raise ValueError(
            f"The model '{model.name}' inside the model must have one input "
            "and one output."
        )
    return inputs[0], model.outputs[0]


def _linear_part(op):
    """`op` without its activation, as a function of its inputs; or `None`."""
    if hasattr(op, "linear_part"):
        return op.linear_part
    if isinstance(op, _AFFINE):
        return functools.partial(_without_activation, op)
    if isinstance(op, (keras.layers.Add, keras.layers.Average)):
        return lambda *t: op(list(t))
    if isinstance(op, _LINEAR):
        return op
    return None


def _without_activation(op, x):
    kept, op.activation = op.activation, None
    try:
        return op(x)
    finally:
        op.activation = kept


def _pull_back(function, tensors, cotangent):
    """Gradients of <function(*tensors), c>, one for each tensor.

    `cotangent` computes the constant c from the value.
    """
    # Copies: if one tensor is passed twice, each place gets its own gradient.
    (value, _), back = pull_back(
        lambda at: (function(*at), None), [ops.copy(t) for t in tensors]
    )
    return back(ops.cast(cotangent(value), value.dtype))


def plot(relevance, path, title="average relevance (released)"):
    """Writes released relevance as a PNG: a map, or bars for a vector.

    Args:
        relevance: a vector, map, or map with channels (summed), public or
            released. Red raises the output, blue lowers it.
        path: file to write.
        title: heading.
    """
    from matplotlib.figure import Figure

    values = checks.finite("relevance", np.asarray(relevance, np.float64))
    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.subplots()
    if values.ndim == 1:
        axes.bar(np.arange(len(values)), values, color="C3")
        axes.set_xlabel("feature")
        axes.set_ylabel("relevance")
    else:
        if values.ndim == 3:
            values = values.sum(axis=-1)
        most = max(np.abs(values).max(initial=0.0), 1e-30)
        axes.imshow(
            values, "bwr", vmin=-most, vmax=most, interpolation="nearest"
        )
        axes.set_axis_off()
    axes.set_title(title)
    figure.savefig(path, dpi=150)


def pictures(relevance):
    """Pictures of a layer's released relevance for TensorBoard."""
    if relevance is None:
        return {}
    return {"relevance": functools.partial(plot, np.asarray(relevance))}
