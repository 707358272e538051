"""LocalResponseNormalization against AdLM's Eq. 22 written as a loop."""

import keras
import numpy as np
import pytest
from layer_checks import check_layer, check_saved

from keras_fm.public.local_response_normalization import (
    LocalResponseNormalization,
)

pytestmark = pytest.mark.full

IMAGES = 3 * np.random.default_rng(0).normal(size=(3, 4, 5, 7))
IMAGES = IMAGES.astype("float32")


def array(x):
    return keras.ops.convert_to_numpy(x)


def loop(h, size, q, a, beta):
    """Eq. 22 entry by entry, in double precision."""
    h = np.asarray(h, np.float64)
    rows = h.reshape(-1, h.shape[-1])
    made = np.zeros_like(rows)
    maps = rows.shape[1]
    for i, row in enumerate(rows):
        for k in range(maps):
            energy = 0.0
            for l in range(k - size // 2, k + size // 2 + 1):
                if 0 <= l < maps:
                    energy += row[l] ** 2
            made[i, k] = row[k] / max(abs(row[k]), (q + a * energy) ** beta)
    return made.reshape(h.shape)


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: LocalResponseNormalization(**k),
        lambda **k: LocalResponseNormalization(
            size=3, q=1.0, a=0.5, beta=0.5, **k
        ),
    ],
)
@pytest.mark.parametrize("inputs", [IMAGES, IMAGES[:, 0, 0]])
def test_layer_is_a_keras_citizen(make, inputs, tmp_path):
    check_layer(make, inputs)
    check_saved(make(), inputs, tmp_path / "m.keras")


@pytest.mark.parametrize(
    "size, q, a, beta",
    [
        (5, 2.0, 1e-4, 0.75),
        (1, 2.0, 1e-4, 0.75),
        (3, 0.5, 0.3, 0.75),
        (7, 0.1, 1.0, 1.5),
        # More neighbours than maps.
        (15, 1.0, 0.1, 0.5),
    ],
)
@pytest.mark.parametrize(
    "inputs", [IMAGES, 1e3 * IMAGES, 1e-3 * IMAGES, IMAGES[..., :1]]
)
def test_equals_the_loop(size, q, a, beta, inputs):
    layer = LocalResponseNormalization(size=size, q=q, a=a, beta=beta)
    np.testing.assert_allclose(
        array(layer(inputs)), loop(inputs, size, q, a, beta), rtol=1e-5
    )


def test_worked_examples():
    # Below the floor 2^0.75 (a = 0 in effect): divided by it.
    layer = LocalResponseNormalization(a=1e-12)
    made = array(layer(np.array([[1.0, -1.0, 0.0]], "float32")))
    floor = 2**0.75
    np.testing.assert_allclose(made, [[1 / floor, -1 / floor, 0]], rtol=1e-6)
    # (1 + 9 + 16)^0.5 exceeds every entry of (3, 4).
    layer = LocalResponseNormalization(size=3, q=1.0, a=1.0, beta=0.5)
    made = array(layer(np.array([[3.0, 4.0]], "float32")))
    np.testing.assert_allclose(made, np.array([[3, 4]]) / 26**0.5, rtol=1e-6)


def test_every_record_is_on_its_own():
    layer = LocalResponseNormalization()
    other = IMAGES.copy()
    other[1:] *= 100
    for training in (False, True):
        np.testing.assert_array_equal(
            array(layer(IMAGES, training=training))[0],
            array(layer(other, training=training))[0],
        )
    assert not layer.weights


@pytest.mark.parametrize(
    "policy", ["float32", "mixed_bfloat16", "mixed_float16"]
)
@pytest.mark.parametrize("size", [1, 5])
def test_outputs_lie_between_minus_one_and_one(policy, size):
    # 6e4 squared overflows float16; 1e30 squared overflows float32.
    largest = 6e4 if policy == "mixed_float16" else 1e30
    rng = np.random.default_rng(1)
    size_of = 10 ** rng.uniform(-6, np.log10(largest), (200, 6))
    inputs = (rng.choice([-1, 1], (200, 6)) * size_of).astype("float32")
    inputs[0], inputs[1] = largest, -largest
    inputs[2], inputs[3] = 0.0, -0.0
    made = LocalResponseNormalization(size=size, dtype=policy)(inputs)
    made = array(keras.ops.cast(made, "float32"))
    assert np.all(np.isfinite(made)) and np.abs(made).max() <= 1
    assert np.all(made[2:4] == 0)
    assert np.all(made * inputs >= 0)
    if largest < 1e5:
        np.testing.assert_allclose(
            made, loop(inputs, size, 2.0, 1e-4, 0.75), atol=1e-3
        )
