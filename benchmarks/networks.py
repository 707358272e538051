"""The networks of `record_alone.py` and `record_alone_networks.py`."""

from keras import Input, Model, Sequential, activations, layers, ops

TOKENS, LENGTH = 2000, 64


def dense():
    hidden = [layers.Dense(units, activation="relu") for units in (300,)]
    return Sequential([Input((784,)), *hidden, layers.Dense(10)])


def cnn(kind=layers.Conv2D):
    return Sequential(
        [
            Input((28, 28, 1)),
            kind(16, 8, 2, padding="same", activation="relu"),
            layers.MaxPooling2D(2, 1),
            kind(32, 4, 2, activation="relu"),
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


class OwnConv2D(layers.Conv2D):
    """The same."""


class OwnDense(layers.Layer):
    """As one writes it, with the activation and what comes after it."""

    def __init__(self, units, activation=None, back=None):
        super().__init__()
        self.sizes = [units] if back is None else [units, back]
        self.activation = activations.get(activation)

    def build(self, shape):
        self.kernels, size = [], shape[-1]
        for units in self.sizes:
            self.kernels.append(self.add_weight(shape=(size, units)))
            size = units
        self.bias = self.add_weight(shape=self.sizes[:1], initializer="zeros")

    def call(self, inputs):
        x = ops.matmul(inputs, self.kernels[0]) + self.bias
        x = self.activation(x)
        return x @ self.kernels[1] if self.kernels[1:] else x


class OwnAttention(layers.Layer):
    def build(self, shape):
        shape = (shape[-1], 4, 16)
        self.kernels = [self.add_weight(shape=shape) for _ in range(3)]
        self.last = self.add_weight(shape=(4, 16, shape[0]))

    def call(self, x):
        query, key, value = (
            ops.einsum("btc,chd->bthd", x, v) for v in self.kernels
        )
        scores = ops.einsum("bthd,bshd->bhts", query, key) / 4
        x = ops.einsum("bhts,bshd->bthd", ops.softmax(scores), value)
        return ops.einsum("bthd,hdc->btc", x, self.last)


class OwnCell(layers.Layer):
    """Of a recurrent layer."""

    state_size = output_size = 64

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 64))
        self.recurrent = self.add_weight(shape=(64, 64))

    def call(self, inputs, states):
        z = ops.matmul(inputs, self.kernel)
        found = ops.tanh(z + ops.matmul(states[0], self.recurrent))
        return found, [found]


class BothWays(layers.Layer):
    """An autoencoder with one matrix."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 300))

    def call(self, inputs):
        x = ops.relu(ops.matmul(inputs, self.kernel))
        return ops.matmul(x, ops.transpose(self.kernel))


def own_lstm():
    return lstm(OwnLSTM)


def own_cell():
    return lstm(lambda _: layers.RNN(OwnCell()))


def own_cnn():
    return cnn(OwnConv2D)


def own_dense():
    hidden = OwnDense(300, "relu")
    return Sequential([Input((784,)), hidden, OwnDense(10)])


def own_transformer():
    inputs = Input((LENGTH,), dtype="int32")
    x = layers.Embedding(TOKENS, 64)(inputs)
    for _ in range(2):
        for made in (OwnAttention(), OwnDense(128, "relu", back=64)):
            x = layers.LayerNormalization()(layers.Add()([x, made(x)]))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    return Model(inputs, outputs)


def tied():
    return Sequential([Input((784,)), BothWays(), layers.Dense(10)])


def shared():
    """A layer that a record uses twice."""
    given, twice = Input((784,)), layers.Dense(300, activation="relu")
    hidden = layers.Dense(300, activation="relu")(given)
    return Model(given, layers.Dense(10)(twice(twice(hidden))))


def shared_cnn():
    """A convolution that a record uses three times."""
    x = given = Input((28, 28, 1))
    often = layers.Conv2D(16, 3, padding="same", activation="relu")
    first = layers.Conv2D(16, 5, 2, padding="same", activation="relu")
    for layer in (first, often, often, often, layers.Flatten()):
        x = layer(x)
    return Model(given, layers.Dense(10)(x))


def two_texts():
    """One network that reads two texts of a record."""
    given = Input((LENGTH,), dtype="int32")
    reads = [
        layers.Embedding(TOKENS, 64),
        layers.GlobalAveragePooling1D(),
        layers.Dense(64, activation="relu"),
        layers.LayerNormalization(),
    ]
    found = []
    for x in (given[:, : LENGTH // 2], given[:, LENGTH // 2 :]):
        for layer in reads:
            x = layer(x)
        found.append(x)
    return Model(given, layers.Dense(10)(layers.Multiply()(found)))
