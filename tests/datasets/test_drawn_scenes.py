import numpy as np
import pytest

from keras_fm.datasets import drawn_scenes

pytestmark = pytest.mark.once


def test_shape_and_range():
    images = drawn_scenes.load(num=40)
    assert images.shape == (40, 32, 32, 3)
    assert images.dtype == np.float32
    assert images.min() >= 0 and images.max() <= 1
    # No scene is empty.
    assert images.std(axis=(1, 2, 3)).min() > 0.01


def test_seed_decides():
    first = drawn_scenes.load(num=5, seed=3)
    np.testing.assert_array_equal(first, drawn_scenes.load(num=5, seed=3))
    assert np.abs(first - drawn_scenes.load(num=5, seed=4)).mean() > 0.1


def test_chunks_do_not_matter(monkeypatch):
    first = drawn_scenes.load(num=10)
    monkeypatch.setattr(drawn_scenes, "_CHUNK", 3)
    np.testing.assert_allclose(first, drawn_scenes.load(num=10), atol=1e-5)


def test_variants_of_a_scene_are_nearer_than_other_scenes():
    drawn = drawn_scenes.load(30, variants=3)
    assert drawn.shape == (90, 32, 32, 3)
    drawn -= drawn.mean(axis=(1, 2, 3), keepdims=True)
    first, second, _ = drawn.reshape(30, 3, -1).transpose(1, 0, 2)
    apart = np.linalg.norm(first[:, None] - second, axis=2)
    assert np.mean(apart.argmin(axis=1) == np.arange(30)) > 0.5
    # And they do move.
    assert np.diag(apart).min() > 0.5
    # One drawing of each is the scene itself.
    np.testing.assert_array_equal(
        drawn_scenes.load(3), drawn_scenes.load(3, variants=1)
    )
