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

from keras_fm.kernel.noise_mechanisms import GaussianMechanism, GaussianNoise

# The privacy loss is rounded up to multiples of this fraction of epsilon.
_RELATIVE_DISCRETIZATION = 1e-4
# Losses that reach further are not composed to a number, nor are more runs:
# nothing that they could cost protects anybody.
_FARTHEST, _MOST_RUNS = 1e8, 2**21
# Points of a grid, at most, roughly.
_POINTS = 2e5
# dp_accounting takes the number of points to the power of many runs, as an
# integer, unless there are many points.
_MANY_RUNS, _MANY_POINTS = 2**18, 4000
# Different sampled mechanisms that are convolved one by one.
_MOST_SAMPLED = 64
# The exponential function holds no more; such a pure epsilon is added.
_LARGEST_PURE = 700.0
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

    It takes seconds. What would take longer is composed on a coarser grid, or
    by the worst of several mechanisms, which gives a larger epsilon; losses
    beyond 1e8 and more than 2^21 runs cost an infinite one.

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
    large = [m for m in mechanisms if _LARGEST_PURE < m.pure_epsilon()]
    large = [m for m in large if math.isfinite(m.pure_epsilon())]
    if large:
        rest = tuple(m for m in mechanisms if m not in large)
        more = math.fsum(m.pure_epsilon() for m in large)
        return min(pure, more + _compose_epsilon(rest, delta, scale))
    overflow = math.fsum(m.overflow_probability for m in mechanisms)
    eta = _lattice_cost(mechanisms)
    try:
        total, slack = _composed(mechanisms, scale)

        def epsilon_of(left):
            left = left * (1 - eta) - slack
            if left <= 0:
                return math.inf
            return total.get_epsilon_for_delta(left) + 2 * eta

        def delta_of(value):
            found = total.get_delta_for_epsilon(max(0.0, value - 2 * eta))
            return found * (1 + 2 * eta) + slack

        with np.errstate(all="ignore"):
            epsilon = epsilon_with_overflow(
                epsilon_of, delta_of, delta, overflow, slack=1e-8
            )
    except (ArithmeticError, ValueError):
        # dp_accounting checks what it computes, and at the ends of what
        # floats hold its checks fail.
        return pure
    # NaN is no number that a budget could be compared with.
    return pure if math.isnan(epsilon) else min(pure, epsilon)


def _composed(mechanisms, scale):
    """The privacy loss distribution of all `mechanisms`, and what to take off
    delta for rounding.

    Raises:
        ArithmeticError: if that is too much.
    """
    parts = _merged(mechanisms)
    runs = sum(_runs(m) * count for m, count in parts)
    far = math.fsum(_reach(m) * count for m, count in parts)
    if far > _FARTHEST or runs > _MOST_RUNS:
        raise ArithmeticError("beyond what is composed")
    # Below 0.1 a finer grid would cost seconds and gain nothing visible.
    grid = _RELATIVE_DISCRETIZATION * max(scale, 0.1)
    # A plan far beyond `scale` is rounded coarsely instead of filling the
    # memory with a fine grid; it is refused either way.
    grid = max(min(grid * _coarsening(parts), 100.0), far / _POINTS)
    for m, _ in parts:
        few = grid * _MANY_POINTS > _one_reach(m)
        if few and _runs(m) > _MANY_RUNS:
            raise ArithmeticError("beyond what is composed")
    return _convolved(parts, grid), transform_error(runs)


def _runs(mechanism):
    return getattr(mechanism, "steps", 1)


def _one_reach(mechanism):
    """How far the privacy losses of a run reach, roughly."""
    if math.isfinite(mechanism.pure_epsilon()):
        return mechanism.pure_epsilon()
    inverse = 1 / mechanism.noise_multiplier
    return inverse**2 / 2 + 10 * inverse


def _reach(mechanism):
    """How far those of all runs reach: by the central limit theorem many are
    like one Gaussian (see `sampling.noise_multiplier`), but never further
    than their sum."""
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
        # In pairs: what is convolved stays short for as long as can be.
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
    """What `mechanisms` compose to, in an order of its own: a list of pairs,
    mechanisms and how often they run. Nothing is lost, unless very many are
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
    """Few sampled mechanisms that cost at least what many do: of neighbours in
    a list the largest rate and the smallest noise.

    Args:
        steps: dict, how many steps there are of which mechanism.
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
