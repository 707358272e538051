"""What `keras-fm compare` wrote: every method beside every other."""

import math
import os
import shlex

from keras_fm.lab.report import checked, figures, parts
from keras_fm.lab.report.content import (
    NO_PROOF,
    Cell,
    Column,
    Detail,
    Run,
    Standing,
    Table,
    standing_of,
)

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
_HINTS = (
    ("accuracy, %", "test part, mean ± standard deviation over seeds"),
    ("ε proven", "composed from the ledger of what was really read"),
    ("ε claimed", "asserted by the method's paper, where nothing is proven"),
    ("δ, relation", "what the epsilon of the row refers to"),
    ("seconds", "median time of one training"),
    ("CPU seconds", "the same, all cores added up"),
    ("memory, MiB", "largest peak above the start of the training"),
)
_HINT = dict(_HINTS)


class _Row:
    """One method at one budget."""

    def __init__(self, fields, runs):
        self.method = fields.text("method") or "unnamed"
        self.label = fields.text("label") or self.method.replace("_", " ")
        self.epsilon = fields.number("epsilon", 0)
        self.accuracy = fields.number("accuracy")
        self.spread = fields.number("spread", 0)
        self.claimed = fields.number("claimed", 0)
        self.proven = fields.number("proven", 0)
        self.delta = fields.number("delta", 0)
        self.neighbours = fields.text("neighbours")
        self.seconds = fields.number("seconds")
        self.cpu_seconds = fields.number("cpu_seconds")
        self.peak_mib = fields.number("peak_mib")
        self.seeds = fields.number("seeds", 0)
        self.settings = fields.fields("settings").words()
        self.standing = standing_of(self.proven, self.claimed)
        self.runs = [
            r
            for r in runs
            if r.text("method") == self.method
            and r.number("epsilon") == self.epsilon
        ]

    @property
    def is_repeated(self):
        return checked.finite(self.seeds) and self.seeds > 1

    def accuracy_text(self):
        if not checked.finite(self.accuracy):
            return ""
        text = f"{100 * self.accuracy:.1f}"
        if self.is_repeated and checked.finite(self.spread):
            text += f" ± {100 * self.spread:.1f}"
        return text

    def cells(self, has_runs):
        private = self.standing is not Standing.NO_PRIVACY
        relation = ""
        if private and self.neighbours:
            relation = self.neighbours
            if self.delta is not None:
                relation = f"{self.delta:g}, {relation}"
        claimed = self.standing is Standing.CLAIMED
        return (
            Cell(text=self.label),
            Cell(text=self.standing.value, standing=self.standing),
            parts.number(self.epsilon),
            Cell(
                text=self.accuracy_text() or parts.NOTHING,
                key=self.accuracy,
                is_quiet=not self.accuracy_text(),
            ),
            parts.number(self.proven)
            if self.standing is Standing.PROVEN
            else Cell(text=NO_PROOF, key=math.inf, is_quiet=True),
            parts.number(self.claimed if claimed else None),
            Cell(text=relation or parts.NOTHING, is_quiet=not relation),
            parts.number(self.seconds, ".3g"),
            parts.number(self.cpu_seconds, ".3g"),
            parts.number(self.peak_mib, ".0f"),
            parts.number(self.seeds if has_runs else None),
        )

    def detail(self, about, statement):
        title = self.label
        if self.epsilon is not None:
            title += f", ε = {self.epsilon:g}"
        accuracies = [
            f"{100 * r.number('accuracy'):.1f}"
            for r in self.runs
            if checked.finite(r.number("accuracy"))
        ]
        facts = [
            ("accuracy", self.accuracy_text() and self.accuracy_text() + " %"),
            ("accuracy of each run, %", ", ".join(accuracies)),
            ("epsilon, proven", self._proven_text()),
        ]
        if self.standing is Standing.CLAIMED:
            facts.append(
                (
                    "epsilon, claimed",
                    f"{self.claimed:.4g} (by the paper; not a guarantee)",
                )
            )
        facts += [
            ("seconds", parts.plain(self.seconds, ".3g")),
            ("CPU seconds", parts.plain(self.cpu_seconds, ".3g")),
            ("memory", parts.plain(self.peak_mib, ".0f", " MiB")),
            *self.settings,
        ]
        summary = self.accuracy_text()
        return Detail(
            title=title,
            standing=self.standing,
            summary=summary and summary + " %",
            about=about,
            facts=parts.known(facts),
            statement=statement,
        )

    def _proven_text(self):
        if self.standing is not Standing.PROVEN:
            return NO_PROOF
        return f"{self.proven:.4g} at delta {parts.plain(self.delta)}"


def read(folder):
    """Reads a folder of `keras-fm compare`.

    Raises:
        ValueError: if a file of it is broken.
    """
    summary = checked.read_json(folder, "summary.json")
    spec = summary.fields("spec")
    runs = checked.read_csv(folder, "runs.csv")
    rows = [_Row(f, runs) for f in summary.list_of_fields("rows")]
    dataset = os.path.basename(spec.text("dataset")) or "unnamed data"
    when = parts.when(summary)
    command = summary.text("command")
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
        tables=(_table(rows),),
        details=_details(rows, summary),
        command=command or _command(spec),
        is_recorded=bool(command),
        setting=_setting(summary, spec, when),
        settings=spec.words(),
        tables_after=parts.some(_runs(runs, rows)),
    )


def _count(rows):
    methods = len({row.method for row in rows})
    return f"{methods} way" + ("s" if methods != 1 else "")


def _share(spec):
    records = spec.number("train_records")
    if not checked.finite(records) or not records:
        return ""
    return f", first {records:.0f} training records"


def _caveats(rows):
    found = list(_CAVEATS)
    if any(r.settings or r.method.startswith(_RIVALS) for r in rows):
        found.insert(1, _TUNED)
    if rows and not any(row.is_repeated for row in rows):
        found.append(_ONE_SEED)
    return tuple(found)


def _column(title, **kwargs):
    return Column(title=title, hint=_HINT.get(title, ""), **kwargs)


def _table(rows):
    # The facts say it where it is the same everywhere.
    has_runs = len({row.seeds for row in rows}) > 1
    table = Table(
        caption="Every method and budget",
        columns=(
            _column("method", is_number=False),
            _column("standing", is_number=False),
            _column("budget ε"),
            _column("accuracy, %"),
            _column("ε proven"),
            _column("ε claimed"),
            _column("δ, relation", is_number=False),
            _column("seconds"),
            _column("CPU seconds"),
            _column("memory, MiB"),
            _column("runs"),
        ),
        rows=tuple(row.cells(has_runs) for row in rows),
    )
    return table.without_empty_columns(keep=("ε proven",))


def _figure(folder, rows):
    groups = {}
    for row in rows:
        y = None if row.accuracy is None else 100 * row.accuracy
        error = 100 * row.spread if checked.finite(row.spread) else 0.0
        key = row.method, row.label, row.standing
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
        name = row.method
        if row.epsilon is not None:
            name += f" {row.epsilon:g}"
        made.append(
            row.detail(about.get(row.method, ""), statements.pop(name, ""))
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


def _runs(runs, rows):
    """All runs, one row each; unknown columns are left out."""
    if not runs:
        return None
    labels = {row.method: row.label for row in rows}
    made = []
    for run in runs:
        method = run.text("method")
        proven, claimed = run.number("proven"), run.number("claimed")
        standing = standing_of(proven, claimed)
        accuracy = run.number("accuracy")
        if accuracy is not None:
            accuracy *= 100
        made.append(
            (
                Cell(text=labels.get(method, method)),
                Cell(text=standing.value, standing=standing),
                parts.number(run.number("epsilon")),
                parts.number(run.number("seed")),
                parts.number(accuracy, ".1f"),
                parts.number(run.number("seconds"), ".3g"),
                parts.number(run.number("cpu_seconds"), ".3g"),
                parts.number(run.number("peak_mib"), ".0f"),
            )
        )
    table = Table(
        caption="All runs",
        columns=(
            Column(title="method", is_number=False),
            Column(title="standing", is_number=False),
            Column(title="budget ε"),
            Column(title="seed"),
            Column(title="accuracy, %"),
            Column(title="seconds"),
            Column(title="CPU seconds"),
            Column(title="memory, MiB"),
        ),
        rows=tuple(made),
    )
    return table.without_empty_columns()
