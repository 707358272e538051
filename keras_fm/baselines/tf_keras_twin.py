"""The layers of a Keras 3 model again, in the Keras 2 of tf-keras."""

import keras
import numpy as np

from keras_fm.baselines.dp_sgd_training import check_layers

# Twin layers: the arguments of the Keras 3 layer that its tf-keras twin gets.
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
    "Flatten": (),
    "GlobalAveragePooling2D": ("keepdims",),
    "GlobalMaxPooling2D": ("keepdims",),
    "MaxPooling2D": ("pool_size", "strides", "padding"),
    "Reshape": ("target_shape",),
    "UnitNormalization": ("axis",),
}
# Activations that Keras 2 and Keras 3 define alike ("hard_sigmoid" differs).
_ACTIVATIONS = frozenset(
    "linear relu tanh sigmoid softmax elu selu softplus softsign silu gelu "
    "exponential".split()
)


def check_twins(layers):
    check_layers(layers)
    for layer in layers:
        name = type(layer).__name__
        if getattr(keras.layers, name, None) is not type(layer) or (
            name not in _LAYERS
        ):
            raise ValueError(
                f"DP-SGD does not support the layer {layer.name!r} of type "
                f"{name}. Supported: {', '.join(sorted(_LAYERS))}. "
                "Apply public feature layers to the data beforehand."
            )
        config = layer.get_config()
        if config.get("groups", 1) != 1:
            raise ValueError(
                "DP-SGD does not support `groups` other than 1. Received: "
                f"groups={config['groups']} in the layer {layer.name!r}"
            )
        if config.get("data_format") == "channels_first":
            raise ValueError(
                'DP-SGD needs data_format="channels_last". Received: '
                f'"channels_first" in the layer {layer.name!r}'
            )
        activation = config.get("activation") or "linear"
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"DP-SGD does not support the activation {activation!r} of "
                f"the layer {layer.name!r}. Supported: "
                f"{', '.join(sorted(_ACTIVATIONS))}"
            )


def twin_layers(tf_keras, model):
    twins = [
        tf_keras.layers.InputLayer(model.input_shape[1:], name="dp_sgd_input")
    ]
    for layer in model.layers:
        name = type(layer).__name__
        config = layer.get_config()
        arguments = {key: config[key] for key in _LAYERS[name]}
        if layer is model.layers[-1] and "activation" in arguments:
            # The loss takes logits, which is the stable form.
            arguments["activation"] = "linear"
        arguments["trainable"] = layer.trainable
        twins.append(getattr(tf_keras.layers, name)(**arguments))
    return twins


def copy_weights(model, twin):
    layers = [v for v in twin.layers if v.name != "dp_sgd_input"]
    for layer, copy in zip(model.layers, layers, strict=True):
        copy.set_weights([np.asarray(w) for w in layer.get_weights()])
