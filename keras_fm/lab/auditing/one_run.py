"""The best bound from one run over several guess counts."""

import dataclasses

import numpy as np

from keras_fm.kernel import checks
from keras_fm.lab.auditing.bounds import (
    check_scores,
    check_whole,
    one_run_epsilon,
)
from keras_fm.lab.auditing.gaussian_bounds import one_run_gaussian_epsilon

CURVES = (None, "gaussian")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneRunBound:
    """The lower bound from one run with many canaries.

    Attributes:
        epsilon: the lower bound, 0 if nothing was shown.
        ceiling: the bound if all of these guesses had been right: no mechanism
            can exceed it.
        guesses, correct: numbers of guesses and of right ones, for the guess
            count that gave the bound.
        candidates: canaries with a coin.
        delta, confidence: at which the bound holds; confidence covers all guess
            counts that were tried.
        curve: `None`, or `"gaussian"`: the bound refutes mu-Gaussian privacy, a
            curve of pairs that contains this one.
    """

    epsilon: float
    ceiling: float
    guesses: int
    correct: int
    candidates: int
    delta: float
    confidence: float
    curve: str | None = None

    @property
    def at_ceiling(self):
        """Whether every guess was right: more canaries may raise the bound."""
        return self.correct == self.guesses


def default_guess_counts(candidates):
    """m, m/2, m/4, ..., down to 25 guesses: a rule that uses only m.

    Many guesses are best if a mechanism leaks about every canary, few if it
    reveals only some. More counts cost little: the correction grows with their
    number, log2 of m / 25.

    Example:

    >>> default_guess_counts(1000)
    (1000, 500, 250, 125, 62, 31)
    """
    counts = [checks.count("candidates", candidates)]
    while counts[-1] // 2 >= 25:
        counts.append(counts[-1] // 2)
    return tuple(counts)


def one_run_best(
    scores,
    coins,
    *,
    delta,
    confidence=0.95,
    guess_counts=None,
    curve=None,
):
    """The best `one_run_epsilon` over several guess counts.

    For each count r, the r canaries with the largest |score| are guessed: 1 if
    the score is positive, else 0. The others are not guessed. Every count gets
    an equal part of the error (Bonferroni), so the best bound holds with
    `confidence`.

    Args:
        scores: `(m,)` finite floats: functions of the mechanism's output and
            of the canaries, never of the coins.
        coins: `(m,)` zeros and ones.
        delta: float in [0, 1).
        confidence: float in [0.5, 1).
        guess_counts: `None` for `default_guess_counts(m)`, or ints in
            [1, m], fixed before the scores were seen.
        curve: `None` tests (epsilon, delta) alone. `"gaussian"` tests all pairs
            of mu-Gaussian privacy together, see `one_run_gaussian_epsilon`.

    Returns:
        A `OneRunBound`.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> coins = np.arange(1000) % 2
    >>> bound = one_run_best(2.0 * coins - 1, coins, delta=1e-5)
    >>> bound.guesses, round(bound.epsilon, 2), bound.at_ceiling
    (1000, 5.27, True)
    """
    scores, coins = check_scores(scores, coins)
    if guess_counts is None:
        guess_counts = default_guess_counts(len(scores))
    counts = np.unique(check_whole("guess_counts", guess_counts))[::-1]
    if counts.size == 0 or counts[-1] < 1 or counts[0] > len(scores):
        raise ValueError(
            "`guess_counts` must be integers between 1 and the number of "
            f"canaries, {len(scores)}. Received: guess_counts={guess_counts}"
        )
    checks.number("confidence", confidence, at_least=0.5, below=1)
    order = np.argsort(-np.abs(scores), kind="stable")
    right = np.cumsum((scores[order] > 0) == coins[order])[counts - 1]
    corrected = 1 - (1 - confidence) / len(counts)
    checks.either("curve", curve, CURVES)
    bound_of = one_run_gaussian_epsilon if curve else one_run_epsilon
    bounds, ceilings = bound_of(
        np.stack([right, counts]),
        counts,
        len(scores),
        delta=delta,
        confidence=corrected,
    )
    best = int(np.argmax(bounds))
    return OneRunBound(
        epsilon=float(bounds[best]),
        ceiling=float(ceilings[best]),
        guesses=int(counts[best]),
        correct=int(right[best]),
        candidates=len(scores),
        delta=float(delta),
        confidence=float(confidence),
        curve=curve,
    )
