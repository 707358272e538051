"""Many small releases of one linear layer, and the descent they drive.

A single release (`keras_fm.queries.CrossEntropyQuery`) is paid for once and
used for ever. With R rounds every round is paid for. But a round uses only the
errors of the current weights: records that are already classified correctly
contribute nothing.
"""

import dataclasses
import math
from functools import partial

import numpy as np

from keras_fm.heads.gradient_query import BY_FIRST_ROUND, LOSSES
from keras_fm.kernel import checks

# Standard deviation of a weight from the noise of all rounds. Accuracy changes
# little within a factor of two. Chosen on held-out MNIST images.
_WEIGHT_NOISE = {
    "cross_entropy": 1.0,
    BY_FIRST_ROUND: 1.0,
    "squared_hinge": 0.5,
    "crammer_singer": 0.2,
    "squared_error": 0.2,
}
# Losses whose minimiser is a probability or a mean.
WHITENED = ("cross_entropy", "squared_error")
# For `BY_FIRST_ROUND`. Classes are well apart if the squared length of the mean
# coefficient, over the clip's square, is above the first, and above the second
# over m.
_APART, _APART_OF_ALL = 0.0075, 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounds:
    """Settings of an output layer that learns in R rounds.

    Args:
        rounds: int R >= 1, the number of rounds. Each is one gradient step
            with a noisy sum over the records.
        batch_size: `None`: every round uses all records. Or the expected
            size of a Poisson sample: each record joins each round with
            probability `batch_size / n`.
        learning_rate: float > 0, for the mean gradient (the noisy sum over
            the expected number of records). `None` is a rule from public
            numbers: the noise of all rounds gives every weight a standard
            deviation of 0.2 (`"crammer_singer"`), 0.5 (`"squared_hinge"`) or
            1 (`"cross_entropy"`). With `whitening` it gives logits one of
            about 1.2, and the rate never exceeds what the released curvature
            allows.
        momentum: float in [0, 1).
        clip: float > 0, L2 threshold on one record's gradient. `None` is 0.1.
            With `whitening` it is a rule from the budget and the numbers of
            records, features and outputs: large enough not to bias
            probabilities and means, if the noise allows it.
        loss: see `keras_fm.queries.GradientQuery`. `None` follows from what
            the output layer predicts: `"by_first_round"` for classes,
            `"squared_hinge"` for several labels, `"squared_error"` for
            numbers. `"by_first_round"` begins with the cross-entropy at zero
            weights. If its noisy sum shows classes well apart (digits), it
            goes on with `"crammer_singer"`, else (photographs) with
            `"cross_entropy"`. This choice costs no budget.
        averaging: float in [0, 1). The layer keeps the mean of the weights
            after the last `averaging * rounds` rounds (at least the last).
            `None` is 0.5 with `whitening`, else 0.
        whitening: float in [0, 1), a share of the budget. It first releases
            the second moment of the features, and the rounds then train on
            whitened features. `None` is 0.1 for losses whose minimiser is a
            probability or a mean (`"cross_entropy"`, `"squared_error"`), and
            0 for the others, which suit features that are already white.

    All settings are public: never choose them from private records.

    Raises:
        ValueError: if a field is outside its range.

    Example:

    >>> Rounds(rounds=40, learning_rate=64.0, clip=0.1).batch_size is None
    True
    """

    rounds: int
    batch_size: int | None = None
    learning_rate: float | None = None
    momentum: float = 0.8
    clip: float | None = None
    loss: str | None = None
    averaging: float | None = None
    whitening: float | None = None

    def __post_init__(self):
        share = partial(checks.number, at_least=0, below=1)
        checks.fields(
            self,
            rounds=checks.count,
            batch_size=partial(checks.optional, checks.count),
            learning_rate=partial(checks.optional, checks.norm_bound),
            clip=partial(checks.optional, checks.norm_bound),
            momentum=share,
            averaging=partial(checks.optional, share),
            whitening=partial(checks.optional, share),
            loss=partial(
                checks.optional, partial(checks.one_of, choices=LOSSES)
            ),
        )
        # The output layer sets the loss later.
        if self.loss is None:
            return
        whitening = 0.1 if self.loss in WHITENED else 0.0
        if self.whitening is None:
            object.__setattr__(self, "whitening", whitening)
        elif self.whitening and not whitening:
            raise ValueError(
                "`whitening` needs a loss whose curvature is known, one of "
                f"{', '.join(map(repr, WHITENED))}. Received: "
                f"whitening={self.whitening}, loss={self.loss!r}"
            )
        if self.averaging is None:
            averaging = 0.5 if self.whitening else 0.0
            object.__setattr__(self, "averaging", averaging)
        if self.clip is None and not self.whitening:
            object.__setattr__(self, "clip", 0.1)

    @classmethod
    def of(cls, value):
        """A `Rounds` from a `Rounds`, its config, or a number of rounds."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, dict):
            return cls(**value)
        return cls(rounds=value)

    def of_losses(self, losses):
        """These rounds with a loss that fits the output layer.

        Args:
            losses: the losses that fit the layer's targets, default first.

        Raises:
            ValueError: if `loss` is set and is not one of these.
        """
        if self.loss is None:
            return dataclasses.replace(self, loss=losses[0])
        if self.loss not in losses:
            raise ValueError(
                "The loss of `rounds` must be one of "
                f"{', '.join(map(repr, losses))} for what this layer "
                f"predicts. Received: rounds={self}"
            )
        return self

    def config(self):
        return dataclasses.asdict(self)

    def rate(self, stddev, expected, steepest=None, weight_noise=None):
        """The learning rate: `learning_rate`, or the rule for `None`.

        In the end the noise of a round moves a weight by
        `rate / (1 - momentum)` times itself. R rounds add up to a standard
        deviation of `rate / (1 - momentum) * sqrt(R) * stddev / expected`.

        Args:
            stddev: standard deviation of the noise on a sum, public.
            expected: see `descend`.
            steepest: the largest curvature of one record's loss, if one
                bound holds at all weights. The rate is at most one over it:
                a larger one would oscillate about the minimum.
            weight_noise: `None`, or the standard deviation that noise may
                give a weight, if the features determine it.
        """
        if self.learning_rate is not None:
            return self.learning_rate
        added = math.sqrt(self.rounds) * stddev / (1 - self.momentum)
        wanted = weight_noise
        if wanted is None:
            wanted = _WEIGHT_NOISE[self.loss or "crammer_singer"]
        rate = wanted * expected / added
        return rate if steepest is None else min(rate, 1 / steepest)

    def descend(self, read, start, expected, stddev=None, **known):
        """Gradient descent with momentum on noisy gradients.

        Args:
            read: function from weights `(m, M)` to a noisy sum of
                gradients `(m, M)`, called `rounds` times. If it has a method
                `choose`, that gets the loss after the first call.
            start: `(m, M)`, public.
            expected: the expected number of records in a round; sums are
                divided by it.
            stddev: standard deviation of the noise on a sum, needed with
                `learning_rate=None`, see `rate`.
            **known: `steepest` and `weight_noise`, see `rate`.

        Returns:
            `(m, M)` weights: post-processing of the rounds alone.
        """
        weights = np.array(start, dtype=np.float64)
        velocity = np.zeros_like(weights)
        rate = self.rate(stddev, expected, **known)
        choose = getattr(read, "choose", None)
        if self.loss != BY_FIRST_ROUND or stddev is None:
            choose = None
        # In floating point 0.07 * 100 is a little more than 7.
        kept = max(1, math.ceil((self.averaging or 0) * self.rounds - 1e-9))
        mean = np.zeros_like(weights)
        for step in range(self.rounds):
            noisy = read(weights)
            if choose is not None and step == 0:
                loss = self._chosen(noisy, expected, stddev)
                choose(loss)
                chosen = dataclasses.replace(self, loss=loss)
                rate = chosen.rate(stddev, expected, **known)
            velocity = self.momentum * velocity + noisy / expected
            weights = weights - rate * velocity
            if step >= self.rounds - kept:
                mean += weights / kept
        return mean

    def _chosen(self, noisy, expected, stddev):
        """The loss of the rounds after the first. It depends on the first noisy
        sum and public numbers only."""
        square = np.sum(np.square(noisy)) - noisy.size * stddev**2
        share = square / (expected * self.clip) ** 2
        apart = share > _APART and share * len(noisy) > _APART_OF_ALL
        return "crammer_singer" if apart else "cross_entropy"
