"""Noise on a power-of-two lattice, exact on a real machine.

A continuous density sampled in floating point leaves holes and steps, which
reveal something to an observer of the output (Mironov 2012). Here a statistic
is rounded to multiples of a public power of two. The noise is an integer
number of steps (`discrete_noise`), and the sum is formed in 64-bit integers.
Proofs: docs/proofs/lattice_noise.md.

Example:

>>> import numpy as np
>>> from keras_fm.kernel.discrete_noise import OSWords
>>> release = gaussian_release(
...     sensitivity=1.0, noise_multiplier=4.0, dimension=3
... )
>>> release.lattice.step
3.0517578125e-05
>>> noisy = release(np.array([3.0, 1.0, 4.0]), OSWords())
>>> bool(np.all(noisy % release.lattice.step == 0))
True
"""

import dataclasses
import functools
import math
from fractions import Fraction

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel.discrete_noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    SymmetricSampler,
    positive_fraction,
)

# Numbers of a release handled at once, so that only the result is large.
_PART = 2**18
# Sums of a saturated statistic and noise stay below 2^63.
_SATURATION = 2.0**62
# Extra variance, in steps squared, that pays for a lattice in place of a line.
_SMOOTHING_VARIANCE = 4


@dataclasses.dataclass(frozen=True)
class Lattice:
    """The multiples of `2**exponent`.

    Attributes:
        exponent: int from -960 to 900, public.
    """

    exponent: int

    def __post_init__(self):
        # Steps, and sums of up to 2^63 of them, are then normal numbers.
        checks.integer(
            "exponent",
            self.exponent,
            at_least=-960,
            at_most=900,
            wanted="from -960 to 900: rescale the statistic",
        )

    @classmethod
    def for_statistic(cls, sensitivity, dimension, norm, precision=2.0**-14):
        """The coarsest lattice that costs little sensitivity.

        Args:
            sensitivity: float > 0 of the vector, in `norm`.
            dimension: int >= 1, number of coordinates in which the vectors
                of two neighbours can differ.
            norm: `"l1"` or `"l2"`.
            precision: float > 0; rounding adds at most this fraction of
                `sensitivity`.

        Returns:
            `Lattice`. It is public, because all arguments are.

        Example:

        >>> Lattice.for_statistic(1.0, 100, "l2").step  # 2^-14 / 10, down
        3.814697265625e-06
        """
        largest = positive_fraction("precision", precision)
        largest *= positive_fraction("sensitivity", sensitivity)
        largest /= _rounding_cost(dimension, norm)
        return cls(_floor_log2(largest))

    @property
    def step(self):
        """float, the distance of neighbouring points."""
        return math.ldexp(1.0, self.exponent)

    @property
    def largest(self):
        """float, the absolute value at which `rounded` saturates."""
        return math.ldexp(_SATURATION, self.exponent)

    def rounded(self, values):
        """Rounds to the nearest points, ties to the even one, exactly.

        Results beyond `largest`, 2^62 steps, are moved to `largest`, which
        increases no distance. An error would reveal something of the data.

        Args:
            values: floats, finite for every data set.

        Returns:
            int64 array of the same shape, in steps.

        Raises:
            ValueError: if a value is infinite or NaN. No statistic may be
                either on any data set: clip the records first.
        """
        values = np.asarray(values, np.float64)
        more = ". Clip the records before they are summed."
        checks.finite("values", values, more)
        # Scaling is exact except for numbers next to 0 or past the clip.
        with np.errstate(over="ignore", under="ignore"):
            scaled = np.ldexp(values, -self.exponent)
        scaled = np.rint(np.clip(scaled, -_SATURATION, _SATURATION))
        return scaled.astype(np.int64)

    def values(self, integers):
        """Points as float64: exact up to 2^53 steps, then rounded.

        The rounding uses only numbers that are released anyway.
        """
        points = np.asarray(integers, np.int64).astype(np.float64)
        return np.ldexp(points, self.exponent)

    def sensitivity(self, sensitivity, dimension, norm):
        """Bounds the distance between two neighbours' rounded vectors.

        Every coordinate moves by at most half a step. So the L1 distance
        grows by at most `dimension` steps, and the L2 distance by at most
        `sqrt(dimension)` steps. Both are then rounded down to a length that
        integer vectors can have.

        Args:
            sensitivity: float > 0, before rounding, in `norm`.
            dimension, norm: as in `for_statistic`.

        Returns:
            `Fraction`, in steps: an integer for `"l1"`; for `"l2"` an upper
            bound of an integer's root (relative excess below 2^-60).

        Example:

        >>> Lattice(0).sensitivity(10.0, 4, "l1")
        Fraction(14, 1)
        """
        before = positive_fraction("sensitivity", sensitivity)
        before /= Fraction(2) ** self.exponent
        after = before + _rounding_cost(dimension, norm)
        if norm == "l1":
            return Fraction(math.floor(after))
        return _root_above(math.floor(after**2))


def _rounding_cost(dimension, norm):
    """An upper bound on how much rounding enlarges a distance, in steps."""
    dimension = checks.count("dimension", dimension)
    if checks.either("norm", norm, ("l1", "l2")) == "l1":
        return Fraction(dimension)
    return _root_above(dimension)


def _root_above(n):
    """A fraction at or barely above the square root of an integer n >= 0."""
    root = math.isqrt(n)
    if root * root == n:
        return Fraction(root)
    return Fraction(math.isqrt(n << 128) + 1, 1 << 64)


def _floor_log2(value):
    """Largest k with `2**k <= value`, for a positive Fraction."""
    k = value.numerator.bit_length() - value.denominator.bit_length()
    return k if Fraction(2) ** k <= value else k - 1


@dataclasses.dataclass(frozen=True)
class LatticeRelease:
    """Rounds a vector, adds integer noise, and scales back.

    Attributes:
        lattice: `Lattice`.
        sensitivity: `Fraction`, that of the rounded vector, in steps.
        sampler: `DiscreteLaplace` or `DiscreteGaussian`, in steps.
    """

    lattice: Lattice
    sensitivity: Fraction
    sampler: SymmetricSampler

    def __call__(self, values, source):
        """Returns the noisy values, float64, all multiples of the step.

        Args:
            values: float vector of finite values.
            source: `OSWords`, or `SeededWords` for tests.
        """
        values = np.asarray(values, np.float64)
        exact, noisy = values.ravel(), np.empty(values.size)
        for start in range(0, exact.size, _PART):
            part = exact[start : start + _PART]
            noise = self.sampler.sample(part.size, source)
            noise += self.lattice.rounded(part)
            noisy[start : start + _PART] = self.lattice.values(noise)
        return noisy.reshape(values.shape)


@functools.lru_cache(maxsize=32)
def laplace_release(*, sensitivity, epsilon, dimension, precision=2.0**-14):
    """Discrete Laplace noise that is `epsilon`-private, with no error term.

    Args:
        sensitivity: float > 0, L1 sensitivity of the vector.
        epsilon: float > 0.
        dimension: int >= 1, number of coordinates in which the vectors of
            two neighbours can differ.
        precision: float > 0, see `Lattice.for_statistic`; the noise is
            larger than unrounded noise by at most this fraction.

    Returns:
        `LatticeRelease`.

    Raises:
        ValueError: if an argument is out of range, or the noise has a scale
            of 2^50 steps or more: then raise `precision`.

    Example:

    >>> release = laplace_release(sensitivity=1.0, epsilon=0.5, dimension=8)
    >>> float(release.sampler.scale) * release.lattice.step
    2.0001220703125
    """
    epsilon = positive_fraction("epsilon", epsilon)
    lattice = Lattice.for_statistic(sensitivity, dimension, "l1", precision)
    after = lattice.sensitivity(sensitivity, dimension, "l1")
    return LatticeRelease(lattice, after, DiscreteLaplace(after / epsilon))


@functools.lru_cache(maxsize=32)
def gaussian_release(
    *, sensitivity, noise_multiplier, dimension, precision=2.0**-14
):
    """Discrete Gaussian noise, as private as a continuous Gaussian.

    Its privacy losses, alone or composed with other mechanisms, are those of
    a Gaussian mechanism with this `noise_multiplier`, up to
    `log_ratio(dimension)` (below 1e-21 for any vector that fits a machine).
    For that its variance is `(noise_multiplier * sensitivity)^2`, with the
    sensitivity of the rounded vector, plus 4 steps squared.

    Args:
        sensitivity: float > 0, L2 sensitivity of the vector.
        noise_multiplier: float > 0, of the Gaussian mechanism to match.
        dimension: int >= 1, number of coordinates in which the vectors of
            two neighbours can differ.
        precision: float > 0, see `Lattice.for_statistic`.

    Returns:
        `LatticeRelease`.

    Raises:
        ValueError: if an argument is out of range, or the noise has a
            standard deviation of 2^50 steps or more: then raise `precision`.

    Example:

    >>> release = gaussian_release(
    ...     sensitivity=1.0, noise_multiplier=2.0, dimension=100
    ... )
    >>> stddev = math.sqrt(release.sampler.variance_parameter)
    >>> round(stddev * release.lattice.step, 3)
    2.0
    """
    multiplier = positive_fraction("noise_multiplier", noise_multiplier)
    lattice = Lattice.for_statistic(sensitivity, dimension, "l2", precision)
    after = lattice.sensitivity(sensitivity, dimension, "l2")
    variance = (multiplier * after) ** 2 + _SMOOTHING_VARIANCE
    return LatticeRelease(lattice, after, DiscreteGaussian(variance))


def log_ratio(dimension):
    """How far `gaussian_release` is from a continuous Gaussian.

    Some post-processing of a Gaussian mechanism has the probabilities of the
    release, up to factors between `exp(-eta)` and `exp(eta)`. If the Gaussian
    is `(epsilon, delta)`-private, the release is
    `(epsilon + 2 eta, exp(eta) delta)`-private. Over several releases the
    etas add up.

    Args:
        dimension: int >= 1, number of coordinates of the vector.

    Returns:
        float, eta.

    Example:

    >>> log_ratio(1_000_000) < 1e-27
    True
    """
    dimension = checks.count("dimension", dimension)
    # By Poisson summation, the weights of a Gaussian on a shifted lattice add
    # up to the integral, except for this fraction; doubled for both sums.
    error = 2 * math.exp(-2 * math.pi**2 * _SMOOTHING_VARIANCE)
    return 2.001 * dimension * error
