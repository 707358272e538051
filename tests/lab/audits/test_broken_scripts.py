"""A user's training with a fault each, seen from its model alone.

Noise is the operating system's, as in a user's fit. Of 20 audits each
(docs/results/audit.md) the faults asked for here were caught every time, by
bounds far above the claim: 3.0 and more, of 2. A sound training passes 2 in
at most 5 % of audits, and in simulations not in one of 1,000: its bounds are
near 0.8.
"""

import broken_scripts
import pytest

from keras_fm.lab.auditing.report import VIOLATED

pytestmark = [pytest.mark.once, pytest.mark.full]

SURE = [n for n in broken_scripts.FITS if n not in ("none", "noise halved")]


@pytest.mark.parametrize("fault", SURE)
def test_faults_are_caught(fault):
    report = broken_scripts.report(fault, 0)
    assert report.verdict == VIOLATED


def test_the_same_without_a_fault_is_not_refuted_by_a_strong_attack():
    report = broken_scripts.report("none", 0)
    assert report.bound < 2.0 < 8 < report.control_bound
