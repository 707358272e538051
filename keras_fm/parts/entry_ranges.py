"""Which numbers may stand in what a layer reads, whatever the records are.

A sensitivity that a paper states for inputs in [0, 1] is claimed only where
the layers below give such inputs. Ranges follow from the layers themselves: no
record is looked at.
"""

import math

import keras

from keras_fm.parts import model_graph

UNBOUNDED = (-math.inf, math.inf)
# The rounding of a scale.
_ROUNDING = 1e-6

_OF_ACTIVATION = {
    keras.activations.sigmoid: lambda low, high: (0.0, 1.0),
    keras.activations.hard_sigmoid: lambda low, high: (0.0, 1.0),
    keras.activations.softmax: lambda low, high: (0.0, 1.0),
    keras.activations.tanh: lambda low, high: (-1.0, 1.0),
    keras.activations.softsign: lambda low, high: (-1.0, 1.0),
    keras.activations.relu: lambda low, high: (max(low, 0.0), max(high, 0.0)),
    keras.activations.relu6: lambda low, high: (
        min(max(low, 0.0), 6.0),
        min(max(high, 0.0), 6.0),
    ),
    keras.activations.linear: lambda low, high: (low, high),
}
_layers = keras.layers
# Their outputs are some of their inputs, or means of them.
_SAME = (
    _layers.Flatten,
    _layers.Reshape,
    _layers.Permute,
    _layers.RepeatVector,
    _layers.Identity,
    _layers.Concatenate,
    _layers.Maximum,
    _layers.Minimum,
    _layers.Average,
    *(
        getattr(_layers, f"{kind}{d}D")
        for kind in (
            "MaxPooling",
            "AveragePooling",
            "GlobalMaxPooling",
            "GlobalAveragePooling",
            "Cropping",
        )
        for d in (1, 2, 3)
    ),
)
_WITH_ZEROS = tuple(getattr(_layers, f"ZeroPadding{d}D") for d in (1, 2, 3))
_DROPOUTS = (
    _layers.Dropout,
    *(getattr(_layers, f"SpatialDropout{d}D") for d in (1, 2, 3)),
)
# An activation of numbers without a bound.
_AFFINE = (
    _layers.Dense,
    _layers.EinsumDense,
    *(
        getattr(_layers, name)
        for name in dir(_layers)
        if "Conv" in name and not name.startswith("ConvLSTM")
    ),
)


def of_inputs(model):
    """What every layer of a model reads, those of models in it included.

    Args:
        model: a functional or sequential model.

    Returns:
        dict from ids of layers to lists of `(low, high)`, one for each tensor
        that a layer is called with.
    """
    found = {}
    _walk(model, [UNBOUNDED] * len(model.inputs), found)
    return found


def of_outputs(model):
    """`(low, high)` of every output of a model."""
    return _walk(model, [UNBOUNDED] * len(model.inputs), {})


def check(found, wanted, what, where):
    """Refuses numbers outside the range that a sensitivity is stated for.

    Args:
        found: `(low, high)`.
        wanted: the same, of the sensitivity.
        what: the layer or model, for the error.
        where: the place of a layer that would mend it.

    Raises:
        ValueError: saying what to write.
    """
    low, high = wanted
    if low - _ROUNDING <= found[0] and found[1] <= high + _ROUNDING:
        return
    scale = ""
    if (low, high) != (0.0, 1.0):
        scale = f", scaled to [{low:g}, {high:g}]"
    raise ValueError(
        f"{what} must read numbers in [{low:g}, {high:g}]: the sensitivity "
        "that its paper claims is stated for these alone. Put "
        '`keras_fm.layers.NormalizationLayer((low, high), "linf")` with '
        f"public bounds{scale} {where}; after layers that train "
        '`keras_fm.layers.NormalizationLayer(norm="linf", mode="batch", '
        "running=False)` or a sigmoid. Received: numbers in "
        f"[{found[0]:g}, {found[1]:g}]"
    )


def of_activation(function, low, high):
    """The range of an activation's values, of that of its inputs."""
    known = _OF_ACTIVATION.get(function)
    return UNBOUNDED if known is None else known(low, high)


def _walk(model, given, found):
    values = {id(t): known for t, known in zip(model.inputs, given)}
    for node in model_graph.nodes(model):
        if node.is_input:
            continue
        read = [values.get(id(t), UNBOUNDED) for t in node.input_tensors]
        layer = node.operation
        found.setdefault(id(layer), []).extend(read)
        if isinstance(layer, keras.Model) and getattr(layer, "inputs", None):
            made = _walk(layer, read, found)
        else:
            made = [_of_layer(layer, read)] * len(node.output_tensors)
        values.update(zip(map(id, node.output_tensors), made))
    return [values.get(id(t), UNBOUNDED) for t in model.outputs]


def _of_layer(layer, read):
    if not read:
        return UNBOUNDED
    low, high = min(v for v, _ in read), max(v for _, v in read)
    if hasattr(layer, "entry_range"):
        return layer.entry_range(low, high)
    # Subclasses may do anything.
    kind = type(layer)
    if kind in _SAME:
        return low, high
    if kind in _WITH_ZEROS:
        return min(low, 0.0), max(high, 0.0)
    if kind in _AFFINE:
        return of_activation(layer.activation, *UNBOUNDED)
    if kind is _layers.Activation:
        return of_activation(layer.activation, low, high)
    if kind is _layers.Softmax:
        return 0.0, 1.0
    if kind is _layers.UnitNormalization:
        return (0.0 if low >= 0 else -1.0), 1.0
    if kind is _layers.ReLU and not (layer.negative_slope or layer.threshold):
        most = math.inf if layer.max_value is None else float(layer.max_value)
        return min(max(low, 0.0), most), min(max(high, 0.0), most)
    if kind in _DROPOUTS and layer.rate < 1:
        grown = 1 / (1 - layer.rate)
        return min(low * grown, 0.0), max(high * grown, 0.0)
    if kind is _layers.Rescaling:
        return _rescaled(layer, low, high)
    return UNBOUNDED


def _rescaled(layer, low, high):
    try:
        scale, offset = float(layer.scale), float(layer.offset)
    except TypeError:
        # An array of them.
        return UNBOUNDED
    if not math.isfinite(low) or not math.isfinite(high):
        return UNBOUNDED
    ends = low * scale + offset, high * scale + offset
    return min(ends), max(ends)
