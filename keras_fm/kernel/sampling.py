"""Which records each of many reads sees, and the noise that pays for them.

A plan is made before anything is read: it draws the samples (`batches`) and
it is the mechanism that the ledger charges (`mechanism`), so the sampler and
the accountant cannot disagree. Everything in a plan is public.
"""

import dataclasses
import functools
import math

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel import mechanisms as mechanisms_lib
from keras_fm.kernel.budget import Neighbours
from keras_fm.kernel.mechanisms import (
    GaussianMechanism,
    SampledGaussianMechanism,
)

SAMPLINGS = ("poisson", "full", "shuffled")

# A Poisson sample larger than its buffer ends the run with an error. That
# has at most this probability per run, and takes at most this part of delta.
_OVERFLOW_PROBABILITY = 1e-12
_OVERFLOW_SHARE = 1e-3
# Where epsilon is not known beforehand: up to here the share above holds.
_LARGEST_EPSILON = 20.0

# A multiplier is found to this relative precision, from above.
_PRECISION = 1e-4
_MAX_COMPOSITIONS = 60

# dp_accounting's default orders skip from 63 to 128: at epsilon below 0.2
# the best one lies between.
_RDP_ORDERS = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *(int(64 * 2 ** (k / 8)) for k in range(33)),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """Which records each of `steps` reads sees. Made by `plan`.

    Attributes:
        n: number of records, public by declaration.
        sampling: `"poisson"`, `"full"` or `"shuffled"`.
        expected_batch_size: what a noisy sum is divided by for a mean.
        capacity: most records a sample may hold.
        sampling_rate: probability that a record is in a sample.
        steps: number of samples.
        overflow_probability: bound on the probability that one of the
            samples exceeds `capacity`, for up to `n + 1` records.
    """

    n: int
    sampling: str
    expected_batch_size: int
    capacity: int
    sampling_rate: float
    steps: int
    overflow_probability: float = 0.0

    def sample(self, rng):
        """Draws the record numbers of one sample.

        Args:
            rng: a `numpy.random.Generator`.

        Returns:
            int array of increasing, distinct numbers below `n`.

        Raises:
            RuntimeError: if a Poisson sample exceeds `capacity`.
            ValueError: for shuffled batches, which depend on one another.
        """
        if self.sampling == "shuffled":
            raise ValueError(
                "Shuffled batches are parts of one permutation; draw them "
                "with `batches`."
            )
        if self.sampling == "full":
            return np.arange(self.n)
        return poisson_sample(self.n, self.sampling_rate, self.capacity, rng)

    def batches(self, rng):
        """Yields `steps` arrays of record numbers.

        Poisson samples are independent, shuffled batches are consecutive
        parts of a fresh permutation in each epoch (the remainder is left
        out).

        Raises:
            RuntimeError: if a Poisson sample exceeds `capacity`.
        """
        if self.sampling != "shuffled":
            for _ in range(self.steps):
                yield self.sample(rng)
            return
        size = self.expected_batch_size
        per_epoch = self.n // size
        for step in range(self.steps):
            if step % per_epoch == 0:
                order = rng.permutation(self.n)
            start = (step % per_epoch) * size
            yield order[start : start + size]

    def mechanism(self, noise_multiplier, sensitivity=1.0):
        """The `SampledGaussianMechanism` of noisy sums over the samples.

        Shuffled batches are described as if they were Poisson: fit for a
        claimed ledger entry only.

        Args:
            noise_multiplier: float > 0, noise stddev over `sensitivity`.
            sensitivity: float > 0, the largest L2 change of one sum.
        """
        return SampledGaussianMechanism(
            sensitivity=sensitivity,
            noise_multiplier=noise_multiplier,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            overflow_probability=self.overflow_probability,
        )


def plan(n, *, sampling="poisson", batch_size=None, steps, delta, epsilon=None):
    """Plans `steps` reads of samples of `n` records.

    A Poisson sample has no largest size but `n`, and reads need a buffer of
    a fixed one. Its capacity is the smallest for which the Chernoff bound
    on an overflow in the whole run is at most
    `min(1e-12, 1e-3 * delta / (1 + exp(epsilon)))`: paying for it takes at
    most a thousandth of delta.

    Args:
        n: int, number of records, public by declaration.
        sampling: `"poisson"` (each record joins each sample independently
            with probability `batch_size / n`), `"full"` (every record, every
            time) or `"shuffled"` (batches of a fixed size from a fresh
            permutation in each epoch; no proof amplifies their privacy
            here).
        batch_size: int, the expected size of a sample; `None` with `"full"`.
        steps: int, number of samples.
        delta: float in (0, 1), that of the budget.
        epsilon: float > 0, that of the budget. Infinite without noise:
            nothing is promised then, and the bound is 1e-12. `None` if the
            noise is given instead: the bound is that of epsilon = 20, so
            that it is negligible for every smaller epsilon. (Or compose
            `plan.mechanism(...)`, and plan again with that epsilon.)

    Returns:
        A `SamplingPlan`.

    Raises:
        ValueError: if a value is outside its range, NaN or infinite, or the
            batch is larger than `n`.

    Example:

    >>> samples = plan(
    ...     60000, batch_size=1000, steps=1800, delta=1e-5, epsilon=2.0
    ... )
    >>> samples.capacity
    1273
    """
    checks.one_of("sampling", sampling, SAMPLINGS)
    batch_size = expected_batch_size(n, sampling, batch_size)
    checks.count("steps", steps)
    checks.gaussian_delta(delta)
    if epsilon is not None:
        # Infinity: no noise is wanted.
        wanted = "greater than 0"
        checks.number("epsilon", epsilon, above=0, finite=False, wanted=wanted)
    rate = batch_size / n
    rows, overflow = batch_size, 0.0
    if sampling == "poisson" and rate < 1:
        bound = math.log(_OVERFLOW_PROBABILITY)
        if epsilon is None or math.isfinite(epsilon):
            at = _LARGEST_EPSILON if epsilon is None else float(epsilon)
            share = math.log(_OVERFLOW_SHARE * delta)
            bound = min(bound, share - float(np.logaddexp(0.0, at)))
        rows = _capacity(n, rate, bound - math.log(steps))
        overflow = steps * overflow_bound(n, rate, rows)
    return SamplingPlan(
        n=int(n),
        sampling=sampling,
        expected_batch_size=int(batch_size),
        capacity=int(rows),
        sampling_rate=float(rate),
        steps=int(steps),
        overflow_probability=overflow,
    )


def expected_batch_size(n, sampling, batch_size):
    """Checks `n` and `batch_size`; all `n` records with full batches."""
    checks.count("n", n)
    if (sampling == "full") != (batch_size is None):
        raise ValueError(
            '`batch_size` must be None with sampling="full" and a positive '
            f"integer otherwise. Received: batch_size={batch_size}, "
            f"sampling={sampling!r}"
        )
    if batch_size is None:
        return n
    checks.count("batch_size", batch_size)
    if batch_size > n:
        raise ValueError(
            "`batch_size` must not exceed the number of records. "
            f"Received: batch_size={batch_size}, n={n}"
        )
    return batch_size


def poisson_sample(n, rate, capacity, rng):
    """Record numbers below `n`, each in with probability `rate`.

    Raises:
        RuntimeError: if there are more than `capacity`.
    """
    drawn = np.flatnonzero(rng.random(n) < rate)
    if len(drawn) > capacity:
        # Its size is private: the error does not tell it.
        raise RuntimeError(
            f"A Poisson sample exceeded its capacity of {capacity} records; "
            "the run stops. The capacity is chosen so that this has a "
            "negligible probability, which the accounting contains: nothing "
            "is wrong with the records, start again."
        )
    return drawn


# Capacity -----------------------------------------------------------------


def overflow_bound(n, rate, capacity):
    """Bound on the probability that one Poisson sample exceeds `capacity`.

    Chernoff: P(X >= a) <= exp(-m KL(a / m || rate)) for a > m rate, with
    m = n + 1 records, because a neighbouring data set may have one more.

    Args:
        n: int, number of records.
        rate: float in (0, 1), probability that a record is in the sample.
        capacity: int, number of records that fit.

    Returns:
        float in [0, 1]; 0 if every record fits.
    """
    return math.exp(_log_overflow_bound(n, rate, capacity))


def _log_overflow_bound(n, rate, capacity):
    m, a = n + 1, capacity + 1
    if a > m:
        return -math.inf
    if a == m:
        return m * math.log(rate)
    p = a / m
    if p <= rate:
        return 0.0
    return -m * (
        p * math.log(p / rate) + (1 - p) * (math.log1p(-p) - math.log1p(-rate))
    )


def capacity(n, rate, overflow_probability):
    """Smallest capacity whose `overflow_bound` is small enough.

    Args:
        n: int, number of records.
        rate: float in (0, 1), probability that a record is in a sample.
        overflow_probability: float in (0, 1), of one sample.

    Returns:
        int, at most `n + 1`.

    Example:

    >>> capacity(5000, 0.1, 1e-18)
    703
    """
    return _capacity(n, rate, math.log(overflow_probability))


def _capacity(n, rate, log_probability):
    low, high = math.floor(n * rate), n + 1
    # Below this a bound is zero as a float: then every record must fit.
    if log_probability < -700:
        return high
    while high > low:
        middle = (low + high) // 2
        if _log_overflow_bound(n, rate, middle) <= log_probability:
            high = middle
        else:
            low = middle + 1
    return high


# Noise --------------------------------------------------------------------


def check_neighbours(sampling, neighbours):
    """Raises if reads of that kind have no accounting under the relation.

    Returns:
        the `Neighbours`.
    """
    neighbours = Neighbours.of(neighbours)
    if sampling != "full" and neighbours != Neighbours.ADD_REMOVE:
        raise ValueError(
            "Amplification by sampling is accounted here for "
            'neighbours="add_remove" only. Use sampling="full" with '
            'neighbours="replace_one". Received: '
            f"sampling={sampling!r}"
        )
    return neighbours


def noise_multiplier(reads, budget, *, neighbours, others=()):
    """Smallest multiplier with which `reads` and `others` meet a budget.

    It is relative to the sensitivity under the neighbouring relation (as in
    `keras_fm.mechanisms`), and is confirmed by the composition that the
    ledger uses: a ledger charged with `reads.mechanism(...)` and `others`
    does not refuse, and ends just below its budget.

    Args:
        reads: a `SamplingPlan`, or a pair `(sampling_rate, steps)` of
            samples that cannot overflow. Full batches (rate 1) compose to
            one Gaussian, exactly.
        budget: a `PrivacyBudget` with delta > 0, of everything together.
        neighbours: `"add_remove"`, or `"replace_one"` with full batches.
        others: sequence of `Mechanism`, what else is read within the
            budget, already calibrated.

    Returns:
        float, at most 1e-4 (relative) above the smallest.

    Raises:
        ValueError: if delta is 0, a sampled read has no accounting under
            the relation, or `others` leave nothing.

    Example:

    >>> samples = plan(60000, batch_size=1000, steps=600, delta=1e-5,
    ...                epsilon=1.0)
    >>> z = noise_multiplier(
    ...     samples, PrivacyBudget(1.0, 1e-5), neighbours="add_remove"
    ... )
    >>> round(z, 2)
    1.74

    Source: own; the first guess is the central limit theorem of sampled
    Gaussians (Bu et al., "Deep Learning with Gaussian Differential
    Privacy", 2020).
    """
    if isinstance(reads, SamplingPlan):
        sampling = reads.sampling
        rate, steps = reads.sampling_rate, reads.steps
        overflow = reads.overflow_probability
    else:
        (rate, steps), overflow = reads, 0.0
        sampling = "full" if rate == 1 else "poisson"
    check_neighbours(sampling, neighbours)
    return _noise_multiplier(
        float(rate),
        int(steps),
        float(overflow),
        budget.epsilon,
        budget.delta,
        tuple(others),
    )


@functools.lru_cache(maxsize=256)
def _noise_multiplier(rate, steps, overflow, epsilon, delta, others):
    def spent(multiplier, scale):
        reads = SampledGaussianMechanism(
            sensitivity=1.0,
            noise_multiplier=multiplier,
            sampling_rate=rate,
            steps=steps,
            overflow_probability=overflow,
        )
        return mechanisms_lib.compose_epsilon(
            (reads, *others), delta, scale=scale
        )

    # What is left of the precision (inverse variance) of the one Gaussian
    # that spends the budget.
    one = mechanisms_lib.gaussian_multiplier(epsilon, delta)
    left = 1 - one**2 * math.fsum(
        m.noise_multiplier**-2
        for m in others
        if isinstance(m, GaussianMechanism)
    )
    already = mechanisms_lib.compose_epsilon(others, delta, scale=epsilon)
    if left <= 0 or already >= epsilon:
        raise ValueError(
            f"The other reads spend epsilon = {already:.6g} of "
            f"{epsilon:.6g} at delta = {delta:g}; nothing is left for "
            "sampled ones."
        )
    one /= math.sqrt(left)
    if rate == 1:
        guess = one * math.sqrt(steps)
    else:
        # rate * sqrt(steps (exp(1 / z^2) - 1)) = 1 / one
        guess = math.log1p((one * rate) ** -2 / steps) ** -0.5
    # Most of the way on a coarse grid of losses, which is ten times faster.
    guess, slope = _smallest(
        lambda z: spent(z, 10 * epsilon), epsilon, guess, -1.0, 10
    )
    return _smallest(lambda z: spent(z, epsilon), epsilon, guess, slope, 1)[0]


def _smallest(spent, epsilon, guess, slope, tolerance):
    """Smallest argument, from above, at which `spent` is within `epsilon`.

    A secant search on logarithms, where the function is nearly a line, that
    steps over the root on purpose: a bracket is what ends it.

    Returns:
        the argument, within `tolerance * _PRECISION`, and the slope there.
    """
    tolerance *= _PRECISION

    def excess(log_argument):
        ratio = spent(math.exp(log_argument)) / epsilon
        return math.log(min(max(ratio, 1e-9), 1e9))

    # (log argument, excess): low spends too much, high does not.
    low = high = None
    x, beyond = math.log(guess), tolerance / 2
    for count in range(_MAX_COMPOSITIONS // 2):
        value = excess(x)
        if value > 0:
            low = (x, value)
        else:
            high = (x, value)
        if low is None or high is None:
            # At most 1: far off, the line does not hold.
            x -= max(-1.0, min(1.0, value / slope))
            x += math.copysign(beyond, value)
            beyond = min(4 * beyond, 1.0)
            continue
        width = high[0] - low[0]
        slope = (high[1] - low[1]) / width
        if width <= tolerance:
            return math.exp(high[0]), slope
        x = (low[0] + high[0]) / 2
        if count < 10:
            root = low[0] - low[1] / slope
            near = min(tolerance / 3, width / 3)
            # Close the wider side of the bracket.
            above = high[0] - root > root - low[0]
            x = root + near if above else root - near
            x = min(max(x, low[0] + near), high[0] - near)
    raise ValueError(
        f"No noise was found that meets epsilon = {epsilon:.6g}: an overflow "
        "of a sample or the other reads cost too much of delta."
    )


def rdp_epsilon(mechanisms, delta):
    """Epsilon at `delta` by Renyi divergences (moments), for comparison.

    An upper bound, as `mechanisms.compose_epsilon` is, and in general a
    larger one; most published numbers are of this kind. Pure mechanisms
    enter with the moments that any pure mechanism meets.

    Args:
        mechanisms: sequence of `Mechanism`.
        delta: float in (0, 1).

    Returns:
        float, infinite if no epsilon is met at this delta.

    Source: Mironov, "Renyi Differential Privacy", 2017; Bun and Steinke,
    "Concentrated Differential Privacy", 2016 (proposition 3.3).

    Example:

    >>> samples = plan(60000, batch_size=1000, steps=1800, delta=1e-5)
    >>> round(rdp_epsilon([samples.mechanism(1.0)], 1e-5), 2)
    4.75
    """
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    mechanisms = tuple(mechanisms)
    if not mechanisms:
        return 0.0
    orders = np.asarray(_RDP_ORDERS, np.float64)
    total = sum(_divergences(mechanism, orders) for mechanism in mechanisms)
    return mechanisms_lib.epsilon_with_overflow(
        lambda delta: rdp.compute_epsilon(orders, total, delta)[0],
        lambda epsilon: rdp.compute_delta(orders, total, epsilon)[0],
        delta,
        math.fsum(m.overflow_probability for m in mechanisms),
    )


def _divergences(mechanism, orders):
    """Renyi divergences of all runs of a mechanism."""
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    pure = mechanism.pure_epsilon()
    if math.isfinite(pure):
        return pure_divergences(pure, orders)
    event, count = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier), 1
    if isinstance(mechanism, SampledGaussianMechanism):
        count = mechanism.steps
        if mechanism.sampling_rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(
                mechanism.sampling_rate, event
            )
    accountant = rdp.RdpAccountant(
        orders, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant.compose(event, count)
    return accountant.rdp


def pure_divergences(epsilon, orders):
    """Renyi divergences that every pure mechanism meets: those of randomised
    response.

    dp_accounting's Laplace event means this in some releases and Laplace
    noise, whose divergences are smaller, in others. It is
    `ln(cosh((a - 1/2) epsilon) / cosh(epsilon / 2)) / (a - 1)`, written
    without cancellation.

    Args:
        epsilon: float > 0.
        orders: array of orders above 1.
    """
    far = (orders * epsilon > 30) | (epsilon > 15)
    a = np.where(far, 2.0, orders)
    scale = min(epsilon, 15.0)
    near = np.log1p(
        2
        * np.sinh(a * scale / 2)
        * np.sinh((a - 1) * scale / 2)
        / np.cosh(scale / 2)
    )
    x, y = (orders - 0.5) * epsilon, epsilon / 2
    beyond = np.logaddexp(x, -x) - np.logaddexp(y, -y)
    return np.where(far, beyond, near) / (orders - 1)
