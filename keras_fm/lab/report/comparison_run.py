"""What `keras-fm compare` wrote: every method beside every other."""

import os
import shlex

from keras_fm.lab.report import checked, figures, parts, trainings
from keras_fm.lab.report.content import NO_PROOF, Detail, Run, Standing
from keras_fm.lab.report.trainings import Training

_CAVEATS = (
    "A claimed epsilon is what a paper asserts. No valid proof covers it, so "
    "it says nothing about what the training reveals.",
    "Accuracy is measured on the test part, on which nothing was chosen. It "
    "is taken to be public: no epsilon here covers its records.",
    "Numbers of different neighbouring relations do not compare: an epsilon "
    "for add_remove may be twice as large for replace_one, at a larger delta.",
    "Noise is drawn fresh in every run: the same command gives slightly "
    "different numbers. A seed fixes initial weights only.",
    "Seconds and memory are of one training, without loading, features and "
    "tuning, on the machine that ran it.",
)
_TUNED = (
    "Settings of DP-SGD were chosen for each epsilon on a validation split of "
    "the training part. The privacy cost of that choice is not charged to it: "
    "its proven epsilon covers the final training only."
)
_RIVALS = ("dp_sgd", "dp_adam", "jax_privacy")
_ONE_SEED = "There is only one run of every method: no spread is known."
_HINTS = {
    "accuracy, %": "test part, mean ± standard deviation over seeds",
    "ε proven": "composed from the ledger of what was really read",
    "ε claimed": "asserted by the method's paper, where nothing is proven",
    "δ, relation": "what the epsilon of the row refers to",
    "seconds": "median time of one training",
    "CPU seconds": "the same, all cores added up",
    "memory, MiB": "largest peak above the start of the training",
}


class _Row(Training):
    """One method at one budget, or one run of it."""

    settings = ()
    specs = ".1f", ".1f"

    def __init__(self, fields):
        method = fields.text("method") or "unnamed"
        label = fields.text("label") or method.replace("_", " ")
        super().__init__(fields, method, label, "accuracy", "seeds", 100.0)
        self.seed = fields.number("seed")
        self.of_runs = ()

    def with_details(self, fields, runs):
        """What a row of the summary has, and a run of the CSV has not."""
        self.settings = fields.fields("settings").words()
        self.of_runs = [
            r for r in runs if (r.name, r.epsilon) == (self.name, self.epsilon)
        ]
        return self

    def detail(self, about, statement):
        title, accuracy = self.label, self.result()
        if self.epsilon is not None:
            title += f", ε = {self.epsilon:g}"
        proven, claimed = NO_PROOF, ""
        if self.standing is Standing.PROVEN:
            delta = parts.plain(self.delta)
            proven = f"{self.proven:.4g} at delta {delta}"
        if self.standing is Standing.CLAIMED:
            claimed = f"{self.claimed:.4g} (by the paper; not a guarantee)"
        accuracies = ", ".join(filter(None, (r.result() for r in self.of_runs)))
        return Detail(
            title=title,
            standing=self.standing,
            summary=accuracy and accuracy + " %",
            about=about,
            facts=parts.known(
                [
                    ("accuracy", accuracy and accuracy + " %"),
                    ("accuracy of each run, %", accuracies),
                    ("epsilon, proven", proven),
                    ("epsilon, claimed", claimed),
                    ("seconds", parts.plain(self.seconds, ".3g")),
                    ("CPU seconds", parts.plain(self.cpu_seconds, ".3g")),
                    ("memory", parts.plain(self.peak_mib, ".0f", " MiB")),
                    *self.settings,
                ]
            ),
            statement=statement,
        )


def read(folder):
    """Reads a folder of `keras-fm compare`.

    Raises:
        ValueError: if a file of it is broken.
    """
    summary = checked.read_json(folder, "summary.json")
    spec = summary.fields("spec")
    runs = checked.read_csv(folder, "runs.csv")
    listed = summary.list_of_fields("rows")
    runs = [_Row(run) for run in runs]
    rows = [_Row(row).with_details(row, runs) for row in listed]
    dataset = os.path.basename(spec.text("dataset")) or "unnamed data"
    when = parts.when(summary)
    command = summary.text("command")
    labels = {row.name: row.label for row in rows}
    for run in runs:
        run.label = labels.get(run.name, run.name)
    return Run(
        kind="compare",
        title=f"{dataset}: every way of training, side by side",
        lead=(
            f"The same data and the same split, trained in {_count(rows)}. "
            "What is proven and what is only claimed are kept apart."
        ),
        facts=parts.known(
            [
                ("Data", dataset + _share(spec)),
                ("Features", spec.text("features")),
                ("Relation", spec.text("neighbours")),
                ("δ", parts.plain(spec.number("delta"))),
                ("Seeds", parts.plain(spec.number("seeds"))),
                ("Run", when),
            ]
        ),
        caveats=_caveats(rows),
        figures=parts.some(_figure(folder, rows)),
        tables=parts.some(_table(rows)),
        details=_details(rows, summary),
        command=command or _command(spec),
        is_recorded=bool(command),
        setting=_setting(summary, spec, when),
        settings=spec.words(),
        tables_after=parts.some(_runs(runs)),
    )


def _count(rows):
    methods = len({row.name for row in rows})
    return f"{methods} way" + ("s" if methods != 1 else "")


def _share(spec):
    records = spec.number("train_records")
    if not checked.finite(records) or not records:
        return ""
    return f", first {records:.0f} training records"


def _caveats(rows):
    found = list(_CAVEATS)
    if any(r.settings or r.name.startswith(_RIVALS) for r in rows):
        found.insert(1, _TUNED)
    if rows and not any(row.is_repeated for row in rows):
        found.append(_ONE_SEED)
    return tuple(found)


_ACCURACY = parts.column("accuracy, %", _Row.result_cell, _HINTS["accuracy, %"])


def _table(rows):
    columns = [
        *trainings.first_columns("method"),
        _ACCURACY,
        *trainings.privacy_columns(_HINTS),
        *trainings.cost_columns(_HINTS),
    ]
    # The facts say it where it is the same everywhere.
    if len({row.runs for row in rows}) > 1:
        columns.append(parts.column("runs", lambda row: parts.number(row.runs)))
    return parts.table(
        "Every method and budget", columns, rows, keep=("ε proven",)
    )


def _runs(runs):
    """All runs, one row each; unknown columns are left out."""
    columns = (
        *trainings.first_columns("method"),
        parts.column("seed", lambda run: parts.number(run.seed)),
        parts.column("accuracy, %", _Row.result_cell),
        *trainings.cost_columns(),
    )
    return parts.table("All runs", columns, runs)


def _figure(folder, rows):
    groups = {}
    for row in rows:
        y = None if row.y is None else 100 * row.y
        error = 100 * row.spread if checked.finite(row.spread) else 0.0
        key = row.name, row.label, row.standing
        groups.setdefault(key, []).append((row.epsilon, y, error))
    order = list(dict.fromkeys(method for method, _, _ in groups))
    lines = []
    for (method, label, standing), points in groups.items():
        # A point without budget cannot stand on the axis of budgets.
        level = all(x is None for x, _, _ in points)
        points = [p for p in points if level or p[0] is not None]
        line = figures.Line(
            points=tuple(sorted(points, key=lambda p: p[0] or 0.0)),
            standing=standing,
            index=order.index(method),
        )
        lines.append((label, line))
    return parts.line_figure(
        folder,
        "accuracy.png",
        lines,
        caption=(
            "Test accuracy against the budget: mean and standard deviation. "
            "Solid and filled is proven; dotted and hollow is claimed, not "
            "proven; dashed is without privacy."
        ),
        alt=(
            "Test accuracy of every method against epsilon; the table below "
            "has all numbers."
        ),
        x_label="budget epsilon",
        y_label="test accuracy, %",
    )


def _details(rows, summary):
    about = dict(summary.fields("methods").words())
    statements = dict(summary.fields("statements").words())
    made = []
    for row in rows:
        name = row.name
        if row.epsilon is not None:
            name += f" {row.epsilon:g}"
        made.append(
            row.detail(about.get(row.name, ""), statements.pop(name, ""))
        )
    made += [
        Detail(title=name, statement=text) for name, text in statements.items()
    ]
    return tuple(made)


_FLAGS = (
    "dataset",
    "features",
    "hidden",
    "methods",
    "epsilons",
    "delta",
    "neighbours",
    "seeds",
    "epochs",
    "batch_size",
    "train_records",
)


def _command(spec):
    """The command line of a run that did not record its own."""
    known = dict(spec.words())
    words = ["keras-fm compare"]
    for name in _FLAGS:
        if name in spec and known[name] != "none":
            value = known[name]
            if name in ("methods", "epsilons"):
                value = value.replace(", ", ",")
            words.append(f"--{name}={shlex.quote(value)}")
    return " ".join(words) if len(words) > 1 else ""


def _setting(summary, spec, when):
    seeds = spec.number("seeds")
    facts = [("run", when)]
    if checked.finite(seeds) and seeds >= 1:
        last = f"{seeds - 1:.0f}"
        facts.append(
            ("seeds of initial weights", "0" + (f" to {last}" * (seeds > 1)))
        )
    facts.append(("noise", "fresh; no seed reproduces it"))
    return parts.known([*facts, *parts.versions(summary)])
