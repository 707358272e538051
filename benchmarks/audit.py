"""What is claimed against what an audit shows, form by form.

    KERAS_FM_DATA=... python benchmarks/audit.py
    python benchmarks/audit.py --part=releases
    python benchmarks/audit.py --part=shuffled
    python benchmarks/audit.py --part=scores
    python benchmarks/audit.py --part=scripts
    KERAS_FM_DATA=... python benchmarks/audit.py --part=trainings \\
        --data=mnist --epsilons=0.3 \\
        --forms="ilm (batch),head (published),dpa (published)"

`trainings`: every published form at claimed epsilon 0.3, 0.5, 1 and 2 and
every proven form, three seeds each (a row each, and one over all of them at
95% with a Bonferroni correction), the control without privacy beside it:
718 canaries with swapped labels in all 1,437 digits, or 1,000 in 2,500 images
of MNIST, but for the attacks in `ATTACKS`. The architectures are those of
`keras_fm/lab/audits`, fixed in advance. A control is trained once for each
seed: it does not depend on epsilon.

`releases`: white-box audits of the release of every objective at its worst of
a few records: lower bound over epsilon, 99% confidence.

`shuffled`: what one epoch of a `DPMAC` on shuffled batches reveals at worst,
beside what its accountant says (Poisson samples); no training, see
`keras_fm/auditing/shuffled_batches.py`.

`scores`: loss, margin and gradient (white-box) on the same trained models, at
claimed 0.3.

`scripts`: a training of a user's script (examples/audit_a_script.py), as it is
and with a fault each (tests/lab/audits/broken_scripts.py), at claimed
(2, 1e-5): in how many of 20 audits of 2,000 canaries the bound was above the
claim.

Results are written after every row; a second call goes on where one stopped.
A row with fewer seeds than are asked for is measured again.
"""

import hashlib
import sys
import time
from pathlib import Path

import numpy as np
import shuffled_noise
from absl import app, flags, logging
from results_file import ResultsFile

from keras_fm import queries
from keras_fm.auditing import (
    audit,
    audit_objective,
    shuffled_batches_epsilon,
    worst_pair,
)
from keras_fm.auditing.report import VIOLATED
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.release import calibrate
from keras_fm.lab import audits as audit_subjects

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "audit", "Name of the files.")
_PARTS = flags.DEFINE_list(
    "part", ["trainings", "releases", "shuffled", "scores", "scripts"], ""
)
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
    "ilm (minmax; single pixels)": {
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
    "dpah (published)": {"model": "dpah", "epochs": 1080},
    "pcdbn (published)": {"model": "pcdbn", "control_epochs": 600},
    "pcdbn_te (published)": {"model": "pcdbn_te", "control_epochs": 600},
    "pcdbn_pw (published)": {"model": "pcdbn_pw", "control_epochs": 600},
    "functional (published)": {"model": "functional"},
    "dpmac (published)": {"model": "dpmac", "epochs": 100},
    "adlm (published)": {"model": "adlm", "epochs": 1500},
    "head (proven)": {"model": "head", "guarantee": "proven"},
    "adlm (proven)": {"model": "adlm", "guarantee": "proven"},
    "dpa (proven)": {"model": "dpa", "guarantee": "proven"},
    "pcdbn (proven)": {"model": "pcdbn", "guarantee": "proven"},
    "dpmac (proven)": {"model": "dpmac", "guarantee": "proven", "epochs": 100},
    "functional (proven)": {"model": "functional", "guarantee": "proven"},
}
# Other than records with wrong labels, scored by their loss.
ATTACKS = {
    # As many as the digits have pixels.
    "ilm (minmax; single pixels)": {"kind": "unit", "canaries": 64},
    # Nothing is memorised, so every record may be one.
    "functional (published)": {"canaries": 1437},
}

# Batches of an epoch, and epochs. The first are the paper's: 60,000 images of
# MNIST in batches of 1,000.
SHUFFLED = ((60, 1), (60, 10), (60, 30), (100, 1), (1000, 1))


def trainings():
    rows = ResultsFile(
        _OUT.value, _NAME.value, ("data", "form", "epsilon", "seed")
    )
    x, y, classes = audit_subjects.load(_DATA.value, DATA[_DATA.value][0])
    seeds = tuple(range(_SEEDS.value))
    for form in _FORMS.value or FORMS:
        given = {"control_epochs": 1080, **FORMS[form]}
        if _EPOCHS.value:
            given.update(epochs=_EPOCHS.value, control_epochs=_EPOCHS.value)
        controls = {}
        for epsilon in map(float, _EPSILONS.value):
            key = (_DATA.value, form, epsilon)
            if _is_measured(rows, key, len(seeds)):
                continue
            subject = audit_subjects.Subject(
                epsilon=epsilon, delta=DELTA, **given
            )
            _measure(rows, key, subject, (x, y), classes, seeds, controls)
    rows.finish(training_table(rows.rows))


def _is_measured(rows, key, seeds):
    """Whether so many seeds were; if fewer were, they are taken out."""
    found = [
        row
        for row in rows.rows
        if (row["data"], row["form"], row["epsilon"]) == key
    ]
    if len(found) > seeds:
        return True
    rows.rows = [row for row in rows.rows if row not in found]
    return False


def _measure(rows, key, subject, data, classes, seeds, controls):
    fit, control = subject.functions(classes)
    spent = []

    def noted(x, y):
        model, ledger = fit(x, y)
        spent.append(ledger)
        return model, ledger

    attack = {"canaries": DATA[key[0]][1], **ATTACKS.get(key[1], {})}
    if _CANARIES.value:
        attack["canaries"] = _CANARIES.value
    begin = time.perf_counter()
    report = audit(
        noted,
        data,
        # Of the same canaries, trained for the first epsilon.
        control=_once(control, controls),
        classes=classes,
        seeds=seeds,
        progress=False,
        **({"bound": 1.0} if attack.get("kind") == "unit" else {}),
        **attack,
    )
    seconds = time.perf_counter() - begin
    shared = {
        "canaries": report.canaries,
        "kind": report.kind,
        "score": report.score,
        "ceiling": report.ceiling,
    }
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


def _once(train, kept):
    """`train`, or what it returned before for the same records."""

    def trained(x, y):
        name = hashlib.sha256(x.tobytes() + y.tobytes()).digest()
        if name not in kept:
            kept[name] = train(x, y)
        return kept[name]

    return trained


def scores():
    """The built-in scores on the same trained models."""
    rows = ResultsFile(_OUT.value, f"{_NAME.value}_scores", ("form", "score"))
    x, y, classes = audit_subjects.load("digits")
    for form in ("head (published)", "ilm (minmax)"):
        subject = audit_subjects.Subject(
            **{"epsilon": 0.3, "control_epochs": 1080, **FORMS[form]}
        )
        fit, control = (_once(f, {}) for f in subject.functions(classes))
        for score in ("loss", "margin", "gradient"):
            if rows.has(form, score):
                continue
            report = audit(
                fit,
                (x, y),
                control=control,
                classes=classes,
                canaries=DATA["digits"][1],
                seeds=tuple(range(_SEEDS.value)),
                score=score,
                progress=False,
            )
            rows.add(
                (form, score),
                None,
                epsilon=subject.epsilon,
                bounds=[run.bound.epsilon for run in report.runs],
                controls=[run.control.epsilon for run in report.runs],
                bound=report.bound,
                control=report.control_bound,
                verdict=report.verdict,
            )
    lines = [
        "| form | score | lower bound, seeds | all, 95% | control |",
        "|---|---|---|---|---|",
    ]
    for row in rows.rows:
        single = " / ".join(f"{bound:.2f}" for bound in row["bounds"])
        lines.append(
            f"| {row['form']} | {row['score']} | {single} | "
            f"{row['bound']:.2f} | {row['control']:.2f} |"
        )
    rows.finish("\n".join(lines) + "\n")


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
        queries.CrossEntropyQuery(num_features=2, num_outputs=2),
        [(h, np.array([y])) for h in vectors() for y in (0, 1)],
    )
    yield (
        "reconstruction",
        queries.ReconstructionQuery(
            num_features=2, num_visible=2, visible_bound=0.5
        ),
        [(h, v + 0.5) for h, v in pairs],
    )
    yield (
        "second moment",
        queries.SecondMomentQuery(num_features=2),
        [(h,) for h in vectors()],
    )
    yield (
        "relevance",
        queries.RelevanceQuery(num_features=2),
        [(np.abs(h),) for h in vectors()],
    )
    yield (
        "norm histogram",
        queries.NormHistogramQuery(num_columns=2, num_bins=3),
        [(np.full((1, 2), size),) for size in (1e-9, 1e9)],
    )
    # Two entries beside the constant: of one, no pair attains replace_one.
    ends = np.sqrt(3.0)
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    angles = [*angles, np.arccos(-1 / 3)]
    patches = [
        np.array([[[ends * np.cos(a), ends * np.sin(a), 1.0]]]) for a in angles
    ]
    yield (
        "patch moments",
        queries.PatchMomentQuery(
            num_features=3, feature_bound=2.0, constant=1.0
        ),
        [(p,) for p in patches],
    )
    yield (
        "network expansion",
        queries.NetworkExpansionQuery(shapes_of_layers=((2, 1),)),
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


def shuffled():
    """The noise is that of a published `DPMAC` for its claimed epsilon."""
    rows = ResultsFile(
        _OUT.value,
        f"{_NAME.value}_shuffled",
        ("batches", "epochs", "epsilon"),
    )
    for batches, epochs in SHUFFLED:
        for epsilon in map(float, _EPSILONS.value):
            if rows.has(batches, epochs, epsilon):
                continue
            multiplier = shuffled_noise.multiplier(
                batches, epochs, epsilon, DELTA
            )
            found = shuffled_batches_epsilon(
                batches, multiplier, DELTA, epochs=epochs
            )
            rows.add(
                (batches, epochs, epsilon),
                None,
                noise_multiplier=multiplier,
                bound=found.epsilon,
                probability=found.probability,
                without=found.without,
            )
    lines = [
        "| batches | epochs | claimed | noise multiplier | probability with | "
        "without | lower bound |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows.rows:
        lines.append(
            f"| {row['batches']} | {row['epochs']} | {row['epsilon']:g} | "
            f"{row['noise_multiplier']:.3f} | {row['probability']:.1e} | "
            f"{row['without']:.1e} | {row['bound']:.2f} |"
        )
    rows.finish("\n".join(lines) + "\n")


def scripts():
    folder = Path(__file__).resolve().parents[1] / "tests" / "lab" / "audits"
    sys.path.insert(0, str(folder))
    import broken_scripts

    rows = ResultsFile(_OUT.value, f"{_NAME.value}_scripts", ("fault",))
    for fault in broken_scripts.FITS:
        if rows.has(fault):
            continue
        found = [broken_scripts.report(fault, seed) for seed in range(20)]
        bounds = [report.bound for report in found]
        rows.add(
            (fault,),
            None,
            caught=sum(report.verdict == VIOLATED for report in found),
            least=min(bounds),
            median=float(np.median(bounds)),
            most=max(bounds),
            control=float(np.median([r.control_bound for r in found])),
        )
    lines = [
        "| fault | caught of 20 | least bound | median | largest | control |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows.rows:
        numbers = (row[k] for k in ("least", "median", "most", "control"))
        cells = " | ".join(f"{number:.2f}" for number in numbers)
        lines.append(f"| {row['fault']} | {row['caught']} | {cells} |")
    rows.finish("\n".join(lines) + "\n")


def main(_):
    for part in _PARTS.value:
        {
            "trainings": trainings,
            "releases": releases,
            "shuffled": shuffled,
            "scores": scores,
            "scripts": scripts,
        }[part]()


if __name__ == "__main__":
    logging.set_verbosity(logging.ERROR)
    app.run(main)
