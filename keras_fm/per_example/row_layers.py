"""Keras' own layers that are known to treat the rows of a batch one by one.

A network of these may run on a batch; whatever else a network is made of runs
record by record.
"""

import keras

_NAMES = """
Activation Add AlphaDropout Average BatchNormalization Concatenate Conv1D Conv2D
Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose Cropping1D Cropping2D
Cropping3D Dense DepthwiseConv1D DepthwiseConv2D Dropout EinsumDense ELU
Embedding Flatten GaussianDropout GaussianNoise GlobalAveragePooling1D
GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D
GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization Identity InputLayer
LayerNormalization LeakyReLU MaxPooling1D MaxPooling2D MaxPooling3D
AveragePooling1D AveragePooling2D AveragePooling3D Maximum Minimum
MultiHeadAttention Multiply Permute PReLU ReLU RepeatVector Rescaling Reshape
RMSNormalization SeparableConv1D SeparableConv2D Softmax SpatialDropout1D
SpatialDropout2D SpatialDropout3D Subtract UpSampling1D UpSampling2D
UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
""".split()
KINDS = frozenset(
    getattr(keras.layers, name)
    for name in _NAMES
    if hasattr(keras.layers, name)
)
_MODELS = (keras.Sequential, keras.Model)


def are_all(network):
    """Whether a network is a graph of such layers and nothing else."""
    if type(network) is keras.Sequential:
        return all(_is_one(layer) for layer in network.layers)
    if not isinstance(network, keras.Model) or not _is_graph(network):
        return False
    return all(_is_one(operation) for operation in network.operations)


def _is_graph(network):
    # `keras.Model(inputs, outputs)`: no class of somebody's own.
    return type(network).__name__ == "Functional" and type(
        network
    ).__module__.startswith("keras.")


def _is_one(operation):
    if isinstance(operation, keras.Model):
        return are_all(operation)
    if type(operation) not in KINDS:
        return False
    axes = getattr(operation, "axis", -1)
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    if type(operation) is keras.layers.BatchNormalization:
        return not operation.trainable
    return 0 not in axes
