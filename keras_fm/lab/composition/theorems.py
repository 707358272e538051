"""Composition theorems that use only the epsilon and delta of every step.

Each is a function of a plan and a target delta. dp_accounting has none of them.
"""

import math

import numpy as np

from keras_fm.lab.composition.composed import bound, none
from keras_fm.lab.composition.loss_distributions import (
    SMALLEST_DELTA,
    Response,
    epsilon_of,
)
from keras_fm.lab.composition.steps import (
    has_gaussian,
    own_delta,
    slack_of,
    steps_of,
)

# A Gaussian step has no single (epsilon, delta). These parts of delta are tried
# for all Gaussian steps together; the smallest result is kept.
_SHARES = (0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99)


def basic(plan, delta, *, sampled=False):
    """Epsilons and deltas add up (Dwork et al. 2006).

    Args:
        plan: a `Plan`.
        delta: float in [0, 1), the target.
        sampled: whether each step is first amplified by sampling.

    Returns:
        a `Composed`. Its delta is 0 for pure mechanisms.
    """

    def compose(steps, slack):
        del slack
        return math.fsum(e * count for e, _, count in steps)

    name = "sampled_basic" if sampled else "basic"
    return _of_steps(name, plan, delta, sampled, (1.0,), compose)


def advanced(plan, delta, *, sampled=False):
    """Advanced composition of Dwork, Rothblum and Vadhan (2010, III.3).

    `sqrt(2 ln(1/slack) sum e_i^2) + sum e_i (exp(e_i) - 1)` with slack what
    the steps' deltas leave of the target; theorem 3.20 of Dwork and Roth
    (2014), whose martingale argument holds for unequal steps as written. It
    helps for many steps of small epsilon and may exceed basic composition.

    Args:
        plan: a `Plan`.
        delta: float in [0, 1), the target.
        sampled: whether each step is first amplified by sampling.

    Returns:
        a `Composed`.
    """

    def compose(steps, slack):
        if slack <= 0:
            return math.inf
        # Beyond 700 the exponential overflows.
        if max(e for e, _, _ in steps) > 700:
            return math.inf
        squares = math.fsum(count * e * e for e, _, count in steps)
        drift = math.fsum(count * e * math.expm1(e) for e, _, count in steps)
        return math.sqrt(2 * math.log(1 / slack) * squares) + drift

    name = "sampled_advanced" if sampled else "advanced"
    if delta == 0:
        return none(name, "needs delta > 0")
    return _of_steps(name, plan, delta, sampled, _SHARES, compose)


def kairouz(plan, delta, *, sampled=False):
    """Closed form of Kairouz, Oh and Viswanath (2015), theorem 3.5.

    For unequal steps, at `1 - (1 - s) prod (1 - delta_i)`: the smallest of
    `sum e_i`, `A + sqrt(2 B ln(1/s))` and `A + sqrt(2 B ln(e + sqrt(B)/s))`
    with `A = sum e_i tanh(e_i / 2)` and `B = sum e_i^2`.

    Args:
        plan: a `Plan`.
        delta: float in [0, 1), the target.
        sampled: whether each step is first amplified by sampling.

    Returns:
        a `Composed`; never above basic composition of the same steps.
    """

    def compose(steps, _):
        return _closed_form(steps, slack_of(steps, delta))

    name = "sampled_kairouz" if sampled else "kairouz"
    if delta == 0:
        return none(name, "needs delta > 0")
    return _of_steps(name, plan, delta, sampled, _SHARES, compose)


def optimal(plan, delta, *, sampled=False):
    """The best bound from the steps' epsilons and deltas alone.

    Kairouz, Oh and Viswanath (2015), theorem 3.3: exact for equal epsilons.
    For unequal ones the exact answer is #P-hard (Murtagh and Vadhan 2016);
    then the privacy loss distribution of randomised responses bounds it
    from above, closely. Smaller bounds need more knowledge of the mechanisms:
    see `pld`.

    Args:
        plan: a `Plan`.
        delta: float in [0, 1), the target.
        sampled: whether each step is first amplified by sampling.

    Returns:
        a `Composed`.
    """

    def compose(steps, _):
        counts = {}
        for e, _, count in steps:
            counts[e] = counts.get(e, 0) + count
        slack = slack_of(steps, delta)
        closed = _closed_form(steps, slack)
        if len(counts) == 1:
            ((epsilon, count),) = counts.items()
            return optimal_epsilon(epsilon, count, slack)
        if slack < SMALLEST_DELTA:
            return closed
        responses = [Response(e, 0.0, n) for e, n in counts.items() if e > 0]
        return min(closed, epsilon_of(responses, slack, closed))

    name = "sampled_optimal" if sampled else "optimal"
    shares = _SHARES
    if len(plan.stages) > 1 and delta > 0:
        # A distribution for every share would take long: only the best share of
        # the closed form is used.
        shares = (_best_share(plan, delta, sampled),)
    return _of_steps(name, plan, delta, sampled, shares, compose)


def optimal_epsilon(epsilon, count, delta):
    """Exact epsilon of `count` runs of any epsilon-DP mechanism at `delta`.

    The number l of `k` randomised responses that are false is Binomial(k, 1 /
    (1 + exp(epsilon))). The privacy loss is then (k - 2 l) epsilon, so
    `delta(x) = E[max(0, 1 - exp(x - (k - 2 l) epsilon))]`. This is theorem 3.3
    of Kairouz, Oh and Viswanath (2015) between its lattice points as well. The
    sum has positive terms only.

    Args:
        epsilon: float >= 0, of one run.
        count: int >= 1.
        delta: float in [0, 1).

    Returns:
        float in [0, epsilon * count].

    Example:

    >>> optimal_epsilon(0.5, 1, 0.0)
    0.5
    """
    total = epsilon * count
    if delta <= 0 or epsilon == 0:
        return total
    from scipy import stats

    # The rest of the distribution is below the smallest float.
    against = math.exp(-float(np.logaddexp(0.0, epsilon)))
    spread = 40 * math.sqrt(count * against * (1 - against)) + 800
    low = max(0, math.floor(count * against - spread))
    high = min(count, math.ceil(count * against + spread))
    l = np.arange(low, high + 1)
    mass, losses = stats.binom.pmf(l, count, against), (count - 2 * l) * epsilon

    def met(x):
        above = losses > x
        found = np.sum(mass[above] * -np.expm1(x - losses[above]))
        # Room for the rounding of the probabilities.
        return found <= delta * (1 - 1e-7)

    if met(0.0):
        return 0.0
    left, right = 0.0, total
    while right - left > 1e-12 * total:
        middle = (left + right) / 2
        if met(middle):
            right = middle
        else:
            left = middle
    return right


def _closed_form(steps, slack):
    total = math.fsum(count * e for e, _, count in steps)
    if slack <= 0:
        return total
    drift = math.fsum(count * e * math.tanh(e / 2) for e, _, count in steps)
    squares = math.fsum(count * e * e for e, _, count in steps)
    logs = math.log(1 / slack), math.log(math.e + math.sqrt(squares) / slack)
    return min(total, *(drift + math.sqrt(2 * squares * x) for x in logs))


def _best_share(plan, delta, sampled):
    left = delta - own_delta(plan, sampled)
    if left <= 0:
        return 0.0

    def closed(share):
        steps = steps_of(plan, share * left, sampled)
        return _closed_form(steps, slack_of(steps, delta))

    return min(_SHARES, key=closed)


def _of_steps(method, plan, delta, sampled, shares, compose):
    """The smallest result of `compose` over the shares of delta.

    Args:
        compose: function of `(steps, slack)` that returns epsilon; slack is the
            part of delta that the steps do not use.
    """
    if sampled and not plan.is_sampled:
        return none(method, "no stage is sampled")
    own = own_delta(plan, sampled)
    if own > delta or (own == delta and has_gaussian(plan)):
        return none(
            method, f"the stages' own deltas add up to {own:.3g} > {delta:g}"
        )
    if not has_gaussian(plan):
        shares = (0.0,)
    best = math.inf, None, None
    for share in shares:
        steps = steps_of(plan, share * (delta - own), sampled)
        used = math.fsum(d * count for _, d, count in steps)
        epsilon = compose(steps, delta - used)
        if best[1] is None or epsilon < best[0]:
            best = epsilon, steps, used
    epsilon, steps, used = best
    # Only basic composition may use less than the target delta.
    total = min(used, delta) if method.endswith("basic") else delta
    return bound(method, epsilon, total, _note(plan, steps))


def _note(plan, steps):
    gaussian = [
        step[:2]
        for stage, step in zip(plan.stages, steps)
        if stage.mechanism == "gaussian"
    ]
    if not gaussian:
        return ""
    epsilon, delta = max(gaussian)
    return f"a Gaussian step: ({epsilon:.3g}, {delta:.2g})"
