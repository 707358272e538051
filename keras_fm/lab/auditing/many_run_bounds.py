"""A lower bound on epsilon from many runs on D and many on D'."""

import dataclasses

import numpy as np

from keras_fm.kernel import checks
from keras_fm.lab.auditing.bounds import check_finite, lower_rate, odds_epsilon


@dataclasses.dataclass(frozen=True, kw_only=True)
class ManyRunBound:
    """The lower bound of a test over runs on D and runs on D'.

    Attributes:
        epsilon: the lower bound, 0 if nothing was shown.
        ceiling: the bound if the test had been right in all runs.
        threshold: the test decides for D if a score is above it.
        detections, runs: numbers of runs on D: those above the threshold, and
            all behind the bound.
        false_alarms, other_runs: the same for D'.
        delta, confidence: at which the bound holds.
    """

    epsilon: float
    ceiling: float
    threshold: float
    detections: int
    runs: int
    false_alarms: int
    other_runs: int
    delta: float
    confidence: float

    @property
    def at_ceiling(self):
        return self.detections == self.runs and self.false_alarms == 0


def many_run_epsilon(
    scores, other_scores, *, delta, confidence=0.95, threshold=None
):
    """Lower bound on epsilon from runs on D and runs on its neighbour D'.

    The test decides for D if a score is above the threshold. Let t be its true
    positive rate (D) and f its false positive rate (D'). Privacy means both t
    <= exp(epsilon) f + delta and 1 - f <= exp(epsilon) (1 - t) + delta, so
    either kind of error can give a bound. Two one-sided Clopper-Pearson bounds,
    t from below and f from above, share the error and serve both.

    Args:
        scores: `(n,)` finite floats, one for each run on D, in an order
            that does not depend on the scores.
        other_scores: `(n',)`, the same for D'.
        delta: float in [0, 1).
        confidence: float in [0.5, 1).
        threshold: float, chosen before these scores were seen. `None`: the
            first half of the runs on each side chooses it, and only the others
            give the bound.

    Returns:
        A `ManyRunBound`.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> bound = many_run_epsilon(
    ...     np.ones(500), np.zeros(500), delta=0.0, threshold=0.5
    ... )
    >>> round(bound.epsilon, 2), bound.at_ceiling
    (4.91, True)
    """
    scores = check_finite("scores", scores)
    other_scores = check_finite("other_scores", other_scores)
    checks.number("delta", delta, at_least=0, below=1)
    checks.number("confidence", confidence, at_least=0.5, below=1)
    if threshold is None:
        if min(len(scores), len(other_scores)) < 2:
            raise ValueError(
                "Half of the runs choose the threshold, so at least 2 on "
                "each side are needed. Give `threshold`, or more runs."
            )
        half, other_half = len(scores) // 2, len(other_scores) // 2
        threshold = _best_threshold(
            scores[:half], other_scores[:other_half], delta, confidence
        )
        scores, other_scores = scores[half:], other_scores[other_half:]
    else:
        checks.number("threshold", threshold, wanted="finite")
    detections = int((scores > threshold).sum())
    false_alarms = int((other_scores > threshold).sum())
    runs, other_runs = len(scores), len(other_scores)
    epsilon, ceiling = _rates_epsilon(
        np.array([detections, runs]),
        runs,
        np.array([false_alarms, 0]),
        other_runs,
        delta,
        confidence,
    )
    return ManyRunBound(
        epsilon=float(epsilon),
        ceiling=float(ceiling),
        threshold=float(threshold),
        detections=detections,
        runs=runs,
        false_alarms=false_alarms,
        other_runs=other_runs,
        delta=float(delta),
        confidence=float(confidence),
    )


def _best_threshold(scores, other_scores, delta, confidence):
    values = np.unique(np.concatenate([scores, other_scores]))
    picked = np.linspace(0, len(values) - 1, min(len(values), 256))
    thresholds = values[np.round(picked).astype(int)]

    def above(sample):
        sample = np.sort(sample)
        return len(sample) - np.searchsorted(sample, thresholds, "right")

    tried = _rates_epsilon(
        above(scores),
        len(scores),
        above(other_scores),
        len(other_scores),
        delta,
        confidence,
    )
    return thresholds[np.argmax(tried)]


def _rates_epsilon(detections, runs, false_alarms, others, delta, confidence):
    level = (1 - confidence) / 2
    true_low, miss_high = lower_rate(detections, runs, level)
    # The upper bound of f is one minus the lower bound of 1 - f.
    rest_low, false_high = lower_rate(others - false_alarms, others, level)
    return np.maximum(
        odds_epsilon(true_low - delta, false_high),
        odds_epsilon(rest_low - delta, miss_high),
    )
