"""Copies of the layers of a Keras 3 model in tf-keras, which is Keras 2."""

import keras
import numpy as np

# Layers that can be copied, with the arguments that the tf-keras copy gets.
_LAYERS = {
    "Activation": ("activation",),
    "AveragePooling2D": ("pool_size", "strides", "padding"),
    "Conv2D": (
        "filters",
        "kernel_size",
        "strides",
        "padding",
        "dilation_rate",
        "activation",
        "use_bias",
    ),
    "Dense": ("units", "activation", "use_bias"),
    "Dropout": ("rate",),
    "Flatten": (),
    "GlobalAveragePooling2D": ("keepdims",),
    "GlobalMaxPooling2D": ("keepdims",),
    "GroupNormalization": ("groups", "axis", "epsilon", "center", "scale"),
    "MaxPooling2D": ("pool_size", "strides", "padding"),
    "ReLU": ("max_value", "negative_slope", "threshold"),
    "Reshape": ("target_shape",),
    "UnitNormalization": (),
}


def why_not(model):
    """Why a Keras 3 model cannot be copied, in words, or `None`."""
    if not isinstance(model, keras.Sequential):
        return "a model that is not one layer after the other"
    for layer in model.layers:
        name = type(layer).__name__
        if name not in _LAYERS:
            return f"the layer {layer.name!r} of type {name}"
    if model.built and model.output_shape[-1] == 1:
        return "one output for two classes"
    return None


def twin_layers(tf_keras, model):
    twins = [
        tf_keras.layers.InputLayer(model.input_shape[1:], name="dp_sgd_input")
    ]
    for layer in model.layers:
        name = type(layer).__name__
        config = layer.get_config()
        arguments = {key: config[key] for key in _LAYERS[name]}
        if layer is model.layers[-1] and "activation" in arguments:
            # The loss takes logits, the numerically stable form.
            arguments["activation"] = "linear"
        arguments["trainable"] = layer.trainable
        twins.append(getattr(tf_keras.layers, name)(**arguments))
    return twins


def copy_weights(model, twin):
    layers = [v for v in twin.layers if v.name != "dp_sgd_input"]
    for layer, copy in zip(model.layers, layers, strict=True):
        copy.set_weights([np.asarray(w) for w in layer.get_weights()])
