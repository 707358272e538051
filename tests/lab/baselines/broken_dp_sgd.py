"""DP-SGD of a library with a fault each: what a white-box audit must catch.

Used by test_whole_dp_sgd.py.
"""

import dataclasses
import math

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.lab.audits.whole_dp_sgd import audit_dp_sgd

BUDGET = PrivacyBudget(1.0, 1e-2)
STEPS = 9


def halved_noise(config, plan):
    return config, _noise(plan, 1 / 2)


def no_clip(config, plan):
    """A clip that nothing reaches, and the noise of the one that is stated."""
    clip = dataclasses.replace(config, l2_norm_clip=10 * config.l2_norm_clip)
    return clip, _noise(plan, 1 / 10)


def charged_for_one_step(config, plan):
    return config, _noise(plan, 1 / math.sqrt(plan.steps))


FAULTS = {
    "noise halved": halved_noise,
    "clip forgotten": no_clip,
    "charged for one step": charged_for_one_step,
}


def _noise(plan, factor):
    return dataclasses.replace(
        plan, noise_multiplier=factor * plan.noise_multiplier
    )


def with_fault(library, name):
    """The library's class, which does something else than it states."""

    class Broken(library):
        def _train(self, parts, x, y, plan, batches):
            stated = self.config
            self.config, other = FAULTS[name](stated, plan)
            super()._train(parts, x, y, other, batches)
            self.config, self.plan = stated, plan

    return Broken


def bound(library, seed, runs=8192, lanes=2048):
    """Lower bound of one audit; `BUDGET` is what is claimed."""
    return audit_dp_sgd(
        library, BUDGET, steps=STEPS, runs=runs, lanes=lanes, seed=seed
    )
