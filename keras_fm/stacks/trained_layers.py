"""Which layers learn in a `GradientNet`, and the maps of each.

A layer has one map, or several one after the other, each of a part of its
weights.
"""

import keras

from keras_fm.stacks import affine_maps
from keras_fm.stacks.affine_maps import ConvolutionMap
from keras_fm.stacks.embedding_map import EmbeddingMap
from keras_fm.stacks.formed_convolution import FormedConvolution
from keras_fm.stacks.scale_map import RectifierMap, ScaleMap

_layers = keras.layers


def _convolution(layer, read, views):
    if affine_maps.is_plain(layer):
        return [ConvolutionMap(layer, read, views)]
    return [FormedConvolution(layer, read, views)]


def _separable(layer, read, views):
    first = FormedConvolution(layer, read, views)
    second = ConvolutionMap(layer, first.output_shape, views, pointwise=True)
    return [first, second]


def _one(made):
    return lambda layer, read, views: [made(layer, read, views)]


_MAPS = {
    _layers.Dense: _one(affine_maps.of_layer),
    **dict.fromkeys((_layers.Conv1D, _layers.Conv2D), _convolution),
    **dict.fromkeys(
        (
            _layers.Conv3D,
            _layers.DepthwiseConv1D,
            _layers.DepthwiseConv2D,
            _layers.Conv1DTranspose,
            _layers.Conv2DTranspose,
            _layers.Conv3DTranspose,
        ),
        _one(FormedConvolution),
    ),
    **dict.fromkeys(
        (_layers.SeparableConv1D, _layers.SeparableConv2D), _separable
    ),
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
    return type(layer) in _MAPS


def maps_of(layer, input_shape, views):
    """The maps of a layer that learns, one after the other.

    Args:
        layer: the layer, built.
        input_shape: shape of what it reads, without the batch.
        views: int, rows of the batch that are one record.

    Raises:
        ValueError: if it has settings that no map is of, naming it.
    """
    return _MAPS[type(layer)](layer, input_shape, views)
