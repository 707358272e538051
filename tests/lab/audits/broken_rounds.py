"""Reads of `Rounds` with a fault each, and setups whose accountant is told
something else: what a white-box audit must catch.

Used by test_whole_reads.py and benchmarks/white_box.py.
"""

import contextlib
from unittest import mock

import numpy as np

from keras_fm.heads import gradient_query
from keras_fm.heads.rounds import Rounds
from keras_fm.kernel import noise_mechanisms
from keras_fm.kernel.access.gradient_rounds import GradientRounds
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.planning import sampled_noise
from keras_fm.lab.audits import whole_rounds

LANES = 512
PERTURB = noise_mechanisms.Mechanism.perturb
MULTIPLIER = sampled_noise.noise_multiplier


def _perturb(function):
    return mock.patch.object(noise_mechanisms.Mechanism, "perturb", function)


@contextlib.contextmanager
def halved_noise():
    def half(self, exact, source, **kwargs):
        noise = PERTURB(self, np.zeros_like(exact), source, **kwargs)
        return exact + noise / 2

    with _perturb(half):
        yield


@contextlib.contextmanager
def same_noise_in_every_round():
    drawn = {}

    def perturb(self, exact, source, **kwargs):
        if id(self) not in drawn or drawn[id(self)][1] == self.steps:
            fresh = PERTURB(self, np.zeros_like(exact), source, **kwargs)
            drawn[id(self)] = [fresh, 0]
        drawn[id(self)][1] += 1
        return exact + drawn[id(self)][0]

    with _perturb(perturb):
        yield


@contextlib.contextmanager
def no_clipping():
    def unclipped(self, z, factors, targets, lengths):
        del lengths
        return self._grid.cut(self._residuals(z * factors, targets.T))

    with mock.patch.object(gradient_query.GradientQuery, "_scaled", unclipped):
        yield


def _told(**change):
    """The accountant calibrates for other rounds than there are."""

    @contextlib.contextmanager
    def fault():
        def multiplier(rounds, budget, **kwargs):
            rate, steps = rounds
            return MULTIPLIER(
                (change.get("rate", rate), change.get("steps", steps)),
                budget,
                **kwargs,
            )

        with mock.patch.object(sampled_noise, "noise_multiplier", multiplier):
            # The ledger is told what the accountant was.
            with mock.patch.multiple(
                whole_rounds.Ledger,
                check=lambda self, entries: None,
                charge=lambda self, entries: None,
            ):
                yield

    return fault


_PLAIN: dict = {"loss": "cross_entropy", "whitening": 0}
FULL = Rounds(rounds=10, **_PLAIN)
SAMPLED = Rounds(rounds=10, batch_size=LANES // 2, **_PLAIN)
# Gradients below the clip, which change from read to read.
LOOSE = Rounds(rounds=4, clip=1.0, **_PLAIN)
# Name: the fault, the rounds, the attack.
FAULTS = {
    "noise halved": (halved_noise, FULL, "likelihood"),
    "clip forgotten": (no_clipping, FULL, "likelihood"),
    "one noise for all rounds": (
        same_noise_in_every_round,
        LOOSE,
        "repeated",
    ),
    "noise redrawn, charged once": (_told(steps=1), FULL, "likelihood"),
    "a smaller rate for the accountant": (
        _told(rate=0.05),
        SAMPLED,
        "likelihood",
    ),
}
BUDGET = PrivacyBudget(1.0, 1e-2)


def bound(rounds, attack, seed, runs=8192):
    """Lower bound of one audit; `BUDGET` is what is claimed."""
    return whole_rounds.audit_rounds(
        GradientRounds,
        rounds,
        BUDGET,
        neighbours="add_remove",
        noise=NoiseSource(reproducible_noise=seed),
        runs=runs,
        lanes=LANES,
        attack=attack,
    ).bound.epsilon


def with_fault(name, seed, runs=8192):
    """`bound` of rounds with one of `FAULTS`."""
    fault, rounds, attack = FAULTS[name]
    with fault():
        return bound(rounds, attack, seed, runs)
