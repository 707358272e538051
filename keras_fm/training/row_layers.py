"""Which layers keep the records of a batch apart, and under what settings.

A layer is known by its exact class: a subclass may do anything.
"""

import functools
import sys

import keras
import numpy as np

from keras_fm.parts import batch_statistics
from keras_fm.training import row_encodings
from keras_fm.training.row_operations import POINTWISE
from keras_fm.training.symbolic_call import (
    MixesError,
    UnknownError,
    UnlistedError,
    check_axes,
    check_einsum,
    check_no_arrays,
    check_not_replaced,
    check_rank,
    is_tensor,
    only_tensor,
    with_axes,
)

_BATCH_STATE = (
    "it works with statistics of what it saw. Use `keras.layers."
    "GroupNormalization` or `keras_fm.layers.NormalizationLayer` (unit norm "
    "or public bounds), which treat every record on its own"
)
_FROZEN = (
    ". In a body that others trained, a `BatchNormalization` with "
    "`trainable = False` is a public map of its moving statistics"
)


def check_layer(call):
    """Checks a call of a layer that is no model.

    Raises:
        MixesError: if it mixes records, or keeps something of them.
        UnknownError: if that is not known.
    """
    layer = call.operation
    check_parts(layer)
    rule = _rule(type(layer))
    if rule is None:
        raise UnlistedError("it is not among the layers known here")
    check_not_replaced(layer)
    if getattr(layer, "quantization_mode", None) is not None:
        raise UnknownError(f"it is quantized ({layer.quantization_mode})")
    regularizer = layer.activity_regularizer
    if regularizer is not None and not _is_keras(regularizer):
        raise UnknownError("its activity regularizer is code of its own")
    rule(call)


def check_parts(layer):
    """Raises if a layer, whatever it is otherwise, is known to mix records
    or to keep something of them."""
    if isinstance(layer, batch_statistics.KINDS) and not (
        batch_statistics.are_constant(layer)
    ):
        frozen = isinstance(layer, keras.layers.BatchNormalization)
        raise MixesError(_BATCH_STATE + (_FROZEN if frozen else ""))
    of_batch = getattr(layer, "normalization", None) == "batch"
    if of_batch or getattr(layer, "depends_on_data", False) is True:
        raise MixesError(_BATCH_STATE)
    if getattr(layer, "stateful", False) is True:
        raise MixesError(
            "it carries a state from batch to batch; build it with "
            "`stateful=False`"
        )
    if getattr(layer, "quantization_mode", None) == "float8":
        raise MixesError("in float8 it keeps the largest values of batches")
    for name in ("MixUp", "CutMix"):
        if isinstance(layer, getattr(keras.layers, name, ())):
            raise MixesError("it mixes images while training")


def _is_keras(value):
    return type(value).__module__.startswith("keras.src.")


@functools.cache
def _activations():
    """Ids of functions of single entries, and of those of the last axis."""
    along = ("glu", "log_softmax", "softmax", "sparsemax")
    other = ("deserialize", "get", "serialize")
    pointwise = {
        id(f) for n, f in vars(keras.activations).items() if n not in other
    }
    pointwise |= {
        id(getattr(keras.ops, n)) for n in POINTWISE if hasattr(keras.ops, n)
    }
    last = {
        id(getattr(module, n))
        for module in (keras.activations, keras.ops)
        for n in along
        if hasattr(module, n)
    }
    return pointwise - last, last


def check_activation(call, function, rank):
    """Raises unless an activation keeps rows apart.

    Args:
        call: the call of the layer that has it.
        function: what the layer calls.
        rank: int, how many axes it is called on.
    """
    while isinstance(function, functools.partial) and not function.args:
        if "axis" in function.keywords:
            break
        function = function.func
    pointwise, last = _activations()
    if function is None or id(function) in pointwise:
        return
    if id(function) in last:
        check_axes(-1, rank)
        return
    call.inner(function, (None,) * rank)


# Rules ---------------------------------------------------------------------


def _one(low=1, high=None, also=None):
    """A layer of one tensor that has from `low` to `high` axes."""

    def check(call):
        tensor = only_tensor(call, low, high)
        if also is not None:
            also(call, tensor)

    return check


def _active(call, tensor):
    check_activation(call, call.operation.activation, len(tensor.shape))


def _separate(call, tensor):
    check_axes(call.operation.axis, len(tensor.shape))


def _check_mask(tensor, rank, given=None):
    """Raises if a tensor has a mask of another number of axes, which would
    line up from the right."""
    for mask in (given, getattr(tensor, "_keras_mask", None)):
        if mask is not None and len(mask.shape) != rank:
            raise UnknownError(f"its mask has shape {tuple(mask.shape)}")


def _softmax(call):
    mask = _second(call)
    tensor = only_tensor(call, mask=mask)
    _separate(call, tensor)
    _check_mask(tensor, len(tensor.shape), mask)


def _pooled(call):
    mask = _second(call)
    tensor = only_tensor(call, 3, 3, mask=mask)
    _check_mask(tensor, 2, mask)


def _second(call):
    """The mask of a layer that is called with `(inputs, mask=None)`."""
    return call.args[1] if len(call.args) == 2 else call.kwargs.get("mask")


def _normalized(call):
    """With constants for statistics; its mask is not used then."""
    tensor = only_tensor(call, 2, mask=call.kwargs.get("mask"))
    _separate(call, tensor)


def _einsum(call, tensor):
    equation = call.operation.equation
    check_einsum(equation, [len(tensor.shape), None])
    # Axes of the output that have a name; others only add to them.
    named = equation.partition("->")[2].replace("...", "")
    check_activation(call, call.operation.activation, len(named))


def _rescaled(call, tensor):
    layer, rank = call.operation, len(tensor.shape)
    if max(np.ndim(layer.scale), np.ndim(layer.offset)) >= rank:
        raise UnknownError("its constants have an axis for records")


def _weighted(name):
    """Entries times weights that have the shape of a record."""

    def check(call, tensor):
        weights = getattr(call.operation, name)
        if len(weights.shape) != len(tensor.shape) - 1:
            raise UnknownError("it was built for another number of axes")

    return check


def _mel(call, tensor):
    if call.operation.power_to_db:
        raise MixesError(
            "its `top_db` counts from the largest value of the batch; set "
            "`power_to_db=False`"
        )


def _at_inference(call, tensor):
    if call.training:
        raise UnknownError("while training it draws at random")


def _merged(call):
    check_no_arrays(call, alike=True)
    ranks = {len(tensor.shape) for tensor in with_axes(call)}
    if len(ranks) > 1 and not getattr(
        call.operation, "_reshape_required", False
    ):
        raise MixesError("its inputs line up from the right")
    for tensor in call.tensors:
        _check_mask(tensor, max(ranks) - 1)


def _concatenated(call):
    check_no_arrays(call, alike=True)
    for tensor in with_axes(call):
        check_axes(call.operation.axis, len(tensor.shape))


def _dot(call):
    check_no_arrays(call)
    axes = call.operation.axes
    for i, tensor in enumerate(call.tensors):
        check_rank(tensor, 2)
        check_axes(
            axes if isinstance(axes, int) else axes[i], len(tensor.shape)
        )


def _attended(call):
    """Attention of queries of three axes; masks have two."""
    check_no_arrays(call)
    inputs = call.args[0] if call.args else None
    if not isinstance(inputs, (list, tuple)):
        raise UnknownError("it is not called with a list of tensors")
    others = list(call.tensors)
    for tensor in inputs:
        check_rank(tensor, 3, 3)
        _check_mask(tensor, 2)
        others = [v for v in others if v is not tensor]
    for mask in others:
        check_rank(mask, 2, 2)


def _multi_head(call):
    _masked(call, ("query", "value", "key"))
    axes = getattr(call.operation, "_attention_axes", None)
    if axes is None:
        raise UnknownError("it is not built")
    check_axes(axes, len(call.tensors[0].shape))


def _grouped(call):
    _masked(call, ("query", "value", "key"), 3)


def _masked(call, names, high=None):
    check_no_arrays(call, alike=True)
    for layer in call.operation._flatten_layers(include_self=False):
        check_not_replaced(layer)
        if not _is_keras(layer):
            raise UnknownError(f"a part of it, {layer.name}, was replaced")
    if len(call.args) > len(names):
        raise UnknownError("its masks are not named")
    values = {**dict(zip(names, call.args)), **call.kwargs}
    masked, ranks = False, set()
    for name, value in values.items():
        if not hasattr(value, "shape"):
            continue
        if name in names:
            check_rank(value, 3, high)
            _check_mask(value, 2)
            ranks.add(len(value.shape))
            masked |= getattr(value, "_keras_mask", None) is not None
        else:
            rank = 3 if name == "attention_mask" else 2
            check_rank(value, rank, rank)
            masked = True
    if len(ranks) > 1 or (masked and ranks != {3}):
        raise UnknownError("its inputs have different numbers of axes")


def _recurrent(low):
    def check(call):
        check_no_arrays(call)
        if not call.args or not is_tensor(call.args[0]):
            raise UnknownError("its first argument is no tensor of the model")
        check_rank(call.args[0], low, low)
        _check_mask(call.args[0], 2, call.kwargs.get("mask"))
        if len(call.args) > 2:
            raise UnknownError("its mask is not named")
        _check_cell(call, call.operation.cell)

    return check


def _check_cell(call, cell):
    if not type(cell).__module__.startswith("keras.src.layers.rnn."):
        raise UnknownError("its cell is code of its own")
    for one in getattr(cell, "cells", ()):
        _check_cell(call, one)
    for name in ("activation", "recurrent_activation"):
        check_activation(call, getattr(cell, name, None), 2)


def _bidirectional(call):
    check_no_arrays(call)
    shape = call.args[0].shape if call.args else ()
    call.inner(call.operation.forward_layer, shape)
    call.inner(call.operation.backward_layer, shape)


def _distributed(call):
    check_no_arrays(call)
    if not call.args or not is_tensor(call.args[0]):
        raise UnknownError("its first argument is no tensor of the model")
    layer, (tensor, *masks) = call.operation.layer, call.tensors
    check_rank(tensor, 3)
    if getattr(layer, "_call_has_mask_arg", True) and (
        masks or getattr(tensor, "_keras_mask", None) is not None
    ):
        raise UnknownError("it hands a part of its mask on")
    call.inner(layer, (None, *tensor.shape[2:]))


def _visible(call):
    """Visible units, and conditions beside them."""
    check_no_arrays(call)
    ranks = [len(tensor.shape) for tensor in call.tensors]
    if ranks not in ([4], [4, 2]):
        raise UnknownError(f"its inputs have {ranks} axes")


def _bounded(call, tensor):
    bounds = call.operation.bounds or (0.0, 0.0)
    if max(map(np.ndim, bounds)) >= len(tensor.shape):
        raise UnknownError("its bounds have an axis for records")


_SHAPED = """
    ActivityRegularization AlphaDropout Cropping1D Cropping2D Cropping3D
    Dropout ELU Flatten GaussianDropout GaussianNoise Identity LeakyReLU
    Permute ReLU RepeatVector Reshape SpatialDropout1D SpatialDropout2D
    SpatialDropout3D UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D
    ZeroPadding2D ZeroPadding3D
""".split()
_POOLING = [
    f"{kind}{what}Pooling{axes}D"
    for kind in ("", "Adaptive", "Global")
    for what in ("Average", "Max")
    for axes in (1, 2, 3)
]
_CONVOLUTIONS = """
    Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose
    DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D
""".split()
# They return their images unless they train.
_RANDOM_IMAGES = """
    AugMix Equalization RandAugment RandomBrightness RandomColorDegeneration
    RandomColorJitter RandomContrast RandomCrop RandomElasticTransform
    RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHue
    RandomInvert RandomPerspective RandomPosterization RandomRotation
    RandomSaturation RandomSharpness RandomShear RandomTranslation RandomZoom
    Solarization
""".split()
_NORMALIZATIONS = """
    GroupNormalization LayerNormalization RMSNormalization UnitNormalization
""".split()
_MERGES = "Add Average Maximum Minimum Multiply Subtract".split()
_ENCODINGS = """
    CategoryEncoding Discretization Hashing IntegerLookup StringLookup
""".split()

_KERAS = {
    **dict.fromkeys(_SHAPED, _one()),
    **dict.fromkeys(_POOLING, _one(3)),
    **dict.fromkeys(_CONVOLUTIONS, _one(3, also=_active)),
    **dict.fromkeys(_RANDOM_IMAGES, _one(4, 4, _at_inference)),
    **dict.fromkeys(_NORMALIZATIONS, _one(also=_separate)),
    **dict.fromkeys(_MERGES, _merged),
    **dict.fromkeys(_ENCODINGS, _one(also=row_encodings.encoded)),
    **dict.fromkeys(("GRU", "LSTM", "RNN", "SimpleRNN"), _recurrent(3)),
    **dict.fromkeys(("AdditiveAttention", "Attention"), _attended),
    **dict.fromkeys(("AutoContrast", "CenterCrop", "Resizing"), _one(4, 4)),
    "Activation": _one(also=_active),
    "BatchNormalization": _normalized,
    "Bidirectional": _bidirectional,
    "Concatenate": _concatenated,
    "ConvLSTM1D": _recurrent(4),
    "ConvLSTM2D": _recurrent(5),
    "ConvLSTM3D": _recurrent(6),
    "Dense": _one(2, also=_active),
    "Dot": _dot,
    "EinsumDense": _one(also=_einsum),
    "Embedding": _one(),
    "GlobalAveragePooling1D": _pooled,
    "GroupQueryAttention": _grouped,
    "HashedCrossing": row_encodings.crossed,
    "Masking": _one(2),
    "MelSpectrogram": _one(2, also=_mel),
    "MultiHeadAttention": _multi_head,
    "Normalization": _one(also=row_encodings.constants),
    "PReLU": _one(also=_weighted("alpha")),
    "Rescaling": _one(also=_rescaled),
    "ReversibleEmbedding": _one(2),
    "STFTSpectrogram": _one(3, 3),
    "Softmax": _softmax,
    "TFDConcat": _concatenated,
    "TFDIdentity": _one(),
    "TextVectorization": _one(also=row_encodings.text),
    "TimeDistributed": _distributed,
}


# The package's layers, by name: layers are told what they are, not asked.
_PACKAGE = {
    "ChebyshevCRBM": _visible,
    "ColumnSlice": _one(2, 2),
    "DPPCA": _one(2, 2),
    "DiscriminantProjection": _one(2),
    "ExpansionState": _one(),
    "LocalResponseNormalization": _one(2),
    "NormalizationLayer": _one(2, also=_bounded),
    "PatchDictionary": _one(4, 4),
    "PerturbedAffine": _one(2, also=_active),
    "PerturbedConv2D": _one(4, 4, _active),
    "PrincipalProjection": _one(2),
    "PrivateDense": _one(2, 2),
    "PrivateEncoder": _one(2, 2),
    "PrivateNormalization": _one(2, also=_bounded),
    "PrivatePatches": _one(4, 4),
    "RandomFeatures": _one(2),
    "RelevanceScaling": _one(2, also=_weighted("scale")),
    "Scattering2D": _one(4, 4),
    "StepNoise": _one(),
    "WindowImage": _one(2, 2),
}


@functools.cache
def _of_keras():
    """From the classes of Keras to their rules."""
    # Keras does not export the layers of its feature spaces.
    places = keras.layers, sys.modules[keras.utils.FeatureSpace.__module__]
    return {
        getattr(place, name): rule
        for name, rule in _KERAS.items()
        for place in places
        if hasattr(place, name)
    }


def _rule(kind):
    """The rule of this very class, or `None`."""
    module = sys.modules.get(kind.__module__)
    if vars(module or object).get(kind.__name__) is not kind:
        return None
    if kind.__module__.startswith("keras_fm."):
        return _PACKAGE.get(kind.__name__)
    return _of_keras().get(kind)
