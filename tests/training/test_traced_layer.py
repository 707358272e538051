"""Code of a user's own is read as the calls of Keras that it makes, and
refused where that cannot be seen."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from row_models import ROWS, TENSORFLOW, Own, accepted, graph, refused

from keras_fm.training.row_independence import check

READ = "code read as the calls of Keras that it makes: "


class Block(layers.Layer):
    """As blocks of papers are written: layers, sums, and a flag."""

    def __init__(self, units=6, frozen=True, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(units, activation=lambda x: x * ops.tanh(x))
        self.norm = layers.BatchNormalization(trainable=not frozen)
        self.drop = layers.Dropout(0.5)

    def build(self, shape):
        self.dense.build(shape)
        self.norm.build(shape)
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones")
        self.built = True

    def call(self, x, training=None):
        y = self.drop(self.norm(self.dense(x)), training=training)
        return x + y * self.scale

    def compute_output_shape(self, shape):
        return shape


class Stack(layers.Layer):
    """Code that calls code."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [Block(), Block()]

    def build(self, shape):
        for block in self.blocks:
            block.build(shape)
        self.built = True

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return ops.reshape(x, (ops.shape(x)[0], 18))


class WithToken(layers.Layer):
    """One vector for all records, in front of each; then attention."""

    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, shape[-1]))
        self.attention = layers.MultiHeadAttention(1, 2)
        self.attention.build(shape, shape)
        self.built = True

    def call(self, x):
        rows, length = ops.shape(x)[:2]
        token = ops.tile(self.token, (rows, 1, 1))
        x = ops.concatenate([token, x], axis=1)
        ordered = ops.arange(length + 1)
        causal = ops.expand_dims(ordered[:, None] >= ordered, axis=0)
        mask = ops.broadcast_to(causal, (rows, length + 1, length + 1))
        return self.attention(x, x, attention_mask=mask)[:, 0, :]

    def compute_output_shape(self, shape):
        return shape[0], shape[2]


class Wrapped(keras.Model):
    """A functional model inside a subclassed one."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        x = keras.Input((6,))
        self.inner = keras.Model(x, layers.Dense(6, "relu")(x))

    def call(self, x):
        return self.inner(x / 255.0)


class Masked(layers.Layer):
    """With a mask of its own for what follows."""

    def compute_mask(self, x, mask=None):
        return ops.any(ops.not_equal(x, 0), axis=-1)

    def call(self, x):
        return x * 2

    def compute_output_shape(self, shape):
        return shape


def own(function, shape=(6,), **kwargs):
    return graph(Own(function, name="own", **kwargs), shape)


READABLE = {
    "block": (Block, (6,)),
    "stack": (Stack, (3, 6)),
    "token": (WithToken, (3, 6)),
    "model": (Wrapped, (6,)),
    "distributed": (lambda: layers.TimeDistributed(Block()), (3, 6)),
    "masked": (
        lambda: lambda x: layers.GlobalAveragePooling1D()(Masked()(x)),
        (3, 6),
    ),
    "lambda": (lambda: layers.Lambda(lambda x: x / 9), (6,)),
}


@pytest.mark.parametrize("name", READABLE)
def test_code_that_calls_keras_is_read(name):
    build, shape = READABLE[name]
    model = graph(build(), shape)
    (note,) = check(model, model.outputs, rows=8)
    assert note.startswith(READ)
    assert accepted(model) == [note]


def test_reading_leaves_no_trace():
    stack = Stack()
    model = graph(stack, (3, 6))
    layer = stack.blocks[0].dense
    weights = [np.array(v) for v in model.get_weights()]
    before = len(layer._inbound_nodes), len(stack._inbound_nodes)
    attributes = set(vars(stack)), set(vars(stack.blocks[0]))
    accepted(model)
    accepted(model)
    assert before == (len(layer._inbound_nodes), len(stack._inbound_nodes))
    assert attributes == (set(vars(stack)), set(vars(stack.blocks[0])))
    assert stack.output.shape == (None, 18)
    for old, new in zip(weights, model.get_weights()):
        np.testing.assert_array_equal(old, new)
    assert model.predict(np.ones((2, 3, 6)), verbose=0).shape == (2, 18)


class Sum(layers.Layer):
    def call(self, a, b, c):
        return a + b * c


def test_a_layer_of_several_tensors_is_tried_and_its_model_saved(tmp_path):
    """Keras' own way to cut a graph in the middle left it unsaved."""
    model = graph(lambda x: Sum(name="sum")(ops.abs(x), ops.zeros_like(x), x))
    assert len(check(model, model.outputs, rows=8)) == 1
    assert len(model.get_layer("sum")._inbound_nodes) == 1
    model.save(tmp_path / "m.keras")
    read = {"Sum": Sum}
    loaded = keras.saving.load_model(tmp_path / "m.keras", custom_objects=read)
    assert accepted(loaded) == accepted(model)


def test_several_lengths_of_a_nested_model():
    """Built for any length, and read for the one that it is called with."""
    tokens = keras.Input((None, 6))
    inner = keras.Model(tokens, WithToken()(layers.Dense(6)(tokens)))
    nodes = len(inner.layers[-1]._inbound_nodes)
    assert len(accepted(graph(inner, (3, 6)))) == 1
    assert len(inner.layers[-1]._inbound_nodes) == nodes
    refused(graph(inner, (None, 6)), "give all of them in `keras.Input")


def test_a_dict_of_inputs():
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    inner = keras.Model({"a": a, "b": b}, layers.Dense(2)(a + b))
    assert accepted(graph(lambda x: inner({"a": x, "b": x * 2}))) == []


def remembers(layer, x, training):
    layer.last = x
    return x


def collects(layer, x, training):
    layer.seen.append(x)
    return x


def counts(layer, x, training):
    layer.count = layer.count + 1
    return x


def writes(layer, x, training):
    layer.state.assign_add(ops.ones(()))
    return x


def writes_records(layer, x, training):
    layer.state.assign(ops.max(x))
    return x


def draws(layer, x, training):
    return x + keras.random.normal((1, 6), seed=layer.generator)


def draws_for_each(layer, x, training):
    return x + keras.random.normal(ops.shape(x), seed=1)


def by_value(layer, x, training):
    return x if ops.max(x) > 0 else -x


def in_a_branch(layer, x, training):
    """TensorFlow's symbolic result is the input itself, which no walk from
    the outputs goes beyond."""
    return ops.cond(ops.max(x) > 0.5, lambda: x, lambda: 0 * x)


def from_numpy(layer, x, training):
    return ops.convert_to_tensor(np.array(x) / np.max(x))


def by_place(layer, x, training):
    rows = ops.cast(ops.arange(ops.shape(x)[0]), "float32")
    return x + ops.expand_dims(rows, 1)


def constant(layer, x, training):
    rows = ops.cast(ops.arange(ops.shape(x)[0]), "float32")
    return ops.broadcast_to(ops.expand_dims(rows, 1), ops.shape(x))


def smaller(layer, x, training):
    return x[1:, :]


def folded(layer, x, training):
    return ops.reshape(ops.reshape(x, (-1, 2)), (-1, 6))


UNREADABLE = {
    "an attribute": (remembers, "keeps something in the attribute `last`"),
    "a list": (collects, "keeps something in the attribute `seen`"),
    "a count": (counts, "keeps something in the attribute `count`"),
    "a variable": (writes, "writes variables"),
    "a variable of records": (writes_records, "cannot be read"),
    "random numbers": (draws, "writes variables"),
    "random numbers for each": (draws_for_each, "a constant in it has shape"),
    "a choice by value": (by_value, "cannot be read"),
    "a branch": (in_a_branch, "chooses between its input|cannot be read"),
    "NumPy": (from_numpy, "cannot be read"),
    "places": (by_place, "a constant in it has shape"),
    "constant rows": (constant, "no row for each record"),
    "fewer records": (smaller, "takes some records out"),
    "folded records": (folded, "which are other records"),
}


class Stateful(Own):
    def build(self, shape):
        self.state = self.add_weight(shape=(), trainable=False)
        self.generator = keras.random.SeedGenerator(1)
        self.seen, self.count = [], 0
        self.built = True

    def compute_output_spec(self, x, training=None):
        # Keras itself would run the code here, and count.
        return keras.KerasTensor(x.shape, x.dtype)


@pytest.mark.parametrize("name", UNREADABLE)
def test_code_that_cannot_be_read_is_refused(name):
    function, message = UNREADABLE[name]
    layer = Stateful(function, name="own")
    model = graph(layer)
    state = ops.convert_to_numpy(layer.state)
    text = refused(model, message)
    assert "per_record=('own',)" in text and "`keras.ops`" in text
    assert "\x1b" not in text and len(text) < 1200
    # Nothing symbolic stays behind, and nothing was written.
    assert ops.convert_to_numpy(layer.state) == state
    assert not hasattr(layer, "last") and layer.count == 0


def test_a_backends_own_calls_are_not_read():
    def native(layer, x, training):
        if TENSORFLOW:
            import tensorflow as tf

            return x - tf.reduce_mean(x, axis=0)
        if keras.backend.backend() == "jax":
            import jax.numpy as jnp

            return x - jnp.mean(x, axis=0)
        import torch

        return x - torch.mean(x, dim=0)

    refused(graph(Stateful(native)), "cannot be read")


def test_classes_that_are_called_another_way():
    class Called(Own):
        def __call__(self, x):
            return super().__call__(x) * 1.0

    refused(graph(Called(lambda layer, x, training: x)), "a `__call__` of its")
    layer = Own(lambda layer, x, training: x)
    model = graph(layer)
    layer.call = lambda x: x - ops.mean(x, axis=0)
    refused(model, "its `call` was replaced")


def test_statistics_that_would_move_are_refused_inside_of_code():
    refused(graph(Block(frozen=False)), "BatchNormalization")


def test_a_mask_of_ones_own_that_mixes_is_refused():
    class Mixes(Masked):
        def compute_mask(self, x, mask=None):
            return ops.any(x > ops.mean(x, axis=0), axis=-1)

    model = graph(lambda x: layers.GlobalAveragePooling1D()(Mixes()(x)), (3, 6))
    refused(model, "in its `call`, 'mean")


def test_what_was_read_is_tried_in_every_way():
    """Code that shows symbolic tensors something else than records."""

    def deceives(layer, x, training):
        if isinstance(x, keras.KerasTensor):
            return x
        return x + 0.01 * ops.mean(x, axis=0)

    model = own(deceives)
    assert accepted(model) != []
    with pytest.raises(ValueError, match="mix the records"):
        check(model, model.outputs, rows=ROWS)


def test_while_training_code_is_not_known():
    """It was read as it runs in inference."""
    model = graph(Block())
    assert accepted(model) != []
    refused(model, "not among the layers known", training=True)


class Heads(layers.Layer):
    """Attention as decoders have it: einsum layers that were built for no
    length in particular, and a mask that is not named."""

    def __init__(self, mask="bhqk", **kwargs):
        super().__init__(**kwargs)
        self.split = layers.EinsumDense("btd,dhk->bthk", (None, 2, 3))
        self.softmax = layers.Softmax()
        self.mask = mask

    def build(self, shape):
        self.split.build((None, None, shape[-1]))
        self.built = True

    def call(self, x):
        h = self.split(x)
        # It asks for the length of what the layer gave.
        length = ops.shape(h)[1]
        order = ops.arange(length)
        causal = ops.expand_dims(order, 1) >= order
        scores = ops.einsum("bqhd,bkhd->bhqk", h, h)
        seen = ops.logical_and(ops.expand_dims(causal, 0), x[:, :, :1] > -9)
        if self.mask == "bhqk":
            seen = ops.expand_dims(seen, 1)
        return ops.einsum("bhqk,bkhd->bqhd", self.softmax(scores, seen), h)


def test_lengths_are_known_behind_einsum_layers():
    model = graph(Heads(), (2, 6))
    (note,) = accepted(model)
    assert note.endswith("Heads")
    check(model, model.outputs, rows=ROWS)
    # A part for each record that is taken for a part for each head.
    model = graph(Heads(mask="bqk"), (2, 6), batch_size=2)
    refused(model, "its mask has shape")


def test_a_mask_that_is_not_named_must_be_of_records():
    x = keras.Input((6,))
    softmax = layers.Softmax()
    assert accepted(keras.Model(x, softmax(x, x > 0))) == []
    refused(keras.Model(x, softmax(x, ops.mean(x, axis=0) > 0)), "mean")
    constant = np.arange(ROWS * 6).reshape(ROWS, 6) % 5 > 0
    for call in (
        lambda: softmax(x, constant),
        lambda: softmax(x, mask=constant),
    ):
        refused(keras.Model(x, call()), "an array beside")
