"""The noise for a budget, or for a share of it.

No guarantee rests on this module. A ledger composes the mechanisms that are
charged, wherever their numbers come from, and refuses to exceed its budget.
"""

import functools
import math

from keras_fm.kernel.access.permute_and_flip import PermuteAndFlip
from keras_fm.kernel.compose import gaussian_delta
from keras_fm.kernel.noise_mechanisms import GaussianMechanism, LaplaceMechanism


def calibrate(query, budget, *, neighbours, share=1.0):
    """The mechanism that spends `share` of `budget` on `query`.

    With delta > 0 it is Gaussian noise, with delta = 0 Laplace noise.

    Args:
        query: the query to release; it knows its sensitivities.
        budget: a `PrivacyBudget`.
        neighbours: the relation.
        share: this release's share in (0, 1]; shares of a plan sum to one.

    Returns:
        A `Mechanism`.
    """
    if budget.delta > 0:
        return GaussianMechanism(
            sensitivity=query.sensitivity("l2", neighbours=neighbours),
            noise_multiplier=gaussian_share(budget, share),
        )
    return LaplaceMechanism(
        sensitivity=query.sensitivity("l1", neighbours=neighbours),
        epsilon=budget.epsilon * share,
    )


def calibrate_choice(query, budget, *, neighbours, share=1.0):
    """The choice that spends `share` of `budget` on `query`.

    Shares of choices and of other releases add up, see `choice_epsilon`.

    Args, Returns: see `calibrate`.
    """
    return PermuteAndFlip(
        sensitivity=query.sensitivity("range", neighbours=neighbours),
        epsilon=choice_epsilon(budget, share),
    )


def gaussian_share(budget, share):
    """The noise multiplier of a share of a budget with delta > 0."""
    multiplier = gaussian_multiplier(budget.epsilon, budget.delta)
    return multiplier / share**0.5


def choice_epsilon(budget, share):
    """The pure epsilon of a choice that gets a share of a budget.

    With delta > 0, some epsilon-private mechanisms are functions of a
    Gaussian with this share. The choice gets the largest such epsilon
    (docs/proofs/evaluation.md, proposition 4).

    Args:
        budget: a `PrivacyBudget`.
        share: float in (0, 1].

    Returns:
        float > 0.
    """
    if budget.delta == 0:
        return budget.epsilon * share
    from scipy import special

    half = 1 / gaussian_share(budget, share) / 2
    epsilon = special.log_ndtr(half) - special.log_ndtr(-half)
    # Covers the error of the logarithms, and more.
    return float(epsilon) * (1 - 1e-9)


@functools.lru_cache(maxsize=256)
def gaussian_multiplier(epsilon, delta):
    """Smallest noise multiplier of one Gaussian that meets (epsilon, delta).

    It is the noise's standard deviation over the sensitivity, a hundred
    thousandth above the closed form that the ledger composes by.

    Args:
        epsilon: float > 0.
        delta: float in (0, 1).

    Raises:
        ValueError: if `delta` is 0, which no Gaussian meets.

    Example:

    >>> round(gaussian_multiplier(1.0, 1e-5), 2)
    3.73
    """
    from scipy import optimize

    if not 0 < delta < 1:
        raise ValueError(
            "A Gaussian mechanism needs delta in (0, 1). "
            f"Received: delta={delta}"
        )

    def excess(log_multiplier):
        return gaussian_delta(math.exp(log_multiplier), epsilon) - delta

    exact = math.exp(optimize.brentq(excess, -20.0, 20.0, xtol=1e-9))
    return exact * (1 + 1e-5)
