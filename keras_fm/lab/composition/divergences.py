"""Renyi divergences (moments) of Gaussian noise and of pure mechanisms."""

import logging

import numpy as np


def divergences(event, count, orders):
    """Renyi divergences of an event of dp_accounting that happens `count`
    times.

    Newer releases warn of every order that they leave out; it counts as
    infinite.
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
    """Upper bounds on the Renyi divergences of any pure mechanism: those of
    randomised response.

    dp_accounting's Laplace event has these in some releases, and in others the
    smaller ones of Laplace noise. They are `ln(cosh((a - 1/2) epsilon) /
    cosh(epsilon / 2)) / (a - 1)`, written without cancellation.

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
