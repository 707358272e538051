"""Layers with batch statistics, and when these are constants."""

import keras

KINDS = (keras.layers.BatchNormalization, keras.layers.SpectralNormalization)


def are_constant(layer):
    """Whether a layer of these kinds computes with its stored statistics
    and changes none of them, whatever the mode of the call.

    Keras' own `BatchNormalization` with `trainable=False` is such a public
    affine map. With `trainable=True` any call in training mode would move
    its statistics, even if no weight of it trains. A subclass may do
    anything.
    """
    kind = keras.layers.BatchNormalization
    return type(layer) is kind and not layer.trainable


def learned_by(model):
    """Layers of a model whose statistics a training step would change."""
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, KINDS) and not are_constant(layer)
    ]
