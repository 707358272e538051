"""Convolutions whose gradients are formed place by place of the kernel."""

import numpy as np
import pytest
from keras import layers as L
from keras import ops

from keras_fm.per_example.affine_maps import without
from keras_fm.per_example.formed_convolution import FormedConvolution
from keras_fm.per_example.stages import weights_of

pytestmark = [pytest.mark.full, pytest.mark.backend]


def array(value):
    return ops.convert_to_numpy(value)


# Shape of a record, and the layer.
CASES = {
    "depthwise": ((6, 7, 3), lambda: L.DepthwiseConv2D(3)),
    "depthwise, several": (
        (7, 6, 2),
        lambda: L.DepthwiseConv2D(
            (3, 2), strides=2, padding="same", depth_multiplier=3
        ),
    ),
    "depthwise, apart": (
        (7, 6, 2),
        lambda: L.DepthwiseConv2D(
            3, dilation_rate=2, padding="same", use_bias=False
        ),
    ),
    "depthwise of a sequence": (
        (9, 2),
        lambda: L.DepthwiseConv1D(4, strides=3, padding="same"),
    ),
    "groups": (
        (6, 5, 4),
        lambda: L.Conv2D(6, (2, 3), groups=2, strides=(2, 1), padding="same"),
    ),
    "groups of one": ((8, 4), lambda: L.Conv1D(4, 3, groups=4)),
    "groups to one": ((8, 4), lambda: L.Conv1D(2, 3, strides=2, groups=2)),
    "apart": ((9, 8, 2), lambda: L.Conv2D(3, 3, dilation_rate=(2, 3))),
    "apart, same": (
        (9, 8, 2),
        lambda: L.Conv2D(3, (2, 3), dilation_rate=2, padding="same"),
    ),
    "causal": (
        (9, 3),
        lambda: L.Conv1D(2, 3, padding="causal", dilation_rate=2),
    ),
    "causal, strides": (
        (10, 3),
        lambda: L.Conv1D(2, 2, padding="causal", strides=3),
    ),
    "volume": (
        (5, 4, 3, 2),
        lambda: L.Conv3D(3, (2, 3, 2), strides=(2, 1, 1), padding="same"),
    ),
    "transposed": ((4, 3, 2), lambda: L.Conv2DTranspose(3, 3, strides=2)),
    "transposed, same": (
        (4, 5, 2),
        lambda: L.Conv2DTranspose(3, (3, 4), strides=2, padding="same"),
    ),
    "transposed, wide strides": (
        (4, 2),
        lambda: L.Conv1DTranspose(3, 2, strides=3, padding="same"),
    ),
    "transposed, wide strides, valid": (
        (4, 2),
        lambda: L.Conv1DTranspose(3, 2, strides=3, use_bias=False),
    ),
    "transposed volume": (
        (3, 2, 2, 2),
        lambda: L.Conv3DTranspose(2, 2, strides=(1, 2, 1)),
    ),
}


def prepared(case, records=3):
    shape, make = CASES[case]
    layer = make()
    layer.build((None, *shape))
    rng = np.random.default_rng(0)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.get_weights()])
    made = FormedConvolution(layer, shape)

    def draw(shape):
        drawn = rng.normal(size=(records, *shape))
        return ops.convert_to_tensor(drawn.astype("float32"))

    return layer, made, draw(shape), draw(made.output_shape)


def alone(made, inputs, delta, k):
    """What record k adds, by the backend's own differentiation."""
    part = slice(k, k + 1)
    _, held = made.measured(inputs[part], delta[part])
    found = made.sums_of(held, ops.ones(1))
    return np.concatenate([array(v).ravel() for v in found])


@pytest.mark.parametrize("case", CASES)
def test_forward_is_the_layer(case):
    layer, made, inputs, delta = prepared(case)
    held = [ops.convert_to_tensor(w) for w in weights_of(layer, made.names)]
    found = array(made.forward(inputs, held))
    assert found.shape == array(delta).shape
    np.testing.assert_allclose(found, array(layer(inputs)), atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_norms_are_those_of_what_is_summed(case):
    layer, made, inputs, delta = prepared(case)
    each = np.stack([alone(made, inputs, delta, k) for k in range(3)])
    np.testing.assert_allclose(
        np.sqrt(array(made.squared_norm(inputs, delta))),
        np.linalg.norm(each, axis=1),
        rtol=1e-3,
    )
    scale, kept = ops.array([0.5, np.nan, 2], "float32"), [True, False, True]
    _, held = made.measured(inputs, delta)
    sums = made.sums_of(*without((held, scale), ops.array(kept)))
    shapes = [tuple(w.shape) for w in weights_of(layer, made.names)]
    assert [tuple(v.shape) for v in sums] == shapes
    flat = np.concatenate([array(v).ravel() for v in sums])
    np.testing.assert_allclose(flat, 0.5 * each[0] + 2 * each[2], atol=1e-3)


@pytest.mark.parametrize("size", [1e2, 1e6])
@pytest.mark.parametrize("case", CASES)
def test_positions_that_cancel_hide_no_length(case, size):
    """Inputs alike at all positions, and what comes back adds up to nothing
    but rounding."""
    _, made, inputs, delta = prepared(case)
    rng = np.random.default_rng(1)
    u = size * np.ones_like(array(inputs)) + rng.normal(size=inputs.shape)
    d = array(delta)
    d = d - d.mean(axis=tuple(range(1, d.ndim - 1)), keepdims=True)
    u, d = (ops.array(v.astype("float32")) for v in (u, d))
    norms = np.sqrt(array(made.squared_norm(u, d)))
    for k in range(3):
        length = np.linalg.norm(alone(made, u, d, k).astype("float64"))
        assert length < norms[k] * (1 + 1e-4)


@pytest.mark.parametrize("case", ["depthwise", "groups", "transposed"])
def test_a_norm_does_not_vanish_with_one_of_its_factors(case):
    _, made, inputs, delta = prepared(case)
    for huge, tiny in ((1e18, 1e-24), (1e-24, 1e18)):
        u, d = inputs * huge, delta * tiny
        norms = np.sqrt(array(made.squared_norm(u, d)))
        assert np.linalg.norm(alone(made, u, d, 0)) < norms[0] * (1 + 1e-4)


def test_refusals():
    layer = L.Conv3DTranspose(2, 2, strides=2, output_padding=1)
    with pytest.raises(ValueError, match="output_padding"):
        FormedConvolution(layer, (4, 4, 4, 4))


def drawn(rng):
    """A layer of any kind and geometry, and records that it takes."""
    kind, rank = rng.choice(["", "Depthwise", "Transpose"]), rng.integers(1, 3)
    sides = [int(v) for v in rng.integers(3, 9, rank)]
    ones = (1,) * int(rank)
    strides, apart = (int(v) for v in rng.integers(1, 4, 2))
    steps = {"strides": strides} if rng.random() < 0.6 else {}
    more = {"padding": str(rng.choice(["valid", "same"])), **steps}
    if not steps:
        more["dilation_rate"] = tuple(apart * v for v in ones)
    size = tuple(int(v) for v in rng.integers(1, 4, rank))
    if kind == "Depthwise":
        layer = getattr(L, f"DepthwiseConv{rank}D")(size, **more)
    elif kind:
        layer = getattr(L, f"Conv{rank}DTranspose")(4, size, **more)
    else:
        groups = int(rng.choice([1, 2]))
        layer = getattr(L, f"Conv{rank}D")(4, size, groups=groups, **more)
    x = rng.normal(size=(3, *sides, 2)).astype("float32")
    try:
        y = layer(x)
    except (ValueError, NotImplementedError):
        return None
    except Exception as e:
        # Not all processors have all geometries in TensorFlow.
        if type(e).__name__ != "InvalidArgumentError":
            raise
        return None
    return (layer, x, y) if 0 not in y.shape else None


@pytest.mark.parametrize("seed", range(4))
def test_no_geometry_hides_a_length(seed):
    rng, tried = np.random.default_rng(seed), 0
    while tried < 6:
        found = drawn(rng)
        if found is None:
            continue
        layer, x, y = found
        made, tried = FormedConvolution(layer, x.shape[1:]), tried + 1
        held = [ops.convert_to_tensor(w) for w in layer.get_weights()]
        x = ops.array(x)
        np.testing.assert_allclose(
            array(made.forward(x, held)), array(y), atol=1e-4
        )
        delta = ops.array(rng.normal(size=y.shape).astype("float32"))
        norms = np.sqrt(array(made.squared_norm(x, delta)))
        each = [np.linalg.norm(alone(made, x, delta, k)) for k in range(3)]
        assert np.all(norms > np.array(each) * (1 - 1e-4))
        np.testing.assert_allclose(norms, each, rtol=1e-2, atol=1e-2)
