"""The choice: its law, its privacy loss, and an attack on what is drawn."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from keras_fm.evaluation.choice_query import Choice, ChoiceQuery
from keras_fm.kernel.access import permute_and_flip
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import BudgetExceededError, Ledger
from keras_fm.kernel.ledger.noisy_statistics import Release
from keras_fm.kernel.mechanisms import (
    NoiseSource,
    PermuteAndFlip,
    compose_epsilon,
    from_config,
)
from keras_fm.kernel.planning.calibration import calibrate, calibrate_choice
from keras_fm.kernel.release import release
from keras_fm.lab.auditing.many_run_bounds import many_run_epsilon

RELATIONS = {"add_remove": 1.0, "replace_one": 2.0}


def law(scores, epsilon, sensitivity):
    """Probabilities of permute-and-flip, over all sets of heads."""
    scores = np.asarray(scores, float)
    rate = epsilon / sensitivity
    heads = np.exp(-rate * (scores.max() - scores))
    found = np.zeros(len(scores))
    for flips in itertools.product([0, 1], repeat=len(scores)):
        flips = np.array(flips)
        if flips.any():
            p = np.prod(np.where(flips, heads, 1 - heads))
            found += p * flips / flips.sum()
    return found


def draws(mechanism, scores, count, seed=1):
    source = NoiseSource(reproducible_noise=seed)
    one_hot = [
        mechanism.perturb(np.array(scores), source) for _ in range(count)
    ]
    return np.sum(one_hot, axis=0)


def test_what_is_drawn_has_the_stated_law():
    """By a chi-squared test at 1e-6; another epsilon fails it."""
    scores, epsilon = [3.0, 5.0, 4.5, -2.0], 0.7
    mechanism = PermuteAndFlip(sensitivity=1.0, epsilon=epsilon)
    counts = draws(mechanism, scores, 6000)

    def p_value(epsilon):
        return stats.chisquare(counts, 6000 * law(scores, epsilon, 1.0)).pvalue

    assert p_value(epsilon) > 1e-6
    assert p_value(epsilon * 3 / 2) < 1e-6 and p_value(epsilon * 2 / 3) < 1e-6


def test_it_is_the_largest_of_scores_with_exponential_noise():
    """Proposition 2: two routes to one law."""
    rng = np.random.default_rng(0)
    scores = np.array([1.0, 2.0, 1.5])
    noisy = scores + rng.exponential(1 / 0.8, (100_000, 3))
    counts = np.bincount(noisy.argmax(axis=1), minlength=3)
    expected = 100_000 * law(scores, 0.8, 1.0)
    assert stats.chisquare(counts, expected).pvalue > 1e-6


@pytest.mark.parametrize("neighbours", RELATIONS)
def test_no_neighbours_lose_more_than_epsilon(neighbours):
    """Over all moves of the scores, and scores around ties: the loss is at
    most epsilon, and comes near it."""
    epsilon, rng = 0.9, np.random.default_rng(0)
    sensitivity = RELATIONS[neighbours]
    query = ChoiceQuery(candidates=3)
    assert query.sensitivity("range", neighbours=neighbours) == sensitivity
    steps = (0.0, 0.5, 1.0)
    if neighbours == "replace_one":
        steps = (-1.0, 0.0, 1.0)
    worst = 0.0
    far = [np.array([0.0, 40.0, 40.5]), np.array([0.0, 0.0, 30.0])]
    for scores in [*far, *rng.uniform(0, 4, (20, 3))]:
        before = law(scores, epsilon, sensitivity)
        for move in itertools.product(steps, repeat=3):
            after = law(scores + np.array(move), epsilon, sensitivity)
            worst = max(worst, np.abs(np.log(before / after)).max())
    assert 0.95 * epsilon < worst <= epsilon * (1 + 1e-9)


def test_scores_of_any_size_are_compared_exactly():
    """Differences of one in scores that floats barely tell apart, and far
    ones, never overflow."""
    source = NoiseSource(reproducible_noise=1)
    far = PermuteAndFlip(sensitivity=1.0, epsilon=1e6)
    assert far.perturb(np.array([2.0**52, 2.0**52 + 1]), source)[1] == 1
    weak = PermuteAndFlip(sensitivity=1.0, epsilon=1e-12)
    found = draws(weak, [0.0, 1.0], 400)
    assert stats.binomtest(int(found[0]), 400).pvalue > 1e-6
    p = 0
    for _ in range(50):
        p += permute_and_flip._falls_on_heads(Fraction(10**30), source)
    assert p == 0
    with pytest.raises(ValueError, match="without rounding"):
        far.perturb(np.zeros(2), source, error=1e-9)


# Under the ledger -------------------------------------------------------------


def ledger_of(delta=0.0, neighbours="add_remove"):
    return Ledger(PrivacyBudget(1.0, delta), neighbours=neighbours)


def chosen(ledger, shares, share=0.5, noise=None):
    query = ChoiceQuery(candidates=shares.shape[1])
    mechanism = calibrate_choice(
        query, ledger.budget, neighbours=ledger.neighbours, share=share
    )
    return release(
        query,
        [(part,) for part in np.array_split(shares, 3)],
        mechanism=mechanism,
        ledger=ledger,
        name="choice",
        noise=noise or NoiseSource(),
    )


@pytest.mark.parametrize("neighbours", RELATIONS)
def test_a_choice_is_charged_once_and_kept_in_a_file(neighbours, tmp_path):
    ledger = ledger_of(neighbours=neighbours)
    shares = np.tile([0.1, 1.0, 0.3], (200, 1))
    found = chosen(ledger, shares)
    assert isinstance(found, Choice) and found.index == 1
    assert ledger.epsilon() == pytest.approx(0.5)
    (entry,) = ledger.entries
    assert entry.build_mechanism() == found.mechanism
    assert entry.mechanism["sensitivity"] == RELATIONS[neighbours]
    assert from_config(entry.mechanism) == found.mechanism
    assert Ledger.from_json(ledger.to_json()).epsilon() == ledger.epsilon()
    # Which one won, and nothing about by how much.
    np.testing.assert_array_equal(found.statistics["chosen"], [0, 1, 0])
    found.save(tmp_path / "choice")
    loaded = Release.load(tmp_path / "choice")
    assert type(loaded) is Choice and loaded.index == 1
    assert repr(loaded) == repr(found)
    assert "1 of 0 to 2, by accuracy" in repr(found)
    chosen(ledger, shares)
    with pytest.raises(BudgetExceededError):
        chosen(ledger, shares)
    assert len(ledger.entries) == 2


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_less_noise_than_asked_for_is_refused(delta):
    query, ledger = ChoiceQuery(candidates=2), ledger_of(delta, "replace_one")
    for mechanism in (
        PermuteAndFlip(sensitivity=1.999, epsilon=0.1),
        calibrate_choice(query, ledger.budget, neighbours="add_remove"),
    ):
        with pytest.raises(ValueError, match="sensitivity .* is below"):
            release(
                query,
                pytest.fail,
                mechanism=mechanism,
                ledger=ledger,
                name="choice",
                noise=NoiseSource(),
            )
    with pytest.raises(ValueError, match="`norm` must be one of 'range'"):
        calibrate(query, ledger.budget, neighbours="add_remove")
    assert ledger.entries == ()


# Beside Gaussian releases -----------------------------------------------------


@pytest.mark.parametrize("budget", [(0.1, 1e-6), (1.0, 1e-6), (8.0, 1e-5)])
def test_shares_of_choices_and_of_noise_add_up_to_the_budget(budget):
    """Proposition 4, by the ledger's own composition; four times the epsilon of
    the choice would not pass."""
    budget = PrivacyBudget(*budget)
    for share in (0.05, 0.3, 0.6):
        split = budget.split(
            training=(1 - share) / 2, choice=share, evaluation=(1 - share) / 2
        )
        training, choice, evaluation = split.mechanisms().values()

        def spent(*mechanisms, delta=budget.delta, scale=budget.epsilon):
            return compose_epsilon(mechanisms, delta, scale=scale)

        total = spent(training, choice, evaluation)
        assert 0.7 * budget.epsilon < total <= budget.epsilon * (1 + 1e-9)
        more = PermuteAndFlip(sensitivity=1.0, epsilon=4 * choice.epsilon)
        assert spent(training, more, evaluation) > budget.epsilon
    # Two choices of half the share, too.
    small = budget.split(training=1, choice=0.25).mechanisms()
    half = budget.split(training=9, choice=1).mechanisms()["choice"]
    training = budget.split(training=8, choice=2).mechanisms()["training"]
    assert spent(training, half, half) <= budget.epsilon
    assert set(small) == {"training", "choice"}


def test_the_epsilon_of_a_share_is_that_of_the_best_guess():
    """Its coin is guessed as well as the Gaussian's, and no better."""
    budget = PrivacyBudget(1.0, 1e-6)
    split = budget.split(training=3, choice=1)
    epsilon = split.mechanisms()["choice"].epsilon
    multiplier = split.mechanisms()["training"].noise_multiplier * math.sqrt(3)
    advantage = 2 * stats.norm.cdf(1 / (2 * multiplier)) - 1
    assert math.tanh(epsilon / 2) == pytest.approx(advantage, rel=1e-6)


# Attack -----------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("neighbours", RELATIONS)
def test_an_audit_sees_epsilon_and_half_the_noise(neighbours):
    """A point that makes a leader of one of two: which of them wins, over
    many runs on D and on D'. Lower bounds at 99%."""
    epsilon, runs = 1.0, 6000
    far = {
        "add_remove": ([0.0, 1.0], [0.0, 0.0]),
        "replace_one": ([0.0, 2.0], [1.0, 1.0]),
    }[neighbours]

    def bound(epsilon):
        mechanism = PermuteAndFlip(
            sensitivity=RELATIONS[neighbours], epsilon=epsilon
        )
        scores = []
        for seed, totals in enumerate(far):
            source = NoiseSource(reproducible_noise=seed)
            won = [
                mechanism.perturb(np.array(totals), source)[0]
                for _ in range(runs)
            ]
            scores.append(np.array(won))
        one, other = scores
        return many_run_epsilon(
            other, one, delta=0.0, confidence=0.99, threshold=0.5
        ).epsilon

    assert 0.7 < bound(epsilon) <= epsilon
    assert bound(2 * epsilon) > epsilon
