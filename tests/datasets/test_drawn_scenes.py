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


def test_grey_is_the_brightness_of_the_same_scenes():
    colours = drawn_scenes.load(num=6, seed=1)
    grey = drawn_scenes.load(num=6, channels=1, seed=1)
    assert grey.shape == (6, 32, 32, 1)
    np.testing.assert_allclose(grey[..., 0], colours @ GREY, atol=1e-5)


@pytest.fixture(scope="module")
def many():
    return drawn_scenes.load(num=600, seed=2)


def test_colours_vary_as_in_photographs(many):
    pixels = many.reshape(-1, 3).astype("float64")
    assert np.corrcoef(pixels.T).min() > 0.7
    variance, axes = np.linalg.eigh(np.cov(pixels.T))
    # Brightness, then blue against yellow, then green against magenta.
    assert variance[2] > 0.85 * variance.sum()
    assert variance[1] > 3 * variance[0]
    assert np.abs(axes[:, 2]).min() > 0.5
    assert axes[0, 1] * axes[2, 1] < -0.3 and abs(axes[1, 1]) < 0.2
    assert np.sign(axes[1, 0]) != np.sign(axes[0, 0]) == np.sign(axes[2, 0])
    # Seldom black or burnt out.
    assert 0.35 < pixels.mean() < 0.6
    assert np.mean((pixels < 0.01) | (pixels > 0.99)) < 0.05


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


def test_scenes_know_no_left_and_right(many):
    """A map that averages over a flip loses nothing of the drawings."""
    left, right = many[:, :, :16].mean(), many[:, :, 16:].mean()
    assert abs(left - right) < 0.02


def test_larger_images_show_the_same_scenes():
    small = drawn_scenes.load(num=20, image_size=32, channels=1)
    large = drawn_scenes.load(num=20, image_size=64, channels=1)
    assert large.shape == (20, 64, 64, 1)
    pooled = large.reshape(20, 32, 2, 32, 2, 1).mean(axis=(2, 4))
    # Textures are drawn anew, shapes stay.
    likeness = [
        np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(small, pooled)
    ]
    assert np.median(likeness) > 0.7


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("num", 0, "an integer"),
        ("num", True, "an integer"),
        ("image_size", 4, "an integer"),
        ("image_size", 32.0, "an integer"),
        ("channels", 2, "one of"),
    ],
)
def test_bad_arguments(name, value, wanted):
    with pytest.raises(ValueError, match=f"`{name}` must be {wanted}"):
        drawn_scenes.load(**{"num": 1, name: value})
