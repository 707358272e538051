"""The training of examples/audit_a_script.py, with a fault each.

Used by test_broken_scripts.py and benchmarks/audit.py.
"""

import math
import sys
from pathlib import Path

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.mechanisms import gaussian_multiplier
from keras_fm.lab.auditing.training_audit import audit

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

import audit_a_script as script

CLAIM = PrivacyBudget(2.0, 1e-5)
NOISE = gaussian_multiplier(CLAIM.epsilon, CLAIM.delta)


def clip_forgotten(x, y):
    return script.descend(x, y, NOISE, clip=math.inf)


def charged_for_one_step(x, y):
    return script.descend(x, y, NOISE / math.sqrt(script.STEPS))


def batch_normalised(x, y):
    """Every record's gradient is clipped, and depends on all the others."""
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-3)
    return script.descend(x.astype("float32"), y, NOISE)


def moved(model, x, labels):
    """A score that sees what a canary does to the other records: with its
    feature there all of them have one, and most have one label."""
    del labels
    return model.predict(x, batch_size=4096, verbose=0)[:, 0]


FITS = {
    "none": (script.fit, "loss"),
    "noise halved": (script.half_the_noise, "loss"),
    "clip forgotten": (clip_forgotten, "loss"),
    "charged for one step of ten": (charged_for_one_step, "loss"),
    "batch normalisation": (batch_normalised, moved),
}


def report(name, seed, canaries=2000):
    """The `AuditReport` of one training."""
    fit, score = FITS[name]
    return audit(
        fit,
        script.data(),
        CLAIM,
        control=script.control,
        neighbours="add_remove",
        classes=2,
        design="include",
        kind="unit",
        bound=1.0,
        canaries=canaries,
        score=score,
        curve="gaussian",
        seeds=seed,
        progress=False,
    )
