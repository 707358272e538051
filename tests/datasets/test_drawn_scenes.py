import numpy as np
import pytest

from keras_fm.datasets import drawn_scenes

GREY = np.array([0.299, 0.587, 0.114], "float32")


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


@pytest.fixture(scope="module")
def many():
    return drawn_scenes.load(num=600, seed=2)


def test_spectrum_falls_as_in_photographs(many):
    """Power f^-2 or a little steeper, over two octaves."""
    grey = (many @ GREY).astype("float64")
    grey -= grey.mean(axis=(1, 2), keepdims=True)
    window = np.hanning(32)[:, None] * np.hanning(32)
    power = (np.abs(np.fft.fft2(grey * window)) ** 2).mean(axis=0)
    f = np.hypot(*np.meshgrid(np.fft.fftfreq(32), np.fft.fftfreq(32)))
    seen = (f > 2.5 / 32) & (f < 10 / 32)
    slope = np.polyfit(np.log(f[seen]), np.log(power[seen]), 1)[0]
    assert -3.5 < slope < -1.8
