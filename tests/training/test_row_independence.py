"""The features of a record depend on that record alone, or it is refused.

Layers that mix the records of a batch, or may do so, are told from those that
are known to treat each on its own.
"""

import functools
import sys

import keras
import numpy as np
import pytest
from keras import layers, ops
from keras.src.layers.preprocessing import feature_space
from row_models import ROWS, TENSORFLOW, Own, accepted, graph, refused

import keras_fm as fm
from keras_fm.training import row_layers, row_operations, row_probe
from keras_fm.training.row_independence import check, check_layers

READ = "code read as the calls of Keras that it makes: "

MIXING_LAYERS = {
    "unit axis 0": lambda: graph(layers.UnitNormalization(axis=0)),
    "unit axis 0, unknown length": lambda: graph(
        layers.UnitNormalization(axis=0), (None, 1)
    ),
    "unit axis -2": lambda: graph(layers.UnitNormalization(axis=-2)),
    "unit of scalars": lambda: graph(layers.UnitNormalization(), ()),
    "layer norm": lambda: graph(
        layers.LayerNormalization(axis=[0, 1]), batch_size=4
    ),
    "softmax": lambda: graph(layers.Softmax(axis=0)),
    "softmax of several": lambda: graph(layers.Softmax(axis=(-1, -2))),
    "softmax of scalars": lambda: graph(layers.Activation("softmax"), ()),
    "activation layer": lambda: graph(
        layers.Dense(3, activation=layers.Softmax(axis=0))
    ),
    "batch norm": lambda: graph(layers.BatchNormalization()),
    "batch norm without weights": lambda: graph(
        layers.BatchNormalization(center=False, scale=False)
    ),
    "batch norm of records in a row": lambda: graph(
        layers.BatchNormalization(axis=0, trainable=False), batch_size=4
    ),
    "frozen spectral norm": lambda: graph(
        layers.SpectralNormalization(layers.Dense(3), trainable=False)
    ),
    "spectral norm": lambda: graph(
        layers.SpectralNormalization(layers.Dense(3))
    ),
    "mel": lambda: graph(
        layers.MelSpectrogram(sequence_stride=64, fft_length=128), (512,)
    ),
    "concatenated": lambda: graph(
        lambda x: layers.Concatenate(axis=0)([x, x]), batch_size=4
    ),
    "joined from the right": lambda: graph(shared_addition),
    "stateful": lambda: graph(
        layers.LSTM(3, stateful=True), (4, 2), batch_size=ROWS
    ),
    "stateful both ways": lambda: graph(
        layers.Bidirectional(layers.GRU(3, stateful=True)),
        (4, 2),
        batch_size=ROWS,
    ),
    "masked scalars": lambda: graph(layers.Masking(), ()),
    "counted scalars": lambda: graph(
        layers.CategoryEncoding(4, output_mode="count"), (), dtype="int32"
    ),
    "images in a row": lambda: graph(layers.Resizing(4, 4), (8, 3)),
    "mixed images": lambda: graph(layers.MixUp(), (8, 8, 3)),
    "attention": lambda: graph(
        lambda x: layers.MultiHeadAttention(1, 2, attention_axes=(0,))(x, x),
        (3, 2),
        batch_size=4,
    ),
    "wrapped": lambda: graph(
        layers.TimeDistributed(layers.UnitNormalization(axis=0)), (3, 2)
    ),
    "both ways": lambda: graph(
        layers.Bidirectional(layers.LSTM(2, activation=layers.Softmax(axis=0))),
        (3, 2),
    ),
    "nested": lambda: graph(
        keras.Sequential([keras.Input((6,)), layers.UnitNormalization(axis=0)])
    ),
    "nested twice": lambda: graph(
        graph(graph(lambda x: x - ops.mean(x, axis=0)))
    ),
    "extremes of batches": lambda: graph(
        fm.layers.NormalizationLayer(mode="batch")
    ),
    "energy of batches": lambda: graph(
        fm.layers.ChebyshevCRBM(2, 3, normalization="batch"), (6, 6, 1)
    ),
}


def shared_addition(x):
    """Built for two axes, then called with tensors of two and three."""
    add = layers.Add()
    add([x, x])
    return add([x, layers.Reshape((1, 6))(x)])


@pytest.mark.parametrize("name", MIXING_LAYERS)
def test_layers_that_mix_are_refused_whatever_is_declared(name):
    try:
        model = MIXING_LAYERS[name]()
    except (TypeError, ValueError, NotImplementedError) as e:
        pytest.skip(f"Keras refuses to build it: {e}"[:200])
    refused(model, "mixes records")
    names = [layer.name for layer in model._flatten_layers(include_self=False)]
    refused(model, "mixes records", [n for n in names if "input" not in n])


def self_attention(x):
    return layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)


def grouped_attention(x):
    return layers.GroupQueryAttention(2, 4, 2)(x, x)


def plain_attention(x):
    return layers.Attention()([x, layers.AdditiveAttention()([x, x])])


def adapted_patches():
    layer = fm.layers.PatchDictionary(3, patch_size=3, components=6)
    images = np.random.default_rng(0).random((5, 6, 6, 1))
    if layer.data_format == "channels_first":
        images = images.transpose(0, 3, 1, 2)
    layer.adapt(images, description="made-up images")
    return layer


def adapted_directions():
    layer = fm.layers.PrincipalProjection(3)
    x = np.random.default_rng(0).random((9, 4))
    layer.adapt(x, description="made-up numbers")
    return layer


KNOWN_LAYERS = {
    "dense": (lambda: layers.Dense(3, "relu"), (6,)),
    "einsum": (lambda: layers.EinsumDense("abc,cd->abd", (3, 4)), (3, 2)),
    "einsum dots": (lambda: layers.EinsumDense("...b,bc->...c", 4), (3, 2)),
    "convolution": (lambda: layers.Conv2D(2, 3, activation="gelu"), (6, 6, 1)),
    "separable": (lambda: layers.SeparableConv2D(2, 3), (6, 6, 2)),
    "depthwise": (lambda: layers.DepthwiseConv2D(3), (6, 6, 2)),
    "transposed": (lambda: layers.Conv2DTranspose(2, 3), (4, 4, 2)),
    "pooling": (lambda: layers.MaxPooling2D(), (6, 6, 1)),
    "global pooling": (lambda: layers.GlobalAveragePooling1D(), (5, 2)),
    "lstm": (lambda: layers.LSTM(3), (4, 2)),
    "gru": (lambda: layers.GRU(3, return_sequences=True), (4, 2)),
    "simple": (lambda: layers.SimpleRNN(3), (4, 2)),
    "cells": (
        lambda: layers.RNN([layers.LSTMCell(2), layers.GRUCell(3)]),
        (4, 2),
    ),
    "both ways": (lambda: layers.Bidirectional(layers.LSTM(3)), (4, 2)),
    "convolutional": (lambda: layers.ConvLSTM1D(2, 2), (3, 5, 2)),
    "distributed": (lambda: layers.TimeDistributed(layers.Dense(2)), (3, 2)),
    "layer norm": (lambda: layers.LayerNormalization(), (3, 2)),
    "group norm": (lambda: layers.GroupNormalization(2), (5, 4)),
    "frozen batch norm": (
        lambda: layers.BatchNormalization(trainable=False),
        (3, 2),
    ),
    "unit norm": (lambda: layers.UnitNormalization(), (3, 2)),
    "unit norm, known": (lambda: layers.UnitNormalization(axis=1), (3, 2)),
    "softmax": (lambda: layers.Softmax(), (5,)),
    "leaky": (lambda: layers.LeakyReLU(), (5,)),
    "prelu": (lambda: layers.PReLU(), (5,)),
    "dropout": (lambda: layers.Dropout(0.5), (5,)),
    "noise": (lambda: layers.GaussianNoise(0.5), (5,)),
    "reshape": (lambda: layers.Reshape((-1, 2)), (3, 4)),
    "flatten": (lambda: layers.Flatten(), (3, 2)),
    "permute": (lambda: layers.Permute((2, 1)), (3, 2)),
    "repeat": (lambda: layers.RepeatVector(3), (2,)),
    "padding": (lambda: layers.ZeroPadding1D(), (3, 2)),
    "cropping": (lambda: layers.Cropping1D(), (4, 2)),
    "upsampling": (lambda: layers.UpSampling1D(), (4, 2)),
    "normalization": (
        lambda: layers.Normalization(mean=1.0, variance=2.0),
        (4,),
    ),
    "rescaling": (lambda: layers.Rescaling(1 / 255, offset=-0.5), (4, 2)),
    "centre crop": (lambda: layers.CenterCrop(3, 3), (6, 6, 1)),
    "resizing": (lambda: layers.Resizing(3, 3), (6, 6, 1)),
    "flip": (lambda: layers.RandomFlip(), (6, 6, 1)),
    "discretization": (lambda: layers.Discretization([0.0, 1.0]), (4,)),
    "masking": (lambda: layers.Masking(), (3, 2)),
    "self attention": (lambda: self_attention, (3, 4)),
    "grouped attention": (lambda: grouped_attention, (3, 4)),
    "plain attention": (lambda: plain_attention, (3, 4)),
    "random features": (lambda: fm.layers.RandomFeatures(5), (4,)),
    "scattering": (lambda: fm.layers.Scattering2D(1, 2), (4, 4, 1)),
    "patches": (lambda: adapted_patches(), (6, 6, 1)),
    "directions": (lambda: adapted_directions(), (4,)),
    "unit": (lambda: fm.layers.NormalizationLayer(), (4,)),
    "box": (lambda: fm.layers.NormalizationLayer((0, 255)), (4,)),
    "local": (lambda: fm.layers.LocalResponseNormalization(), (4, 3)),
    "relevance": (lambda: fm.layers.RelevanceScaling(), (4,)),
    "encoder": (lambda: fm.layers.PrivateEncoder(3), (4,)),
    "components": (lambda: fm.layers.DPPCA(2), (4,)),
    "private": (lambda: fm.layers.PrivateDense(2), (4,)),
    "energy": (lambda: fm.layers.ChebyshevCRBM(2, 3), (6, 6, 1)),
}


@pytest.mark.parametrize("name", KNOWN_LAYERS)
def test_layers_that_are_known_do_keep_records_apart(name):
    """The table is right: the thorough probe finds nothing, in few rows."""
    build, shape = KNOWN_LAYERS[name]
    model = graph(build(), shape)
    assert accepted(model) == []
    row_probe.check_model(model, rows=8, thorough=True)


def test_the_tables_name_what_there_is():
    """A name with a typing error would never be found."""
    of_models = {"ColumnSlice", "ExpansionState", "StepNoise", "WindowImage"}
    for name in {*row_layers._PACKAGE} - of_models:
        assert row_layers._rule(getattr(fm.layers, name))
    for name in of_models:
        kind = keras.saving.get_registered_object(f"keras_fm>{name}")
        assert row_layers._rule(kind)
    modules = [sys.modules[m] for m in row_operations._MODULES]
    if tuple(map(int, keras.version().split(".")[:2])) < (3, 15):
        return
    assert all(hasattr(ops, name) for name in row_operations.POINTWISE)
    places = layers, feature_space
    for name in row_layers._KERAS:
        assert any(hasattr(place, name) for place in places), name
    for name in row_operations._RULES:
        assert any(hasattr(module, name) for module in modules), name


def test_all_layers_of_the_package_have_a_rule():
    assert set(fm.layers.__all__) <= set(row_layers._PACKAGE)


def test_a_name_of_the_package_is_no_rule():
    class PrivateDense(layers.Layer):
        pass

    PrivateDense.__module__ = "keras_fm.heads.private_dense"
    assert row_layers._rule(PrivateDense) is None
    assert row_layers._rule(fm.layers.PrivateDense)


def test_code_of_a_users_own_is_not_known():
    for build in (
        layers.Lambda(lambda x: np.sort(x), output_shape=(6,)),
        Own(lambda layer, x, training: x / ops.max(x)),
        layers.Dense(3, activation=lambda x: x / ops.max(x)),
        layers.Activation(np.tanh),
        layers.Dense(3, activation=Own(lambda layer, x, training: ops.max(x))),
    ):
        refused(
            graph(build), "is not known.*(in its `call`|cannot be read|in it)"
        )
    refused(
        graph(
            layers.Dense(
                3, activity_regularizer=lambda x: ops.sum(ops.square(x))
            )
        ),
        "code of its own",
    )


def test_code_of_a_users_own_is_read():
    """Its own tests are in test_traced_layer.py."""

    class MyDense(layers.Dense):
        pass

    def pointwise(x):
        return x * ops.sigmoid(x)

    assert accepted(graph(layers.TimeDistributed(MyDense(2)), (3, 2))) == [
        READ + f"{__name__}.{MyDense.__qualname__}"
    ]
    for build in (
        layers.Activation(pointwise),
        layers.LSTM(2, recurrent_activation=pointwise),
    ):
        assert accepted(graph(build, (3, 2))) == [
            READ + f"{__name__}.{pointwise.__qualname__}"
        ]


def test_activations_of_keras_are_known():
    for activation in (
        "softmax",
        "gelu",
        keras.activations.mish,
        ops.sin,
        ops.softmax,
        layers.LeakyReLU(),
        functools.partial(keras.activations.leaky_relu, negative_slope=0.1),
    ):
        assert accepted(graph(layers.Dense(3, activation=activation))) == []
    refused(
        graph(
            layers.Dense(3, activation=functools.partial(ops.softmax, axis=0))
        ),
        "code of its own, and in it 'softmax.*axis 0 is that of the records",
    )


def test_a_replaced_method_is_not_known():
    layer = layers.Dense(6)
    model = graph(layer)
    assert accepted(model) == []
    layer.call = lambda x: x - ops.mean(x, axis=0)
    refused(model, "its `call` was replaced")
    model = graph(lambda x: x / 2)
    model.operations[-1].call = lambda x, y: x / ops.max(x)
    refused(model, "its `call` was replaced")
    attention = layers.MultiHeadAttention(1, 2)
    model = graph(lambda x: attention(x, x), (3, 2))
    attention._softmax.call = lambda x, mask=None: ops.softmax(x, axis=0)
    refused(model, "its `call` was replaced")


def test_activity_regularizers_move_no_feature():
    """Nor do they show in the loss of a sealed step (test_attacks.py)."""
    model = graph(layers.Dense(3, activity_regularizer="l2", name="top"))
    assert accepted(model) == []


class Doubled(keras.Model):
    """A functional model whose `call` does something else."""

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs) - ops.mean(inputs)


class Plain(keras.Model):
    def get_config(self):
        return {}


class Stacked(keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs) / ops.max(inputs)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="subclassed")
        self.dense = layers.Dense(6)
        self.norm = layers.BatchNormalization()

    def call(self, inputs):
        return self.dense(inputs)

    def compute_output_shape(self, input_shape):
        return input_shape


def test_models_with_a_call_of_their_own_are_not_known():
    def nested(kind):
        x = keras.Input((6,))
        return kind(x, layers.Dense(6)(x), name="inner")

    refused(graph(nested(Doubled)), "in its `call`, 'mean")
    assert accepted(graph(nested(Plain))) == []
    assert accepted(graph(nested(keras.Model))) == []
    stacked = Stacked([keras.Input((6,)), layers.Dense(6)], name="inner")
    refused(graph(stacked), "in its `call`, 'max")
    # Of a model with a graph of its own, that graph is what is read.
    top = nested(Doubled)
    assert check_layers(top, top.outputs) == []
    inner = graph(nested(keras.Model))
    inner.layers[-1].call = lambda x: x
    refused(inner, "its `call` was replaced")
    subclassed = graph(Subclassed())
    # What is inside is looked at whether it is called or declared or not.
    refused(subclassed, "BatchNormalization")
    refused(subclassed, "BatchNormalization", ("Subclassed",))
    subclassed.get_layer("subclassed").norm.trainable = False
    assert accepted(subclassed) == [READ + f"{__name__}.Subclassed"]


def test_a_nested_model_is_read_for_the_shapes_it_is_called_with():
    inner = graph(lambda x: ops.reshape(x, (-1, 4)), (4,), name="inner")
    assert accepted(graph(inner, (4,))) == []
    unknown = graph(lambda x: inner(layers.GlobalMaxPooling1D()(x)), (None, 4))
    assert accepted(unknown) == []
    x = keras.Input((None,))
    try:
        model = keras.Model(x, inner(x))
    except ValueError:
        return
    refused(model, "it was built for shape")


def half(v):
    """In a way that is not seen on symbolic tensors."""
    return v / 2 if ops.max(v) >= 0 else v * 0.5


def test_names_that_are_declared():
    def build():
        a = layers.Lambda(half, output_shape=(6,), name="scale")
        b = layers.Lambda(half, output_shape=(6,), name="shift")
        return graph(lambda x: b(a(x)))

    model = build()
    both = [
        "declared to treat every record on its own: layer 'scale' (Lambda)",
        "declared to treat every record on its own: layer 'shift' (Lambda)",
    ]
    assert accepted(model, declared=("scale", "shift")) == both
    assert accepted(model, declared=("Lambda",)) == both
    assert accepted(model, declared="Lambda") == both
    refused(model, "'shift' .* not known", ("scale",))
    refused(model, r"must name .*\['scal'\]", ("scale", "shift", "scal"))
    # A layer above what is read is one of the model, and not of the notes.
    scale = model.get_layer("scale").output
    assert check_layers(model, scale, declared=("Lambda", "shift")) == both[:1]


def test_a_declared_model_answers_for_what_is_in_it():
    inner = graph(
        lambda x: layers.Lambda(half, output_shape=(6,))(x), name="body"
    )
    model = graph(inner)
    refused(model, "Lambda")
    assert accepted(model, declared=(inner.name,)) == [
        "declared to treat every record on its own: layer "
        f"'{inner.name}' (Functional)"
    ]


def test_several_inputs_and_outputs():
    x, z = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    y = layers.Concatenate()([layers.Dense(3)(x), z])
    w = layers.Dot(axes=1)([x, z])
    model = keras.Model({"a": x, "b": z}, [y, w])
    assert check(model, model.outputs, rows=8) == []
    assert check(model, y, rows=8) == []
    mixed = keras.Model([x, z], x - ops.mean(z, axis=0))
    refused(mixed, "mixes records")
    one = keras.Input(batch_shape=(1, 4))
    refused(keras.Model([x, one], x + one), "first axis")


def test_a_model_without_a_graph_is_refused():
    with pytest.raises(ValueError, match="keras.Input"):
        check_layers(Subclassed(), [])


def test_a_body_of_keras_applications():
    body = keras.applications.VGG16(
        weights=None, include_top=False, input_shape=(32, 32, 3)
    )
    assert accepted(graph(body, (32, 32, 3))) == []


def test_masks_line_up():
    """A mask of fewer axes than what it masks would mask other records."""

    def softmax(x):
        return layers.Softmax()(layers.Masking()(x))

    refused(graph(softmax, (ROWS, ROWS)), "its mask has shape")

    def handed_on(x):
        return layers.TimeDistributed(layers.Softmax())(layers.Masking()(x))

    refused(graph(handed_on, (3, ROWS)), "a part of its mask")
    for known in (
        layers.LSTM(2),
        layers.GlobalAveragePooling1D(),
        layers.Dense(2),
        layers.TimeDistributed(layers.Dense(2)),
    ):
        masked = graph(lambda x, k=known: k(layers.Masking()(x)), (3, 2))
        assert accepted(masked) == []


@pytest.mark.skipif(not TENSORFLOW, reason="needs TensorFlow")
def test_texts():
    def text(**kwargs):
        layer = layers.TextVectorization(vocabulary=["one", "two"], **kwargs)
        return graph(layer, (), dtype="string")

    model = text(output_sequence_length=4)
    assert check(model, model.outputs, rows=ROWS) == []
    assert accepted(text(output_mode="multi_hot")) == []
    # Padded to the longest of a batch.
    refused(text(), "output_sequence_length")
    refused(
        text(output_sequence_length=4, standardize=lambda x: x),
        "code of its own",
    )
    lookup = layers.StringLookup(vocabulary=["one", "two"])
    model = graph(lookup, (3,), dtype="string")
    assert check(model, model.outputs, rows=ROWS) == []


# Layers of a user's own, declared --------------------------------------------


def own(function, shape=(6,), **kwargs):
    return graph(Own(function, name="own", **kwargs), shape)


def test_a_declared_layer_is_tried():
    good = own(lambda layer, x, training: x / 9)
    assert len(check(good, good.outputs, rows=ROWS, declared=("own",))) == 1
    for function in (
        lambda layer, x, training: x / ops.max(x, axis=0),
        lambda layer, x, training: x + 0.005 * ops.mean(x, axis=0),
        lambda layer, x, training: x + 0.01 * ops.roll(x, 1, axis=0),
    ):
        bad = own(function)
        with pytest.raises(ValueError, match="mix the records"):
            check(bad, bad.outputs, rows=ROWS, declared=("own",))


def test_what_mixes_only_while_training_is_refused():
    def function(layer, x, training):
        return x - ops.mean(x, axis=0) if training else x

    bad = own(function)
    with pytest.raises(ValueError, match="while training"):
        check(bad, bad.outputs, rows=ROWS, declared=("own",))


class Keeps(Own):
    """Writes the largest value it saw into a variable."""

    def build(self, input_shape):
        self.seen = self.add_weight(
            name="seen", shape=(), initializer="zeros", trainable=False
        )


@pytest.mark.parametrize("when", [True, False])
def test_what_writes_a_variable_is_refused(when):
    def function(layer, x, training):
        if training == when:
            layer.seen.assign(ops.maximum(layer.seen, ops.max(x)))
        return x

    bad = graph(Keeps(function, name="own"))
    # Again, too: the first look left in it what the second ends with.
    for _ in range(2):
        with pytest.raises(ValueError, match="keep something.*'.*seen'"):
            check(bad, bad.outputs, rows=ROWS, declared=("own",))


def test_a_variable_that_is_overwritten_by_every_batch():
    def function(layer, x, training):
        layer.seen.assign(ops.max(x))
        return x

    bad = graph(Keeps(function, name="own"))
    for _ in range(2):
        with pytest.raises(ValueError, match="keep something.*'.*seen'"):
            check(bad, bad.outputs, rows=ROWS, declared=("own",))


class Draws(Own):
    def __init__(self, function, seed, **kwargs):
        super().__init__(function, **kwargs)
        self.generator = keras.random.SeedGenerator(seed)


def test_random_numbers():
    """None at inference; while training the same ones are drawn again, so
    that what is left are the records."""

    def noise(layer, x):
        return keras.random.normal(ops.shape(x), seed=layer.generator)

    def dropped(layer, x, training):
        return x + noise(layer, x) if training else x

    def always(layer, x, training):
        return x + noise(layer, x)

    def hidden(layer, x, training):
        if training:
            return x + noise(layer, x) + 0.01 * ops.mean(x, axis=0)
        return x

    good = graph(Draws(dropped, 7, name="own"))
    state = good.get_layer("own").generator.state
    before = ops.convert_to_numpy(state)
    assert len(check(good, good.outputs, rows=ROWS, declared=("own",))) == 1
    np.testing.assert_array_equal(ops.convert_to_numpy(state), before)
    for function in (always, hidden):
        bad = graph(Draws(function, 7, name="own"))
        with pytest.raises(ValueError, match="mix the rec|random numbers"):
            check(bad, bad.outputs, rows=ROWS, declared=("own",))


def test_half_precision_is_tried_as_it_is():
    def function(layer, x, training):
        if keras.backend.standardize_dtype(x.dtype) == "float16":
            return x + ops.cast(0.01, "float16") * ops.mean(x, axis=0)
        return x

    full = own(function)
    assert len(check(full, full.outputs, rows=ROWS, declared=("own",))) == 1
    half = own(function, dtype="mixed_float16")
    with pytest.raises(ValueError, match="mix the records"):
        check(half, half.outputs, rows=ROWS, declared=("own",))


# Ordinary models -------------------------------------------------------------


def recurrent(x):
    x = layers.Embedding(50, 8, mask_zero=True)(x)
    return layers.Bidirectional(layers.LSTM(4))(x)


def attention(x):
    y = layers.MultiHeadAttention(2, 4)(x, x)
    y = layers.LayerNormalization()(x + layers.Dropout(0.1)(y))
    return layers.GlobalAveragePooling1D()(layers.Dense(8, "gelu")(y))


def convolutional(x):
    x = layers.Conv2D(4, 3, activation="relu")(x / 255.0)
    x = layers.GroupNormalization(2)(layers.MaxPooling2D()(x))
    return layers.Dense(5)(layers.Flatten()(x))


def nested(x):
    body = keras.Sequential([keras.Input((6,)), layers.Dense(5, "relu")])
    return fm.layers.NormalizationLayer()(layers.Add()([body(x), body(x)]))


ORDINARY = {
    "embedding": (recurrent, (10,), {"dtype": "int32"}),
    "embedding of fractions": (recurrent, (10,), {}),
    "embedding of any length": (recurrent, (None,), {"dtype": "int32"}),
    "attention": (attention, (6, 8), {}),
    "attention of any length": (attention, (None, 8), {}),
    "convolutional": (convolutional, (12, 12, 3), {}),
    "convolutional, uint8": (convolutional, (12, 12, 1), {"dtype": "uint8"}),
    "nested": (nested, (6,), {}),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_models_pass(name):
    build, shape, kwargs = ORDINARY[name]
    if name == "convolutional, uint8":

        def build(x):
            return convolutional(ops.cast(x, "float32"))

    model = graph(build, shape, **kwargs)
    assert check(model, model.outputs, rows=ROWS) == []


def product_mixes(dtype):
    """Whether a row that is no number makes other rows of a product such: in
    bfloat16 PyTorch does so on processors that multiply tiles."""
    x = np.ones((ROWS, 100))
    x[::2] = np.nan
    layer = layers.Dense(5, dtype=dtype)
    found = keras.Sequential([keras.Input((100,)), layer]).predict_on_batch(x)
    return not np.isfinite(np.asarray(found)[1::2].astype("float32")).all()


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_passes(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = graph(convolutional, (12, 12, 3))
    finally:
        keras.config.set_dtype_policy(before)
    if product_mixes(policy):
        with pytest.raises(ValueError, match="mix the records"):
            check(model, model.outputs, rows=ROWS)
    else:
        assert check(model, model.outputs, rows=ROWS) == []


@pytest.mark.parametrize("name", fm.features.FEATURES[:2])
def test_feature_maps_of_the_package_pass(name):
    model = fm.features.build(name, (12, 12, 1), units=20)
    assert check(model, model.outputs, rows=ROWS) == []
    # As a part of a model, and up to a tensor in the middle.
    whole = keras.Sequential([model, fm.layers.PrivateDense(3)])
    read = whole.layers[-1].input
    assert check(whole, read, rows=ROWS) == []


def test_the_compiled_map_is_used_again():
    """The caller's extractor is the one that is tried."""
    model = graph(layers.Dense(3))
    calls = []

    class Counted:
        def __init__(self, extractor):
            self.__dict__["extractor"] = extractor

        def __getattr__(self, name):
            return getattr(self.extractor, name)

        def predict_on_batch(self, x):
            calls.append(len(x))
            return self.extractor.predict_on_batch(x)

    check(model, model.outputs, rows=ROWS, extractor=Counted(model))
    assert calls and set(calls) == {ROWS}


def test_nothing_is_run_for_the_input_itself():
    x = keras.Input((3,))
    model = keras.Model(x, layers.Dense(2)(x))
    assert check(model, model.inputs, rows=ROWS) == []
