"""Audits a release itself: do the noisy statistics distinguish D and D'?

Neighbouring data sets differ by a known vector of statistics, and the
distribution of the noise is known. So the best test is known too: the
likelihood ratio (Neyman and Pearson). It is applied to outputs of the
mechanism's own `perturb` for both data sets, so a wrong scale, sensitivity or
draw gives a bound above the claim. The bound holds even if the stated
distribution is wrong; it is then smaller. The ratio is that of the continuous
distribution, which the lattice hardly changes.
"""

import math

import numpy as np
from scipy import special

from keras_fm.kernel import checks, noise_mechanisms
from keras_fm.kernel import mechanisms as mechanisms_lib
from keras_fm.kernel.access import exact_draws
from keras_fm.lab.auditing import bounds

_WITH_LAW = (
    noise_mechanisms.GaussianNoise,
    noise_mechanisms.LaplaceMechanism,
)
# Values of noise that are held in memory at once.
_CHUNK = 2**20
# One run in this many helps to choose the threshold and is not counted.
_PILOT = 8
# A threshold is tried only if it keeps at least this many pilot runs.
_FEWEST_GUESSES = 20
_BEYOND_DOUBT = 1 - 1e-6
# Decimals kept of a likelihood ratio. Its rounding error depends on the
# statistics, and for bounded ratios (Laplace) a threshold would sort runs by
# that error.
_DECIMALS = 9


def record_difference(objective, mechanism, record, other=None):
    """The change of the released vector between two neighbours.

    Args:
        objective: of a release (see `keras_fm.kernel.release.release`).
        mechanism: its mechanism, whose norm fixes the coordinates.
        record: a batch of one record, as the objective accumulates it, such
            as `(features, labels)`: `(1, m)` and `(1,)`.
        other: the record that replaces it in D' (replace_one), or `None` if D'
            lacks it (add_remove).

    Returns:
        `(size,)` array: statistics of D minus those of D'.

    Raises:
        ValueError: if a record is invalid, or both have the same statistics.
    """

    def vector(*records):
        statistics = objective.zero()
        for batch in records:
            statistics = objective.accumulate(statistics, *batch)
        return objective.pack(statistics, mechanism.norm)

    difference = vector(record) - (vector() if other is None else vector(other))
    if not np.any(difference):
        raise ValueError(
            "The two data sets have the same statistics: there is nothing "
            "to tell apart."
        )
    return difference


def log_likelihood_ratio(mechanism, noisy, difference):
    """log of the density of `noisy` around `difference` over that around 0.

    Args:
        mechanism: a `GaussianMechanism` or `LaplaceMechanism`; of a
            `SampledGaussianMechanism` one sum with the record in it.
        noisy: `(runs, size)`.
        difference: `(size,)`.

    Returns:
        `(runs,)` array.

    Raises:
        ValueError: for any other mechanism.

    Example:

    >>> mechanism = mechanisms_lib.LaplaceMechanism(
    ...     sensitivity=2.0, epsilon=0.5
    ... )
    >>> noisy = np.array([[-1.0], [1.0], [3.0]])
    >>> log_likelihood_ratio(mechanism, noisy, np.array([2.0]))
    array([-0.5,  0. ,  0.5])
    """
    moved = noisy - difference
    if isinstance(mechanism, noise_mechanisms.GaussianNoise):
        # Half the difference of squares, without their cancellation.
        twice = (noisy + moved) @ difference
        return twice / (2 * mechanism.stddev**2)
    if isinstance(mechanism, mechanisms_lib.LaplaceMechanism):
        closer = np.sum(np.abs(noisy) - np.abs(moved), axis=1)
        return closer / mechanism.scale
    raise _no_law(mechanism)


def _no_law(mechanism):
    return ValueError(
        "A release is audited with Gaussian or Laplace noise. "
        f"Received: {type(mechanism).__name__}"
    )


def release_epsilon(
    mechanism, difference, *, noise, delta, runs=None, confidence=0.99
):
    """Lower bound on the epsilon of one release, by its best test.

    Each run flips a fair coin between D and D' and perturbs the statistics of
    one. It guesses the coin by the sign of the likelihood ratio, or abstains if
    the ratio is small (`bounds.coin_run_bound`). An eighth of the runs chooses
    the threshold, the others give the bound. The audited relation is that of
    `difference`.

    With delta = 0 and all of the sensitivity in one coordinate, the bound is
    epsilon up to sampling error. Noise with delta > 0 leaks most in a tail of
    probability near delta, which no affordable number of runs reaches:
    2,000,000 runs of a Gaussian at delta = 1e-5 show about 0.8 epsilon.

    Args:
        mechanism: a `GaussianMechanism` or `LaplaceMechanism`.
        difference: `(size,)`, from `record_difference`, or any vector. It is
            not compared with the stated sensitivity: a longer vector shows the
            effect of a sensitivity that is too small.
        noise: a `NoiseSource`; its draws are independent of any release.
        delta: float in [0, 1), the claimed one.
        runs: int >= 2, or `None`: 40,000 for delta = 0, else 2,000,000
            (microseconds each).
        confidence: float in [0.5, 1).

    Returns:
        A `CoinRunBound`.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> mechanism = mechanisms_lib.LaplaceMechanism(
    ...     sensitivity=2.0, epsilon=1.0
    ... )
    >>> source = mechanisms_lib.NoiseSource(reproducible_noise=1)
    >>> bound = release_epsilon(
    ...     mechanism, np.array([2.0]), noise=source, delta=0
    ... )
    >>> 0.9 < bound.epsilon < 1.0
    True
    """
    return releases_epsilon(
        [(mechanism, difference)],
        noise=noise,
        delta=delta,
        runs=runs,
        confidence=confidence,
    )


def releases_epsilon(releases, *, noise, delta, runs=None, confidence=0.99):
    """`release_epsilon` of several releases of the same records together.

    One coin a run decides for all of them between D and D'. The score is the
    sum of their likelihood ratios, so this is the best test of all together.
    For a `SampledGaussianMechanism` each of the `steps` sums is perturbed, and
    contains the record with the probability it has in a fit.

    Args:
        releases: list of `(mechanism, difference)`. If later differences depend
            on earlier releases, the distribution of the ratio must not: for
            Gaussian noise, their length must be fixed.
        noise, delta, runs, confidence: see `release_epsilon`; the claim is the
            epsilon of all of them composed.

    Returns:
        A `CoinRunBound`.

    Raises:
        ValueError: if a value is outside its range.

    Example: two releases that cost 1 together show more than one of them.

    >>> mechanism = mechanisms_lib.LaplaceMechanism(
    ...     sensitivity=2.0, epsilon=0.5
    ... )
    >>> bound = releases_epsilon(
    ...     2 * [(mechanism, np.array([2.0]))],
    ...     noise=mechanisms_lib.NoiseSource(reproducible_noise=1),
    ...     delta=0,
    ... )
    >>> 0.8 < bound.epsilon < 1.0
    True
    """
    releases = [(m, _checked(difference)) for m, difference in releases]
    if not any(np.any(difference) for _, difference in releases):
        raise ValueError("`difference` is 0: there is nothing to tell apart.")
    for mechanism, _ in releases:
        if not isinstance(mechanism, _WITH_LAW):
            raise _no_law(mechanism)
    if runs is None:
        runs = 40_000 if delta == 0 else 2_000_000
    runs = checks.integer("runs", runs, at_least=2)
    coins = noise.generator().integers(0, 2, runs)
    scores = np.zeros(runs)
    for mechanism, difference in releases:
        if np.any(difference):
            scores += _ratios(mechanism, difference, coins, noise)
    return bound_of_ratios(scores, coins, delta=delta, confidence=confidence)


def bound_of_ratios(ratios, coins, *, delta, confidence=0.99):
    """Lower bound on epsilon from log-likelihood ratios of runs with a coin
    each. An eighth of the runs chooses the threshold, the others give the
    bound.

    Args:
        ratios: `(runs,)`, log of the probability of a run's output under
            coin 1 over that under coin 0. With another score the bound still
            holds, but is smaller.
        coins: `(runs,)` zeros and ones.
        delta, confidence: see `release_epsilon`.

    Returns:
        A `CoinRunBound`.
    """
    ratios = np.round(ratios, _DECIMALS)
    pilot = max(1, len(ratios) // _PILOT)
    coins = np.asarray(coins)
    threshold = _threshold(
        ratios[:pilot], coins[:pilot], len(ratios) - pilot, delta, confidence
    )
    return bounds.coin_run_bound(
        ratios[pilot:],
        coins[pilot:],
        threshold=threshold,
        delta=delta,
        confidence=confidence,
    )


def sampled_ratio(ratios, sampling_rate):
    """Log-likelihood ratio of a noisy sum over a sample that a record joins
    with probability `sampling_rate`, from that of one it is in.

    Example:

    >>> float(sampled_ratio(np.array(0.7), 1.0))
    0.7
    """
    if sampling_rate == 1:
        return ratios
    return np.logaddexp(
        math.log1p(-sampling_rate), math.log(sampling_rate) + ratios
    )


def _checked(difference):
    difference = np.asarray(difference, np.float64)
    if difference.ndim != 1 or not np.all(np.isfinite(difference)):
        raise ValueError(
            "`difference` must be a finite vector of shape (size,). "
            f"Received: shape={difference.shape}"
        )
    return difference


def _ratios(mechanism, difference, coins, noise):
    """Log-likelihood ratios of one mechanism's releases, `(runs,)`."""
    # Coordinates in which neighbours are equal carry no information.
    size, told = len(difference), difference != 0
    difference, found = difference[told], np.zeros(len(coins))
    chunk = max(1, _CHUNK // len(difference))
    steps = getattr(mechanism, "steps", 1)
    rate = getattr(mechanism, "sampling_rate", 1)
    bins = getattr(mechanism, "bins", 0)

    def ratio(read):
        noisy = mechanism.perturb(
            read[:, None] * difference, noise, dimension=size
        )
        return log_likelihood_ratio(mechanism, noisy, difference)

    for start in range(0, len(coins), chunk):
        shown = coins[start : start + chunk]
        part = found[start : start + chunk]
        for _ in range(steps // bins if bins else 0):
            own = noise.generator().integers(0, bins, len(shown))
            ratios = [ratio(shown * (own == i)) for i in range(bins)]
            part += np.logaddexp.reduce(ratios) - math.log(bins)
        for _ in range(0 if bins else steps):
            read = shown
            if rate < 1:
                read = shown * exact_draws.bernoulli(rate, len(shown), noise)
            part += sampled_ratio(ratio(read), rate)
    return found


def _threshold(ratios, coins, runs, delta, confidence):
    """The threshold that is likely to give the best bound on `runs` more runs.

    A log-likelihood ratio l is guessed right with probability 1 / (1 +
    exp(-|l|)), which estimates a rare tail better than few coins do. If the
    coins show significantly more than that, the stated distribution is wrong,
    and the coins decide. Shares 2^(-k/2) of the runs are tried.
    """
    order = np.argsort(-np.abs(ratios), kind="stable")
    size = np.abs(ratios)[order]
    hits = ((ratios > 0) == coins)[order]
    steps = math.floor(2 * math.log2(max(1.0, len(size) / _FEWEST_GUESSES)))
    kept = np.ceil(len(size) * 2.0 ** (-np.arange(steps + 1) / 2)).astype(int)
    thresholds = size[kept - 1]
    # Equal ratios are all kept or all dropped.
    kept = np.searchsorted(-size, -thresholds, "right")

    def shown(right, guesses, of, confidence):
        return bounds.coin_run_epsilon(
            right, guesses, of, delta=delta, confidence=confidence
        )

    guesses = np.floor(kept * (runs / len(size)))
    expected = np.cumsum(special.expit(size))[kept - 1] / kept
    by_law = shown(np.floor(expected * guesses), guesses, runs, confidence)
    by_coins = shown(np.cumsum(hits)[kept - 1], kept, len(size), _BEYOND_DOUBT)
    best = by_coins if np.max(by_coins) > np.max(by_law) else by_law
    return float(thresholds[np.argmax(best)])
