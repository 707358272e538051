"""Bounds of one run against Gaussian curves.

False alarms: 1,000 simulated audits of a mechanism that is mu-Gaussian private
exactly, fixed seeds. At confidence 95% more than 76 bounds above the truth have
a chance of 1e-4.
"""

import math

import numpy as np
import pytest

from keras_fm.lab.auditing.bounds import one_run_epsilon
from keras_fm.lab.auditing.gaussian_bounds import (
    epsilon_of,
    one_run_gaussian_epsilon,
    one_run_mu,
    refutes,
)

DELTA = 1e-5


def audits(mu, number=1000, canaries=300, seed=0):
    """Scores and coins: a coin moves its own Gaussian by mu."""
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, (number, canaries))
    scores = mu * (coins - 0.5) + rng.normal(size=coins.shape)
    return scores, coins


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0])
def test_false_alarms(mu):
    scores, coins = audits(mu)
    order = np.argsort(-np.abs(scores), axis=1)
    right = np.take_along_axis((scores > 0) == coins, order, axis=1)
    for guesses in (300, 40):
        counts = right[:, :guesses].sum(axis=1)
        alarms = sum(refutes(mu, int(c), guesses, 300, 0.05) for c in counts)
        assert alarms <= 76


def test_a_bound_is_where_refuting_ends():
    for correct, guesses, candidates in [(90, 100, 1000), (620, 1000, 1000)]:
        mu = one_run_mu(correct, guesses, candidates, 0.05)
        counts = (correct, guesses, candidates)
        assert refutes(mu, *counts, 0.05)
        assert not refutes(mu + 1e-4, *counts, 0.05)
        epsilon = one_run_gaussian_epsilon(*counts, delta=DELTA)
        assert epsilon == pytest.approx(epsilon_of(mu, DELTA))
        assert epsilon > one_run_epsilon(*counts, delta=DELTA)


def test_the_chance_is_bounded_as_the_theorem_says():
    """One coin and one guess: right with probability Phi(mu / 2) at most, the
    largest level that is not refuted; by hand."""
    for mu in (0.0, 0.7, 2.0):
        most = 0.5 * (1 + math.erf(mu / 2 / math.sqrt(2)))
        assert refutes(mu, 1, 1, 1, most + 1e-9)
        assert not refutes(mu, 1, 1, 1, most - 1e-9)


def test_nothing_shown_is_zero_and_arrays_are_arrays():
    found = one_run_gaussian_epsilon([0, 10, 20], 20, 100, delta=DELTA)
    assert found.shape == (3,) and not found[:2].any() and found[2] > 0
