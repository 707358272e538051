"""Accountants that know the noise: Renyi moments, privacy loss distributions.

All numbers of Gaussian noise and all distributions come from dp_accounting.
"""

import dataclasses
import functools
import math

import numpy as np

from keras_fm.lab.composition import divergences as renyi_divergences
from keras_fm.lab.composition.composed import bound, none
from keras_fm.lab.composition.loss_distributions import (
    SMALLEST_DELTA,
    Response,
    epsilon_of,
    parts_of,
)
from keras_fm.lab.composition.steps import (
    amplified,
    has_gaussian,
    own_delta,
    slack_of,
)
from keras_fm.lab.composition.theorems import basic, optimal_epsilon

# Orders near 1 serve thousands of runs without sampling, large ones small
# epsilons.
_ORDERS = (
    *(1 + x / 100 for x in range(2, 10)),
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *(int(64 * 2 ** (k / 4)) for k in range(17)),
)

# For large sampled noise, orders between integers take long and matter little:
# dp_accounting sums a series that converges slowly.
_SLOW_NOISE, _SLOWEST_NOISE = 20.0, 200.0
_FEW_FRACTIONS = (1.1, 1.3, 1.6, 2.5)


@functools.lru_cache(maxsize=1024)
def _renyi(mechanism, parameter, rate):
    """Renyi divergences of one run at `_ORDERS`."""
    orders = np.asarray(_ORDERS, dtype=np.float64)
    if mechanism == "laplace" and rate == 1:
        return _laplace_divergences(parameter, orders)
    if mechanism != "gaussian":
        return renyi_divergences.pure_divergences(
            amplified(parameter, 0.0, rate)[0], orders
        )
    import dp_accounting

    event = dp_accounting.GaussianDpEvent(parameter)
    used = np.ones(len(orders), bool)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
        if parameter > _SLOW_NOISE:
            used = orders == np.round(orders)
            if parameter <= _SLOWEST_NOISE:
                for order in _FEW_FRACTIONS:
                    used |= np.isclose(orders, order)
    divergences = np.full(len(orders), np.inf)
    divergences[used] = renyi_divergences.divergences(event, 1, orders[used])
    return divergences


def _laplace_divergences(epsilon, orders):
    """Mironov (2017), table II, with noise of scale 1 / epsilon."""
    grown, fallen = (orders - 1) * epsilon, -orders * epsilon
    first, second = orders / (2 * orders - 1), (orders - 1) / (2 * orders - 1)
    near = np.log1p(
        first * np.expm1(np.minimum(grown, 30.0)) + second * np.expm1(fallen)
    )
    beyond = np.logaddexp(np.log(first) + grown, np.log(second) + fallen)
    return np.where(grown > 30, beyond, near) / (orders - 1)


def _parameter(stage):
    if stage.mechanism == "gaussian":
        return float(stage.noise_multiplier)
    return stage.pure_epsilon


def _renyi_total(plan):
    return sum(
        s.count * _renyi(s.mechanism, _parameter(s), float(s.sampling_rate))
        for s in plan.stages
    )


def _from_moments(method, plan, delta, convert):
    if delta == 0:
        return none(method, "needs delta > 0")
    # An approximate step is a pure one, with a delta on top.
    own = [
        (0.0, s.delta * s.sampling_rate, s.count)
        for s in plan.stages
        if s.delta is not None
    ]
    slack = slack_of(own, delta) if own else delta
    if slack <= 0:
        total = own_delta(plan, True)
        return none(
            method, f"the stages' own deltas add up to {total:.3g} > {delta:g}"
        )
    epsilon, order = convert(_renyi_total(plan), slack)
    note = f"order {order:.4g}"
    if not has_gaussian(plan):
        # The order infinity: pure epsilons add up.
        pure = math.fsum(
            s.count * amplified(s.pure_epsilon, 0.0, s.sampling_rate)[0]
            for s in plan.stages
        )
        if pure <= epsilon:
            epsilon, note = pure, "order infinity"
    return bound(method, epsilon, delta, note)


def moments(plan, delta):
    """Moments accountant as published (Abadi et al. 2016, theorem 2).

    Renyi divergences add up over the steps; epsilon is the smallest of
    `D_a + ln(1/delta) / (a - 1)` over the orders a (the paper's lambda is
    a - 1). The divergences are exact for Gaussian noise, sampled or not, and
    for Laplace noise without sampling. Any other step counts as randomised
    response.

    Args:
        plan: a `Plan`.
        delta: float in [0, 1), the target.

    Returns:
        a `Composed`.
    """

    def convert(divergences, slack):
        orders = np.asarray(_ORDERS)
        found = divergences + math.log(1 / slack) / (orders - 1)
        best = int(np.argmin(found))
        return float(found[best]), orders[best]

    return _from_moments("moments", plan, delta, convert)


def renyi(plan, delta):
    """Renyi accountant of dp_accounting (Mironov 2017).

    The same divergences as `moments` with the sharper conversion of
    Canonne, Kamath and Steinke (2020, proposition 12).

    Args:
        plan: a `Plan`.
        delta: float in [0, 1), the target.

    Returns:
        a `Composed`.
    """

    from dp_accounting import rdp as rdp_lib

    def convert(divergences, slack):
        return rdp_lib.compute_epsilon(_ORDERS, divergences, slack)

    return _from_moments("renyi", plan, delta, convert)


def pld(plan, delta):
    """Privacy loss distributions of dp_accounting: the reference.

    The losses of all steps are convolved numerically with pessimistic
    rounding. Exact up to that rounding for Gaussian and Laplace noise,
    sampled or not, and for pure mechanisms in the worst case; a sampled pure or
    approximate step counts as `amplified` returns it.

    Args:
        plan: a `Plan`.
        delta: float in [0, 1), the target.

    Returns:
        a `Composed`.

    Source: Sommer, Meiser and Mohammadi 2019; Koskela et al. 2020;
    Doroshenko et al. 2022 ("connect the dots").
    """
    if delta < SMALLEST_DELTA:
        if delta == 0 and not has_gaussian(plan) and not own_delta(plan, 1):
            # Randomised responses and Laplace noise reach their sum.
            return dataclasses.replace(
                basic(plan, 0.0, sampled=plan.is_sampled), method="pld"
            )
        return none("pld", f"needs delta >= {SMALLEST_DELTA:g}")
    own = own_delta(plan, True)
    if own >= delta:
        return none(
            "pld", f"the stages' own deltas add up to {own:.3g} > {delta:g}"
        )
    parts = parts_of(plan)
    if len(parts) == 1 and isinstance(parts[0], Response):
        # The loss of equal responses is a binomial: exact in closed form.
        one = parts[0]
        slack = slack_of([(one.epsilon, one.delta, one.count)], delta)
        return bound(
            "pld", optimal_epsilon(one.epsilon, one.count, slack), delta
        )
    # Other bounds give the order of magnitude.
    rough = renyi(plan, delta), basic(plan, delta, sampled=plan.is_sampled)
    scale = min(r.epsilon for r in rough if r.epsilon is not None)
    epsilon = epsilon_of(parts, delta, scale)
    if math.isinf(epsilon):
        return none("pld", "delta is too small for so many runs")
    return bound("pld", epsilon, delta)
