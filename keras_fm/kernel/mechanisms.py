"""Noise for a vector of statistics, and what that noise costs.

A mechanism sees a flat float64 vector and the sensitivity of that vector; it
does not know what the numbers mean. The noise is exact, on the lattice of
`keras_fm.kernel.lattice_noise`. A mechanism says how it composes through its
privacy loss distribution (dp_accounting). The sensitivity it is given already
is the one of the chosen neighbouring relation, so nothing here, and nothing
in the ledger, depends on that relation again.
"""

import abc
import collections
import dataclasses
import functools
import math
import typing
from fractions import Fraction

import numpy as np

from keras_fm.kernel import (
    discrete_noise,
    lattice_noise,
    mechanism_limits,
    quick_bounds,
)

# The privacy loss is rounded up to multiples of this fraction of epsilon.
_RELATIVE_DISCRETIZATION = 1e-4
# Rounding to the lattice moves a statistic by at most this share of the
# sensitivity, and of the noise unless that is below the least share (which
# leaves room for sums of 2^30 records in 62 bits).
_PRECISION = 2.0**-14
_LEAST_NOISE = 2.0**-20
# What discrete Gaussian noise costs more than continuous noise: more than
# `lattice_noise.log_ratio(2**40)` for each of this many releases.
_LATTICE_COST = 2.0**-50
_LATTICE_RELEASES = 2**20


class NoiseSource:
    """Where the randomness of releases comes from.

    Without a seed, random words of the operating system's cryptographic
    generator. With `reproducible_noise`, anybody who knows the seed can
    replay the noise and subtract it: everything released from it is labelled
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
        """A statistical NumPy generator for all that no proof rests on:
        noise of published forms, and choices after a release."""
        return self._generator

    def __repr__(self):
        kind = "reproducible, not private" if self.reproducible else "OS"
        return f"<NoiseSource ({kind})>"

    def __reduce__(self):
        raise TypeError(
            "A NoiseSource cannot be pickled or copied: its state would "
            "reveal the noise."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism(abc.ABC):
    """Additive noise calibrated to `sensitivity`.

    Variances are those of the continuous law. What is drawn is larger: the
    lattice adds 2^-13 of the standard deviation at most, and a bound on the
    error of sums (`summation.error_bound`) twice that bound over the
    sensitivity, about 2^-11.7 for sums of up to 2^30 records.

    Attributes:
        sensitivity: float > 0, the largest distance (in `norm`) between the
            vectors of two neighbouring data sets.
        overflow_probability: bound, on every data set, on the probability
            that the mechanism is not the one described here.
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
            error: float >= 0, how far the vector that is given may be, in
                `norm`, from the one that `sensitivity` is about. The noise
                covers it; the privacy stays what it is.

        Returns:
            A `lattice_noise.LatticeRelease`.

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
        """`lattice_release` of a `sensitivity` and a `dimension`."""

    @abc.abstractmethod
    def coordinate_variance(self, size):
        """Variance of one coordinate of a noise vector of length `size`."""

    @abc.abstractmethod
    def pure_epsilon(self):
        """The epsilon it meets with delta = 0; infinite if none."""

    @abc.abstractmethod
    def loss_distribution(self, discretization):
        """A dp_accounting privacy loss distribution that dominates it."""

    def config(self):
        """Name and public parameters, for the ledger."""
        return {"mechanism": type(self).__name__, **dataclasses.asdict(self)}


def _precision(noise):
    """Of a lattice, for noise of this many sensitivities."""
    return _PRECISION * min(1.0, max(noise, _LEAST_NOISE))


class _GaussianNoise(Mechanism):
    """What a sum with Gaussian noise draws, once or many times."""

    norm = "l2"

    @property
    def stddev(self):
        return self.noise_multiplier * self.sensitivity

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
class GaussianMechanism(_GaussianNoise):
    """Independent discrete Gaussian noise of standard deviation
    `noise_multiplier * sensitivity`.

    It is accounted as continuous noise: up to a factor of 1 + 10^-21 it is a
    function of that (docs/proofs/lattice_noise.md). The privacy loss of
    continuous noise depends on the L2 distance only (the density is
    rotationally symmetric), so the scalar pair N(0, m^2), N(1, m^2) with
    m the noise multiplier dominates it exactly (Dwork and Roth 2014,
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

    Composed with delta > 0 it is accounted as an arbitrary epsilon-DP
    mechanism: randomised response dominates all of them.

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

    The accounting holds for every way a record may spread its L1 norm over
    the coordinates.

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
class SampledGaussianMechanism(_GaussianNoise):
    """Gaussian noise on `steps` sums over Poisson samples (DP-SGD).

    `perturb` is for one of the sums. Under add_remove the privacy loss of a
    Poisson-sampled Gaussian is that of dp_accounting (Abadi et al. 2016; Zhu,
    Dong and Wang 2022).

    Args:
        sensitivity: L2 norm bound on one record's contribution to a sum.
        noise_multiplier: float > 0, noise stddev over `sensitivity`.
        sampling_rate: float in (0, 1], probability that a record is in a
            sample.
        steps: int >= 1, number of sums.
        overflow_probability: float in [0, 1), a bound on the probability
            that any of the samples exceeds the buffer it is read into, on
            every data set. `compose_epsilon` pays for it.
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


MECHANISMS = {
    c.__name__: c
    for c in (
        GaussianMechanism,
        LaplaceMechanism,
        SampledGaussianMechanism,
    )
}


def from_config(config):
    """The mechanism that `Mechanism.config` describes.

    Raises:
        ValueError: if it names none that can vouch for its noise, or has
            other parameters than that one.
    """
    config = dict(config)
    name = config.pop("mechanism", None)
    if name == "L2NormMechanism":
        raise ValueError(
            "It was made with L2-norm noise, which has no exact sampler and "
            "is not offered any more. Release with Laplace noise "
            "(`delta = 0`) instead; the old file stays readable as JSON or "
            "`.npz`."
        )
    if name not in MECHANISMS:
        raise ValueError(
            f"A proven entry needs one of the mechanisms {sorted(MECHANISMS)}. "
            f"Received: {name!r}"
        )
    try:
        return MECHANISMS[name](**config)
    except TypeError as e:
        raise ValueError(f"These are no parameters of a {name}: {e}") from e


def compose_epsilon(mechanisms, delta, scale=1.0):
    """Epsilon at `delta` of all `mechanisms` run on the same records.

    With `delta == 0` the pure epsilons add up (basic composition, which is
    tight for pure mechanisms). With `delta > 0` their privacy loss
    distributions are convolved by dp_accounting with pessimistic rounding,
    so the result is an upper bound. Overflow probabilities, p in all, are
    paid at the epsilon of the whole: it is the smallest with
    `delta_of(epsilon) + (1 + exp(epsilon)) * p <= delta`
    (docs/proofs/mechanisms.md). That Gaussian noise is discrete is paid for
    too, with 2^-49 of epsilon and 2^-50 of delta (docs/proofs/
    lattice_noise.md).

    It takes seconds at most. What would take longer (losses that reach far
    beyond `scale`, hundreds of different sampled mechanisms) is rounded to a
    coarser grid, or bounded by divergences instead (`quick_bounds`), which
    gives a larger epsilon.

    Args:
        mechanisms: sequence of `Mechanism`.
        delta: float in [0, 1).
        scale: the order of magnitude of the answer (an epsilon), which sets
            the rounding of privacy losses to 1e-4 of itself.

    Returns:
        float, infinite if no epsilon is met at this delta.
    """
    # A plan is checked, released and charged: composed once, not thrice.
    return _compose_epsilon(tuple(mechanisms), delta, scale)


@functools.lru_cache(maxsize=256)
def _compose_epsilon(mechanisms, delta, scale):
    pure = math.fsum(m.pure_epsilon() for m in mechanisms)
    if delta <= 0 or not mechanisms:
        return pure
    overflow = math.fsum(m.overflow_probability for m in mechanisms)
    eta = _lattice_cost(mechanisms)

    def searched(total, slack):
        def epsilon_of(left):
            left = left * (1 - eta) - slack
            if left <= 0:
                return math.inf
            return total.get_epsilon_for_delta(left) + 2 * eta

        def delta_of(value):
            found = total.get_delta_for_epsilon(max(0.0, value - 2 * eta))
            return found * (1 + 2 * eta) + slack

        with np.errstate(all="ignore"):
            return epsilon_with_overflow(
                epsilon_of, delta_of, delta, overflow, slack=1e-8
            )

    try:
        epsilon = searched(*_composed(mechanisms, delta, scale, overflow))
    except ArithmeticError:
        # A large delta is met only at losses that are far below 0.
        epsilon = searched(quick_bounds.Bound(mechanisms), 0.0)
    # NaN is no number that a budget could be compared with.
    return pure if math.isnan(epsilon) else min(pure, epsilon)


def _composed(mechanisms, delta, scale, overflow):
    """What knows epsilon and delta of all `mechanisms`, and what to take off
    delta for rounding."""
    bound = quick_bounds.Bound
    if not quick_bounds.is_within_reach(mechanisms, delta):
        return bound(mechanisms), 0.0
    parts = _merged(mechanisms)
    far = quick_bounds.reach(mechanisms)
    # Below 0.1 a finer grid would cost seconds and gain nothing visible.
    grid = _RELATIVE_DISCRETIZATION * max(scale, 0.1)
    grid = min(grid * _coarsening(parts), 100.0)
    # A plan far beyond `scale` is rounded coarsely instead of filling the
    # memory with a fine grid; it is refused either way.
    grid = max(grid, 1e-6 * far)
    grid = quick_bounds.coarsened(grid, parts, far, overflow / delta)
    try:
        total = None if grid is None else _convolved(parts, grid)
    except (ArithmeticError, ValueError):
        # dp_accounting checks what it computes, and at the ends of what
        # floats hold its checks fail.
        total = None
    if total is None:
        return bound(mechanisms), 0.0
    runs = sum(getattr(m, "steps", 1) * count for m, count in parts)
    return total, transform_error(runs)


def _convolved(parts, grid):
    with np.errstate(all="ignore"):
        found = [
            m.loss_distribution(grid)
            if count == 1
            else m.loss_distribution(grid).self_compose(count)
            for m, count in parts
        ]
        # In pairs: what is convolved stays short for as long as can be.
        while len(found) > 1:
            found = [
                p.compose(q) for p, q in zip(found[::2], found[1::2])
            ] + found[len(found) // 2 * 2 :]
    return found[0]


def _lattice_cost(mechanisms):
    """A bound on the sum of the `log_ratio`s of discrete Gaussians."""
    releases = sum(
        getattr(m, "steps", 1)
        for m in mechanisms
        if isinstance(m, _GaussianNoise)
    )
    return _LATTICE_COST * max(releases > 0, releases / _LATTICE_RELEASES)


def transform_error(runs):
    """What rounding may take off delta where the distributions of `runs`
    mechanisms are convolved by fast Fourier transforms.

    Errors of up to 7e-12 were found at 10^6 runs; this is a hundred times
    that, four units in the last place of 1 for every run, and is added to
    delta before it is used.
    """
    return runs * 2.0**-50 if runs > 1 else 0.0


def _coarsening(parts):
    """How much coarser a grid does as well for few steps.

    The error of a sampled step is quadratic in the grid, and its time, which
    is most of it, linear in the number of its points.
    """
    if any(math.isfinite(m.pure_epsilon()) for m, _ in parts):
        return 1.0
    steps = [m.steps for m, _ in parts if hasattr(m, "steps")]
    return min(10.0, max(1.0, math.sqrt(1000 / sum(steps)))) if steps else 1.0


def _merged(mechanisms):
    """What `mechanisms` compose to without loss, in an order of its own: a
    list of pairs, mechanisms and how often they run."""
    precision = []
    steps, rest = collections.Counter(), collections.Counter()
    for m in mechanisms:
        if isinstance(m, GaussianMechanism):
            precision.append(m.noise_multiplier**-2)
        elif not isinstance(m, SampledGaussianMechanism):
            rest[dataclasses.replace(m, sensitivity=1.0)] += 1
        elif m.sampling_rate == 1:
            precision.append(m.steps * m.noise_multiplier**-2)
        else:
            steps[m.sampling_rate, m.noise_multiplier] += m.steps
    merged = sorted(rest.items(), key=repr)
    merged += [
        (
            SampledGaussianMechanism(
                sensitivity=1.0,
                noise_multiplier=multiplier,
                sampling_rate=rate,
                steps=count,
            ),
            1,
        )
        for (rate, multiplier), count in sorted(steps.items())
    ]
    if precision:
        # Gaussians on the same records compose to one Gaussian, exactly.
        multiplier = min(math.fsum(precision) ** -0.5, 1e40)
        alone = GaussianMechanism(sensitivity=1.0, noise_multiplier=multiplier)
        merged.append((alone, 1))
    return merged


def epsilon_with_overflow(
    epsilon_of, delta_of, delta, probability, slack=1e-12
):
    """Smallest epsilon that pays for noise and for overflowing buffers.

    Iterates `epsilon = epsilon_of(delta - (1 + exp(epsilon)) * probability)`
    upwards from `epsilon_of(delta)`, which never passes the solution, and
    then goes up in steps far below its error until the inequality holds.

    Args:
        epsilon_of: decreasing function of delta, the inverse of `delta_of`.
        delta_of: decreasing function of epsilon.
        delta: float in (0, 1).
        probability: float in [0, 1), that of an overflow.
        slack: float > 0, how far the first step goes up.

    Returns:
        float with `delta_of(epsilon) + (1 + exp(epsilon)) * probability <=
        delta`; infinite if none is found.
    """
    epsilon = float(epsilon_of(delta))
    if probability == 0:
        return epsilon

    def left(value):
        # Beyond 700 the factor alone exceeds what a float holds.
        factor = 1 + math.exp(value) if value < 700 else math.inf
        return delta - factor * probability

    for _ in range(100):
        if left(epsilon) <= 0:
            return math.inf
        following = max(epsilon, float(epsilon_of(left(epsilon))))
        step = following - epsilon
        if step <= 1e-9 * (1 + following) and math.isfinite(following):
            # The rest of the way is shorter than the last step.
            candidate = following + max(step, slack)
            if delta_of(candidate) <= left(candidate):
                return candidate
            slack *= 4
        epsilon = following
    return math.inf


@functools.lru_cache(maxsize=256)
def gaussian_multiplier(epsilon, delta):
    """Smallest noise multiplier of one Gaussian that meets (epsilon, delta).

    The closed form of dp_accounting, raised until the composition that the
    ledger uses confirms it: the returned multiplier meets the budget, it does
    not overshoot it.

    Args:
        epsilon: float > 0.
        delta: float in (0, 1).

    Raises:
        ValueError: if `delta` is 0, which no Gaussian meets.

    Example:

    >>> round(gaussian_multiplier(1.0, 1e-5), 2)
    3.73
    """
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
    from scipy import optimize

    if not 0 < delta < 1:
        raise ValueError(
            "A Gaussian mechanism needs delta in (0, 1). "
            f"Received: delta={delta}"
        )

    def spent(multiplier):
        mechanism = GaussianMechanism(
            sensitivity=1.0, noise_multiplier=multiplier
        )
        return compose_epsilon([mechanism], delta, scale=epsilon)

    # The closed form, then the smallest of a few steps above it that the
    # composition, which rounds losses up, also finds within the budget.
    def excess(log_multiplier):
        exact = GaussianPrivacyLoss(math.exp(log_multiplier))
        return exact.get_delta_for_epsilon([epsilon])[0] - delta

    exact = math.exp(optimize.brentq(excess, -20.0, 20.0, xtol=1e-9))
    step = 1e-5
    while spent(exact * (1 + step)) > epsilon:
        step *= 2
    return exact * (1 + step)
