"""What noisy sums over shuffled batches reveal at least.

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

# Of the thresholds that are tried, in noise standard deviations.
_FARTHEST = 14.0
_THRESHOLDS = 4000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledBound:
    """A lower bound on epsilon and the event that shows it.

    Attributes:
        epsilon: the bound, at `delta`.
        delta: of the statement.
        threshold: the event is that the part of some batch's noisy sum along
            the common direction exceeds that of a full batch of like
            records by more than this, in units of the clipping threshold.
        probability, without: of the event with and without the record.
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

    A record is not hidden by the choice of its batch, which Poisson samples
    would do: the other batches are known to be full.

    Args:
        batches: int T >= 1, batches of an epoch.
        noise_multiplier: float > 0, standard deviation of the noise over the
            norm that records are clipped to.
        delta: float in [0, 1), of the statement.
        epochs: int E >= 1.

    Returns:
        A `ShuffledBound`. 0 if this event shows nothing.

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
    # Where q is but the rounding of its formula it says nothing.
    told = np.maximum(p - delta, 0) / np.maximum(q, 1e-12)
    best = int(np.argmax(told))
    return ShuffledBound(
        epsilon=max(0.0, math.log(max(told[best], 1e-300))),
        delta=delta,
        threshold=float(c[best] * noise),
        probability=float(p[best]),
        without=float(q[best]),
    )
