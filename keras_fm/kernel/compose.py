"""What mechanisms cost together, by their privacy loss distributions.

A mechanism (`keras_fm.kernel.noise_mechanisms`) says what it loses alone;
composition is dp_accounting's. The sensitivity it was given already is the
one of the chosen neighbouring relation, so nothing here, and nothing in the
ledger, depends on that relation again.
"""

import collections
import dataclasses
import functools
import math

import numpy as np

from keras_fm.kernel.ledger import quick_bounds
from keras_fm.kernel.noise_mechanisms import (
    GaussianMechanism,
    GaussianNoise,
    SampledGaussianMechanism,
)

# The privacy loss is rounded up to multiples of this fraction of epsilon.
_RELATIVE_DISCRETIZATION = 1e-4
# What discrete Gaussian noise costs more than continuous noise: more than
# `lattice_noise.log_ratio(2**40)` for each of this many releases.
_LATTICE_COST = 2.0**-50
_LATTICE_RELEASES = 2**20


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
    # A plan is calibrated, checked, released and charged: composed once. What
    # a mechanism costs is in units of its sensitivity.
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
        if isinstance(m, GaussianNoise)
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
            rest[m] += 1
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
