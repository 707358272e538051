"""Lower bounds equal exact binomial arithmetic and raise few false alarms.

False alarms: 1,000 simulated audits of mechanisms that meet their claim
exactly, fixed seeds. A bound with confidence 95% may exceed the claim in 5%
of them; each test states the limit it asserts.
"""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from keras_fm.kernel.mechanisms import gaussian_multiplier
from keras_fm.lab.auditing.bounds import (
    coin_run_bound,
    coin_run_epsilon,
    one_run_epsilon,
    one_run_p_value,
)
from keras_fm.lab.auditing.many_run_bounds import many_run_epsilon
from keras_fm.lab.auditing.one_run import one_run_best

pytestmark = pytest.mark.full

AUDITS = 1000
# A rate of 5% gives more than this in 1,000 audits once in 10,000 times.
MOST = int(stats.binom.isf(1e-4, AUDITS, 0.05))


# Exact arithmetic ------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def exact_mass(n, q):
    """P[Binomial(n, q) = k], k = 0..n, as fractions."""
    return tuple(
        math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(n + 1)
    )


def exact_p_value(correct, guesses, candidates, q, delta):
    mass = exact_mass(guesses, q)
    beta = sum(mass[correct:], Fraction(0))
    alpha = max(
        (
            sum(mass[correct - i : correct], Fraction(0)) / i
            for i in range(1, correct + 1)
        ),
        default=Fraction(0),
    )
    return min(Fraction(1), beta + 2 * candidates * delta * alpha)


def exact_lower_rate(count, total, level):
    """Bisection on the exact binomial tail: Clopper and Pearson."""
    low, high = Fraction(0), Fraction(1)
    if count == 0:
        return low
    for _ in range(45):
        middle = (low + high) / 2
        # Rounded to keep the fractions short; the steps stay exact.
        middle = Fraction(round(middle * 2**50), 2**50)
        if sum(exact_mass(total, middle)[count:]) <= level:
            low = middle
        else:
            high = middle
    return low


COUNTS = [
    (0, 0, 1),
    (1, 1, 1),
    (0, 5, 5),
    (5, 5, 8),
    (13, 20, 20),
    (20, 20, 400),
    (61, 80, 1000),
    (80, 80, 80),
]
DELTAS = [Fraction(0), Fraction(1, 100_000), Fraction(1, 50)]


@pytest.mark.parametrize("odds", [Fraction(1), Fraction(3, 2), Fraction(20)])
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("counts", COUNTS)
def test_p_value_is_the_exact_one(counts, delta, odds):
    found = one_run_p_value(*counts, epsilon=math.log(odds), delta=float(delta))
    exact = exact_p_value(*counts, odds / (1 + odds), delta)
    assert found == pytest.approx(float(exact), rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("counts", COUNTS)
def test_one_run_epsilon_is_where_the_exact_p_value_meets_the_level(
    counts, delta, confidence
):
    found = one_run_epsilon(*counts, delta=float(delta), confidence=confidence)

    def p_value(epsilon):
        q = Fraction(1 / (1 + math.exp(-epsilon)))
        return float(exact_p_value(*counts, q, delta))

    level = 1 - confidence
    assert p_value(found + 3e-6) > level
    if found > 0:
        assert p_value(found) <= level * (1 + 1e-9)


@pytest.mark.parametrize("confidence", [0.95, 0.999])
@pytest.mark.parametrize("count, total", [(1, 1), (7, 9), (50, 60), (60, 60)])
def test_coin_run_epsilon_is_exact(count, total, confidence):
    level = Fraction(1) - Fraction(confidence)
    rho = exact_lower_rate(count, total, level)
    expected = max(0.0, math.log(rho / (1 - rho))) if rho else 0.0
    found = coin_run_epsilon(
        count, total, total + 9, delta=0.0, confidence=confidence
    )
    assert found == pytest.approx(expected, abs=1e-9)
    # With delta a tenth of the error goes to the share of guesses.
    delta = Fraction(1, 1000)
    share = exact_lower_rate(total, total + 9, level / 10)
    rho = exact_lower_rate(count, total, level * 9 / 10)
    ratio = (rho - delta / share) / (1 - rho) if share else 0
    expected = math.log(ratio) if ratio > 1 else 0.0
    found = coin_run_epsilon(
        count, total, total + 9, delta=1e-3, confidence=confidence
    )
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 100)])
@pytest.mark.parametrize(
    "counts",
    [(40, 40, 0, 40), (35, 40, 12, 50), (12, 50, 0, 40), (3, 40, 2, 40)],
)
def test_many_run_epsilon_is_exact(counts, delta):
    hits, runs, alarms, others = counts
    level = Fraction(1, 40)
    t = exact_lower_rate(hits, runs, level)
    f = 1 - exact_lower_rate(others - alarms, others, level)
    ratios = [(t - delta) / f, (1 - f - delta) / (1 - t)]
    expected = math.log(max(*ratios, Fraction(1)))
    bound = many_run_epsilon(
        np.arange(runs) < hits,
        np.arange(others) < alarms,
        threshold=0.5,
        delta=float(delta),
    )
    assert bound.epsilon == pytest.approx(expected, abs=1e-9)
    assert (bound.detections, bound.runs) == (hits, runs)
    assert (bound.false_alarms, bound.other_runs) == (alarms, others)
    assert bound.at_ceiling == (counts == (40, 40, 0, 40))
    assert bound.epsilon <= bound.ceiling


# The theorem -----------------------------------------------------------------


def worst_mechanism(guesses, correct, epsilon, mass):
    """max P[right guesses >= correct] over (epsilon, mass / m) mechanisms.

    A linear programme over the law a of the number of right guesses and
    the excesses of neighbouring pairs, whose sum is `mass` = m delta
    (docs/proofs/audit.md). The first half of the excesses is one order of
    each pair, the second half the other.
    """
    k = np.arange(1, guesses + 1)
    odds = math.exp(epsilon)
    rows, size = np.zeros((2, guesses, 3 * guesses + 1)), guesses + 1
    pair = np.arange(guesses)
    rows[0, pair, k], rows[0, pair, k - 1] = k, -odds * (guesses - k + 1)
    rows[1, pair, k], rows[1, pair, k - 1] = -odds * k, guesses - k + 1
    rows[0, pair, size + pair] = rows[1, pair, size + guesses + pair] = -1
    total = np.zeros((1, 3 * guesses + 1))
    total[0, size:] = 1
    objective = np.zeros(3 * guesses + 1)
    objective[correct:size] = -1
    solved = optimize.linprog(
        objective,
        A_ub=np.concatenate([*rows, total]),
        b_ub=np.append(np.zeros(2 * guesses), mass),
        A_eq=(np.arange(3 * guesses + 1) < size)[None].astype(float),
        b_eq=[1.0],
        method="highs",
    )
    assert solved.status == 0
    return -solved.fun


@pytest.mark.parametrize("guesses", [1, 2, 7, 25])
def test_no_mechanism_beats_the_theorem(guesses):
    """The proven form is attained; the published one is never below it."""
    for epsilon in (0.0, 0.4, 2.0):
        q = special.expit(epsilon)
        law = stats.binom(guesses, q)
        for mass in (1e-3, 0.1, 1.0):
            for correct in range(1, guesses + 1, 1 + guesses // 6):
                worst = worst_mechanism(guesses, correct, epsilon, mass)
                beta, at = law.sf(correct - 1), law.pmf(correct)
                proven = beta + mass * beta * (1 - beta) / (correct * at)
                assert worst == pytest.approx(min(1.0, proven), abs=1e-7)
                if beta > q:
                    continue
                candidates = 10 * guesses
                published = one_run_p_value(
                    correct,
                    guesses,
                    candidates,
                    epsilon=epsilon,
                    delta=mass / candidates,
                )
                assert published >= min(1.0, proven) - 1e-12


def test_the_published_form_is_no_bound_for_likely_counts():
    """Why a confidence below 1/2 is refused: the example of the proof."""
    m, delta = 5, 2e-4
    law = np.full(32, 1 / 32)
    moved = delta * 31 / 32
    law[0] -= moved
    law[1:] += moved / 31
    x = np.arange(32)
    for i in range(m):
        assert np.maximum(law - law[x ^ (1 << i)], 0).sum() <= delta * (
            1 + 1e-9
        )
    published = one_run_p_value(1, m, m, epsilon=0.0, delta=delta)
    assert law[1:].sum() > published + 1e-4


# Monotone --------------------------------------------------------------------

counts = st.tuples(
    st.integers(1, 300), st.floats(0, 1), st.integers(0, 300)
).map(lambda t: (round(t[0] * t[1]), t[0], t[0] + t[2]))
deltas = st.sampled_from([0.0, 1e-6, 1e-4, 1e-3])
confidences = st.sampled_from([0.5, 0.8, 0.95, 0.999])
slack = 2e-6


@settings(max_examples=100, deadline=None, derandomize=True)
@given(counts, deltas, confidences)
def test_one_run_epsilon_is_monotone(count, delta, confidence):
    correct, guesses, candidates = count

    def bound(c=correct, g=guesses, m=candidates, d=delta, p=confidence):
        return one_run_epsilon(c, g, m, delta=d, confidence=p)

    here = bound()
    assert 0.0 <= here < math.inf
    assert (
        here
        <= one_run_epsilon(
            guesses, guesses, candidates, delta=delta, confidence=confidence
        )
        + slack
    )
    if correct < guesses:
        assert bound(c=correct + 1) >= here - slack
    assert bound(g=guesses + 1, m=candidates + 1) <= here + slack
    assert bound(m=candidates + 50) <= here + slack
    assert bound(d=delta + 1e-3) <= here + slack
    assert bound(p=(1 + confidence) / 2) <= here + slack
    if delta == 0:
        q = special.expit(here)
        tail = stats.binom.sf(correct - 1, guesses, q)
        assert here == 0 or tail == pytest.approx(1 - confidence, rel=1e-7)


# One run: abstention, corrections, ceilings ----------------------------------


def test_the_best_is_the_best_corrected_bound():
    rng = np.random.default_rng(0)
    coins = rng.integers(0, 2, 400)
    scores = rng.normal(2.0 * coins - 1, 1.0)
    tried = (300, 100, 30)
    best = one_run_best(scores, coins, delta=1e-5, guess_counts=tried)
    order = np.argsort(-np.abs(scores))
    right = ((scores > 0) == (coins == 1))[order]
    each = [
        one_run_epsilon(
            right[:r].sum(), r, 400, delta=1e-5, confidence=1 - 0.05 / 3
        )
        for r in tried
    ]
    assert best.epsilon == max(each) > 0
    assert best.guesses == tried[int(np.argmax(each))]
    assert best.correct == right[: best.guesses].sum()
    assert (best.candidates, best.delta, best.confidence) == (400, 1e-5, 0.95)
    assert not best.at_ceiling and best.epsilon < best.ceiling
    # Order and repetitions of the counts mean nothing.
    assert best == one_run_best(
        scores, coins, delta=1e-5, guess_counts=[30, 300, 100, 30]
    )


def test_abstention_finds_the_few_that_are_betrayed():
    rng = np.random.default_rng(1)
    coins = rng.integers(0, 2, 1000)
    scores = rng.normal(size=1000)
    scores[:62] = 10.0 * (2 * coins[:62] - 1)
    best = one_run_best(scores, coins, delta=1e-5)
    assert best.guesses == best.correct == 62 and best.at_ceiling
    assert best.epsilon == best.ceiling > 2
    everyone = one_run_best(scores, coins, delta=1e-5, guess_counts=[1000])
    assert everyone.epsilon < 0.3


# False alarms ----------------------------------------------------------------


def response(rng, epsilon, shape):
    """Randomised response: every coin is told with probability q."""
    coins = rng.integers(0, 2, shape)
    told = rng.random(shape) < special.expit(epsilon)
    return coins, np.where(told, 2.0 * coins - 1, 1.0 - 2 * coins)


def laplace(rng, epsilon, shape):
    coins = rng.integers(0, 2, shape)
    return coins, coins - 0.5 + rng.laplace(0.0, 1 / epsilon, shape)


def gaussian(rng, epsilon, shape, delta=1e-3):
    coins = rng.integers(0, 2, shape)
    stddev = gaussian_multiplier(epsilon, delta)
    return coins, coins - 0.5 + rng.normal(0.0, stddev, shape)


MECHANISMS = {
    "response": (response, 0.0),
    "response, delta": (response, 1e-3),
    "laplace": (laplace, 0.0),
    "gaussian": (gaussian, 1e-3),
}


@pytest.mark.parametrize("counts", [None, (100,)])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("name", MECHANISMS)
def test_false_alarms_of_one_run(name, epsilon, counts):
    """At most 50 of 1,000: 100 canaries, a coordinate for each.

    The exact rate is at most 4.7% (randomised response, next test). Seeds
    are fixed; a fresh one may see more than 50 by chance, though more than
    77 at a rate of 5% only once in 10,000 times.
    """
    draw, delta = MECHANISMS[name]
    rng = np.random.default_rng([3, int(10 * epsilon), len(name)])
    coins, scores = draw(rng, epsilon, (AUDITS, 100))
    alarms = sum(
        one_run_best(s, c, delta=delta, guess_counts=counts).epsilon > epsilon
        for s, c in zip(scores, coins)
    )
    assert alarms <= 50


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_exact_false_alarm_rate_of_randomised_response(delta):
    """No simulation: the law of right guesses is binomial."""
    for guesses in (10, 100, 1000):
        bounds = one_run_epsilon(
            np.arange(guesses + 1), guesses, guesses, delta=delta
        )
        for epsilon in (0.0, 0.3, 1.0, 3.0):
            law = stats.binom(guesses, special.expit(epsilon))
            rate = law.pmf(np.arange(guesses + 1))[bounds > epsilon].sum()
            assert rate <= 0.05 + 1e-9
            if delta == 0 and guesses == 1000:
                # One right guess less would be too many alarms: the test
                # is as strong as whole numbers allow.
                assert rate + law.pmf(np.argmax(bounds > epsilon) - 1) > 0.05


@pytest.mark.parametrize("name", MECHANISMS)
def test_false_alarms_of_coin_runs(name):
    """At most 77 of 1,000; a rate of 5% has more once in 10,000 times.

    Every run has a coin of its own; 400 runs an audit.
    """
    draw, delta = MECHANISMS[name]
    rng = np.random.default_rng([4, len(name)])
    coins, scores = draw(rng, 1.0, (AUDITS, 400))
    threshold = {"laplace": 0.5, "gaussian": 2.0}.get(name, 0.0)
    alarms = sum(
        coin_run_bound(s, c, threshold=threshold, delta=delta).epsilon > 1.0
        for s, c in zip(scores, coins)
    )
    assert alarms <= MOST


@pytest.mark.parametrize("threshold", [0.5, None])
@pytest.mark.parametrize("name", MECHANISMS)
def test_false_alarms_of_many_runs(name, threshold):
    """At most 77 of 1,000; a rate of 5% has more once in 10,000 times.

    At 0.5 Laplace noise is at its epsilon exactly; a threshold from half of
    the runs is chosen to look worst and must not count.
    """
    draw, delta = MECHANISMS[name]
    rng = np.random.default_rng([5, len(name)])
    coins, runs = draw(rng, 1.0, (AUDITS, 400))
    alarms = 0
    for c, s in zip(coins, runs):
        bound = many_run_epsilon(
            s[c == 1], s[c == 0], delta=delta, threshold=threshold
        )
        alarms += bound.epsilon > 1.0
    assert alarms <= MOST


# Power -----------------------------------------------------------------------


@pytest.mark.parametrize("draw", [response, laplace])
def test_half_the_noise_is_caught_in_one_run(draw):
    """Claimed 1, true 2: in each of 20 audits of 1,000 canaries."""
    rng = np.random.default_rng(6)
    for _ in range(20):
        coins, scores = draw(rng, 2.0, 1000)
        assert one_run_best(scores, coins, delta=1e-5).epsilon > 1.0


def test_half_the_noise_is_caught_in_many_runs():
    rng = np.random.default_rng(7)
    for _ in range(20):
        on, off = rng.laplace(0.5, 0.5, 1000), rng.laplace(-0.5, 0.5, 1000)
        for threshold in (0.5, None):
            bound = many_run_epsilon(on, off, delta=0.0, threshold=threshold)
            assert 1.0 < bound.epsilon < 2.2
            # Either kind of error shows it.
            mirrored = many_run_epsilon(
                -off, -on, delta=0.0, threshold=threshold
            )
            assert mirrored.epsilon > 1.0


def test_a_test_the_wrong_way_round_shows_nothing():
    rng = np.random.default_rng(8)
    low, high = rng.normal(-2, 1, 500), rng.normal(2, 1, 500)
    assert many_run_epsilon(high, low, delta=0.0, threshold=0.0).epsilon > 2
    assert many_run_epsilon(low, high, delta=0.0, threshold=0.0).epsilon == 0
