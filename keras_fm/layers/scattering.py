import math

import keras
import numpy as np
from keras import ops

# Constants of the Morlet family: envelope and frequency of the finest
# wavelet, and how many standard deviations of an envelope are kept.
_SIGMA = 0.8
_FREQUENCY = 0.75 * math.pi
_SUPPORT = 4.0
# Under the root of the modulus, so that its gradient stays finite at 0.
_TINY = 1e-12


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


@keras.saving.register_keras_serializable(package="keras_fm")
class Scattering2D(keras.layers.Layer):
    """Wavelet scattering of images, orders 0, 1 and 2: public features.

    With oriented Morlet wavelets `psi[j, t]` of `scales` octaves `j` and
    `angles` angles `t`, and a Gaussian window `phi` of the coarsest scale:

    * order 0: `x * phi`
    * order 1: `|x * psi[j, t]| * phi`
    * order 2: `||x * psi[j, t]| * psi[k, s]| * phi` for `k > j`

    each sampled every `2**scales` pixels. The features are stable to small
    shifts and deformations. Nothing is learned or read from data and each
    record is mapped on its own, so the layer costs no privacy.

    The wavelets are those usual for scattering of images (deviation 0.8,
    frequency 3 pi / 4, slant `4 / angles`), cut at 4 deviations; images are
    continued by reflection at every order. The modulus is
    `sqrt(re**2 + im**2 + 1e-12)`. Half precision policies compute in
    float32 and cast the result.

    `power` below 1 compresses: every coefficient `s` becomes `sign(s)
    |s|**power`, which lets weak second-order responses count. With 0.5 the
    unit L2 norm that usually follows makes the Hellinger map.

    Source: Bruna and Mallat, Invariant Scattering Convolution Networks,
    2013.

    Args:
        scales: int `J >= 1`, the number of octaves.
        angles: int `L >= 1`, the number of angles in half a turn.
        power: number in (0, 1], see above.
        data_format: `"channels_last"`, `"channels_first"`, or `None` for
            the Keras setting.

    Input shape: `(batch, height, width, channels)`; height and width must
    be known and at least `2**scales`.

    Output shape: `(batch, ceil(height / 2**J), ceil(width / 2**J),
    channels * (1 + J L + L**2 J (J - 1) / 2))`, channels of one image
    channel together and within them order 0, then order 1 by scale and
    angle, then order 2 by (j, t), k, s. With `"channels_first"` the channel
    axis comes second in both.

    Raises:
        ValueError: if `scales` or `angles` is not a positive integer,
            `power` is outside (0, 1], or the images are too small or of
            unknown size.

    Example:

    >>> layer = Scattering2D(scales=2, angles=8)
    >>> layer(np.zeros((1, 28, 28, 1), "float32")).shape
    (1, 7, 7, 81)
    """

    def __init__(
        self, scales=2, angles=8, power=1.0, data_format=None, **kwargs
    ):
        super().__init__(**kwargs)
        self.scales = _positive_integer("scales", scales)
        self.angles = _positive_integer("angles", angles)
        if (
            isinstance(power, bool)
            or not isinstance(power, (int, float, np.number))
            or not 0 < power <= 1
        ):
            raise ValueError(
                f"`power` must be a number in (0, 1]. Received: power={power!r}"
            )
        self.power = float(power)
        if data_format is None:
            data_format = keras.config.image_data_format()
        if data_format not in ("channels_last", "channels_first"):
            raise ValueError(
                '`data_format` must be "channels_last" or "channels_first". '
                f"Received: data_format={data_format!r}"
            )
        self.data_format = data_format
        self.input_spec = keras.layers.InputSpec(ndim=4)

    @property
    def paths(self):
        """Features for each position and image channel."""
        J, L = self.scales, self.angles
        return 1 + J * L + L * L * J * (J - 1) // 2

    def _image_shape(self, input_shape):
        """`(height, width, channels)` of a full input shape, checked."""
        if self.data_format == "channels_first":
            channels, height, width = input_shape[1:]
        else:
            height, width, channels = input_shape[1:]
        smallest = 2**self.scales
        if None in (height, width, channels) or min(height, width) < smallest:
            raise ValueError(
                "Images must have known channels and a known height and "
                f"width of at least 2**scales = {smallest} pixels. "
                f"Received: input_shape={tuple(input_shape)}"
            )
        return height, width, channels

    def build(self, input_shape):
        height, width, _ = self._image_shape(input_shape)
        J, L = self.scales, self.angles
        # Plain arrays, not weights: they follow from the arguments. Keys
        # are resolutions, and (scale, resolution) for the wavelets.
        self._down, self._across, self._wavelets = {}, {}, {}
        for r in range(J):
            window, step = low_pass(J, r), 2 ** (J - r)
            size = -(-height // 2**r), -(-width // 2**r)
            self._down[r] = averaging_matrix(size[0], window, step)
            self._across[r] = averaging_matrix(size[1], window, step)
            # Order 1 reads the image, order 2 order 1 at its resolution.
            for j in range(0 if r == 0 else r + 1, J):
                waves = np.stack([morlet(j, t, L, r) for t in range(L)], -1)
                # Convolution of networks is correlation: flip.
                waves = waves[::-1, ::-1, None, :]
                waves = np.concatenate([waves.real, waves.imag], axis=-1)
                self._wavelets[j, r] = waves

    def call(self, inputs):
        # Half precision would lose the weak second order.
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        x = ops.cast(inputs, dtype)
        if self.data_format == "channels_last":
            x = ops.transpose(x, (0, 3, 1, 2))
        channels, height, width = x.shape[1:]
        x = ops.reshape(x, (-1, height, width, 1))
        first, second = [], []
        for j in range(self.scales):
            u = self._modulus(x, j, 0)
            first.append(self._average(u, j))
            if j + 1 < self.scales:
                second.append(self._second_order(u, j))
        # (batch * channels, h, w, paths): one image channel is one image.
        y = ops.concatenate([self._average(x, 0), *first, *second], axis=-1)
        if self.power < 1:
            y = ops.sign(y) * ops.power(ops.abs(y) + _TINY, self.power)
        h, w = y.shape[1:3]
        y = ops.reshape(y, (-1, channels, h, w, self.paths))
        if self.data_format == "channels_last":
            y = ops.transpose(y, (0, 2, 3, 1, 4))
            y = ops.reshape(y, (-1, h, w, channels * self.paths))
        else:
            y = ops.transpose(y, (0, 1, 4, 2, 3))
            y = ops.reshape(y, (-1, channels * self.paths, h, w))
        return ops.cast(y, self.compute_dtype)

    def _second_order(self, u, r):
        """Order 2 from the moduli `u`, `(n, h, w, L)` at resolution `r`."""
        h, w, L = u.shape[1:]
        u = ops.reshape(ops.transpose(u, (0, 3, 1, 2)), (-1, h, w, 1))
        s = ops.concatenate(
            [
                self._average(self._modulus(u, k, r), k)
                for k in range(r + 1, self.scales)
            ],
            axis=-1,
        )
        h, w, paths = s.shape[1:]
        s = ops.transpose(ops.reshape(s, (-1, L, h, w, paths)), (0, 2, 3, 1, 4))
        return ops.reshape(s, (-1, h, w, L * paths))

    def _modulus(self, x, j, r):
        """`|x * psi[j]|` for all angles, from resolution `r` to `j`."""
        waves = self._wavelets[j, r]
        radius = waves.shape[0] // 2
        for axis in (1, 2):
            source = _reflected(x.shape[axis], radius)
            x = ops.take(x, source, axis=axis)
        y = ops.conv(
            x,
            ops.convert_to_tensor(waves, dtype=x.dtype),
            strides=2 ** (j - r),
            padding="valid",
            data_format="channels_last",
        )
        re, im = ops.split(y, 2, axis=-1)
        return ops.sqrt(re * re + im * im + _TINY)

    def _average(self, u, r):
        """`u * phi` sampled at the coarsest scale, from resolution `r`."""
        height, width, maps = u.shape[1:]
        down = ops.convert_to_tensor(self._down[r], dtype=u.dtype)
        across = ops.convert_to_tensor(self._across[r], dtype=u.dtype)
        u = ops.matmul(down, ops.reshape(u, (-1, height, width * maps)))
        u = ops.reshape(u, (-1, down.shape[0], width, maps))
        return ops.matmul(across, u)

    def compute_output_shape(self, input_shape):
        height, width, channels = self._image_shape(input_shape)
        step = 2**self.scales
        h, w = -(-height // step), -(-width // step)
        if self.data_format == "channels_first":
            return (input_shape[0], channels * self.paths, h, w)
        return (input_shape[0], h, w, channels * self.paths)

    def get_config(self):
        return {
            **super().get_config(),
            "scales": self.scales,
            "angles": self.angles,
            "power": self.power,
            "data_format": self.data_format,
        }


def _reflected(length, radius):
    """Indices of a line continued by `radius` points of reflection."""
    return np.pad(np.arange(length), radius, mode="reflect")


def _positive_integer(name, value):
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < 1:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}"
        )
    return int(value)
