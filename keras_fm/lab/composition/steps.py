"""From noise and sampling to (epsilon, delta) of single runs."""

import math

import numpy as np

from keras_fm.kernel.compose import gaussian_epsilon


def amplified(epsilon, delta, rate):
    """Epsilon and delta of a mechanism on a Poisson sample (amplification).

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
    """Sum of the stages' own deltas."""
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
        gaussian_delta: float, the part of delta for all Gaussian runs together,
            shared equally.
        sampled: whether sampling is used. If not, every run counts as one on
            all records, which is a bound as well.
    """
    runs = sum(s.count for s in plan.stages if s.mechanism == "gaussian")
    steps = []
    for s in plan.stages:
        rate = s.sampling_rate if sampled else 1.0
        if s.mechanism != "gaussian":
            epsilon, delta = s.pure_epsilon, s.delta or 0.0
        else:
            # Sampling multiplies delta by the rate, so a run may have more.
            delta = min(gaussian_delta / runs / rate, 0.999)
            epsilon = gaussian_epsilon(float(s.noise_multiplier), delta)
        steps.append((*amplified(epsilon, delta, rate), s.count))
    return steps


def slack_of(steps, delta):
    """The s with `1 - (1 - s) prod (1 - delta_i) = delta`."""
    kept = math.fsum(count * math.log1p(-d) for _, d, count in steps)
    return -math.expm1(math.log1p(-delta) - kept)
