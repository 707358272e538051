"""The joint cost of mechanisms, from their privacy loss distributions.

A mechanism (`keras_fm.kernel.noise_mechanisms`) states its own loss, and
dp_accounting composes the losses. A mechanism's sensitivity already refers to
the chosen neighbouring relation. So nothing here, and nothing in the ledger,
depends on that relation again.
"""

import collections
import dataclasses
import functools
import math

import numpy as np

from keras_fm.kernel.noise_mechanisms import GaussianMechanism, GaussianNoise

# The privacy loss is rounded up to multiples of this fraction of epsilon.
_RELATIVE_DISCRETIZATION = 1e-4
# Losses that reach further, or more runs, get an infinite epsilon: no cost
# that they could have would protect anybody.
_FARTHEST, _MOST_RUNS = 1e8, 2**21
# The most points of a grid, roughly.
_POINTS = 2e5
# For many runs on few points dp_accounting raises the number of points to the
# power of the runs, as an integer.
_MANY_RUNS, _MANY_POINTS = 2**18, 4000
# Up to so many different sampled mechanisms are convolved one by one.
_MOST_SAMPLED = 64
# Beyond this the exponential overflows, and the pure epsilon is added.
_LARGEST_PURE = 700.0
# A normal variable is beyond so many deviations with less than 1e-300.
_TAIL = 38.0
# The extra cost of discrete over continuous Gaussian noise: more than
# `lattice_noise.log_ratio(2**40)` for each of this many releases.
_LATTICE_COST = 2.0**-50
_LATTICE_RELEASES = 2**20


def compose_epsilon(mechanisms, delta, scale=1.0):
    """Epsilon at `delta` of all `mechanisms` run on the same records.

    With `delta == 0` the pure epsilons add up (basic composition, which is
    tight for pure mechanisms). With `delta > 0` Gaussians alone have a closed
    form. Other privacy loss distributions are convolved by dp_accounting with
    pessimistic rounding, so the result is an upper bound. Overflow
    probabilities, p in total, are paid for as well: epsilon is the smallest
    with `delta_of(epsilon) + (1 + exp(epsilon)) * p <= delta`
    (docs/proofs/mechanisms.md). Discrete instead of continuous Gaussian noise
    costs another 2^-49 of epsilon and 2^-50 of delta (docs/proofs/
    lattice_noise.md).

    Convolving takes seconds. Longer tasks get a coarser grid, or the worst
    of several mechanisms, which gives a larger epsilon. Losses beyond
    1e8, or more than 2^21 runs, give an infinite one.

    Args:
        mechanisms: sequence of `Mechanism`.
        delta: float in [0, 1).
        scale: the order of magnitude of the answer (an epsilon). Privacy
            losses are rounded to 1e-4 of it.

    Returns:
        float, infinite if no epsilon is met at this delta.
    """
    # At sensitivity 1, on which no cost depends, the cache knows a plan that
    # is calibrated, checked, released and charged: it is composed once.
    alone = (
        m if m.sensitivity == 1.0 else dataclasses.replace(m, sensitivity=1.0)
        for m in mechanisms
    )
    return _compose_epsilon(tuple(alone), delta, scale)


@functools.lru_cache(maxsize=256)
def _compose_epsilon(mechanisms, delta, scale):
    pure = math.fsum(m.pure_epsilon() for m in mechanisms)
    if delta <= 0 or not mechanisms:
        return pure
    large = [m for m in mechanisms if _LARGEST_PURE < m.pure_epsilon()]
    large = [m for m in large if math.isfinite(m.pure_epsilon())]
    if large:
        rest = tuple(m for m in mechanisms if m not in large)
        more = math.fsum(m.pure_epsilon() for m in large)
        return min(pure, more + _compose_epsilon(rest, delta, scale))
    overflow = math.fsum(m.overflow_probability for m in mechanisms)
    eta = _lattice_cost(mechanisms)
    try:
        inverse, total, slack = _composed(mechanisms, scale)

        def epsilon_of(left):
            left = left * (1 - eta) - slack
            if left <= 0:
                return math.inf
            return inverse(left) + 2 * eta

        def delta_of(value):
            return total(max(0.0, value - 2 * eta)) * (1 + 2 * eta) + slack

        with np.errstate(all="ignore"):
            epsilon = epsilon_with_overflow(
                epsilon_of, delta_of, delta, overflow, slack=1e-8
            )
    except (ArithmeticError, ValueError):
        # dp_accounting checks its results. Its checks fail near the limits
        # of what floats hold.
        return pure
    # NaN cannot be compared with a budget.
    return pure if math.isnan(epsilon) else min(pure, epsilon)


def _composed(mechanisms, scale):
    """Of all `mechanisms`, epsilon as a function of delta, its inverse, and
    the part of delta to subtract for rounding.

    Raises:
        ArithmeticError: if that is too much to compute.
    """
    parts = _merged(mechanisms)
    runs = sum(_runs(m) * count for m, count in parts)
    far = math.fsum(_reach(m) * count for m, count in parts)
    if far > _FARTHEST or runs > _MOST_RUNS:
        raise ArithmeticError("too much to compose")
    if all(type(m) is GaussianMechanism for m, _ in parts):
        multiplier = parts[0][0].noise_multiplier
        functions = gaussian_epsilon, gaussian_delta
        return *(functools.partial(f, multiplier) for f in functions), 0.0
    # Below 0.1 a finer grid would cost seconds and gain nothing visible.
    grid = _RELATIVE_DISCRETIZATION * max(scale, 0.1)
    # A plan far beyond `scale` gets a coarse grid: a fine one would fill the
    # memory, and the plan is refused either way.
    grid = max(min(grid * _coarsening(parts), 100.0), far / _POINTS)
    for m, _ in parts:
        few = grid * _MANY_POINTS > _one_reach(m)
        if few and _runs(m) > _MANY_RUNS:
            raise ArithmeticError("too much to compose")
    found, slack = _convolved(parts, grid), transform_error(runs)
    return found.get_epsilon_for_delta, found.get_delta_for_epsilon, slack


def gaussian_delta(noise_multiplier, epsilon):
    """Delta of one Gaussian (Balle and Wang 2018, theorem 8), rounded up: by
    more than its two terms lose as floats."""
    from scipy import special

    half, far = 0.5 / noise_multiplier, epsilon * noise_multiplier
    error = (1 + epsilon) * 2.0**-38
    above = math.exp(special.log_ndtr(half - far)) * (1 + error)
    below = math.exp(epsilon + special.log_ndtr(-half - far)) * (1 - error)
    return max(0.0, above - below)


def gaussian_epsilon(noise_multiplier, delta):
    """The smallest epsilon with `gaussian_delta(...) <= delta`, rounded up."""
    from scipy import optimize

    delta_of = functools.partial(gaussian_delta, noise_multiplier)
    if delta_of(0.0) <= delta:
        return 0.0
    most = (0.5 / noise_multiplier + _TAIL) / noise_multiplier

    def excess(epsilon):
        return math.log(max(delta_of(epsilon), 1e-300) / delta)

    epsilon = optimize.brentq(excess, 0.0, most, xtol=1e-300, rtol=1e-13)
    while delta_of(epsilon) > delta:
        epsilon *= 1 + 1e-12
    return epsilon


def _runs(mechanism):
    return getattr(mechanism, "steps", 1)


def _one_reach(mechanism):
    """How far the privacy losses of a run reach, roughly."""
    if math.isfinite(mechanism.pure_epsilon()):
        return mechanism.pure_epsilon()
    inverse = 1 / mechanism.noise_multiplier
    return inverse**2 / 2 + 10 * inverse


def _reach(mechanism):
    """How far the losses of all runs reach. Many runs are like one Gaussian,
    by the central limit theorem (see `sampled_noise.noise_multiplier`). But
    they reach no further than their sum."""
    one, steps = _one_reach(mechanism), _runs(mechanism)
    if steps == 1:
        return one
    rate, inverse = mechanism.sampling_rate, 1 / mechanism.noise_multiplier
    grown = math.expm1(min(inverse**2, 300.0)) if rate < 1 else inverse**2
    inverse = rate * math.sqrt(steps * grown)
    return min(steps * one, max(one, inverse**2 / 2 + 10 * inverse))


def _convolved(parts, grid):
    with np.errstate(all="ignore"):
        found = [
            m.loss_distribution(grid)
            if count == 1
            else m.loss_distribution(grid).self_compose(count)
            for m, count in parts
        ]
        # In pairs, so that distributions stay short for as long as possible.
        while len(found) > 1:
            found = [
                p.compose(q) for p, q in zip(found[::2], found[1::2])
            ] + found[len(found) // 2 * 2 :]
    return found[0]


def _lattice_cost(mechanisms):
    """A bound on the sum of the `log_ratio`s of discrete Gaussians."""
    releases = sum(_runs(m) for m in mechanisms if isinstance(m, GaussianNoise))
    return _LATTICE_COST * max(releases > 0, releases / _LATTICE_RELEASES)


def transform_error(runs):
    """The most that rounding takes off delta where the distributions of `runs`
    mechanisms are convolved by fast Fourier transforms.

    Errors of up to 7e-12 were found at 10^6 runs. The bound is a hundred
    times that, four units in the last place of 1 for every run. It is added
    to delta before delta is used.
    """
    return runs * 2.0**-50 if runs > 1 else 0.0


def _coarsening(parts):
    """How much coarser a grid may be for few steps, at no loss.

    The error of a sampled step is quadratic in the grid. Its time, which is
    most of the total, is linear in the number of points.
    """
    if any(math.isfinite(m.pure_epsilon()) for m, _ in parts):
        return 1.0
    steps = [m.steps for m, _ in parts if hasattr(m, "steps")]
    return min(10.0, max(1.0, math.sqrt(1000 / sum(steps)))) if steps else 1.0


def _merged(mechanisms):
    """The composition of `mechanisms`, in a fixed order: a list of pairs, a
    mechanism and how often it runs. Nothing is lost, unless very many are
    sampled in different ways."""
    precision = []
    steps, rest = collections.Counter(), collections.Counter()
    for m in mechanisms:
        if not isinstance(m, GaussianNoise):
            rest[m] += 1
        elif getattr(m, "sampling_rate", 1) == 1:
            precision.append(_runs(m) * m.noise_multiplier**-2)
        else:
            one = dataclasses.replace(m, steps=1, overflow_probability=0.0)
            steps[one] += m.steps
    merged = sorted(rest.items(), key=repr)
    merged += [(m, 1) for m in _worst_of_several(steps)]
    if precision:
        # Gaussians on the same records compose to one Gaussian, exactly.
        multiplier = min(math.fsum(precision) ** -0.5, 1e40)
        alone = GaussianMechanism(sensitivity=1.0, noise_multiplier=multiplier)
        merged.append((alone, 1))
    return merged


def _worst_of_several(steps):
    """Few sampled mechanisms that cost at least as much as many: neighbours in
    a list become one with the largest rate and the smallest noise.

    Args:
        steps: dict from mechanisms to numbers of steps.
    """
    size = max(1, -(-len(steps) // _MOST_SAMPLED))
    found = []
    for kind in {type(m) for m in steps}:
        own = [m for m in steps if type(m) is kind]
        own.sort(key=lambda m: (m.sampling_rate, m.noise_multiplier))
        for several in (own[i : i + size] for i in range(0, len(own), size)):
            one = dataclasses.replace(
                several[0],
                sampling_rate=max(m.sampling_rate for m in several),
                noise_multiplier=min(m.noise_multiplier for m in several),
                steps=sum(steps[m] for m in several),
            )
            found.append(one)
    return sorted(found, key=repr)


def epsilon_with_overflow(
    epsilon_of, delta_of, delta, probability, slack=1e-12
):
    """Smallest epsilon that pays for noise and for overflowing buffers.

    Iterates `epsilon = epsilon_of(delta - (1 + exp(epsilon)) * probability)`
    upwards from `epsilon_of(delta)`, which never exceeds the solution. Then
    it goes up in steps far below its error until the inequality holds.

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
