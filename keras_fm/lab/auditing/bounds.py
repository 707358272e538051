"""Lower bounds on epsilon from guesses about secret coins.

An auditor flips coins, lets each decide one record of a data set, runs a
mechanism and guesses the coins from its output. A small epsilon limits how many
guesses can be right; too many right ones refute it. Three settings:

* one run, a coin for every canary (Steinke, Nasr and Jagielski 2023);
* many runs, a coin for every run: it gets D or its neighbour D';
* many runs on D and many on D', a test at a threshold between them.

None assumes anything about the mechanism. A bound means "with this confidence
the mechanism is not (epsilon, delta)-private for a smaller epsilon"; a bound of
0 means nothing. Proofs: docs/proofs/audit.md.
"""

import dataclasses
import functools

import numpy as np
from scipy import special, stats

from keras_fm.kernel import checks

_TOLERANCE = 1e-6
# Part of the error of a coin-run bound for the share of guesses.
_SHARE_OF_GUESSES = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoinRunBound:
    """The lower bound from many runs, each with its own coin.

    Attributes:
        epsilon: the lower bound, 0 if nothing was shown.
        ceiling: the bound if all of these guesses had been right.
        runs: number of runs behind the bound.
        guesses, correct: numbers of guessed runs, and of right guesses.
        threshold: least score of a guessed run.
        delta, confidence: at which the bound holds.
    """

    epsilon: float
    ceiling: float
    runs: int
    guesses: int
    correct: int
    threshold: float
    delta: float
    confidence: float

    @property
    def at_ceiling(self):
        return self.correct == self.guesses


def one_run_p_value(correct, guesses, candidates, *, epsilon, delta):
    """Bound on the probability of so many right guesses under (epsilon, delta).

    With q = 1 / (1 + exp(-epsilon)) and W ~ Binomial(guesses, q),

        p = min(1, beta + 2 candidates delta alpha),
        beta = P[W >= correct],
        alpha = max over i = 1..correct of P[correct - i <= W < correct] / i.

    A p-value for levels up to 1/2 (docs/proofs/audit.md, corollary 2).

    Args:
        correct, guesses, candidates: ints, see `one_run_epsilon`.
        epsilon: float >= 0, the claim that is tested.
        delta: float in [0, 1).

    Returns:
        float.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> p = one_run_p_value(90, 100, 1000, epsilon=1.0, delta=1e-5)
    >>> round(p, 5)
    0.00084
    """
    correct, guesses, candidates = check_guesses(correct, guesses, candidates)
    checks.number("delta", delta, at_least=0, below=1)
    checks.nonnegative("epsilon", epsilon)
    p_value = _p_value_of_epsilon(
        int(correct), int(guesses), int(candidates), float(delta)
    )
    return p_value(float(epsilon))


def one_run_epsilon(correct, guesses, candidates, *, delta, confidence=0.95):
    """Lower bound on epsilon from one run with many canaries.

    The largest epsilon, to 1e-6, whose `one_run_p_value` is at most
    1 - confidence. The coins fix the relation that is audited: *swap* coins
    (one of two records or labels in the same place) audit replace_one,
    *include* coins (present or not) audit add_remove.

    Assumes: the coins are fair, independent of each other and of all else;
    every guess depends on the coins through the output of the mechanism
    only; `guesses` was fixed in advance (fewer may be made). To try several
    counts, use `one_run_best`, which corrects for it.

    Args:
        correct: int or array, number of right guesses.
        guesses: int or array, number of guesses made.
        candidates: int or array, number of coins flipped, guessed or not.
        delta: float in [0, 1).
        confidence: float in [0.5, 1).

    Returns:
        float, or an array of the arguments' common shape; 0 if nothing
        is shown.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> round(one_run_epsilon(90, 100, 1000, delta=1e-5), 3)
    1.626
    """
    checks.number("delta", delta, at_least=0, below=1)
    checks.number("confidence", confidence, at_least=0.5, below=1)
    delta, level = float(delta), 1 - float(confidence)
    return of_counts(
        lambda *counts: _one_run_epsilon(*counts, delta, level),
        check_guesses(correct, guesses, candidates),
    )


def of_counts(function, counts):
    """Evaluates a function of integers at every entry of arrays of one shape,
    once for each distinct set of integers."""
    rows = np.stack([a.ravel() for a in counts], axis=1)
    distinct, where = np.unique(rows, axis=0, return_inverse=True)
    found = np.array([function(*map(int, row)) for row in distinct])
    found = found[where.ravel()].reshape(counts[0].shape)
    return found if found.ndim else float(found)


# Counts recur, in the ceiling of every audit and in simulated audits.
@functools.lru_cache(maxsize=4096)
def _one_run_epsilon(correct, guesses, candidates, delta, level):
    # With delta = 0 the level is a quantile of the beta distribution; a larger
    # delta makes the bound smaller.
    high = odds_epsilon(*lower_rate(correct, guesses, level))
    if delta == 0 or high == 0:
        return high
    p_value = _p_value_of_epsilon(correct, guesses, candidates, delta)
    if p_value(0.0) > level:
        return 0.0
    low = 0.0
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        if p_value(middle) <= level:
            low = middle
        else:
            high = middle
    return low


def _p_value_of_epsilon(correct, guesses, candidates, delta):
    """`one_run_p_value` as a function of epsilon alone."""
    # Wrong guesses, whose probability keeps its precision for large epsilon.
    wrong = guesses - correct
    below = np.arange(wrong + 1, guesses + 1)

    def p_value(epsilon):
        rate = special.expit(-epsilon)
        beta = special.bdtr(wrong, guesses, rate)
        if delta == 0 or correct == 0:
            return float(min(1.0, beta))
        mass = stats.binom.pmf(below, guesses, rate)
        alpha = np.max(np.cumsum(mass) / np.arange(1, correct + 1))
        return float(min(1.0, beta + 2 * candidates * delta * alpha))

    return p_value


def coin_run_epsilon(correct, guesses, runs, *, delta, confidence=0.95):
    """Lower bound on epsilon from independent runs with a coin each.

    A fair coin decides whether a run gets D or its neighbour D'. The coin is
    guessed from the output, or not at all. With rates c of right and w of wrong
    guesses per run, privacy is c <= exp(epsilon) w + delta. Given the number of
    guesses the right ones are binomial: with the Clopper-Pearson bounds rho on
    the share of right guesses and s on the share of runs that were guessed,

        epsilon >= log((rho - delta / s) / (1 - rho)).

    Args:
        correct: int or array, right guesses.
        guesses: int or array, runs that were guessed.
        runs: int or array, all of them.
        delta: float in [0, 1).
        confidence: float in [0.5, 1).

    Returns:
        float or array; 0 if nothing is shown.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> round(coin_run_epsilon(900, 1000, 5000, delta=1e-5), 3)
    2.016
    """
    correct, guesses, runs = check_guesses(correct, guesses, runs, whole="runs")
    checks.number("delta", delta, at_least=0, below=1)
    checks.number("confidence", confidence, at_least=0.5, below=1)
    level = 1 - confidence
    if delta > 0:
        share, _ = lower_rate(guesses, runs, _SHARE_OF_GUESSES * level)
        level = (1 - _SHARE_OF_GUESSES) * level
    right, wrong = lower_rate(correct, guesses, level)
    if delta > 0:
        with np.errstate(divide="ignore"):
            right = right - delta / share
    return odds_epsilon(right, wrong)


def coin_run_bound(scores, coins, *, threshold, delta, confidence=0.95):
    """`coin_run_epsilon` of runs whose coins are guessed by scores.

    A run is guessed if |score| reaches the threshold. The guess is 1 for a
    positive score, else 0.

    Args:
        scores: `(N,)` finite floats, one for each run; functions of its output,
            never of its coin.
        coins: `(N,)` zeros and ones.
        threshold: float >= 0, chosen without these runs.
        delta: float in [0, 1).
        confidence: float in [0.5, 1).

    Returns:
        A `CoinRunBound`.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> coins = np.arange(1000) % 2
    >>> bound = coin_run_bound(
    ...     2.0 * coins - 1, coins, threshold=0.5, delta=0.0
    ... )
    >>> bound.guesses, round(bound.epsilon, 2), bound.at_ceiling
    (1000, 5.81, True)
    """
    scores, coins = check_scores(scores, coins)
    checks.nonnegative("threshold", threshold)
    guessed = np.abs(scores) >= threshold
    guesses = int(guessed.sum())
    correct = int((guessed & ((scores > 0) == coins)).sum())
    epsilon, ceiling = coin_run_epsilon(
        np.array([correct, guesses]),
        guesses,
        len(scores),
        delta=delta,
        confidence=confidence,
    )
    return CoinRunBound(
        epsilon=float(epsilon),
        ceiling=float(ceiling),
        runs=len(scores),
        guesses=guesses,
        correct=correct,
        threshold=float(threshold),
        delta=float(delta),
        confidence=float(confidence),
    )


def lower_rate(count, total, level):
    """Clopper and Pearson's lower bound on a rate, and one minus it.

    The rate solves P[Binomial(total, rate) >= count] = `level`; it is 0 for a
    count of 0. Both are exact to full precision.
    """
    count, total = np.broadcast_arrays(count, total)
    some = count > 0
    a, b = np.where(some, count, 1), total - count + 1
    rate = np.where(some, stats.beta.ppf(level, a, b), 0.0)
    rest = np.where(some, stats.beta.isf(level, b, a), 1.0)
    return rate, rest


def odds_epsilon(numerator, denominator):
    """max(0, log(numerator / denominator)), 0 if the numerator is not > 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(numerator) - np.log(denominator)
    epsilon = np.where(np.greater(ratio, 0.0), ratio, 0.0)
    return epsilon if epsilon.ndim else float(epsilon)


def check_whole(name, value):
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or np.any(array != np.floor(array)):
        raise ValueError(f"`{name}` must be integers. Received: {value!r}")
    return array.astype(np.int64)


def check_guesses(correct, guesses, total, whole="candidates"):
    """The three counts as integer arrays of a common shape."""
    correct, guesses, total = np.broadcast_arrays(
        check_whole("correct", correct),
        check_whole("guesses", guesses),
        check_whole(whole, total),
    )
    if np.any((correct < 0) | (correct > guesses) | (guesses > total)):
        raise ValueError(
            f"`correct` must be at most `guesses`, and those at most `{whole}`."
            f" Received: {correct}, {guesses}, {total}"
        )
    return correct, guesses, total


def check_trained(name, values):
    """`values` of a trained model as float64; refuses infinity and NaN."""
    values = np.asarray(values, np.float64)
    if not np.all(np.isfinite(values)):
        raise ValueError(
            f"`{name}` must be finite; {np.sum(~np.isfinite(values))} of "
            f"{values.size} are not. Did the training diverge?"
        )
    return values


def check_finite(name, scores):
    scores = check_trained(name, scores)
    if scores.ndim != 1 or scores.size == 0:
        raise ValueError(
            f"`{name}` must have shape (number,), with at least one entry. "
            f"Received: shape={scores.shape}"
        )
    return scores


def check_scores(scores, coins):
    scores = check_finite("scores", scores)
    coins = np.asarray(coins)
    if coins.shape != scores.shape or not np.all((coins == 0) | (coins == 1)):
        raise ValueError("`coins` must be a zero or a one for each score.")
    return scores, coins.astype(bool)
