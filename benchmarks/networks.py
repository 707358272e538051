"""The networks of `record_alone.py` and `record_alone_networks.py`."""

from keras import Input, Model, Sequential, layers

TOKENS, LENGTH = 2000, 64


def dense():
    hidden = [layers.Dense(units, activation="relu") for units in (300,)]
    return Sequential([Input((784,)), *hidden, layers.Dense(10)])


def cnn():
    return Sequential(
        [
            Input((28, 28, 1)),
            layers.Conv2D(16, 8, 2, padding="same", activation="relu"),
            layers.MaxPooling2D(2, 1),
            layers.Conv2D(32, 4, 2, activation="relu"),
            layers.MaxPooling2D(2, 1),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )


def resnet(blocks=1):
    """ResNet-8, three stages of one block, group normalisation; of three
    blocks ResNet-20."""

    def block(x, filters, strides):
        y = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(
            x
        )
        y = layers.ReLU()(layers.GroupNormalization(8)(y))
        y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(y)
        y = layers.GroupNormalization(8)(y)
        if strides > 1:
            x = layers.Conv2D(filters, 1, strides, use_bias=False)(x)
        return layers.ReLU()(layers.Add()([x, y]))

    inputs = Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    x = layers.ReLU()(layers.GroupNormalization(8)(x))
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        for index in range(blocks):
            x = block(x, filters, strides if index == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return Model(inputs, layers.Dense(10)(x))


def transformer(rank=None, blocks=2):
    """Blocks of four heads; with `rank` only LoRA and the head learn."""
    inputs = Input((LENGTH,), dtype="int32")
    x = layers.Embedding(TOKENS, 64)(inputs)
    for _ in range(blocks):
        y = layers.MultiHeadAttention(4, 16)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, y]))
        y = layers.Dense(128, activation="relu")(x)
        y = layers.Dense(64)(y)
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    model = Model(inputs, outputs)
    if rank:
        for layer in model._flatten_layers(include_self=False):
            if layer.built and layer.trainable_weights:
                if type(layer) in (layers.Dense, layers.EinsumDense):
                    if layer is not model.layers[-1]:
                        layer.enable_lora(rank)
                elif not list(layer._flatten_layers(include_self=False)):
                    layer.trainable = False
    return model


def lora():
    return transformer(rank=4)


def lstm(kind=layers.LSTM):
    return Sequential(
        [
            Input((LENGTH,), dtype="int32"),
            layers.Embedding(TOKENS, 64),
            kind(64),
            layers.Dense(10),
        ]
    )


class OwnLSTM(layers.LSTM):
    """A layer of one's own: its calls may differ from Keras'."""


class OwnDense(layers.Dense):
    """The same."""


def own_lstm():
    return lstm(OwnLSTM)


def own_dense():
    hidden = OwnDense(300, activation="relu")
    return Sequential([Input((784,)), hidden, OwnDense(10)])


def shared():
    """A layer that a record uses twice."""
    given, twice = Input((784,)), layers.Dense(300, activation="relu")
    hidden = layers.Dense(300, activation="relu")(given)
    return Model(given, layers.Dense(10)(twice(twice(hidden))))
