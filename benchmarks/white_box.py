"""Proven forms from inside: what the best test sees of a whole fit.

    python benchmarks/white_box.py
    python benchmarks/white_box.py --part=rounds
    python benchmarks/white_box.py --part=steps
    python benchmarks/white_box.py --part=fits
    python benchmarks/white_box.py --part=faults
    python benchmarks/white_box.py --part=dp_sgd
    KERAS_BACKEND=jax python benchmarks/white_box.py --part=dp_sgd

`rounds`: all rounds of `Rounds`, with full batches, owners and Poisson samples;
every round of a fit is compared (keras_fm/lab/audits/whole_rounds.py).

`steps`: all steps of a `DPMAC` on Poisson samples, read off its weights
(keras_fm/lab/audits/whole_steps.py).

`fits`: fits of whole models under `PrivateModel`, on a data set and on its
neighbour with the same past: of some pairs the one that is farthest apart in
all releases together, and the noise of the fit's own mechanisms drawn on it
(keras_fm/lab/audits/whole_fits.py).

`faults`: rounds with a fault each (tests/lab/audits/broken_rounds.py), and
without one, at claimed (1, 0.01): in how many of 20 audits of 8,192 canaries
the bound was above the claim.

`dp_sgd`: all steps of DP-SGD by the library that goes with the backend
(keras_fm/lab/audits/whole_dp_sgd.py).

Lower bounds with 99% confidence over the epsilon of the fit's ledger. Results
are written after every row; a second call goes on where one stopped.
"""

import sys
import time
from pathlib import Path

import keras
from absl import app, flags
from results_file import ResultsFile

import keras_fm as fm
from keras_fm.kernel.access.gradient_rounds import GradientRounds
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.lab.audits import (
    whole_dp_sgd,
    whole_models,
    whole_rounds,
    whole_steps,
)

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_PARTS = flags.DEFINE_list(
    "part", ["rounds", "steps", "fits", "faults", "dp_sgd"], ""
)
_RUNS = flags.DEFINE_integer("runs", 2_000_000, "Of each of the fits.")
TESTS = Path(__file__).resolve().parents[1] / "tests"
DELTA = 1e-5
# Rounds, expected part of the records in each, relation, records of an owner,
# epsilon, delta, canaries. Fewer show enough where delta is larger.
ROUNDS = (
    (10, None, "add_remove", None, 1.0, DELTA, 2_000_000),
    (10, None, "replace_one", None, 1.0, DELTA, 2_000_000),
    (80, None, "add_remove", None, 2.0, 1e-3, 300_000),
    (2, None, "add_remove", 3, 2.0, 1e-3, 300_000),
    (2, None, "replace_one", 3, 2.0, 1e-3, 300_000),
    (20, 51, "add_remove", None, 2.0, 1e-3, 500_000),
)
# Steps, sampling rate, epsilon, delta, canaries.
STEPS = ((10, 0.25, 2.0, 1e-3, 300_000),)
# Steps, sampling rate or all, epsilon, delta, canaries.
DP_SGD = (
    (10, None, 2.0, 1e-3, 150_000),
    (10, 0.25, 2.0, 1e-3, 150_000),
)


def rounds():
    rows = _rows("rounds", "batch", "neighbours_of", "owners")
    for count, batch, neighbours, owned, epsilon, delta, runs in ROUNDS:
        key = (count, batch or "all", neighbours, owned or 1)
        if rows.has(*key):
            continue
        begin = time.perf_counter()
        found = whole_rounds.audit_rounds(
            GradientRounds,
            fm.Rounds(
                rounds=count,
                batch_size=batch,
                loss="cross_entropy",
                whitening=0,
            ),
            fm.PrivacyBudget(epsilon, delta),
            neighbours=neighbours,
            noise=NoiseSource(),
            records_of_owner=owned,
            runs=runs,
        )
        _add(rows, key, found, begin, reach=found.reach)


def steps():
    rows = _rows("steps", "rate")
    for count, rate, epsilon, delta, runs in STEPS:
        if rows.has(count, rate):
            continue
        begin = time.perf_counter()
        found = whole_steps.audit_steps(
            fm.PrivacyBudget(epsilon, delta),
            steps=count,
            sampling_rate=rate,
            runs=runs,
        )
        _add(rows, (count, rate), found, begin, reach=found.reach)


def fits():
    rows = _rows("model", "neighbours_of", "unit")
    budget = fm.PrivacyBudget(1.0, DELTA)
    for name in whole_models.MODELS:
        units = {"record": {}}
        if name in whole_models.OWNED:
            units["owner"] = {"owners": True}
        if name in whole_models.REACHING:
            units["reach 1"] = {"reach": 1}
        for neighbours in ("add_remove", "replace_one"):
            for unit, given in units.items():
                if rows.has(name, neighbours, unit):
                    continue
                begin = time.perf_counter()
                worst = whole_models.worst(
                    name, budget, neighbours=neighbours, **given
                )
                found = worst.audit(noise=NoiseSource(), runs=_RUNS.value)
                _add(
                    rows,
                    (name, neighbours, unit),
                    found,
                    begin,
                    reaches=worst.reaches,
                    same=worst.same,
                )


def dp_sgd():
    library = {
        "tensorflow": fm.baselines.DPSGDClassifier,
        "jax": fm.baselines.JaxDPSGDClassifier,
    }[keras.backend.backend()]
    name = library._library
    rows = _rows("dp_sgd", "steps", "rate")
    for count, rate, epsilon, delta, runs in DP_SGD:
        if rows.has(name, count, rate or 1):
            continue
        begin = time.perf_counter()
        found = whole_dp_sgd.audit_dp_sgd(
            library,
            fm.PrivacyBudget(epsilon, delta),
            steps=count,
            sampling_rate=rate,
            runs=runs,
            lanes=4096,
        )
        key = (name, count, rate or 1)
        _add(rows, key, found, begin, reach=found.reach)


def faults():
    sys.path.insert(0, str(TESTS / "lab" / "audits"))
    import broken_rounds

    rows = ResultsFile(_OUT.value, "white_box_faults", ("fault",))
    whole = {
        (rounds, attack): None
        for _, rounds, attack in broken_rounds.FAULTS.values()
    }
    audits = {
        name: lambda seed, name=name: broken_rounds.with_fault(name, seed)
        for name in broken_rounds.FAULTS
    }
    for rounds, attack in whole:
        of = rounds.batch_size or "all"
        audits[f"none ({attack}; {rounds.rounds} rounds of {of})"] = (
            lambda seed, r=rounds, a=attack: broken_rounds.bound(r, a, seed)
        )
    for name, audit in audits.items():
        if not rows.has(name):
            found = [audit(seed) for seed in range(20)]
            _add_caught(rows, (name,), found, broken_rounds.BUDGET)


def _add_caught(rows, key, found, budget):
    """A row of bounds of one fault, and how many are above the claim."""
    caught = sum(bound > budget.epsilon for bound in found)
    rows.add(key, None, least=min(found), most=max(found), caught=caught)
    rows.finish_table(
        f"{' | '.join(rows.keys)} | caught | least bound | largest",
        lambda row: (
            *(row[name] for name in (*rows.keys, "caught")),
            *(f"{row[name]:.2f}" for name in ("least", "most")),
        ),
    )


def _rows(*names):
    return ResultsFile(_OUT.value, f"white_box_{names[0]}", names)


def _add(rows, key, found, begin, **more):
    rows.add(
        key,
        None,
        epsilon=found.epsilon,
        claimed_delta=found.delta,
        bound=found.bound.epsilon,
        share=found.share,
        runs=found.bound.runs,
        seconds=time.perf_counter() - begin,
        **more,
    )
    rows.finish_table(
        f"{' | '.join(rows.keys)} | epsilon | delta | lower bound | "
        "over epsilon | reach",
        lambda row: (
            *(row[name] for name in rows.keys),
            f"{row['epsilon']:.3g}",
            f"{row['claimed_delta']:g}",
            f"{row['bound']:.3f}",
            f"{row['share']:.2f}",
            " ".join(f"{r:.2f}" for r in row.get("reaches") or [row["reach"]]),
        ),
    )


def main(argv):
    del argv
    for part in _PARTS.value:
        {
            "rounds": rounds,
            "steps": steps,
            "fits": fits,
            "faults": faults,
            "dp_sgd": dp_sgd,
        }[part]()


if __name__ == "__main__":
    app.run(main)
