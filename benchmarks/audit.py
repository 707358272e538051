"""What is claimed against what an audit shows, form by form.

    KERAS_FM_DATA=... python benchmarks/audit.py
    python benchmarks/audit.py --part=releases

`trainings`: every published form at claimed epsilon 0.3, 0.5, 1 and 2 and
every proven form, three seeds each (a row each, and one over all of them at
95% with a Bonferroni correction), the control without privacy beside it:
1,000 canaries with swapped labels in all 1,437 digits, or in 2,500 images of
MNIST. The architectures are those of `keras_fm/audit_subjects.py`, fixed in
advance.

`releases`: white-box audits of the release of every objective at its worst of
a few records: lower bound over epsilon, 99% confidence.

Results are written after every row; a second call goes on where one stopped.
"""

import time

import numpy as np
from absl import app, flags, logging
from results_file import ResultsFile

from keras_fm import audit_subjects, objectives
from keras_fm.auditing import audit, audit_objective, worst_pair
from keras_fm.budget import PrivacyBudget
from keras_fm.mechanisms import NoiseSource
from keras_fm.release import calibrate

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "audit", "Name of the files.")
_PARTS = flags.DEFINE_list("part", ["trainings", "releases"], "")
_DATA = flags.DEFINE_string("data", "digits", "digits or mnist.")
_FORMS = flags.DEFINE_list("forms", [], "Some of the forms; default all.")
_EPSILONS = flags.DEFINE_list("epsilons", ["0.3", "0.5", "1", "2"], "")
_SEEDS = flags.DEFINE_integer("seeds", 3, "")
_CANARIES = flags.DEFINE_integer("canaries", None, "Default: see `DATA`.")
_EPOCHS = flags.DEFINE_integer("epochs", None, "Default: see `FORMS`.")
DELTA = 1e-5
# Records and canaries: as many as there are, or the first so many.
DATA = {"digits": (0, 718), "mnist": (2500, 1000)}
# 1,080 full batches show what 600 do not; a private step of a DPMAC costs.
FORMS = {
    "ilm (batch)": {"model": "ilm", "epochs": 1080},
    "ilm (minmax)": {
        "model": "ilm",
        "epochs": 1080,
        "normalization": "minmax",
    },
    "ilm (none)": {"model": "ilm", "epochs": 1080, "normalization": "none"},
    "ilm (batch; noise per step)": {
        "model": "ilm",
        "epochs": 1080,
        "noise": "per_step",
    },
    "head (published)": {"model": "head", "epochs": 1080},
    "dpa (published)": {"model": "dpa", "epochs": 1080},
    "dpmac (published)": {"model": "dpmac", "epochs": 100},
    "functional (published)": {"model": "functional"},
    "head (proven)": {"model": "head", "guarantee": "proven"},
    "dpa (proven)": {"model": "dpa", "guarantee": "proven"},
    "dpmac (proven)": {"model": "dpmac", "guarantee": "proven", "epochs": 100},
    "functional (proven)": {"model": "functional", "guarantee": "proven"},
}


def trainings():
    rows = ResultsFile(
        _OUT.value, _NAME.value, ("data", "form", "epsilon", "seed")
    )
    records, canaries = DATA[_DATA.value]
    canaries = _CANARIES.value or canaries
    x, y, classes = audit_subjects.load(_DATA.value, records)
    seeds = tuple(range(_SEEDS.value))
    for form in _FORMS.value or FORMS:
        for epsilon in map(float, _EPSILONS.value):
            key = (_DATA.value, form, epsilon)
            if rows.has(*key, "all"):
                continue
            given = {"control_epochs": 1080, **FORMS[form]}
            if _EPOCHS.value:
                given.update(epochs=_EPOCHS.value, control_epochs=_EPOCHS.value)
            subject = audit_subjects.Subject(
                epsilon=epsilon, delta=DELTA, **given
            )
            fit, control = subject.functions(classes)
            spent = []

            def noted(x, y, fit=fit, spent=spent):
                model, ledger = fit(x, y)
                spent.append(ledger)
                return model, ledger

            begin = time.perf_counter()
            report = audit(
                noted,
                (x, y),
                control=control,
                classes=classes,
                canaries=canaries,
                seeds=seeds,
                progress=False,
            )
            seconds = time.perf_counter() - begin
            shared = {"canaries": canaries, "ceiling": report.ceiling}
            for run, ledger in zip(report.runs, spent):
                rows.add(
                    (*key, run.seed),
                    ledger,
                    bound=run.bound.epsilon,
                    right=run.bound.correct,
                    guesses=run.bound.guesses,
                    control=run.control.epsilon,
                    seconds=run.seconds,
                    control_seconds=run.control_seconds,
                    **shared,
                )
            rows.add(
                (*key, "all"),
                spent[0],
                bound=report.bound,
                control=report.control_bound,
                verdict=report.verdict,
                at_ceiling=report.at_ceiling,
                seconds=seconds,
                **shared,
            )
    rows.finish(training_table(rows.rows))


def training_table(rows):
    lines = [
        "| data | form | epsilon | relation | lower bound, seeds | all, 95% | "
        "control | ceiling | verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["seed"] != "all":
            continue
        name = (row["data"], row["form"], row["epsilon"])
        single = " / ".join(
            f"{r['bound']:.2f}"
            for r in rows
            if (r["data"], r["form"], r["epsilon"]) == name
            and r["seed"] != "all"
        )
        lines.append(
            f"| {row['data']} | {row['form']} | {row['epsilon']:g} | "
            f"{row['neighbours']} | {single} | {row['bound']:.2f} | "
            f"{row['control']:.2f} | {row['ceiling']:.2f} | "
            f"{row['verdict']} |"
        )
    return "\n".join(lines) + "\n"


def vectors(bound=1.0):
    """16 vectors of norm `bound` in the plane."""
    angles = np.pi / 8 * np.arange(16)
    return [bound * np.array([[np.cos(a), np.sin(a)]]) for a in angles]


def candidates():
    """(name, objective, records) of every objective; few dimensions."""
    pairs = [(h, v) for h in vectors() for v in vectors(0.5)]
    yield (
        "cross-entropy",
        objectives.CrossEntropyObjective(num_features=2, num_outputs=2),
        [(h, np.array([y])) for h in vectors() for y in (0, 1)],
    )
    yield (
        "reconstruction",
        objectives.ReconstructionObjective(
            num_features=2, num_visible=2, visible_bound=0.5
        ),
        [(h, v + 0.5) for h, v in pairs],
    )
    yield (
        "second moment",
        objectives.SecondMomentObjective(num_features=2),
        [(h,) for h in vectors()],
    )
    yield (
        "relevance",
        objectives.RelevanceObjective(num_features=2),
        [(np.abs(h),) for h in vectors()],
    )
    yield (
        "norm histogram",
        objectives.NormHistogramObjective(num_columns=2, num_bins=3),
        [(np.full((1, 2), size),) for size in (1e-9, 1e9)],
    )
    ends = np.sqrt(3.0)
    patches = [np.array([[[v, 1.0]]]) for v in np.linspace(-ends, ends, 13)]
    yield (
        "patch moments",
        objectives.PatchMomentObjective(
            num_features=2, feature_bound=2.0, constant=1.0
        ),
        [(p,) for p in patches],
    )
    yield (
        "network expansion",
        objectives.NetworkExpansionObjective(shapes_of_layers=((2, 1),)),
        [
            ([(np.array([[1.0, 1.0]]), np.array([[d]]), np.array([[0.0]]))],)
            for d in (-9.0, 9.0)
        ],
    )


def releases():
    rows = ResultsFile(
        _OUT.value,
        f"{_NAME.value}_releases",
        ("objective", "neighbours_of", "epsilon", "claimed_delta"),
    )
    for name, objective, records in candidates():
        for neighbours in ("add_remove", "replace_one"):
            for epsilon in (0.5, 1.0, 2.0):
                key = (name, neighbours, epsilon, DELTA)
                if rows.has(*key):
                    continue
                budget = PrivacyBudget(epsilon, DELTA)
                mechanism = calibrate(objective, budget, neighbours=neighbours)
                pair = worst_pair(
                    objective, mechanism, records, neighbours=neighbours
                )
                begin = time.perf_counter()
                found = audit_objective(
                    objective,
                    mechanism,
                    budget,
                    *pair,
                    noise=NoiseSource(),
                    # A small epsilon takes more of them.
                    runs=2_000_000 if epsilon > 1 else 8_000_000,
                )
                rows.add(
                    key,
                    None,
                    bound=found.bound.epsilon,
                    share=found.share,
                    reach=found.reach,
                    runs=found.bound.runs,
                    seconds=time.perf_counter() - begin,
                )
    lines = [
        "| objective | relation | epsilon | lower bound | over epsilon | "
        "distance over sensitivity |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows.rows:
        lines.append(
            f"| {row['objective']} | {row['neighbours_of']} | "
            f"{row['epsilon']:g} | {row['bound']:.3f} | {row['share']:.2f} | "
            f"{row['reach']:.3f} |"
        )
    rows.finish("\n".join(lines) + "\n")


def main(_):
    for part in _PARTS.value:
        {"trainings": trainings, "releases": releases}[part]()


if __name__ == "__main__":
    logging.set_verbosity(logging.ERROR)
    app.run(main)
