"""Noise for a vector of statistics, and what that noise costs.

A mechanism adds noise to a flat float64 vector of known sensitivity; it does
not know what the numbers mean. The noise is exact, on the lattice of
`keras_fm.kernel.lattice_noise`. A mechanism states its privacy loss
distribution, by which it is composed (`keras_fm.kernel.mechanisms`).
"""

import abc
import dataclasses
import math
import typing
from fractions import Fraction

import numpy as np

from keras_fm.kernel import discrete_noise, lattice_noise, mechanism_limits

# Rounding to the lattice moves a statistic by at most this share of the
# sensitivity, and of the noise unless the noise is below the least share. Then
# the step shrinks no further, and a sum that leaves 62 bits saturates.
_PRECISION = 2.0**-14
_LEAST_NOISE = 2.0**-20


class NoiseSource:
    """The source of all randomness of releases.

    Without a seed it draws from the operating system's cryptographic
    generator. With `reproducible_noise`, anybody who knows the seed can
    replay the noise and subtract it. Everything released from it is labelled
    "not private".

    Args:
        reproducible_noise: `None`, or an int seed for tests and studies.
    """

    def __init__(self, reproducible_noise=None):
        self.reproducible = reproducible_noise is not None
        if self.reproducible:
            self._source = discrete_noise.SeededWords(reproducible_noise)
            self._generator = self._source.generator()
        else:
            self._source = discrete_noise.OSWords()
            self._generator = np.random.Generator(np.random.Philox())

    def words(self, count):
        """The next `count` random words, `(count,)` uint64."""
        return self._source.words(count)

    def generator(self):
        """A statistical NumPy generator for draws that no proof rests on: the
        noise of published forms, and choices after a release."""
        return self._generator

    def __reduce__(self):
        raise TypeError(
            "A NoiseSource cannot be pickled or copied: its state would "
            "reveal the noise."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism(abc.ABC):
    """Additive noise calibrated to `sensitivity`.

    Variances are those of the continuous law. The noise that is drawn is
    larger. The lattice adds at most 2^-13 of the standard deviation. A bound
    on the error of sums (`keras_fm.kernel.sums.error_bound`) adds twice that
    bound over the sensitivity, about 2^-11.7 for sums of up to 2^30 records.

    Attributes:
        sensitivity: float > 0, the largest distance (in `norm`) between the
            vectors of two neighbouring data sets.
        overflow_probability: a bound, for every data set, on the probability
            that the mechanism differs from the one described here.
    """

    sensitivity: float

    norm: typing.ClassVar[str | None] = None
    overflow_probability = 0.0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = mechanism_limits.checked(
                field.name, getattr(self, field.name)
            )
            object.__setattr__(self, field.name, value)

    def perturb(self, exact, source, *, error=0.0, dimension=None):
        """Rounds a statistic to the lattice and adds the noise.

        Args:
            exact: `(size,)` floats, finite; or `(..., size)`, each vector
                with independent noise.
            source: a `NoiseSource`.
            error, dimension: see `lattice_release`; by default all
                coordinates.

        Returns:
            float64 array of the same shape, multiples of the lattice's step.
        """
        exact = np.asarray(exact, np.float64)
        if dimension is None:
            dimension = exact.shape[-1]
        return self.lattice_release(dimension, error)(exact, source)

    def lattice_release(self, dimension, error=0.0):
        """The lattice and the integer noise on it.

        Args:
            dimension: int >= 1, public: in how many coordinates the vectors
                of two neighbours can differ.
            error: float >= 0, how far (in `norm`) the given vector may be
                from the vector that `sensitivity` refers to. The noise covers
                it, so the privacy does not change.

        Returns:
            A `keras_fm.kernel.lattice_noise.LatticeRelease`.

        Raises:
            ValueError: if 64-bit integers cannot hold such noise.
        """
        return self._on_lattice(
            sensitivity=Fraction(float(self.sensitivity))
            + 2 * Fraction(float(error)),
            dimension=dimension,
        )

    @abc.abstractmethod
    def _on_lattice(self, **arguments):
        """`lattice_release` for a `sensitivity` and a `dimension`."""

    @abc.abstractmethod
    def coordinate_variance(self, size):
        """Variance of one coordinate of a noise vector of length `size`."""

    @abc.abstractmethod
    def pure_epsilon(self):
        """The epsilon that holds with delta = 0; infinite if none does."""

    @abc.abstractmethod
    def loss_distribution(self, discretization):
        """A dp_accounting privacy loss distribution that dominates it."""

    def config(self):
        """Name and public parameters, for the ledger."""
        return {"mechanism": type(self).__name__, **dataclasses.asdict(self)}


def _precision(noise):
    """The precision of a lattice, for noise of this many sensitivities."""
    return _PRECISION * min(1.0, max(noise, _LEAST_NOISE))


class GaussianNoise(Mechanism):
    """Gaussian noise on a sum that is drawn once or many times."""

    norm = "l2"

    @property
    def stddev(self):
        return self.noise_multiplier * self.sensitivity

    def device_noise(self, standard_normal):
        """The noise of one sum that is formed on a device, in floats. On the
        host `perturb` adds it.

        Args:
            standard_normal: array or tensor of the vector's shape, fresh
                draws of variance 1.

        Returns:
            the same, with the deviation of this mechanism. Add it to the
            vector that `sensitivity` refers to, in the units of that vector.
        """
        return self.stddev * standard_normal

    def _on_lattice(self, **arguments):
        return lattice_noise.gaussian_release(
            noise_multiplier=self.noise_multiplier,
            precision=_precision(self.noise_multiplier),
            **arguments,
        )

    def coordinate_variance(self, size):
        return self.stddev**2

    def pure_epsilon(self):
        return math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianMechanism(GaussianNoise):
    """Independent discrete Gaussian noise of standard deviation
    `noise_multiplier * sensitivity`.

    It is accounted as continuous noise: up to a factor of 1 + 10^-21 it is a
    function of continuous noise (docs/proofs/lattice_noise.md). The privacy
    loss of continuous noise depends on the L2 distance only, because the
    density is rotationally symmetric. So the scalar pair N(0, m^2), N(1, m^2)
    with m the noise multiplier dominates it exactly (Dwork and Roth 2014,
    appendix A; Balle and Wang 2018).

    Args:
        sensitivity: L2 sensitivity of the vector.
        noise_multiplier: float > 0.
    """

    noise_multiplier: float

    def loss_distribution(self, discretization):
        from dp_accounting.pld import privacy_loss_distribution as pld_lib

        return pld_lib.from_gaussian_mechanism(
            standard_deviation=self.noise_multiplier,
            value_discretization_interval=discretization,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PureMechanism(Mechanism):
    """A mechanism with delta = 0 and noise of scale `sensitivity / epsilon`.

    With delta > 0 it is accounted as an arbitrary epsilon-DP mechanism.
    Randomised response dominates all of these.

    Args:
        epsilon: float > 0.
    """

    epsilon: float

    @property
    def scale(self):
        return self.sensitivity / self.epsilon

    def pure_epsilon(self):
        return self.epsilon

    def loss_distribution(self, discretization):
        from dp_accounting.pld import common as pld_common
        from dp_accounting.pld import privacy_loss_distribution as pld_lib

        return pld_lib.from_privacy_parameters(
            pld_common.DifferentialPrivacyParameters(self.epsilon, 0.0),
            value_discretization_interval=discretization,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaplaceMechanism(PureMechanism):
    """Independent discrete Laplace noise of scale `sensitivity / epsilon`.

    The accounting holds however a record spreads its L1 norm over the
    coordinates.

    Args:
        sensitivity: L1 sensitivity of the vector.
        epsilon: float > 0.
    """

    norm = "l1"

    def _on_lattice(self, **arguments):
        return lattice_noise.laplace_release(
            epsilon=self.epsilon,
            precision=_precision(1 / self.epsilon),
            **arguments,
        )

    def coordinate_variance(self, size):
        return 2 * self.scale**2


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledGaussianMechanism(GaussianNoise):
    """Gaussian noise on `steps` sums over Poisson samples (DP-SGD).

    `perturb` adds noise to one of the sums. dp_accounting gives the privacy
    loss of a Poisson-sampled Gaussian under add_remove (Abadi et al. 2016;
    Zhu, Dong and Wang 2022).

    Args:
        sensitivity: L2 norm bound on one record's contribution to a sum.
        noise_multiplier: float > 0, noise stddev over `sensitivity`.
        sampling_rate: float in (0, 1], probability that a record is in a
            sample.
        steps: int >= 1, number of sums.
        overflow_probability: float in [0, 1), a bound, for every data set, on
            the probability that any sample exceeds its buffer.
            `compose_epsilon` pays for it.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    overflow_probability: float = 0.0

    def loss_distribution(self, discretization):
        from dp_accounting.pld import privacy_loss_distribution as pld_lib

        if self.sampling_rate == 1:
            return pld_lib.from_gaussian_mechanism(
                standard_deviation=self.noise_multiplier
                / math.sqrt(self.steps),
                value_discretization_interval=discretization,
            )
        return pld_lib.from_gaussian_mechanism(
            standard_deviation=self.noise_multiplier,
            sampling_prob=self.sampling_rate,
            value_discretization_interval=discretization,
        ).self_compose(self.steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallsInBinsMechanism(SampledGaussianMechanism):
    """Gaussian noise on the sums of epochs. In each epoch every record is in
    one sum, chosen uniformly (docs/proofs/balls_in_bins.md).

    Args:
        sampling_rate: one over the steps of an epoch.
        steps: int, rounded up to whole epochs.
        sensitivity, noise_multiplier, overflow_probability: as of
            `SampledGaussianMechanism`.
    """

    def __post_init__(self):
        super().__post_init__()
        whole = math.ceil(self.steps / self.bins) * self.bins
        whole = mechanism_limits.checked("steps", whole)
        object.__setattr__(self, "steps", whole)

    @property
    def bins(self):
        return max(1, math.floor(1 / self.sampling_rate + 1e-6))

    def loss_distribution(self, discretization):
        from keras_fm.accounting import balls_in_bins

        return balls_in_bins.loss_distribution(
            self.bins, self.noise_multiplier, discretization
        ).self_compose(self.steps // self.bins)
