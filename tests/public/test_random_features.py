import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_fm.public.random_features import RandomFeatures

KINDS = ["projection", "fourier"]


def run(layer, x):
    return ops.convert_to_numpy(layer(np.asarray(x, "float32")))


def test_projection_keeps_inner_products():
    # Fixed seed; the deviation of an inner product is below
    # sqrt(2 / units) = 0.022, so 0.1 is more than 4 deviations.
    x = np.random.default_rng(0).normal(size=(6, 40))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    h = run(RandomFeatures(4096, seed=1), x)
    np.testing.assert_allclose(h @ h.T, x @ x.T, atol=0.1)


@pytest.mark.parametrize("scale", [0.7, 2.0])
def test_fourier_approximates_the_gaussian_kernel(scale):
    # Products of two features lie in [-1, 1] times 2 / units: by Hoeffding
    # 36 means deviate by 0.15 with probability below 1e-17 at 8192 units.
    x = np.random.default_rng(0).normal(size=(6, 5))
    h = run(RandomFeatures(8192, "fourier", scale=scale, seed=2), x)
    distance = ((x[:, None] - x[None]) ** 2).sum(-1)
    np.testing.assert_allclose(
        h @ h.T, np.exp(-distance / (2 * scale**2)), atol=0.15
    )
    assert np.linalg.norm(h, axis=1).max() <= math.sqrt(2)


@pytest.mark.parametrize("kind", KINDS)
def test_seed_names_the_features(kind):
    x = np.random.default_rng(0).normal(size=(4, 3))
    first = run(RandomFeatures(16, kind, seed=5), x)
    np.testing.assert_array_equal(
        first, run(RandomFeatures(16, kind, seed=5), x)
    )
    assert np.abs(first - run(RandomFeatures(16, kind, seed=6), x)).max() > 0.01


def test_the_scale_is_in_the_kernel():
    kernels = []
    for scale in (1.0, 2.0):
        layer = RandomFeatures(7, "fourier", scale=scale, seed=3)
        layer.build((None, 3))
        kernels.append(layer.get_weights()[0])
    np.testing.assert_allclose(kernels[0], kernels[1] * 2, rtol=1e-6)


def test_golden_kernel_on_every_backend():
    layer = RandomFeatures(2, "fourier", seed=0)
    layer.build((None, 2))
    rng = np.random.default_rng(0)
    kernel, bias = layer.get_weights()
    np.testing.assert_allclose(kernel, rng.standard_normal((2, 2)), rtol=1e-6)
    np.testing.assert_allclose(bias, rng.uniform(0, 2 * math.pi, 2), rtol=1e-6)
    np.testing.assert_allclose(kernel[0], [0.12573022, -0.13210486], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_trained_and_weights_are_saved(kind, tmp_path):
    layer = RandomFeatures(8, kind, scale=1.5, seed=4)
    model = keras.Sequential([keras.Input((6,)), layer])
    assert layer.trainable_weights == []
    assert len(layer.weights) == (1 if kind == "projection" else 2)
    path = str(tmp_path / "m.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    x = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")
    np.testing.assert_allclose(
        model.predict(x, verbose=0), loaded.predict(x, verbose=0), rtol=1e-6
    )
    assert loaded.layers[0].get_config() == layer.get_config()


def test_tells_what_it_is_made_from():
    layer = RandomFeatures(4, "fourier", seed=9)
    assert layer.public_data == "random weights (fourier, seed 9)"


@pytest.mark.parametrize(
    "arguments",
    [
        {"units": 0},
        {"units": 2.0},
        {"units": True},
        {"kind": "cosine"},
        {"scale": 0},
        {"scale": float("nan")},
        {"scale": float("inf")},
        {"scale": "1"},
        {"seed": None},
        {"seed": -1},
        {"seed": 1.5},
    ],
)
def test_bad_arguments(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        RandomFeatures(**{"units": 4, **arguments})
