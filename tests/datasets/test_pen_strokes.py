import numpy as np
import pytest

from keras_fm.datasets import pen_strokes


def test_shapes_range_and_groups():
    images, groups = pen_strokes.load(shapes=20, variants=3)
    assert images.shape == (60, 28, 28, 1)
    assert images.dtype == np.float32
    assert groups.dtype == np.int64
    np.testing.assert_array_equal(groups, np.repeat(np.arange(20), 3))
    assert images.min() == 0 and images.max() == 1


def test_seed_decides():
    first, _ = pen_strokes.load(shapes=5, seed=3)
    np.testing.assert_array_equal(first, pen_strokes.load(shapes=5, seed=3)[0])
    assert np.abs(first - pen_strokes.load(shapes=5, seed=4)[0]).max() == 1


def test_chunks_do_not_matter(monkeypatch):
    first, _ = pen_strokes.load(shapes=5)
    monkeypatch.setattr(pen_strokes, "_CHUNK", 7)
    np.testing.assert_allclose(first, pen_strokes.load(shapes=5)[0], atol=1e-5)


def test_ink_is_a_centred_character():
    images, _ = pen_strokes.load(shapes=300, variants=2)
    ink = images[..., 0].sum(axis=(1, 2))
    # Between a thin short line and a filled 20x20 box.
    assert ink.min() > 15 and ink.max() < 400
    line = np.arange(28) - 13.5
    x = (images[..., 0].sum(axis=1) @ line) / ink
    y = (images[..., 0].sum(axis=2) @ line) / ink
    # Crossing strokes hide ink, which moves the centre a little.
    assert np.abs(np.stack([x, y])).max() < 2.5
    assert np.abs(np.stack([x, y])).mean() < 0.4
    # The longer side of the ink is 20 pixels, give or take the blur.
    solid = images[..., 0] > 0.5
    height = solid.any(axis=2).sum(axis=1)
    width = solid.any(axis=1).sum(axis=1)
    longest = np.maximum(height, width)
    assert np.quantile(longest, 0.05) >= 18
    assert longest.min() >= 14 and longest.max() <= 23


def test_variants_differ_less_than_shapes():
    images, groups = pen_strokes.load(shapes=100, variants=4)
    x = images.reshape(100, 4, -1).astype("float64")
    within = ((x - x.mean(axis=1, keepdims=True)) ** 2).sum() / 300
    total = ((x - x.mean(axis=(0, 1))) ** 2).sum() / 399
    assert 0.1 * total < within < 0.9 * total


def test_image_size_scales_the_drawing():
    small, _ = pen_strokes.load(shapes=30, variants=1, image_size=28)
    large, _ = pen_strokes.load(shapes=30, variants=1, image_size=56)
    assert large.shape == (30, 56, 56, 1)
    pooled = large.reshape(30, 28, 2, 28, 2).mean(axis=(2, 4))
    assert np.abs(pooled - small[..., 0]).mean() < 0.01


@pytest.mark.parametrize(
    "arguments",
    [
        {"shapes": 0},
        {"shapes": 2.5},
        {"variants": 0},
        {"variants": True},
        {"image_size": 4},
    ],
)
def test_bad_arguments(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"`{name}` must be an integer"):
        pen_strokes.load(**{"shapes": 2, **arguments})
