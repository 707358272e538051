"""Iterative Hessian Mixing (Lev et al. 2026, arXiv 2601.07545), linear
regression from Gaussian sketches: a baseline for tables of numbers.

It follows the authors' program (omrilev1/HessianMix): three iterations,
sketches of six times the columns or the logarithm of the failure probability,
half of epsilon for the sketches and half for clipped residuals. The epsilon is
the authors' and only claimed: the noise is floating-point, and there is no
ledger.
"""

import math

import numpy as np
from scipy import optimize

from keras_fm.kernel.planning import calibration

_ITERATIONS, _SKETCH = 3, 6


def hessian_mixing(h, t, *, epsilon, delta, rng):
    """Weights `(d,)` of least squares.

    Args:
        h: `(n, d)` rows of norm at most 1.
        t: `(n,)` targets in [-1, 1].
        epsilon, delta: under add_remove, delta > 0.
        rng: a NumPy generator.
    """
    n, d = h.shape
    failure = delta / 10
    rows = _SKETCH * max(d, math.log(4 * _ITERATIONS / failure))
    k = int(rows)
    gamma = _sketch_noise(k, epsilon / 2, 0.75 * delta)
    multiplier = calibration.gaussian_multiplier(epsilon / 2, delta / 4)
    residual = multiplier * math.sqrt(_ITERATIONS)
    tau = math.sqrt(2 * math.log(max(4 / delta, 4 / failure)))
    least = np.linalg.eigvalsh(h.T @ h)[0]
    known = max(0.0, least - gamma / math.sqrt(k) * (tau - rng.normal()))
    added = math.sqrt(max(0.0, gamma - known))
    weights = np.zeros(d)
    for _ in range(_ITERATIONS):
        sketch = rng.normal(size=(k, n)) @ h + added * rng.normal(size=(k, d))
        linear = h.T @ np.clip(t - h @ weights, -1, 1)
        linear += residual * rng.normal(size=d)
        weights += np.linalg.solve(sketch.T @ sketch / k, linear)
    return weights


def _sketch_noise(k, epsilon, delta):
    """The least gamma at which the sketches, by their Renyi divergences, and
    the Gaussian for the smallest eigenvalue stay within the budget, with a
    third of delta each."""
    third = delta / 3

    def cost(order, gamma):
        if order >= gamma:
            return math.inf
        sketches = order * math.log(1 - 1 / gamma) - math.log(1 - order / gamma)
        sketches *= _ITERATIONS * k / 2
        turned = math.log(1 / third) - math.log(order)
        return (sketches + turned) / (order - 1) + math.log(1 - 1 / order)

    def spent(log_gamma):
        gamma = math.exp(log_gamma)
        best = optimize.minimize_scalar(
            lambda v: cost(1 + math.exp(v), gamma),
            bounds=(-11.0, log_gamma),
            method="bounded",
        ).fun
        eigenvalue = math.sqrt(2 * k * math.log(1.25 / third)) / gamma
        return best + eigenvalue - epsilon

    low, high = math.log(2.0), math.log(2.0) + 30
    return math.exp(optimize.brentq(spent, low, high, xtol=1e-9) + 1e-8)
