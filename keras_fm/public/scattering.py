import functools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core import layer_arguments
from keras_fm.core.configured_layer import ConfiguredLayer
from keras_fm.kernel import checks
from keras_fm.public.pieces import in_pieces

# Constants of the Morlet family: envelope and frequency of the finest
# wavelet, and how many standard deviations of an envelope are kept.
_SIGMA = 0.8
_FREQUENCY = 0.75 * math.pi
_SUPPORT = 4.0
# Under the root of the modulus, so that its gradient stays finite at 0.
_TINY = 1e-12
# Images at a time for JAX on a processor, so that they stay in its cache.
_TOGETHER = 32
# Most numbers in the tables of a scale (64 MiB); larger images are convolved.
_MOST_NUMBERS = 2**24


def gaussian(sigma, slant, theta, step, radius):
    """Samples an oriented Gaussian envelope on a square grid, with sum 1.

    `exp(-(u^2 + slant^2 v^2) / (2 sigma^2))`, `u` along `theta` and `v`
    across it, at the multiples of `step` no farther than `radius` steps.

    Returns:
        `(envelope, u)`, float64 arrays `(2 radius + 1, 2 radius + 1)`; rows
        run down and columns to the right.
    """
    line = step * np.arange(-radius, radius + 1, dtype=np.float64)
    y, x = np.meshgrid(line, line, indexing="ij")
    u = x * math.cos(theta) + y * math.sin(theta)
    v = -x * math.sin(theta) + y * math.cos(theta)
    envelope = np.exp(-(u**2 + (slant * v) ** 2) / (2 * sigma**2))
    return envelope / envelope.sum(), u


def morlet(scale, angle, angles, resolution=0):
    """The Morlet wavelet of one scale and angle, zero outside 4 deviations.

    `psi(x) = g(x) (exp(i xi u) - kappa)`: `g` an oriented Gaussian of
    deviation `0.8 * 2**scale` along and `angles / 4` times that across,
    `xi = 3 pi / 4 / 2**scale` and `kappa` such that the sum is exactly zero.
    The angle is `pi * angle / angles`.

    Args:
        scale: int `j >= 0`.
        angle: int in `0..angles - 1`.
        angles: int, number of angles.
        resolution: int `r <= scale`; the grid has steps of `2**r` pixels.

    Returns:
        complex128 array `(k, k)`, `k` odd.
    """
    sigma, slant = _SIGMA * 2.0**scale, 4 / angles
    step = 2**resolution
    radius = math.ceil(_SUPPORT * sigma * max(1.0, 1 / slant) / step)
    theta = math.pi * angle / angles
    envelope, u = gaussian(sigma, slant, theta, step, radius)
    wave = envelope * np.exp(1j * _FREQUENCY / 2**scale * u)
    return wave - wave.sum() * envelope


def low_pass(scales, resolution=0):
    """The averaging window, a Gaussian of deviation 0.4 * 2**scales, in 1D.

    In the plane it is applied down and then across.

    Args:
        scales: int `J >= 1`.
        resolution: int `r < J`; the grid has steps of `2**r` pixels.

    Returns:
        float64 array `(k,)`, `k` odd, with sum 1.
    """
    sigma, step = _SIGMA * 2.0 ** (scales - 1), 2**resolution
    radius = math.ceil(_SUPPORT * sigma / step)
    line = step * np.arange(-radius, radius + 1, dtype=np.float64)
    window = np.exp(-(line**2) / (2 * sigma**2))
    return window / window.sum()


def averaging_matrix(length, window, step):
    """Window, reflection at the ends and subsampling as one matrix.

    Args:
        length: int, points on the line.
        window: array `(k,)`, `k` odd.
        step: int, every how many points the average is taken.

    Returns:
        float64 array `(ceil(length / step), length)`, rows of sum 1.
    """
    radius = len(window) // 2
    source = _reflected(length, radius)
    matrix = np.zeros((-(-length // step), length))
    for row in range(len(matrix)):
        columns = source[row * step : row * step + len(window)]
        np.add.at(matrix[row], columns, window)
    return matrix


class WaveletBank:
    """Wavelets of one scale as matrices, for images of one size.

    A line of pixels that is continued by reflection is a sum of cosines. The
    correlation of a wavelet with a product of two cosines is known. So
    correlation and sampling together are three matrix products: down the image
    to frequencies; for each frequency across the image, straight to the sampled
    points; and back down. For two octaves of 28 x 28 pixels that takes a
    seventh of a convolution's multiplications.

    The real part of a wavelet is even and the imaginary part odd. The wavelet
    of the opposite angle is a mirror image, in which all sines across change
    sign. So half of the angles give the others by a subtraction.

    Args:
        scale, angles, resolution: see `morlet`.
        height, width: of the images, at least 2.
    """

    def __init__(self, scale, angles, resolution, height, width):
        self._angles = angles
        waves = np.stack(
            [
                morlet(scale, angle, angles, resolution)
                for angle in range(angles // 2 + 1)
            ],
            axis=-1,
        )
        step = 2 ** (scale - resolution)
        offsets = np.arange(len(waves)) - len(waves) // 2
        # Cosines and sines, at the wavelets' pixels and at those sampled.
        down, across = (waved(n, offsets) for n in (height, width))
        sampled = waved(width, np.arange(0, width, step))
        # Pixels to frequencies.
        to_rows, to_columns = (
            np.linalg.inv(waved(n, np.arange(n))[0]) for n in (height, width)
        )

        def table(part, i, j):
            """The table of cosines (0) or sines (1) down, and across."""
            found = np.einsum(
                "df,deb,eg->fgb", down[i], part, across[j], optimize=True
            )
            return np.einsum(
                "gw,fgb,pg->fwbp", to_columns, found, sampled[j], optimize=True
            )

        self._analysis = to_rows
        self._synthesis = waved(height, np.arange(0, height, step))
        # For each frequency down `(width, angle, point)`. A wavelet along the
        # rows has no sines down; of one along the columns the real part has
        # none either, and the imaginary part no cosines.
        inner = self._inner = (angles - 1) // 2
        self._tables = [
            (
                table(waves.real, 0, 0),
                table(waves.imag[..., : 1 + inner], 0, 1),
            ),
            (
                table(waves.real[..., 1 : 1 + inner], 1, 1),
                table(waves.imag[..., 1:], 1, 0),
            ),
        ]

    @staticmethod
    def numbers(scale, angles, resolution, height, width):
        """How many numbers the tables hold."""
        points = -(-width // 2 ** (scale - resolution))
        return 2 * angles * height * width * points

    def modulus(self, x):
        """`|x * psi|` for all angles.

        Args:
            x: tensor `(height, n, width)`.

        Returns:
            tensor `(sampled height, n * angles, sampled width)`, the angles
            of one image together.
        """
        height, _, width = x.shape
        points = self._tables[0][0].shape[3]

        def constant(array):
            return ops.convert_to_tensor(array, dtype=x.dtype)

        rows = ops.matmul(
            constant(self._analysis), ops.reshape(x, (height, -1))
        )
        rows = ops.reshape(rows, (height, -1, width))

        def responses(table, back):
            across = table.shape[2] * points
            y = constant(table.reshape(height, width, across))
            y = ops.reshape(ops.matmul(rows, y), (height, -1))
            y = ops.matmul(constant(back), y)
            return ops.reshape(y, (len(back), -1, across))

        # One product for each part: compilers fuse what follows; without one,
        # the halves of a single array would be copied.
        real, imaginary, real_odd, imaginary_odd = (
            responses(table, back) if table.size else None
            for tables, back in zip(self._tables, self._synthesis)
            for table in tables
        )

        # Angles up to a quarter of a turn, then their mirror images.
        end = self._inner * points
        y = [_modulus(real[:, :, :points], imaginary[:, :, :points])]
        mirrored = []
        if self._inner:
            even = real[:, :, points : points + end], imaginary[:, :, points:]
            odd = real_odd, imaginary_odd[:, :, :end]
            y.append(_modulus(*(e + o for e, o in zip(even, odd))))
            images = _modulus(*(e - o for e, o in zip(even, odd)))
            mirrored = [
                images[:, :, angle * points : (angle + 1) * points]
                for angle in reversed(range(self._inner))
            ]
        if self._angles % 2 == 0:
            upright = real[:, :, points + end :], imaginary_odd[:, :, end:]
            y.append(_modulus(*upright))
        y = ops.concatenate(y + mirrored, axis=2)
        return ops.reshape(y, (y.shape[0], -1, points))


def _modulus(real, imaginary):
    return ops.sqrt(real * real + imaginary * imaginary + _TINY)


def waved(length, points):
    """Cosines and sines whose sums are a line continued by reflection.

    Args:
        length: int `>= 2`, points on the line.
        points: int array `(k,)`, the points at which they are evaluated.

    Returns:
        two float64 arrays `(k, length)`; the frequency of column f is
        `pi f / (length - 1)`.
    """
    frequencies = np.pi * np.arange(length) / (length - 1)
    phases = points[:, None] * frequencies
    return np.cos(phases), np.sin(phases)


@keras.saving.register_keras_serializable(package="keras_fm")
class Scattering2D(ConfiguredLayer):
    """Wavelet scattering of images, orders 0, 1 and 2: public features.

    With oriented Morlet wavelets `psi[j, t]` of `scales` octaves `j` and
    `angles` angles `t`, and a Gaussian window `phi` of the coarsest scale:

    * order 0: `x * phi`
    * order 1: `|x * psi[j, t]| * phi`
    * order 2: `||x * psi[j, t]| * psi[k, s]| * phi` for `k > j`

    each sampled every `2**scales` pixels. The features change little under
    small shifts and deformations. Nothing is learned from data and each record
    is mapped on its own, so the layer uses no privacy.

    The wavelets are those usual for scattering of images (deviation 0.8,
    frequency 3 pi / 4, slant `4 / angles`), cut at 4 deviations; images are
    continued by reflection at every order. The modulus is
    `sqrt(re**2 + im**2 + 1e-12)`. Half precision policies compute in
    float32 and cast the result.

    Source: Bruna and Mallat, Invariant Scattering Convolution Networks,
    2013.

    Args:
        scales: int `J >= 1`, the number of octaves.
        angles: int `L >= 1`, the number of angles in half a turn.
        data_format: `"channels_last"`, `"channels_first"`, or `None` for
            the Keras setting.

    Input shape: `(batch, height, width, channels)`; height and width must
    be known and at least `2**scales`.

    Output shape: `(batch, ceil(height / 2**J), ceil(width / 2**J),
    channels * (1 + J L + L**2 J (J - 1) / 2))`. The channels of one image
    channel are together: order 0, then order 1 by scale and angle, then order 2
    by (j, t), k, s. With `"channels_first"` the channel axis comes second in
    both.

    Raises:
        ValueError: if `scales` or `angles` is not a positive integer, or the
            images are too small or of unknown size.

    Example:

    >>> layer = Scattering2D(scales=2, angles=8)
    >>> layer(np.zeros((1, 28, 28, 1), "float32")).shape
    (1, 7, 7, 81)
    """

    def __init__(
        self,
        scales: int = 2,
        angles: int = 8,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.scales = checks.count("scales", scales)
        self.angles = checks.count("angles", angles)
        self.data_format = layer_arguments.data_format(data_format)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    @property
    def paths(self):
        """Features for each position and image channel."""
        J, L = self.scales, self.angles
        return 1 + J * L + L * L * J * (J - 1) // 2

    def _image_shape(self, input_shape):
        """`(height, width, channels)` of a full input shape, checked."""
        return layer_arguments.image_shape(
            input_shape, self.data_format, 2**self.scales, "2**scales"
        )

    def build(self, input_shape):
        height, width, _ = self._image_shape(input_shape)
        J, L = self.scales, self.angles
        # Plain arrays, not weights: they follow from the arguments. Keys
        # are resolutions, and (scale, resolution) for the wavelets.
        self._down, self._across, self._moduli = {}, {}, {}
        for r in range(J):
            window, step = low_pass(J, r), 2 ** (J - r)
            size = -(-height // 2**r), -(-width // 2**r)
            self._down[r] = averaging_matrix(size[0], window, step)
            self._across[r] = averaging_matrix(size[1], window, step).T
            # Order 1 takes the image, order 2 takes order 1 at its resolution.
            for j in range(0 if r == 0 else r + 1, J):
                if WaveletBank.numbers(j, L, r, *size) <= _MOST_NUMBERS:
                    self._moduli[j, r] = WaveletBank(j, L, r, *size).modulus
                else:
                    self._moduli[j, r] = functools.partial(
                        convolved, convolution_kernels(j, L, r), 2 ** (j - r)
                    )

    def call(self, inputs):
        return in_pieces(self._scattered, inputs, _TOGETHER)

    def _scattered(self, inputs):
        # Half precision would lose the weak second order.
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        x = ops.cast(inputs, dtype)
        if self.data_format == "channels_last":
            x = ops.transpose(x, (1, 0, 3, 2))
        else:
            x = ops.transpose(x, (2, 0, 1, 3))
        height, _, channels, width = x.shape
        # Rows first and columns last, and one image channel is one image:
        # then all that follows are matrix products without transposes.
        x = ops.reshape(x, (height, -1, width))
        h, w = self._down[0].shape[0], self._across[0].shape[1]
        paths, first = [self._average(x, 0)], []
        for j in range(self.scales):
            first.append(self._moduli[j, 0](x))
            paths.append(self._average(first[j], j))
        for j in range(self.scales - 1):
            # (rows, images, angle, scale and angle, columns)
            second = [
                ops.reshape(
                    self._average(self._moduli[k, j](first[j]), k),
                    (h, -1, self.angles, self.angles, w),
                )
                for k in range(j + 1, self.scales)
            ]
            paths.append(ops.concatenate(second, axis=3))
        y = ops.concatenate(
            [
                ops.reshape(path, (h, -1, channels, count, w))
                for path, count in zip(paths, self._counts)
            ],
            axis=3,
        )
        if self.data_format == "channels_last":
            y = ops.transpose(y, (1, 0, 4, 2, 3))
            y = ops.reshape(y, (-1, h, w, channels * self.paths))
        else:
            y = ops.transpose(y, (1, 2, 3, 0, 4))
            y = ops.reshape(y, (-1, channels * self.paths, h, w))
        return ops.cast(y, self.compute_dtype)

    @property
    def _counts(self):
        """Paths of order 0, of every scale of order 1, of order 2."""
        J, L = self.scales, self.angles
        return [1, *[L] * J, *(L * L * (J - 1 - j) for j in range(J - 1))]

    def _average(self, u, r):
        """`u * phi` sampled at the coarsest scale, from resolution `r`."""
        height, _, width = u.shape
        down = ops.convert_to_tensor(self._down[r], dtype=u.dtype)
        across = ops.convert_to_tensor(self._across[r], dtype=u.dtype)
        u = ops.matmul(down, ops.reshape(u, (height, -1)))
        u = ops.matmul(ops.reshape(u, (-1, width)), across)
        return ops.reshape(u, (down.shape[0], -1, across.shape[1]))

    def compute_output_shape(self, input_shape):
        height, width, channels = self._image_shape(input_shape)
        step = 2**self.scales
        h, w = -(-height // step), -(-width // step)
        if self.data_format == "channels_first":
            return (input_shape[0], channels * self.paths, h, w)
        return (input_shape[0], h, w, channels * self.paths)


def convolution_kernels(scale, angles, resolution):
    """Wavelets of all angles as kernels `(k, k, 1, 2 angles)`, real parts
    first."""
    waves = np.stack(
        [morlet(scale, t, angles, resolution) for t in range(angles)], -1
    )
    # Convolution of networks is correlation: flip.
    waves = waves[::-1, ::-1, None, :]
    return np.concatenate([waves.real, waves.imag], axis=-1)


def convolved(kernels, stride, x):
    """Computes `WaveletBank.modulus` by convolution."""
    x = ops.expand_dims(ops.transpose(x, (1, 0, 2)), -1)
    radius = len(kernels) // 2
    for axis in (1, 2):
        x = ops.take(x, _reflected(x.shape[axis], radius), axis=axis)
    y = ops.conv(
        x,
        ops.convert_to_tensor(kernels, dtype=x.dtype),
        strides=stride,
        padding="valid",
        data_format="channels_last",
    )
    re, im = ops.split(y, 2, axis=-1)
    y = _modulus(re, im)
    height, width = y.shape[1:3]
    y = ops.transpose(y, (1, 0, 3, 2))
    return ops.reshape(y, (height, -1, width))


def _reflected(length, radius):
    """Indices of a line continued by `radius` points of reflection."""
    return np.pad(np.arange(length), radius, mode="reflect")
