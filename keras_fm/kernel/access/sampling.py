"""Which records each of many rounds uses, and the noise that pays for them.

A plan is made before anything is read. Its numbers draw the samples, and its
mechanism (`mechanism`) is charged to the ledger. So the sampler and the
accountant cannot disagree. Everything in a plan is public.
"""

import dataclasses
import math

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel.noise_mechanisms import SampledGaussianMechanism
from keras_fm.kernel.planning.sampled_noise import noise_multiplier

__all__ = [
    "SamplingPlan",
    "noise_multiplier",
    "plan",
]

SAMPLINGS = ("poisson", "full", "shuffled")

# A Poisson sample larger than its buffer ends the run with an error. That
# has at most this probability per run, and takes at most this part of delta.
_OVERFLOW_PROBABILITY = 1e-12
_OVERFLOW_SHARE = 1e-3
# If epsilon is not known beforehand, the share above holds up to this one.
_LARGEST_EPSILON = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """Which records each of `steps` rounds uses. Made by `plan`.

    Attributes:
        n: number of records, public by declaration.
        sampling: `"poisson"`, `"full"` or `"shuffled"`.
        expected_batch_size: divides a noisy sum to give a mean.
        capacity: the most records that a sample may hold.
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

    def mechanism(self, noise_multiplier, sensitivity=1.0):
        """The `SampledGaussianMechanism` of noisy sums over the samples.

        Shuffled batches are described as if they were Poisson samples. Use
        that for a claimed ledger entry only.

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
    """Plans `steps` rounds over samples of `n` records.

    A Poisson sample may have up to `n` records, but rounds need a buffer of
    a fixed size. Its capacity is the smallest for which the Chernoff bound
    on an overflow in the whole run is at most
    `min(1e-12, 1e-3 * delta / (1 + exp(epsilon)))`. To pay for it takes at
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
            noise is given instead. The bound then is that of epsilon = 20,
            which is negligible for every smaller epsilon. (Or compose
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
    """Checks `n` and `batch_size`. With full batches it is `n`."""
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
    """Record numbers below `n`, each drawn with probability `rate`.

    Raises:
        RuntimeError: if there are more than `capacity`.
    """
    return checked_size(np.flatnonzero(rng.random(n) < rate), capacity)


def checked_size(drawn, capacity):
    """The numbers of drawn records. There must be few enough.

    Raises:
        RuntimeError: if there are more than `capacity`.
    """
    if len(drawn) > capacity:
        # Its size is private, so the error does not show it.
        raise RuntimeError(
            f"A sample exceeded its capacity of {capacity} records; "
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


def _capacity(n, rate, log_probability):
    """The smallest capacity whose `overflow_bound` is small enough; at most
    `n + 1`."""
    low, high = math.floor(n * rate), n + 1
    # Below this the bound is zero as a float. Then every record must fit.
    if log_probability < -700:
        return high
    while high > low:
        middle = (low + high) // 2
        if _log_overflow_bound(n, rate, middle) <= log_probability:
            high = middle
        else:
            low = middle + 1
    return high
