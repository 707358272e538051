import numpy as np
import pytest

from keras_fm.datasets import pen_strokes

pytestmark = pytest.mark.once


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
