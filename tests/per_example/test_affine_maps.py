"""Per-record coefficients of Dense and Conv2D, against one weight at a time."""

import keras
import numpy as np
import pytest

from keras_fm.per_example import affine_maps

pytestmark = [pytest.mark.full, pytest.mark.backend]

LAYERS = keras.layers
CASES = {
    "dense": ((5,), lambda: LAYERS.Dense(3)),
    "dense without bias": ((5,), lambda: LAYERS.Dense(3, use_bias=False)),
    "valid": ((5, 4, 2), lambda: LAYERS.Conv2D(3, 2)),
    "same": ((5, 4, 2), lambda: LAYERS.Conv2D(3, 3, padding="same")),
    "even kernel": ((5, 4, 2), lambda: LAYERS.Conv2D(2, 2, padding="same")),
    "stride": ((6, 7, 1), lambda: LAYERS.Conv2D(2, 3, strides=2)),
    "stride, same": (
        (6, 7, 2),
        lambda: LAYERS.Conv2D(3, (3, 2), strides=(2, 3), padding="same"),
    ),
    "stride above kernel": (
        (7, 6, 2),
        lambda: LAYERS.Conv2D(2, 2, strides=3, use_bias=False),
    ),
    "stride above kernel, same": (
        (7, 6, 1),
        lambda: LAYERS.Conv2D(2, (1, 2), strides=3, padding="same"),
    ),
    "one position": ((3, 3, 4), lambda: LAYERS.Conv2D(3, 3)),
    "one by one": ((2, 3, 3), lambda: LAYERS.Conv2D(4, 1)),
    "few positions": ((2, 3, 20), lambda: LAYERS.Conv2D(8, 2)),
}  # fmt: skip


def array(x):
    return keras.ops.convert_to_numpy(x)


def prepared(case, records=3):
    shape, make = CASES[case]
    layer = make()
    layer.build((None, *shape))
    made = affine_maps.of_layer(layer, shape)
    rng = np.random.default_rng(0)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.get_weights()])

    def draw(shape):
        drawn = rng.normal(size=(records, *shape)).astype("float32")
        return keras.ops.convert_to_tensor(drawn)

    return layer, made, draw(shape), draw(made.output_shape)


def tensors(layer):
    return [keras.ops.convert_to_tensor(w) for w in layer.get_weights()]


def patches(layer, inputs):
    """`(n, positions, fan_in)`, cut out by kernels of a single 1."""
    if isinstance(layer, LAYERS.Dense):
        return array(inputs)[:, None]
    shape = layer.kernel.shape[:3]
    ones = np.eye(np.prod(shape), dtype="float32").reshape(*shape, -1)
    found = keras.ops.conv(
        inputs, ones, strides=layer.strides, padding=layer.padding
    )
    found = array(found)
    return found.reshape(len(found), -1, found.shape[-1])


def naive(layer, inputs, delta):
    """Coefficients of every record, `(n, weights)`."""
    read, found = patches(layer, inputs), []
    delta = array(delta).reshape(*read.shape[:2], -1)
    if layer.use_bias:
        read = np.concatenate([read, np.ones_like(read[..., :1])], axis=2)
    for u, d in zip(read, delta):
        total = np.zeros((u.shape[1], d.shape[1]))
        for position in range(len(u)):
            total += np.outer(u[position], d[position])
        found.append(total.ravel())
    return np.stack(found)


@pytest.mark.parametrize("case", CASES)
def test_forward_is_the_layer(case):
    layer, made, inputs, delta = prepared(case)
    wanted = array(layer(inputs))
    assert wanted.shape == array(delta).shape
    np.testing.assert_allclose(
        array(made.forward(inputs, tensors(layer))), wanted, atol=1e-4
    )


@pytest.mark.parametrize("case", CASES)
def test_backward_is_its_adjoint(case):
    layer, made, inputs, delta = prepared(case)
    weights, size = tensors(layer), np.prod(made.input_shape)
    ones = np.eye(size, dtype="float32").reshape(size, *made.input_shape)
    linear = made.forward(keras.ops.convert_to_tensor(ones), weights[:1])
    wanted = array(delta).reshape(3, -1) @ array(linear).reshape(size, -1).T
    back = array(made.backward(delta, weights))
    assert back.shape == array(inputs).shape
    np.testing.assert_allclose(back.reshape(3, -1), wanted, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_norms_and_sums_equal_a_naive_loop(case):
    layer, made, inputs, delta = prepared(case)
    wanted = naive(layer, inputs, delta)
    np.testing.assert_allclose(
        np.sqrt(array(made.squared_norm(inputs, delta))),
        np.linalg.norm(wanted, axis=1),
        rtol=1e-4,
    )
    _, held = made.measured(inputs, delta)
    sums = [array(v) for v in made.sums_of(held, keras.ops.ones(3))]
    assert [v.shape for v in sums] == [w.shape for w in layer.get_weights()]
    flat = np.concatenate([v.ravel() for v in sums])
    np.testing.assert_allclose(flat, wanted.sum(axis=0), atol=1e-3)


@pytest.mark.parametrize("case", [c for c in CASES if "dense" not in c])
def test_both_forms_of_the_norm_agree(case):
    layer, made, inputs, delta = prepared(case)
    found = []
    for formed in (True, False):
        made._is_formed = formed
        squared, kept = made.measured(inputs, delta)
        sums = made.sums_of(kept, keras.ops.ones(3))
        found.append([array(squared), *map(array, sums)])
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_each_form_is_the_one_that_is_taken_somewhere():
    assert not prepared("few positions")[1]._is_formed
    assert prepared("same")[1]._is_formed


@pytest.mark.parametrize("case", CASES)
def test_the_bound_on_what_is_read(case):
    layer, made, inputs, delta = prepared(case)
    norms = np.linalg.norm(array(inputs).reshape(3, -1), axis=1)
    bound = np.array([made.input_bound(norm) for norm in norms])
    returned = np.linalg.norm(array(delta).reshape(3, -1), axis=1)
    found = np.sqrt(array(made.squared_norm(inputs, delta)))
    assert np.all(found <= bound * returned * (1 + 1e-5))
    if "dense" in case:
        np.testing.assert_allclose(found, bound * returned, rtol=1e-4)


def test_a_norm_does_not_vanish_with_one_of_its_factors():
    made = affine_maps.of_layer(LAYERS.Dense(1, use_bias=False), (1,))
    huge = keras.ops.convert_to_tensor([[1e18]], "float32")
    tiny = keras.ops.convert_to_tensor([[1e-24]], "float32")
    for inputs, delta in ((huge, tiny), (tiny, huge)):
        norm = np.sqrt(array(made.squared_norm(inputs, delta)))
        assert norm >= 1e-6


@pytest.mark.parametrize(
    "layer, shape, match",
    [
        (LAYERS.Conv2D(2, 2, dilation_rate=2), (5, 5, 1), "dilation_rate"),
        (LAYERS.Conv2D(2, 2, groups=2), (5, 5, 2), "groups"),
        (
            LAYERS.Conv2D(2, 2, data_format="channels_first"),
            (2, 5, 5),
            "data_format",
        ),
        (LAYERS.Conv1D(2, 2, padding="causal"), (5, 5), "padding"),
    ],
)
def test_refusals(layer, shape, match):
    with pytest.raises(ValueError, match=match):
        affine_maps.of_layer(layer, shape)


@pytest.mark.parametrize("bias", [True, False])
def test_no_order_of_a_long_sum_hides_length(bias):
    """Two places, one a multiple of the other, whose gradients nearly cancel:
    products of equal entries are rounded the same way each time, and the norm
    once came out 14 times too small."""
    rng, entries = np.random.default_rng(0), 4096
    layer = LAYERS.Conv1D(64, 1, use_bias=bias)
    made = affine_maps.of_layer(layer, (2, entries))
    assert not made._is_formed
    layer.build((None, *made.input_shape))
    outputs, us, deltas = made.output_shape[-1], [], []
    for _ in range(64):
        u = np.full(entries, rng.uniform(0.1, 1), "float32")
        share = np.float32(rng.uniform(0.3, 1))
        d = rng.normal(size=outputs).astype("float32")
        d /= np.linalg.norm(d)
        for off in (0, 1e-3, -1e-3, 4e-3, -4e-3):
            us.append([u, share * u])
            deltas.append([share * d, -d * np.float32(1 + off)])
    us, deltas = np.array(us, "float32"), np.array(deltas, "float32")
    us64, deltas64 = us.astype("float64"), deltas.astype("float64")
    products = [np.einsum("npi,nqi->npq", v, v) for v in (us64, deltas64)]
    squared = np.sum(products[0] * products[1], axis=(1, 2))
    if bias:
        whole = np.sum(deltas, axis=1, dtype="float64")
        squared = squared + np.sum(np.square(whole), axis=1)
    shape = (-1, *made.input_shape), (-1, *made.output_shape)
    given = [keras.ops.array(v.reshape(s)) for v, s in zip((us, deltas), shape)]
    found = array(made.squared_norm(*given))
    # A record whose square comes out negative counts for nothing.
    assert np.all(squared < np.where(found >= 0, found, np.inf))
    assert np.all(found >= 0)


def test_squares_that_vanish_hide_no_length():
    layer = LAYERS.Dense(2, use_bias=False)
    layer.build((None, 2, 784))
    made = affine_maps.of_layer(layer, (2, 784))
    for size in (1e-22, 3e-20, 1e-19, 1.05e-19, 3e-19):
        u = np.full((1, 2, 784), size, "float32")
        delta = np.full((1, 2, 2), 1e18, "float32")
        exact = np.linalg.norm(u[0].astype("float64").T @ delta[0])
        found = made.squared_norm(*map(keras.ops.array, (u, delta)))
        assert exact < np.sqrt(array(found)[0])
