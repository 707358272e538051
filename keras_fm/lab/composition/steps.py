"""From noise and sampling to (epsilon, delta) of single runs."""

import math

import numpy as np

from keras_fm.lab.composition.one_gaussian import gaussian_epsilon


def amplified(epsilon, delta, rate):
    """What Poisson sampling makes of an (epsilon, delta)-DP mechanism.

    `(ln(1 + q (exp(epsilon) - 1)), q delta)` under add_remove (Li, Qardaji
    and Su 2012; Balle, Barthe and Gaboardi 2018, theorem 8).

    Args:
        epsilon: float >= 0.
        delta: float in [0, 1].
        rate: float q in (0, 1].

    Returns:
        pair of floats.

    Example:

    >>> round(amplified(1.2, 1e-5, 0.01)[0], 4)
    0.0229
    """
    if rate == 1 or epsilon == 0:
        return epsilon, rate * delta
    # exp(epsilon) itself may overflow.
    tail = math.log(rate) + epsilon
    if tail > 30:
        return float(np.logaddexp(math.log1p(-rate), tail)), rate * delta
    return math.log1p(rate * math.expm1(epsilon)), rate * delta


def own_delta(plan, sampled):
    """Sum of the deltas that the stages bring with them."""
    return math.fsum(
        s.count * s.delta * (s.sampling_rate if sampled else 1.0)
        for s in plan.stages
        if s.delta is not None
    )


def has_gaussian(plan):
    return any(s.mechanism == "gaussian" for s in plan.stages)


def steps_of(plan, gaussian_delta, sampled):
    """`(epsilon, delta, count)` of one run of each stage.

    Args:
        plan: a `Plan`.
        gaussian_delta: float, what all Gaussian runs together may take;
            each takes the same part of it.
        sampled: whether sampling is used; if not, the plan is read as if
            every run read all records, which is a bound as well.
    """
    runs = sum(s.count for s in plan.stages if s.mechanism == "gaussian")
    steps = []
    for s in plan.stages:
        rate = s.sampling_rate if sampled else 1.0
        if s.mechanism != "gaussian":
            epsilon, delta = s.pure_epsilon, s.delta or 0.0
        else:
            # Sampling gives back a factor; beyond 1 it has nothing to give.
            delta = min(gaussian_delta / runs / rate, 0.999)
            epsilon = gaussian_epsilon(float(s.noise_multiplier), delta)
        steps.append((*amplified(epsilon, delta, rate), s.count))
    return steps


def slack_of(steps, delta):
    """The s with `1 - (1 - s) prod (1 - delta_i) = delta`."""
    kept = math.fsum(count * math.log1p(-d) for _, d, count in steps)
    return -math.expm1(math.log1p(-delta) - kept)
