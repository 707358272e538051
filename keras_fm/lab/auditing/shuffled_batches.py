"""Lower bounds on epsilon for noisy sums over shuffled batches.

Accountants of Poisson samples are often used for batches of a fixed size from
a shuffled data set. This bound needs no training and no attack: it compares
the exact probabilities of one event under two neighbouring data sets.
"""

import dataclasses
import math

import numpy as np
from scipy import special

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks

# The largest threshold tried, in noise standard deviations.
_FARTHEST = 14.0
_THRESHOLDS = 4000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledBound:
    """A lower bound on epsilon and the event that proves it.

    Attributes:
        epsilon: the bound, at `delta`.
        delta: of the statement.
        threshold: the event: along the common direction, some batch's noisy sum
            exceeds that of a full batch of like records by more than this, in
            units of the clipping threshold. For `last_weights_epsilon`: the sum
            weighted by the rates exceeds it.
        probability, without: probability of the event with and without the
            record.
    """

    epsilon: float
    delta: float
    threshold: float
    probability: float
    without: float


def shuffled_batches_epsilon(batches, noise_multiplier, delta, *, epochs=1):
    """Lower bound on epsilon (add_remove) of sums over shuffled batches.

    Every epoch shuffles n records into T batches of a fixed size of at least
    2; each batch gives the sum of its records' vectors, each of norm at most
    1, plus Gaussian noise. Of n records all but one have the vector -u, and
    one has u. A batch without it sums to -b u, the batch with it to
    (2 - b) u, and it is another one in every epoch. Without that record all
    batches are full but the last, which sums to (1 - b) u. So

        p = 1 - (F(c)^(T-1) F(c - 2 / s))^E,
        q = 1 - (F(c)^(T-1) F(c - 1 / s))^E

    are the probabilities that a sum exceeds -b by more than c s, with s the
    noise multiplier, E epochs and F the normal distribution; epsilon is at
    least log((p - delta) / q) for every c. docs/proofs/audit.md.

    With Poisson samples the random choice of a batch would hide the record.
    Here it does not: the other batches are known to be full.

    Args:
        batches: int T >= 1, batches of an epoch.
        noise_multiplier: float > 0, standard deviation of the noise over the
            norm that records are clipped to.
        delta: float in [0, 1), of the statement.
        epochs: int E >= 1.

    Returns:
        A `ShuffledBound`; its epsilon is 0 if this event proves nothing.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> bound = shuffled_batches_epsilon(100, 1.476, 1e-5)
    >>> round(bound.epsilon, 1)
    1.5

    Source: the pair is that of Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha
    and Zhang, "How private are DP-SGD implementations?", ICML 2024.
    """
    batches = checks.count("batches", batches)
    epochs = checks.count("epochs", epochs)
    noise = checks.norm_bound("noise_multiplier", noise_multiplier)
    delta = budget_lib.PrivacyBudget(1.0, delta).delta
    c = np.linspace(0.0, _FARTHEST, _THRESHOLDS)
    others = (batches - 1) * special.log_ndtr(c)
    p = -np.expm1(epochs * (others + special.log_ndtr(c - 2 / noise)))
    q = -np.expm1(epochs * (others + special.log_ndtr(c - 1 / noise)))
    return _best(p, q, c * noise, delta)


def last_weights_epsilon(rates, noise_multiplier, delta):
    """Lower bound on epsilon (add_remove) of the last weights alone.

    Only the weights after an epoch of plain descent on the sums of
    `shuffled_batches_epsilon` are released. With rates a_1, ..., a_T they hold
    sum_t a_t S_t, whose noise has standard deviation s |a|. The one record is
    in each batch with probability 1 / T, so for the same pair of data sets

        p = mean_t (1 - F(c - 2 a_t / (s |a|))),
        q = 1 - F(c - a_T / (s |a|))

    are the probabilities that they exceed what like records give by more
    than c s |a|. docs/proofs/audit.md.

    If the rates fall fast, the last weights show one batch with the noise of
    one step. With equal rates they reveal little.

    Args:
        rates: sequence of T >= 1 floats >= 0, not all 0: learning rates of
            the epoch's steps. Further epochs at rate 0 change nothing.
        noise_multiplier: float > 0, standard deviation of the noise over the
            norm that records are clipped to.
        delta: float in [0, 1), of the statement.

    Returns:
        A `ShuffledBound`; its epsilon is 0 if this event proves nothing.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> bound = last_weights_epsilon([1.0] + [0.0] * 59, 1.006, 1e-5)
    >>> round(bound.epsilon, 1)
    3.8
    """
    rates = np.asarray(rates, np.float64)
    if rates.ndim != 1 or not np.all(np.isfinite(rates) & (rates >= 0)):
        raise ValueError(
            "`rates` must be a sequence of finite numbers >= 0. Received: "
            f"rates={rates}"
        )
    if not rates.any():
        raise ValueError("`rates` must not all be 0.")
    noise = checks.norm_bound("noise_multiplier", noise_multiplier)
    delta = budget_lib.PrivacyBudget(1.0, delta).delta
    spread = noise * np.linalg.norm(rates)
    c = np.linspace(0.0, _FARTHEST, _THRESHOLDS)
    p = sum(special.ndtr(2 * rate / spread - c) for rate in rates) / len(rates)
    q = special.ndtr(rates[-1] / spread - c)
    return _best(p, q, c * spread, delta)


def _best(p, q, thresholds, delta):
    """The bound of the best event."""
    # A q of the size of its rounding error proves nothing.
    told = np.maximum(p - delta, 0) / np.maximum(q, 1e-12)
    best = int(np.argmax(told))
    return ShuffledBound(
        epsilon=max(0.0, math.log(max(told[best], 1e-300))),
        delta=delta,
        threshold=float(thresholds[best]),
        probability=float(p[best]),
        without=float(q[best]),
    )
