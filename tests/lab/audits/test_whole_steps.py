"""All steps of a `DPMAC`, read off its weights, as one release.

Seeds are fixed: coins, samples and noise.
"""

import pytest

from keras_fm import PrivacyBudget
from keras_fm.lab.audits.whole_steps import audit_steps
from keras_fm.per_example import sum_noise

pytestmark = [pytest.mark.once, pytest.mark.full]

BUDGET = PrivacyBudget(2.0, 1e-2)


def bound():
    return audit_steps(
        BUDGET, steps=4, sampling_rate=0.5, runs=4096, lanes=1024, seed=1
    )


def test_the_whole_comes_near_epsilon_and_stays_below():
    found = bound()
    assert found.epsilon == pytest.approx(2.0, rel=2e-2)
    assert 0.2 < found.share <= 1
    assert 0.99 < found.reach <= 1 + 1e-6


def test_a_sixth_of_the_noise_is_caught(monkeypatch):
    drawn = sum_noise._normal
    monkeypatch.setattr(
        sum_noise, "_normal", lambda *given: [v / 6 for v in drawn(*given)]
    )
    assert bound().share > 1
