"""What a record adds to a step is computed of that record alone.

The habits that these guard: layers that carry state, that draw random numbers,
that are used twice or share weights, records that hold NaN, half precision,
and code of one's own in a layer.
"""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_fm.per_example import clipping, record_map
from keras_fm.per_example.given_records import GivenRecords
from keras_fm.per_example.private_network import PrivateNetwork, _made_up

pytestmark = [pytest.mark.full, pytest.mark.backend]

L = keras.layers
N = 5
BACKEND = keras.backend.backend()


def dense():
    return keras.Sequential(
        [keras.Input((6,)), L.Dense(5, activation="tanh"), L.Dense(3)]
    )


def convolutional():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            L.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
            L.GroupNormalization(2),
            L.SeparableConv2D(4, 2),
            L.DepthwiseConv2D(2),
            L.MaxPooling2D(2),
            L.Flatten(),
            L.Dense(3),
        ]
    )


def recurrent():
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            L.Embedding(7, 3, mask_zero=True),
            L.Bidirectional(L.GRU(3)),
            L.Dense(3),
        ]
    )


def attending():
    inputs = keras.Input((4,), dtype="int32")
    x = L.Embedding(7, 4)(inputs)
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 2)(x, x))
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling1D()(x)))


def used_twice():
    inputs = keras.Input((5,))
    shared = L.Dense(5, activation="tanh")
    return keras.Model(inputs, L.Dense(3)(shared(shared(inputs))))


def shared_layers():
    inputs = keras.Input((4,), dtype="int32")
    table, norm = L.Embedding(7, 3), L.LayerNormalization()
    slid = L.Conv1D(3, 2, padding="same", activation="tanh")
    x = norm(slid(norm(slid(table(inputs)))))
    x = L.Add()([x, norm(table(L.Reshape((4,))(inputs)))])
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling1D()(x)))


class OwnProducts(keras.layers.Layer):
    """Multiplies by matrices, by one of them in both directions."""

    def build(self, shape):
        self.both = self.add_weight(shape=(shape[-1], 3))
        self.wide = self.add_weight(shape=(shape[-1], 2, 4))
        self.offset = self.add_weight(shape=(3,))

    def call(self, inputs):
        x = ops.tanh(inputs @ self.both + self.offset)
        x = ops.matmul(x, ops.transpose(self.both)) + inputs
        return L.Flatten()(ops.einsum("bi,ijk->bjk", x, self.wide))


def own_products():
    return keras.Sequential([keras.Input((6,)), OwnProducts(), L.Dense(3)])


class OwnConvolutions(keras.layers.Layer):
    def build(self, shape):
        self.first = self.add_weight(shape=(3, 3, shape[-1], 2))
        self.second = self.add_weight(shape=(2, 2, 2, 2))

    def call(self, inputs):
        x = ops.conv(inputs, self.first, strides=2, padding="same")
        for _ in range(2):
            x = ops.tanh(ops.conv(x, self.second))
        return L.Flatten()(x)


class OwnConv2D(L.Conv2D):
    """May differ from Keras'."""


def own_convolutions():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            OwnConv2D(2, 3, activation="tanh"),
            L.MaxPooling2D(2, 1),
            OwnConvolutions(),
            L.Dense(3),
        ]
    )


class Tied(keras.Model):
    """A table that is the output layer, too, as in language models."""

    def __init__(self):
        super().__init__()
        self.table = L.Embedding(7, 4)
        self.last = L.Dense(3)

    def call(self, inputs):
        found = ops.mean(self.table(inputs), axis=1)
        return self.last(
            ops.matmul(found, ops.transpose(self.table.embeddings))
        )


class Noting(keras.layers.Layer):
    """Keeps an average of what it saw, and the last of it."""

    def build(self, shape):
        self.average = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False
        )
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, inputs):
        self.last_seen = inputs
        self.average.assign(0.9 * self.average + 0.1 * ops.mean(inputs, 0))
        return inputs * self.scale + self.average


def noting():
    return keras.Sequential(
        [keras.Input((6,)), Noting(), L.Dropout(0.3), L.Dense(3)]
    )


def frozen_statistics():
    made = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            L.Conv2D(3, 3, use_bias=False),
            L.BatchNormalization(),
            L.Flatten(),
            L.Dense(3),
        ]
    )
    made.layers[1].trainable = False
    return made


def penalised():
    return keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(
                5, kernel_regularizer="l2", activity_regularizer="l2", name="a"
            ),
            L.Dense(3),
        ]
    )


def lambda_of_a_batch():
    def call(v):
        v = v - ops.mean(v, axis=0, keepdims=True) + v
        # In place, which PyTorch's maps of functions do not know.
        return ops.zeros(v.shape).add_(v) if BACKEND == "torch" else v

    inputs = keras.Input((6,))
    x = L.Dense(5)(inputs)
    x = L.Lambda(call)(x)
    return keras.Model(inputs, L.Dense(3)(x))


def low_rank():
    made = dense()
    made.layers[0].enable_lora(2)
    return made


MODELS = (
    dense,
    convolutional,
    recurrent,
    attending,
    used_twice,
    shared_layers,
    own_products,
    own_convolutions,
    Tied,
    noting,
    frozen_statistics,
    penalised,
    lambda_of_a_batch,
    low_rank,
)


def dropping():
    return keras.Sequential(
        [keras.Input((6,)), L.Dense(40), L.Dropout(0.5), L.Dense(3)]
    )


def records_for(build, seed=0):
    rng = np.random.default_rng(seed)
    shape = {
        recurrent: (4,),
        attending: (4,),
        Tied: (4,),
        shared_layers: (4,),
        convolutional: (8, 8, 2),
        own_convolutions: (8, 8, 2),
        frozen_statistics: (6, 6, 2),
        used_twice: (5,),
    }.get(build, (6,))
    x = rng.normal(size=(N, *shape)).astype("float32")
    if build in (recurrent, attending, shared_layers, Tied):
        x = rng.integers(1, 7, (N, *shape)).astype("int32")
    return x, rng.integers(0, 3, N)


def map_of(build, clip=0.05):
    """As new; what a test before it compiled is kept."""
    policy = keras.config.dtype_policy().name
    private, made, piece = made_map(build, clip, policy)
    made.training, made.piece = True, piece
    return private, made, *records_for(build)


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    yield
    made_map.cache_clear()


@functools.cache
def made_map(build, clip, policy):
    keras.utils.set_random_seed(1)
    model, (x, y) = build(), records_for(build)
    model(x[:1])
    private = PrivateNetwork(model, clip=clip)
    private.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    example = _made_up(GivenRecords(x, y))
    made = record_map.chosen_for(private, clip, example, None)
    return private, made, made.piece


def sums_of(made, x, y, keys, factors):
    given = [x, y, keys, np.asarray(factors, "float32")]
    # Traced once for each way to call it.
    traces = made.__dict__.setdefault("traces", {})
    way = made.training, made.piece
    if way not in traces:
        # Not the method itself: JAX takes it for the one it has compiled.
        traces[way] = compiled(lambda *args: made.sums(*args))
    given = keras.tree.map_structure(ops.convert_to_tensor, given)
    found = traces[way](*given)
    return [ops.convert_to_numpy(v) for v in found]


def compiled(function):
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    return function


def keys_for(made, n, seed=3):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**31 - 2, (n, *made.key_shape)).astype(
        record_map.KEY_DTYPE
    )


def length(values):
    return np.sqrt(sum(np.sum(np.square(v, dtype="float64")) for v in values))


def plain_gradient(private, x, y):
    """The gradient of one record by the backend's own differentiation."""
    model = private.model
    trained, fixed = model.trainable_variables, model.non_trainable_variables

    def loss(values):
        with keras.StatelessScope(
            [*zip(trained, values), *[(v, v.value) for v in fixed]],
            collect_losses=True,
        ) as scope:
            found = private.loss_of_records(y, model(x, training=False))
            return ops.sum(found) + sum(scope.losses)

    values = [ops.stop_gradient(ops.convert_to_tensor(v)) for v in trained]
    if BACKEND == "jax":
        import jax

        found = jax.grad(loss)(values)
    elif BACKEND == "torch":
        import torch

        values = [v.detach().requires_grad_() for v in values]
        found = torch.autograd.grad(loss(values), values)
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(values)
            value = loss(values)
        found = tape.gradient(value, values, unconnected_gradients="zero")
        found = [tf.convert_to_tensor(v) for v in found]
    return [ops.convert_to_numpy(v) for v in found]


@pytest.mark.parametrize("build", MODELS, ids=lambda b: b.__name__)
def test_a_record_adds_at_most_one_clip(build):
    """Its clipped gradient; in training at most one clip, with whatever its
    layers draw, keep and mix."""
    private, made, x, y = map_of(build)
    known = {dense, attending, frozen_statistics, recurrent}
    known |= {used_twice, shared_layers}
    assert (made.way == "together") == (build in known)
    made.training = False
    keys = keys_for(made, N)
    wanted = 0
    for i in range(N):
        alone = plain_gradient(private, x[i : i + 1], y[i : i + 1])
        scale = 1 / max(length(alone), 0.05)
        wanted = wanted + np.concatenate([np.ravel(v) * scale for v in alone])
    found = sums_of(made, x, y, keys, np.ones(N))
    found = np.concatenate([np.ravel(v) for v in found])
    np.testing.assert_allclose(found, wanted, atol=3e-4)
    made.training = True
    if x.dtype == "float32":
        x *= 5
    for i in range(N):
        alone = sums_of(made, x, y, keys, np.eye(N)[i])
        assert 0 < length(alone) <= 1
    # A record leaves, and those behind it move up with their keys; also where
    # they are held two at a time, so that others share a piece with them.
    for piece in {made.piece, 2} if made.way != "one" else {1}:
        made.piece = piece
        stay = [0, 1, 3, 4, 2, 2]
        less = keys if BACKEND == "torch" else keys[stay[:N]]
        pad = [[0, 1, 2, 3, 4, 4], stay]
        whole, rest = (
            sums_of(made, x[rows], y[rows], np.concatenate([k, k[:1]]), f)
            for rows, k, f in zip(
                pad, (keys, less), ([1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0])
            )
        )
        assert length([a - b for a, b in zip(whole, rest)]) <= 1
    # Graphs of all models together are a gigabyte.
    made.traces.clear()


def test_a_penalty_in_half_precision_joins_the_loss():
    def half():
        penalty = {"activity_regularizer": "l2", "dtype": "mixed_float16"}
        first = L.Dense(5, **penalty)
        return keras.Sequential([keras.Input((6,)), first, L.Dense(3)])

    _, made, x, y = map_of(half)
    assert 0 < length(sums_of(made, x, y, keys_for(made, N), np.eye(N)[0])) <= 1


@pytest.mark.parametrize("build", [dense, recurrent, noting])
def test_what_is_not_finite_is_not_added(build):
    _, made, x, y = map_of(build)
    keys = keys_for(made, N)
    wanted = sums_of(made, x, y, keys, [1, 1, 0, 1, 1])
    if x.dtype == "float32":
        x[2] = np.nan
    else:
        # A token outside the table names the nearest in it.
        x[2] = 57913
    found = sums_of(made, x, y, keys, np.ones(N))
    assert all(np.isfinite(v).all() for v in found)
    assert length([a - b for a, b in zip(found, wanted)]) <= 1


def test_pieces_add_up_to_the_whole():
    _, whole, x, y = map_of(convolutional)
    whole.training = False
    x, y = np.concatenate([x, x[:1]]), np.concatenate([y, y[:1]])
    keys = keys_for(whole, 6)
    found = sums_of(whole, x, y, keys, np.ones(6))
    whole.piece = 2 if whole.way != "one" else 1
    pieces = sums_of(whole, x, y, keys, np.ones(6))
    np.testing.assert_allclose(
        np.concatenate([v.ravel() for v in found]),
        np.concatenate([v.ravel() for v in pieces]),
        atol=1e-5,
    )


def test_what_is_used_otherwise_is_formed():
    """Norms of a table's lookups and products do not add up: up to twice."""
    _, made, *_ = map_of(Tied)
    assert len(made.ghosts) == 1 and len(made.direct) == 1
    _, made, *_ = map_of(own_products)
    assert len(made.ghosts) == 3 and len(made.direct) == 1


@pytest.mark.skipif(BACKEND != "torch", reason="others fail before a charge")
def test_norms_are_float32_whatever_the_default_type_is():
    """In bfloat16 small squares were lost: a record added more than a clip."""
    _, made, x, y = map_of(own_products)
    given = map(ops.convert_to_tensor, (x, y, keys_for(made, N)))
    keras.config.set_floatx("bfloat16")
    try:
        _, squared = made._measured(*made._values(), *given)
    finally:
        keras.config.set_floatx("float32")
    assert keras.backend.standardize_dtype(squared.dtype) == "float32"


def cropping():
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            L.RandomCrop(4, 4),
            L.GlobalAveragePooling2D(),
            L.Dense(3),
        ]
    )


def sharing_masks():
    return keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(40),
            L.Dropout(0.5, noise_shape=(1, 40)),
            L.Dense(3),
        ]
    )


def test_what_draws_once_for_a_batch_does_not_run_together():
    """Else a record that moves to another piece, when one leaves, has another
    crop or mask, and the sum moves by more than one clip."""
    _, made, *_ = map_of(sharing_masks)
    assert made.way != "together"
    assert not record_map.draws_apart(cropping())
    assert record_map.draws_apart(dropping())


def test_one_call_draws_for_every_record_of_every_piece():
    """Were masks alike in two pieces, others would share them when a record
    leaves. Two of 40 entries alike: below 1e-11."""
    _, made, x, y = map_of(dropping)
    assert made.way == "together"
    x, y, made.piece = np.repeat(x[:1], 6, 0), np.repeat(y[:1], 6), 2
    keys = keys_for(made, 6)
    found = [sums_of(made, x, y, keys, row)[0] for row in np.eye(6)]
    for i in range(6):
        for j in range(i):
            assert np.abs(found[i] - found[j]).max() > 1e-3
    again = sums_of(made, x, y, keys, np.eye(6)[3])[0]
    np.testing.assert_array_equal(again, found[3])


def test_a_gradient_is_divided_by_its_norm_without_a_clip():
    private, made, x, y = map_of(dense, clip=None)
    made.training = False
    for i in range(N):
        alone = plain_gradient(private, x[i : i + 1], y[i : i + 1])
        found = length(sums_of(made, x, y, keys_for(made, N), np.eye(N)[i]))
        norm = length(alone)
        assert found == pytest.approx(
            norm / (norm + clipping.STABILITY), rel=1e-3
        )


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_clipped_as_stored(policy):
    keras.config.set_dtype_policy(policy)
    try:
        _, made, x, y = map_of(dense)
        keys = keys_for(made, N)
        for i in range(N):
            alone = sums_of(made, 100 * x, y, keys, np.eye(N)[i])
            assert length(alone) <= 1
            assert all(v.dtype == "float32" for v in alone)
    finally:
        keras.config.set_dtype_policy("float32")


class Unseeded(keras.layers.Layer):
    def call(self, inputs, training=None):
        if not training:
            return inputs
        return inputs * keras.random.uniform(ops.shape(inputs))


def test_what_draws_without_a_seed_draws_anew_in_every_step():
    """Its stream is Keras' own, which no step moves: all steps would have one
    mask. JAX refuses it."""

    def build():
        return keras.Sequential([keras.Input((6,)), Unseeded(), L.Dense(3)])

    if BACKEND == "jax":
        with pytest.raises(ValueError, match="SeedGenerator"):
            map_of(build)
        return
    _, made, x, y = map_of(build)
    one, again, other = (
        sums_of(made, x, y, keys_for(made, N, seed), np.ones(N))
        for seed in (3, 3, 4)
    )
    for a, b in zip(one, again):
        np.testing.assert_array_equal(a, b)
    assert length([a - b for a, b in zip(one, other)]) > 1e-3
