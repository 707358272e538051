"""The noise multiplier for sums over samples.

The composition that the ledger uses finds it.
"""

import dataclasses
import functools
import math

from keras_fm.kernel.budget import Neighbours
from keras_fm.kernel.compose import compose_epsilon
from keras_fm.kernel.noise_mechanisms import (
    GaussianMechanism,
    SampledGaussianMechanism,
)
from keras_fm.kernel.planning.calibration import gaussian_multiplier

# A multiplier is found to this relative precision, from above.
_PRECISION = 1e-4
_MAX_COMPOSITIONS = 30


def check_neighbours(sampling, neighbours):
    """Raises if such samples have no accounting under the relation.

    Returns:
        the `Neighbours`.
    """
    neighbours = Neighbours.of(neighbours)
    if sampling != "full" and neighbours != Neighbours.ADD_REMOVE:
        raise ValueError(
            'Sampling has a proof for neighbours="add_remove" only. With '
            'neighbours="replace_one" use sampling="full". Received: '
            f"sampling={sampling!r}"
        )
    return neighbours


def noise_multiplier(plan, budget, *, neighbours, others=()):
    """Smallest multiplier with which `plan` and `others` meet a budget.

    It is relative to the sensitivity under the neighbouring relation, as in
    `keras_fm.mechanisms`. The composition that the ledger uses confirms it.
    A ledger charged with `plan.mechanism(...)` and `others` does not
    refuse, and ends just below its budget.

    Args:
        plan: a `SamplingPlan`, or a pair `(sampling_rate, steps)` of
            samples that cannot overflow. Full batches (rate 1) compose to
            one Gaussian, exactly.
        budget: a `PrivacyBudget` with delta > 0, of everything together.
        neighbours: `"add_remove"`, or `"replace_one"` with full batches.
        others: sequence of `Mechanism`, already calibrated, of the other
            releases within the budget.

    Returns:
        float, at most 1e-4 (relative) above the smallest.

    Raises:
        ValueError: if delta is 0, samples have no accounting under the
            relation, or `others` leave nothing.

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
    if hasattr(plan, "mechanism"):
        sampling, plan = plan.sampling, plan.mechanism(1.0)
    else:
        rate, steps = plan
        sampling = "full" if rate == 1 else "poisson"
        plan = SampledGaussianMechanism(
            sensitivity=1.0,
            noise_multiplier=1.0,
            sampling_rate=rate,
            steps=steps,
        )
    check_neighbours(sampling, neighbours)
    return _noise_multiplier(plan, budget.epsilon, budget.delta, tuple(others))


@functools.lru_cache(maxsize=256)
def _noise_multiplier(plan, epsilon, delta, others):
    rate, steps = plan.sampling_rate, plan.steps

    def spent(multiplier, scale):
        part = dataclasses.replace(plan, noise_multiplier=multiplier)
        return compose_epsilon((part, *others), delta, scale=scale)

    # The precision (inverse variance) of the one Gaussian that spends the
    # budget, less that of the others.
    one = gaussian_multiplier(epsilon, delta)
    left = 1 - one**2 * math.fsum(
        m.noise_multiplier**-2
        for m in others
        if isinstance(m, GaussianMechanism)
    )
    already = compose_epsilon(others, delta, scale=epsilon)
    if left <= 0 or already >= epsilon:
        raise ValueError(
            f"Other releases spend epsilon = {already:.6g} of {epsilon:.6g} "
            f"at delta = {delta:g}: nothing is left. Give a larger budget."
        )
    one /= math.sqrt(left)
    if rate == 1:
        guess = one * math.sqrt(steps)
    else:
        # rate * sqrt(steps (exp(1 / z^2) - 1)) = 1 / one
        guess = math.log1p((one * rate) ** -2 / steps) ** -0.5
    slope = -1.0
    # Most of the way on a coarse grid of losses is ten times faster.
    for coarse in (10, 1):
        guess, slope = _smallest(spent, epsilon, guess, slope, coarse)
    return guess


def _smallest(spent, epsilon, guess, slope, coarse):
    """Smallest argument, from above, at which `spent` on a `coarse` grid is
    within `epsilon`.

    A secant search on logarithms, where the function is nearly a line.

    Returns:
        the argument, within `coarse * _PRECISION`, and the slope there.
    """
    tolerance = coarse * _PRECISION
    # Logarithms of arguments: low spends too much, high does not.
    x, low, high, last = math.log(guess), -math.inf, math.inf, None
    for _ in range(_MAX_COMPOSITIONS):
        ratio = spent(math.exp(x), coarse * epsilon) / epsilon
        value = math.log(min(max(ratio, 1e-9), 1e9))
        low, high = (x, high) if value > 0 else (low, x)
        if -tolerance <= value <= 0 or high - low <= tolerance:
            return math.exp(high), slope
        if last:
            slope = min((value - last[1]) / (x - last[0]), -0.1)
        last = x, value
        # At most 1: far off, the line does not hold.
        x -= max(-1.0, min(1.0, (value + tolerance / 2) / slope))
        if not low < x < high:
            x = (low + high) / 2
    raise ValueError(
        f"No noise meets epsilon = {epsilon:.6g}: overflows of samples, or "
        "other releases, take too much of delta. Give a larger delta."
    )
