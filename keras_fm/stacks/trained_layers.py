"""Which layers learn in a `GradientNet`, and the maps of each.

A layer has one map, or several one after the other, each of a part of its
weights.
"""

import keras

from keras_fm.stacks import affine_maps, attention
from keras_fm.stacks.affine_maps import ConvolutionMap, Part
from keras_fm.stacks.embedding_map import EmbeddingMap
from keras_fm.stacks.formed_convolution import (
    DEPTHWISE,
    SEPARABLE,
    TRANSPOSED,
    FormedConvolution,
)
from keras_fm.stacks.scale_map import RectifierMap, ScaleMap

_layers = keras.layers


def _convolution(layer, read, views):
    if affine_maps.is_plain(layer):
        return [ConvolutionMap(layer, read, views)]
    return [FormedConvolution(layer, read, views)]


def _separable(layer, read, views):
    first = FormedConvolution(layer, read, views)
    part = Part(
        filters=layer.filters,
        use_bias=layer.use_bias,
        names=("pointwise_kernel", "bias"),
    )
    return [first, ConvolutionMap(layer, first.output_shape, views, part)]


def _one(made):
    return lambda layer, read, views: [made(layer, read, views)]


_MAPS = {
    _layers.Dense: _one(affine_maps.of_layer),
    **dict.fromkeys((_layers.Conv1D, _layers.Conv2D), _convolution),
    **dict.fromkeys(
        (_layers.Conv3D, *DEPTHWISE, *TRANSPOSED), _one(FormedConvolution)
    ),
    **dict.fromkeys(SEPARABLE, _separable),
    **dict.fromkeys(
        (
            _layers.LayerNormalization,
            _layers.GroupNormalization,
            _layers.RMSNormalization,
        ),
        _one(ScaleMap),
    ),
    _layers.PReLU: _one(RectifierMap),
    _layers.Embedding: _one(EmbeddingMap),
}


def learns(layer):
    """Whether a layer is known to learn, and has what it learns."""
    # Subclasses may do anything in `call`.
    if type(layer) in (_layers.LayerNormalization, _layers.GroupNormalization):
        rms = getattr(layer, "rms_scaling", False)
        return bool(layer.scale or layer.center or rms)
    return type(layer) in _MAPS or type(layer) is attention.KIND


def parts_of(layer, args, kwargs, views):
    """The tensors that a layer reads, and its maps: each reads the last of
    them or of what the maps before give, if it has no `reads`.

    Args:
        layer: the layer, which learns, built.
        args, kwargs: what it is called with, symbolic.
        views: int, rows of the batch that are one record.

    Raises:
        ValueError: if it has settings that no map is of, naming it.
    """
    given = keras.tree.flatten([args, kwargs])
    found = [v for v in given if isinstance(v, keras.KerasTensor)]
    name = f"Layer '{layer.name}' ({type(layer).__name__})"
    for tensor in found:
        read = tuple(tensor.shape[1:])
        if None in read:
            raise ValueError(
                f"{name} must read records of a known shape. Received: "
                f"input_shape={read}"
            )
    if type(layer) is attention.KIND:
        return attention.parts_of(layer, args, kwargs, views)
    if len(found) != 1:
        raise ValueError(
            f"{name} must be called with one tensor. Received: {len(found)}"
        )
    read = tuple(found[0].shape[1:])
    return found, _MAPS[type(layer)](layer, read, views)
