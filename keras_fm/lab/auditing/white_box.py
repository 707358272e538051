"""Audit of a release itself: can D be told from D' by the noisy statistics?

Neighbouring data sets move the statistics by a known difference, and the law
of the noise is known, so the best test is known too: the likelihood ratio
(Neyman and Pearson). Its power is measured on what the mechanism's own
`perturb` makes of both data sets, so a wrong scale, a wrong sensitivity or a
wrong draw shows as a bound above the claim. Whether the bound holds does not
depend on the stated law being the true one: only how large it gets does. The
ratio is that of the continuous law, which the lattice hardly changes.
"""

import math

import numpy as np
from scipy import special

from keras_fm.kernel import checks, noise_mechanisms
from keras_fm.kernel import mechanisms as mechanisms_lib
from keras_fm.kernel.reads import exact_draws
from keras_fm.lab.auditing import bounds

_WITH_LAW = (
    noise_mechanisms.GaussianNoise,
    noise_mechanisms.LaplaceMechanism,
)
# Values of noise that are held in memory at once.
_CHUNK = 2**20
# One run in so many helps to choose the threshold and is not counted.
_PILOT = 8
# A threshold is tried only if it keeps at least this many pilot runs.
_FEWEST_GUESSES = 20
_BEYOND_DOUBT = 1 - 1e-6
# Decimals of a likelihood ratio. Its own rounding depends on where the
# statistics lie, and bounded ratios (Laplace) would let the threshold sort
# runs by it.
_DECIMALS = 9


def record_difference(objective, mechanism, record, other=None):
    """What the released vector changes by between two neighbours.

    Args:
        objective: of a release (see `keras_fm.kernel.release.release`).
        mechanism: its mechanism, whose norm fixes the coordinates.
        record: a batch of one record, as the objective accumulates it, such
            as `(features, labels)`: `(1, m)` and `(1,)`.
        other: the record in its place in D' (replace_one), or `None` if it
            is absent there (add_remove).

    Returns:
        `(size,)` array: statistics of D minus those of D'.

    Raises:
        ValueError: if a record is invalid, or both are the same to the
            objective.
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

    Each run flips a fair coin between D and D', perturbs the one it shows
    and guesses the coin by the sign of the likelihood ratio, or
    abstains where it is small (`bounds.coin_run_bound`). An eighth of the
    runs chooses the threshold, the others give the bound. Which relation is
    audited is the one that `difference` comes from.

    With delta = 0 and all of the sensitivity in one coordinate the bound is
    epsilon but for sampling error. Noise with delta > 0 leaks most in a tail
    of probability near delta, which no affordable number of runs reaches:
    2,000,000 runs of a Gaussian at delta = 1e-5 show about 0.8 epsilon.

    Args:
        mechanism: a `GaussianMechanism` or `LaplaceMechanism`.
        difference: `(size,)`, from `record_difference`, or any vector. It
            is not compared with the stated sensitivity: a longer one shows
            what a sensitivity that is too small costs.
        noise: a `NoiseSource`; its draws are independent of any release.
        delta: float in [0, 1), the one that is claimed.
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

    One coin a run decides what all of them show; the score is the sum of
    their likelihood ratios, so this is the best test of the whole. Of reads
    of samples (`SampledGaussianMechanism`) each of the `steps` sums is
    perturbed, with the record in it by the draw that a fit makes.

    Args:
        releases: list of `(mechanism, difference)`. A later difference may
            depend on earlier releases only through what is the same for all
            of them: of Gaussian noise its length.
        noise, delta, runs, confidence: see `release_epsilon`; what is
            claimed is the epsilon of all of them composed.

    Returns:
        A `CoinRunBound`.

    Raises:
        ValueError: if a value is outside its range.

    Example: two reads that cost 1 together show more than either.

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
    each: an eighth of them chooses the threshold, the others give the bound.

    Args:
        ratios: `(runs,)`, log of the probability of a run's output under
            coin 1 over that under coin 0. If they are another score the
            bound holds, and is smaller.
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
    """What one mechanism's releases say of each run's coin, `(runs,)`."""
    # Where neighbours are the same, noise says nothing.
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
    """Where the bound on `runs` more runs is likely to be best.

    A log-likelihood ratio l is guessed right with probability 1 / (1 +
    exp(-|l|)), which tells more of a rare tail than few coins do. Where the
    coins show more than this law allows, beyond doubt, the noise is another
    one, and they decide. Shares 2^(-k/2) of the runs are tried.
    """
    order = np.argsort(-np.abs(ratios), kind="stable")
    size = np.abs(ratios)[order]
    hits = ((ratios > 0) == coins)[order]
    steps = math.floor(2 * math.log2(max(1.0, len(size) / _FEWEST_GUESSES)))
    kept = np.ceil(len(size) * 2.0 ** (-np.arange(steps + 1) / 2)).astype(int)
    thresholds = size[kept - 1]
    # All of an atom of the ratio passes or none.
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
