"""Weights of any layer that are only factors of products."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fm.per_example import product_weights, record_map
from keras_fm.per_example.private_network import PrivateNetwork
from keras_fm.per_example.product_weights import Use

pytestmark = pytest.mark.backend
RNG = np.random.default_rng(0)
X = ops.convert_to_tensor(RNG.normal(size=(1, 2, 3)).astype("float32"))
W = ops.convert_to_tensor(RNG.normal(size=(3, 4)).astype("float32"))
SQUARE = ops.convert_to_tensor(RNG.normal(size=(3, 3)).astype("float32"))
CUBE = ops.convert_to_tensor(RNG.normal(size=(3, 4, 2)).astype("float32"))
ONCE = Use(rows=3, places=2, turned=False)
TURNED = Use(rows=4, places=2, turned=True)

PRODUCTS = {
    "matmul": (lambda w: ops.matmul(X, w), W, [ONCE]),
    "operator": (lambda w: X @ w, W, [ONCE]),
    "dot": (lambda w: ops.dot(X, w), W, [ONCE]),
    "einsum": (lambda w: ops.einsum("bti,iuv->btuv", X, w), CUBE, [ONCE]),
    "turned": (
        lambda w: ops.matmul(X, ops.transpose(w)),
        ops.transpose(W),
        [TURNED],
    ),
    "turned by name": (
        lambda w: ops.einsum("bti,oi->bto", X, w),
        ops.transpose(W),
        [TURNED],
    ),
    "reshaped": (
        lambda w: ops.matmul(X, ops.reshape(w, (3, 8))),
        CUBE,
        [ONCE],
    ),
    "cast": (
        lambda w: ops.matmul(ops.cast(X, "float16"), ops.cast(w, "float16")),
        W,
        [ONCE],
    ),
    "twice": (
        lambda w: ops.matmul(ops.tanh(ops.matmul(X, w)), w),
        SQUARE,
        [ONCE, ONCE],
    ),
    "not at all": (lambda w: X, W, []),
}
OTHERS = {
    "its length, too": lambda w: ops.matmul(X, w) * ops.sum(ops.square(w)),
    "its square": lambda w: ops.matmul(X, ops.matmul(w, w)),
    "its turned square": lambda w: X @ ops.matmul(w, ops.transpose(w)),
    "an entry for each": lambda w: ops.einsum("bti,ti->bti", X, w[:2]),
    "entries": lambda w: X * w[0],
    "a part": lambda w: ops.matmul(X, w[:, :2]),
    "a stopped one": lambda w: ops.matmul(X, ops.stop_gradient(w)),
    "a diagonal": lambda w: ops.einsum("bti,ii->bti", X, w),
    "summed alone": lambda w: ops.einsum("bti,io->bt", X, w),
    "as integers": lambda w: X @ ops.cast(ops.cast(w, "int32"), "float32"),
}
# Not what they seem: of PyTorch alone.
OF_TORCH = {
    "turned twice": lambda w: X @ w.transpose(0, -2),
    "in a list": lambda w: ops.matmul(X, ops.stack([w, w])[0]),
    "by name": lambda w: X.matmul(other=w),
    "changed in place": lambda w: X @ w.to(X.dtype).mul_(0.5),
    "an entry is set": lambda w: (w.__setitem__(0, 0.0), X @ w)[1],
}


def compiled(model):
    private = PrivateNetwork(model, clip=1.0)
    private.compile("sgd", "mse")
    return private


def found_in(function, weight):
    (found,) = product_weights.found_in(lambda all: function(*all), [weight])
    return found


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_found(name):
    function, weight, wanted = PRODUCTS[name]
    assert found_in(function, weight) == wanted


@pytest.mark.parametrize("name", OTHERS)
def test_another_use_is_no_product(name):
    """Its part of the gradient would be missing."""
    assert found_in(OTHERS[name], SQUARE) is None


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="of PyTorch")
@pytest.mark.parametrize("name", OF_TORCH)
def test_another_use_in_pytorch_is_no_product(name):
    assert found_in(OF_TORCH[name], ops.copy(SQUARE)) is None


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="traces no such operation"
)
def test_a_transposition_that_changes_nothing_is_no_turned_matrix():
    found = found_in(lambda w: X @ ops.transpose(w, (0, 1)), SQUARE)
    assert found is None


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="forms them")
def test_convolutions_are_products_with_what_they_read():
    images = ops.ones((1, 7, 6, 2))

    def uses(kernel=(3, 2, 2, 5), x=images, **given):
        return found_in(lambda w: ops.conv(x, w, **given), ops.ones(kernel))

    assert uses() == [Use(12, 5 * 5, False)]
    assert uses(padding="same", strides=(2, 3)) == [Use(12, 4 * 2, False)]
    assert uses((3, 2, 5), images[:, 0], padding="same") == [Use(6, 6, False)]
    assert uses(dilation_rate=2) is None
    assert uses((3, 2, 1, 4)) is None
    assert uses(data_format="channels_first", kernel=(2, 2, 7, 5)) is None


def test_products_with_two_matrices_of_one_weight_are_not_joined():
    def run(w):
        flat = ops.reshape(ops.matmul(X, ops.reshape(w, (3, 8))), (1, 4, 4))
        return ops.matmul(flat, ops.reshape(w, (4, 6)))

    assert found_in(run, CUBE) is None


@pytest.mark.parametrize("turned", [False, True])
def test_uses_of_other_sizes_have_the_norm_of_their_sum(turned):
    """By brute force in float64. A long input of one use with the short
    derivative of another one must not lengthen the norm."""
    uses = [Use(5, 3, False), Use(5, 2, turned)]
    made = product_weights.ProductMap((5, 4), uses)
    lengths = (1e3, 1e-3) if turned else (1e-3, 1e3)
    u, d = RNG.normal(size=(6, 3, 5)), 1e-3 * RNG.normal(size=(6, 3, 4))
    v, e = RNG.normal(size=(6, 2, 5)), RNG.normal(size=(6, 2, 4))
    v, e = v / lengths[0], e / lengths[1]
    u *= 1e3
    read = np.concatenate(
        [np.reshape(w, (6, -1)) for w in (u, e if turned else v)], axis=1
    )
    delta = np.concatenate(
        [np.reshape(w, (6, -1)) for w in (d, v if turned else e)], axis=1
    )
    squared, found = made.measured(
        *(ops.convert_to_tensor(w.astype("float32")) for w in (read, delta))
    )
    wanted = np.einsum("npi,npo->nio", u, d) + np.einsum("npi,npo->nio", v, e)
    lengths = np.sum(wanted**2, axis=(1, 2))
    ratio = ops.convert_to_numpy(squared) / lengths
    assert np.all(ratio >= 1 - 1e-6) and np.all(ratio < 1.002)
    scale = RNG.uniform(size=6).astype("float32")
    (total,) = made.sums_of(found, ops.convert_to_tensor(scale))
    np.testing.assert_allclose(
        ops.convert_to_numpy(total),
        np.einsum("n,nio->io", scale, wanted),
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_model_that_changes_its_products_is_refused():
    """As one that draws its layers outside of the key of a step."""

    class Own(keras.layers.Layer):
        often = 1

        def build(self, shape):
            self.matrix = self.add_weight(shape=(shape[-1], shape[-1]))

        def call(self, inputs):
            for _ in range(self.often):
                inputs = inputs @ self.matrix
            return inputs

    model = keras.Sequential([keras.Input((3,)), Own()])
    x = RNG.normal(size=(3, 3)).astype("float32")
    made = record_map.chosen_for(compiled(model), 1.0, (x, x))
    assert made.way == "vmap" and len(made.ghosts) == 1
    model.layers[0].often = 2
    with pytest.raises(ValueError, match="in another way than in its first"):
        record_map._tried(made, (x, x))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_weights_below_a_head_of_zeros_have_all_their_uses(policy):
    """Also of a variable that Keras casts. The trial with single records cannot
    see them there."""
    keras.utils.set_random_seed(0)

    class Tied(keras.layers.Layer):
        def build(self, shape):
            self.matrix = self.add_weight(shape=(shape[-1], shape[-1]))

        def call(self, inputs):
            return ops.tanh(inputs @ self.matrix) @ ops.transpose(self.matrix)

    zeros = keras.layers.Dense(2, kernel_initializer="zeros", dtype="float32")
    model = keras.Sequential([keras.Input((3,)), Tied(dtype=policy), zeros])
    x = RNG.normal(size=(4, 3)).astype("float32")
    private, y = compiled(model), RNG.normal(size=(4, 2)).astype("float32")
    made = record_map.chosen_for(private, 1.0, (x, y))
    zeros.kernel.assign(RNG.normal(size=(3, 2)))
    plain = record_map.RecordMap(private, 1.0, "one")
    for one, other in zip(
        *(record_map._tried(m, (x, y)) for m in (made, plain))
    ):
        np.testing.assert_allclose(
            one, other, atol=1e-2 * np.max(np.abs(other))
        )


@pytest.mark.parametrize("side", [0, 1])
def test_a_place_of_length_0_beside_a_huge_one_loses_no_record(side):
    made = product_weights.ProductMap((3, 4), [Use(3, 1, False)] * 2)
    pair = [np.ones((1, 6), "float32"), np.ones((1, 8), "float32")]
    for values, factor in zip((pair[side], pair[1 - side]), (0.0, 1e11)):
        values[:, : values.shape[1] // 2] *= factor
    run = made.measured
    if keras.backend.backend() == "jax":
        import jax

        run = jax.jit(run)
    squared, _ = run(*map(ops.convert_to_tensor, pair))
    assert np.isfinite(ops.convert_to_numpy(squared)).all()


def test_a_layer_that_is_called_in_a_loop_is_no_obstacle():
    class Cell(keras.layers.Layer):
        state_size = output_size = 3

        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3, activation="tanh")

        def build(self, shape):
            self.dense.build((None, shape[-1] + 3))

        def call(self, inputs, states):
            state = self.dense(ops.concatenate([inputs, states[0]], axis=-1))
            return state, [state]

    model = keras.Sequential(
        [keras.Input((4, 2)), keras.layers.RNN(Cell()), keras.layers.Dense(2)]
    )
    x = RNG.normal(size=(3, 4, 2)).astype("float32")
    y = RNG.normal(size=(3, 2)).astype("float32")
    made = record_map.chosen_for(compiled(model), 1.0, (x, y))
    ways = {"tensorflow": ("one", 0), "jax": ("vmap", 0), "torch": ("vmap", 2)}
    assert (made.way, len(made.ghosts)) == ways[keras.backend.backend()]
