"""What mechanisms cost by Renyi divergences (moments), for comparison."""

import logging
import math

import numpy as np

from keras_fm.kernel.compose import epsilon_with_overflow
from keras_fm.kernel.noise_mechanisms import SampledGaussianMechanism

# dp_accounting's default orders skip from 63 to 128: at epsilon below 0.2
# the best one lies between.
_RDP_ORDERS = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *(int(64 * 2 ** (k / 8)) for k in range(33)),
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
    return epsilon_with_overflow(
        lambda delta: rdp.compute_epsilon(orders, total, delta)[0],
        lambda epsilon: rdp.compute_delta(orders, total, epsilon)[0],
        delta,
        math.fsum(m.overflow_probability for m in mechanisms),
    )


def _divergences(mechanism, orders):
    """Renyi divergences of all runs of a mechanism."""
    import dp_accounting

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
    return divergences(event, count, orders)


def divergences(event, count, orders):
    """Renyi divergences of an event of dp_accounting, that many times.

    Newer ones warn of every order that they leave out, which is infinite.
    """
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    accountant = rdp.RdpAccountant(
        orders, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        accountant.compose(event, count)
    finally:
        log.setLevel(level)
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
