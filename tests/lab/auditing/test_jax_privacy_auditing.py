"""The bounds of `keras_fm.auditing` beside those of jax-privacy.

Both follow the same papers; neither was written from the other. Scores are
built from counts, so that both see the same ones.
"""

import numpy as np
import pytest

from keras_fm.lab.auditing import (
    bounds,
    gaussian_bounds,
    many_run_bounds,
)

pytestmark = pytest.mark.backend

# On older releases there is no such module.
theirs = pytest.importorskip("jax_privacy.auditing")

# detections of `runs`, false alarms of `others`.
RATES = [
    (450, 500, 60, 500),
    (500, 500, 0, 400),
    (90, 300, 3, 500),
    (497, 500, 300, 500),  # shows more in the other direction
    (50, 100, 48, 100),  # shows nothing
]


def auditor(detections, runs, false_alarms, others):
    """Scores of 1 above the threshold 1/2 and of 0 below."""
    return theirs.CanaryScoreAuditor(
        np.r_[np.ones(detections), np.zeros(runs - detections)],
        np.r_[np.ones(false_alarms), np.zeros(others - false_alarms)],
    )


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.05])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
@pytest.mark.parametrize("rates", RATES)
def test_many_runs_with_a_given_threshold(rates, confidence, delta):
    detections, runs, false_alarms, others = rates
    found = many_run_bounds.many_run_epsilon(
        np.r_[np.ones(detections), np.zeros(runs - detections)],
        np.r_[np.ones(false_alarms), np.zeros(others - false_alarms)],
        delta=delta,
        confidence=confidence,
        threshold=0.5,
    )
    expected = auditor(*rates).epsilon_clopper_pearson(
        1 - confidence,
        delta,
        one_sided=False,
        threshold_strategy=theirs.Explicit(0.5),
    )
    assert found.epsilon == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
@pytest.mark.parametrize(
    "correct, guesses, candidates",
    [
        (90, 100, 1000),
        (100, 100, 100),
        (620, 1000, 1000),
        (55, 100, 1000),
        (1, 1, 50),
    ],
)
def test_one_run(correct, guesses, candidates, confidence, delta):
    found = bounds.one_run_epsilon(
        correct, guesses, candidates, delta=delta, confidence=confidence
    )
    # Their guesses are all "in": right ones are canaries that are in, and
    # the rest of the canaries, in or out, are abstentions.
    abstained = candidates - guesses
    rates = (
        correct,
        correct + abstained // 2,
        guesses - correct,
        guesses - correct + abstained - abstained // 2,
    )
    if rates[3] == 0:
        expected = theirs._epsilon_one_run(
            0.0, candidates, guesses, correct, 1 - confidence, delta
        )
    else:
        expected = auditor(*rates).epsilon_one_run(
            1 - confidence, delta, threshold_strategy=theirs.Explicit(0.5)
        )
    assert found == pytest.approx(float(expected), abs=3e-6)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
@pytest.mark.parametrize(
    "correct, guesses, candidates",
    [(90, 100, 1000), (100, 100, 100), (620, 1000, 1000), (55, 100, 1000)],
)
def test_one_run_of_a_gaussian_curve(
    correct, guesses, candidates, confidence, delta
):
    found = gaussian_bounds.one_run_gaussian_epsilon(
        correct, guesses, candidates, delta=delta, confidence=confidence
    )
    # Theirs begins its search above 0.
    expected = theirs._epsilon_one_run_fdp(
        1e-3, candidates, guesses, correct, 1 - confidence, delta
    )
    if expected == 1e-3:
        assert found < 1e-3
    else:
        assert found == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3])
def test_one_run_p_values(epsilon, delta):
    for correct, guesses, candidates in [
        (90, 100, 1000),
        (300, 500, 500),
        (25, 25, 400),
        (10, 40, 40),
    ]:
        found = bounds.one_run_p_value(
            correct, guesses, candidates, epsilon=epsilon, delta=delta
        )
        expected = theirs._one_run_p_value(
            candidates, guesses, correct, epsilon, delta
        )
        assert found == pytest.approx(float(expected), rel=1e-7)
