"""All rounds as one release: near epsilon, never above, and faults caught.

Seeds are fixed; with confidence 99% a bound passes epsilon in at most 1% of
audits with fresh ones. `python benchmarks/white_box.py --part=faults` has
the power: 20 seeds for each fault, and for rounds without one.
"""

import broken_rounds
import numpy as np
import pytest

from keras_fm.heads.rounds import Rounds
from keras_fm.kernel.access.gradient_rounds import GradientRounds
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.lab.auditing.white_box import bound_of_ratios, sampled_ratio
from keras_fm.lab.audits.whole_rounds import audit_rounds

pytestmark = [pytest.mark.once, pytest.mark.full]

SEEDS = range(3)


def audited(neighbours="add_remove", runs=8192, **kwargs):
    return audit_rounds(
        GradientRounds,
        Rounds(rounds=4, loss="cross_entropy", whitening=0),
        PrivacyBudget(2.0, 1e-2),
        neighbours=neighbours,
        noise=NoiseSource(reproducible_noise=1),
        runs=runs,
        **kwargs,
    )


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_all_rounds_together_come_near_epsilon(neighbours):
    found = audited(neighbours, runs=30_000)
    assert found.epsilon == pytest.approx(2.0, rel=1e-3)
    assert 0.7 < found.share <= 1
    # At the clip in every read, as far as a sensitivity goes.
    assert 0.999 < found.reach <= 1 + 1e-9


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_an_owner_counts_as_one(neighbours):
    found = audited(neighbours, runs=4096, lanes=128, records_of_owner=3)
    assert 0.5 < found.share <= 1
    assert 0.999 < found.reach <= 1 + 1e-9


@pytest.mark.parametrize("name", broken_rounds.FAULTS)
def test_a_fault_is_caught(name):
    found = [broken_rounds.with_fault(name, seed) for seed in SEEDS]
    assert min(found) > broken_rounds.BUDGET.epsilon


@pytest.mark.parametrize(
    "rounds, attack",
    sorted({(str(r), a): (r, a) for _, r, a in
            broken_rounds.FAULTS.values()}.values(), key=str),
)  # fmt: skip
def test_rounds_without_a_fault_are_not(rounds, attack):
    found = [broken_rounds.bound(rounds, attack, seed) for seed in SEEDS]
    assert max(found) <= broken_rounds.BUDGET.epsilon
    if attack == "likelihood":
        assert min(found) > 0.5


def scores_at_the_claim(rng, runs, epsilon, delta):
    """Ratios of the mechanism that gives away all that (epsilon, delta)
    allows: the coin with probability delta, else randomised response."""
    coins = rng.integers(0, 2, runs)
    right = rng.random(runs) < 1 / (1 + np.exp(-epsilon))
    told = rng.random(runs) < delta
    signs = np.where(right | told, 2 * coins - 1, 1 - 2 * coins)
    return signs * np.where(told, 50.0, epsilon), coins


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_false_alarms_where_a_threshold_is_chosen(delta):
    """1,000 nulls at exactly what is claimed, confidence 95%."""
    rng, epsilon = np.random.default_rng(3), 1.0
    alarms = sum(
        bound_of_ratios(
            *scores_at_the_claim(rng, 4000, epsilon, delta),
            delta=delta,
            confidence=0.95,
        ).epsilon
        > epsilon
        for _ in range(1000)
    )
    assert 0 < alarms <= 50


def test_a_sample_hides_what_is_not_in_it():
    ratios = np.array([-50.0, 0.0, 50.0])
    np.testing.assert_allclose(
        np.exp(sampled_ratio(ratios, 0.25)), 0.75 + 0.25 * np.exp(ratios)
    )
    assert sampled_ratio(ratios, 1) is ratios


def test_bad_arguments():
    with pytest.raises(ValueError, match="`attack` must be"):
        audited(attack="best")
