import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_fm.public import scattering
from keras_fm.public.scattering import Scattering2D


def images(n=3, height=28, width=28, channels=1, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(size=(n, height, width, channels)).astype("float32")


def run(layer, x):
    return ops.convert_to_numpy(layer(x)).astype("float64")


# An independent reference: from the formulas, in float64 and by FFT.


def envelope(shape, sigma, slant, theta, step):
    """Gaussian on a periodic grid, its centre at the origin, not cut."""
    y = np.fft.fftfreq(shape[0], 1 / shape[0])[:, None] * step
    x = np.fft.fftfreq(shape[1], 1 / shape[1])[None, :] * step
    along = x * math.cos(theta) + y * math.sin(theta)
    across = y * math.cos(theta) - x * math.sin(theta)
    g = np.exp(-(along**2 + slant**2 * across**2) / (2 * sigma**2))
    return g * step**2 * slant / (2 * math.pi * sigma**2), along


def wavelet(shape, j, angle, angles, step):
    slant = 4 / angles
    g, along = envelope(
        shape, 0.8 * 2**j, slant, math.pi * angle / angles, step
    )
    wave = g * np.exp(1j * 0.75 * math.pi / 2**j * along)
    return wave - g * wave.sum() / g.sum()


def filtered(x, spectrum_of, stride):
    """Circular convolution after a wide reflection, then subsampling."""
    pad = 40
    wide = np.pad(x, pad, mode="reflect")
    y = np.fft.ifft2(np.fft.fft2(wide) * np.fft.fft2(spectrum_of(wide.shape)))
    y = y[pad : pad + x.shape[0], pad : pad + x.shape[1]]
    return y[::stride, ::stride]


def reference(x, J, L):
    """Scattering of one image `(h, w)`, paths in the documented order."""

    def average(u, r):
        def phi(shape):
            return envelope(shape, 0.8 * 2 ** (J - 1), 1.0, 0.0, 2**r)[0]

        return filtered(u, phi, 2 ** (J - r)).real

    def modulus(u, j, t, r):
        def psi(shape):
            return wavelet(shape, j, t, L, 2**r)

        return np.abs(filtered(u, psi, 2 ** (j - r)))

    first, second = [], []
    for j in range(J):
        for t in range(L):
            u = modulus(x, j, t, 0)
            first.append(average(u, j))
            for k in range(j + 1, J):
                for s in range(L):
                    second.append(average(modulus(u, k, s, j), k))
    return np.stack([average(x, 0), *first, *second], axis=-1)


@pytest.mark.parametrize(
    "J, L, height, width",
    [(1, 4, 10, 13), (2, 8, 28, 28), (2, 3, 17, 22), (3, 4, 32, 24)],
)
def test_matches_float64_fft_reference(J, L, height, width):
    x = images(1, height, width)
    y = run(Scattering2D(scales=J, angles=L), x)[0]
    expected = reference(x[0, :, :, 0].astype("float64"), J, L)
    assert y.shape == expected.shape
    # The layer cuts its filters at 4 deviations, the reference does not:
    # exp(-8) of the image's size, and float32.
    np.testing.assert_allclose(y, expected, atol=1e-3)
    order_2 = slice(1 + J * L, None)
    assert np.abs(y - expected).mean() < 1e-4
    if J > 1:
        assert expected[..., order_2].mean() > 3e-3


@pytest.mark.parametrize(
    "J, L, height, width, channels",
    [(1, 1, 2, 3, 1), (2, 8, 12, 9, 2), (3, 5, 8, 16, 1), (2, 6, 20, 20, 1)],
)
def test_matrices_and_convolution_agree(
    monkeypatch, J, L, height, width, channels
):
    """Large images are convolved: other code, the same numbers."""
    x = images(2, height, width, channels) - 0.5
    found = run(Scattering2D(J, L, dtype="float64"), x)
    monkeypatch.setattr(scattering, "_MOST_NUMBERS", 0)

    def refuse(*args):
        raise AssertionError("the matrices were made")

    monkeypatch.setattr(scattering.WaveletBank, "__init__", refuse)
    convolved = run(Scattering2D(J, L, dtype="float64"), x)
    np.testing.assert_allclose(found, convolved, atol=1e-6)


def test_constant_image_has_order_zero_only():
    y = run(Scattering2D(), np.full((1, 28, 28, 1), 0.7, "float32"))
    np.testing.assert_allclose(y[..., 0], 0.7, rtol=1e-5)
    assert np.abs(y[..., 1:]).max() < 1e-5


def test_stripes_answer_at_their_own_angle_and_scale():
    line = np.arange(28)
    xi = 0.75 * math.pi
    for j in (0, 1):
        wave = np.cos(xi / 2**j * line)
        across = np.broadcast_to(wave[None, :, None], (28, 28, 1))
        down = np.broadcast_to(wave[:, None, None], (28, 28, 1))
        y = run(Scattering2D(), np.stack([across, down]).astype("float32"))
        best = y[:, 3, 3, 1:17].argmax(axis=-1)
        # Angle 0 runs along columns, angle 4 of 8 is a quarter turn.
        assert best.tolist() == [8 * j, 8 * j + 4]


def test_energy_does_not_expand():
    # Littlewood-Paley: |phi^|^2 + sum |psi^|^2 over half the angles, at
    # both signs of the frequency for real images, bounds every order.
    J, L, n = 2, 8, 64
    phi = envelope((n, n), 0.8 * 2 ** (J - 1), 1.0, 0.0, 1)[0]
    total = np.abs(np.fft.fft2(phi)) ** 2
    for j in range(J):
        for t in range(L):
            p = np.abs(np.fft.fft2(wavelet((n, n), j, t, L, 1))) ** 2
            mirrored = np.roll(p[::-1, ::-1], 1, axis=(0, 1))
            total += (p + mirrored) / 2
    bound = total.max()
    rng = np.random.default_rng(1)
    x = np.zeros((20, 96, 96, 1), "float32")
    x[:, 32:64, 32:64] = rng.normal(size=(20, 32, 32, 1))
    y = run(Scattering2D(), x)
    # Each sample of order n stands for 16 pixels.
    energy = 16 * (y**2).sum(axis=(1, 2, 3))
    # Two layers of wavelets; subsampling may alias a little.
    limit = 1.05 * max(bound, bound**2) * (x**2).sum(axis=(1, 2, 3))
    assert np.all(energy < limit)
    assert np.all(energy > 0.02 * limit)


def test_each_record_is_mapped_on_its_own():
    x = images(4)
    layer = Scattering2D()
    np.testing.assert_allclose(
        run(layer, x)[2:3], run(layer, x[2:3]), atol=1e-6
    )


def test_gradient_is_finite_on_a_blank_image():
    layer = Scattering2D(scales=1, angles=2)
    blank = np.zeros((1, 8, 8, 1), "float32")
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        x = tf.Variable(blank)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x))
        gradient = tape.gradient(loss, x).numpy()
    elif backend == "jax":
        import jax

        gradient = np.asarray(jax.grad(lambda x: layer(x).sum())(blank))
    else:
        import torch

        x = torch.tensor(blank, requires_grad=True, device=layer(blank).device)
        layer(x).sum().backward()
        gradient = x.grad.cpu().numpy()
    assert np.all(np.isfinite(gradient))
    assert np.abs(gradient).max() > 0


@pytest.mark.parametrize("height, width", [(4, 4), (5, 9), (8, 8), (30, 31)])
def test_output_is_rounded_up_for_any_size(height, width):
    layer = Scattering2D(angles=2)
    y = run(layer, images(1, height, width))
    assert y.shape == (1, -(-height // 4), -(-width // 4), 9)
    assert y.shape == layer.compute_output_shape((1, height, width, 1))
    assert np.all(np.isfinite(y))


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_pieces_are_what_their_images_are(data_format):
    """JAX takes large batches in pieces."""
    x = images(2 * scattering._TOGETHER, 8, 8, 8)
    layer = Scattering2D(scales=1, angles=4, data_format=data_format)
    whole = run(layer, x)
    assert whole.shape == layer.compute_output_shape(x.shape)
    for rows in (slice(0, 32), slice(32, 64), slice(0, 31)):
        np.testing.assert_allclose(whole[rows], run(layer, x[rows]), atol=1e-5)
