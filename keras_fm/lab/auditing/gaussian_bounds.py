"""Bounds from one run against a whole Gaussian curve of (epsilon, delta).

A Gaussian mechanism has an epsilon for every delta. `bounds` tests a single
pair (epsilon, delta). Here the claim is all pairs together, mu-Gaussian privacy
(GDP): two neighbours are at least as hard to distinguish as N(0, 1) and N(mu,
1). This refutes more, but only for mechanisms with Gaussian noise. The proof is
in docs/proofs/audit.md, theorem 6.
"""

import math

from scipy import optimize, special

from keras_fm.kernel import checks, compose
from keras_fm.lab.auditing.bounds import check_guesses, of_counts

_TOLERANCE = 1e-6


def one_run_gaussian_epsilon(
    correct, guesses, candidates, *, delta, confidence=0.95
):
    """Lower bound on epsilon from one run of a mechanism with Gaussian noise.

    The largest mu, to 1e-6, that so many right guesses refute, given as the
    epsilon of its curve at `delta`. It bounds the epsilon of mechanisms that
    claim mu-Gaussian privacy: sums over all records with Gaussian noise, and
    functions of them. For all others, sampled ones included, use
    `one_run_epsilon`. All other assumptions are the same.

    Source: Mahloujifar, Melis and Chaudhuri, Auditing f-Differential Privacy
    in One Run, 2024, arXiv 2410.22235; docs/proofs/audit.md, theorem 6.

    Args:
        correct, guesses, candidates, confidence: see `one_run_epsilon`.
        delta: float in (0, 1).

    Returns:
        float, or an array of the arguments' common shape; 0 if nothing
        is shown.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> round(one_run_gaussian_epsilon(90, 100, 1000, delta=1e-5), 3)
    2.456
    """
    checks.number("delta", delta, above=0, below=1)
    checks.number("confidence", confidence, at_least=0.5, below=1)
    return of_counts(
        lambda *counts: epsilon_of(one_run_mu(*counts, 1 - confidence), delta),
        check_guesses(correct, guesses, candidates),
    )


def refutes(mu, correct, guesses, candidates, level):
    """Whether so many right guesses have probability below `level` under
    mu-GDP: docs/proofs/audit.md, theorem 6."""
    # Expected shares of all coins that are guessed right and wrong, over
    # outcomes with at least k right guesses.
    right = level * correct / candidates
    wrong = level * (guesses - correct) / candidates
    for k in range(correct - 1, -1, -1):
        least = special.ndtr(special.ndtri(right) - mu)
        if least <= wrong:
            break
        right += k / (guesses - k) * (least - wrong)
        wrong = least
        if right + wrong > guesses / candidates:
            return True
    return False


def one_run_mu(correct, guesses, candidates, level):
    """The largest mu, to 1e-6, that `refutes` at this level; 0 if none."""

    def refuted(mu):
        return refutes(mu, correct, guesses, candidates, level)

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low


def halved(epsilon, delta):
    """Epsilon of half the mu that has this epsilon."""
    if epsilon == 0:
        return 0.0
    mu = optimize.brentq(
        lambda mu: compose.gaussian_epsilon(1 / mu, delta) - epsilon,
        _TOLERANCE,
        # epsilon is at least mu^2 / 2 if delta is below one half.
        max(1.0, 2 * math.sqrt(epsilon)) * 4,
        xtol=_TOLERANCE,
    )
    return epsilon_of(mu / 2, delta)


def epsilon_of(mu, delta):
    """Epsilon of mu-GDP at this delta; rounded down, for a lower bound."""
    if mu <= _TOLERANCE:
        return 0.0
    found = compose.gaussian_epsilon(1 / mu, delta)
    return max(0.0, found - _TOLERANCE)
