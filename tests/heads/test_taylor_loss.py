"""TaylorCrossEntropy against its formula and the exact cross-entropy."""

import keras
import numpy as np
import pytest

from keras_fm.losses import TaylorCrossEntropy

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(6, 3)).astype("float32")
LABELS = np.array([0, 1, 2, 2, 1, 0])
ONE_HOT = np.eye(3, dtype="float32")[LABELS]


def reference(y, z):
    return np.sum(np.log(2) + (0.5 - y) * z + z**2 / 8, axis=1)


def value(y, z, **kwargs):
    return np.asarray(
        keras.ops.convert_to_numpy(TaylorCrossEntropy(**kwargs)(y, z))
    )


def test_formula():
    np.testing.assert_allclose(
        value(ONE_HOT, Z, reduction=None), reference(ONE_HOT, Z), rtol=1e-5
    )
    np.testing.assert_allclose(
        value(ONE_HOT, Z), reference(ONE_HOT, Z).mean(), rtol=1e-5
    )
    np.testing.assert_allclose(
        value(ONE_HOT, Z, reduction="sum"), reference(ONE_HOT, Z).sum(),
        rtol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("labels", [LABELS, LABELS[:, None]])
def test_class_indices_equal_one_hot(labels):
    np.testing.assert_allclose(value(labels, Z), value(ONE_HOT, Z), rtol=1e-6)


@pytest.mark.parametrize("y", [LABELS % 2, (LABELS % 2)[:, None]])
def test_binary(y):
    z = Z[:, :1]
    np.testing.assert_allclose(
        value(y, z, reduction=None),
        reference(np.reshape(y, (-1, 1)), z),
        rtol=1e-5,
    )


def test_distance_to_the_exact_cross_entropy():
    z = np.linspace(-1, 1, 101, dtype="float32")[:, None]
    for label in (0.0, 1.0):
        y = np.full_like(z, label)
        exact = np.logaddexp(0, z[:, 0]) - label * z[:, 0]
        error = np.abs(value(y, z, reduction=None) - exact).max()
        # Not above the bound, and the bound is attained at the ends.
        assert 0.00488 < error < 0.004887


def test_sample_weight_and_half_precision():
    weight = np.array([1, 0, 0, 0, 0, 2], "float32")
    expected = np.sum(weight * reference(ONE_HOT, Z)) / 6
    loss = TaylorCrossEntropy()(ONE_HOT, Z, sample_weight=weight)
    assert float(keras.ops.convert_to_numpy(loss)) == pytest.approx(
        expected, rel=1e-5
    )
    half = value(ONE_HOT, keras.ops.cast(Z, "bfloat16"), dtype="float32")
    np.testing.assert_allclose(half, reference(ONE_HOT, Z).mean(), rtol=2e-2)


def test_its_minimum_is_least_squares():
    # docs/proofs/cross_entropy.md: targets 4 (y - 1/2).
    x = RNG.normal(size=(200, 4)).astype("float32")
    y = np.eye(3, dtype="float32")[RNG.integers(0, 3, 200)]
    w = np.linalg.lstsq(x, 4 * (y - 0.5), rcond=None)[0]
    at = value(y, (x @ w).astype("float32"))
    for _ in range(20):
        other = w + 0.1 * RNG.normal(size=w.shape)
        assert value(y, (x @ other).astype("float32")) > at
