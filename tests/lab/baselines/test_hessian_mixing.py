"""Iterative Hessian Mixing: it arrives where noise is small, and its sketches
have the noise that its accounting asks for."""

import math

import numpy as np
import pytest

from keras_fm.lab.baselines import hessian_mixing as mixing

RNG = np.random.default_rng(2)


def test_it_learns_and_needs_its_budget():
    h = RNG.normal(size=(8_000, 4)) / 6
    h /= np.maximum(1, np.linalg.norm(h, axis=1))[:, None]
    true = np.array([0.9, -0.5, 0.2, 0.0])
    t = np.clip(h @ true + 0.1 * RNG.normal(size=len(h)), -1, 1)
    missed = [
        np.linalg.norm(
            mixing.hessian_mixing(h, t, epsilon=e, delta=1e-6, rng=RNG) - true
        )
        for e in (0.2, 50.0)
    ]
    assert missed[1] < 0.03 < missed[0]


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_sketches_meet_their_budget(epsilon):
    """The published bound of all three at every order, in the usual form:
    with less noise the best of them is above the budget."""
    k, delta = 100, 1e-6
    found = mixing._sketch_noise(k, epsilon, delta)
    third = delta / 3

    def spent(gamma):
        def cost(a):
            renyi = k * a / (2 * (a - 1)) * math.log(1 - 1 / gamma)
            renyi -= k / (2 * (a - 1)) * math.log(1 - a / gamma)
            turned = math.log((a - 1) / a) - math.log(third * a) / (a - 1)
            return 3 * renyi + turned

        orders = 1 + (gamma - 1) * np.geomspace(1e-5, 0.999, 3000)
        least = min(map(cost, orders))
        return least + math.sqrt(2 * k * math.log(1.25 / third)) / gamma

    assert spent(found) == pytest.approx(epsilon, rel=1e-3)
    assert spent(0.9 * found) > epsilon > spent(1.1 * found)
