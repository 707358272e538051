"""What `keras-fm compare` wrote: every method beside every other."""

import os
import shlex

from keras_fm.kernel.ledger import statement as statements_lib
from keras_fm.lab import known as known_lib
from keras_fm.lab.engine import grid, plot
from keras_fm.lab.report import checked, figures, parts, trainings
from keras_fm.lab.report.content import NO_PROOF, Cell, Detail, Run, Standing
from keras_fm.lab.report.trainings import Training
from keras_fm.parts import promise as promise_lib

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
# Results beyond are no accuracies, and are shown in the long table only.
_LARGEST = 1e6
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

    def promise(self):
        """What is proven in a sentence; "" where the relation is unknown."""
        try:
            return promise_lib.sentence(
                self.proven, self.delta or 0.0, self.neighbours
            )
        except (KeyError, OverflowError, ValueError):
            return ""

    def detail(self, about, statement):
        title, accuracy = self.label, self.result()
        if self.epsilon is not None:
            title += f", ε = {self.epsilon:g}"
        proven, claimed, promise = NO_PROOF, "", ""
        if self.standing is Standing.PROVEN:
            promise = self.promise()
            delta = parts.plain(self.delta)
            proven = (
                f"{statements_lib.rounded_up(self.proven, 4)} at delta {delta}"
            )
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
                    ("what it promises", promise),
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
    ranked = _ranked(rows)
    names = list(
        dict.fromkeys(n for some in ranked.names.values() for n in some)
    )
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
        figures=_figures(folder, rows, names),
        tables=parts.some(_accuracies(rows, ranked)),
        details=_details(rows, summary),
        command=command or _command(spec),
        is_recorded=bool(command),
        setting=_setting(summary, spec, when),
        settings=spec.words(),
        tables_after=parts.some(_table(rows), _runs(runs)),
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
    promised = [
        r for r in rows if r.standing is Standing.PROVEN and r.promise()
    ]
    if promised:
        row = promised[len(promised) // 2]
        found.insert(
            0,
            "A proven epsilon of "
            f"{statements_lib.rounded_up(row.proven, 3)} promises: "
            f"{row.promise()}",
        )
    if trainings.have_rival(rows) or any(r.settings for r in rows):
        found.append(trainings.TUNED)
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


_CAPTIONS = {
    Standing.PROVEN: (
        "Proven: test accuracy against the budget, mean and standard "
        "deviation. Dashed is without privacy, where it is near."
    ),
    Standing.CLAIMED: (
        "Claimed: the same for the papers' algorithms, at an epsilon that "
        "no valid proof covers."
    ),
}


def _figures(folder, rows, ranked):
    """What is proven, what is only claimed, and what accuracy costs."""
    levels = _lines(rows, ranked, Standing.NO_PRIVACY)
    heights = [line.points[0][1] for line in levels]
    made = []
    for standing, caption in _CAPTIONS.items():
        lines = figures.drawable(_lines(rows, ranked, standing))
        if not lines:
            continue
        seen = [point[1:] for line in lines for point in line.points]
        window = plot.window(seen, heights)
        made.append(
            parts.line_figure(
                folder,
                "",
                [
                    *lines,
                    *(v for v in levels if v.points[0][1] >= window[0]),
                ],
                caption=caption,
                alt=f"{caption} The table below has all numbers.",
                x_label="epsilon",
                y_label="test accuracy, %",
                window=window,
            )
        )
    made = parts.some(*made, _costs(folder, rows, ranked))
    if made:
        return made
    return parts.some(
        parts.png_figure(
            folder,
            "accuracy.png",
            caption="Test accuracy against the budget.",
            alt="The table below has all numbers.",
        )
    )


def _lines(rows, ranked, standing):
    """A line for each method of a standing, coloured by rank."""
    mine = {}
    for row in rows:
        if row.standing is standing and _is_placed(row):
            mine.setdefault(row.name, []).append(row)
    order = [n for n in ranked if n in mine]
    return [
        figures.Line(
            points=tuple(
                (
                    None if standing is Standing.NO_PRIVACY else row.epsilon,
                    100 * row.y,
                    100 * row.spread if checked.finite(row.spread) else 0.0,
                )
                for row in sorted(mine[name], key=lambda r: r.epsilon or 0.0)
            ),
            standing=standing,
            # Grey, where they are level.
            index=7 if standing is Standing.NO_PRIVACY else index,
            label=mine[name][0].label,
        )
        for index, name in enumerate(order)
    ]


def _costs(folder, rows, ranked):
    """Accuracy against processor seconds, at the middle budget."""
    rows = [row for row in rows if _is_placed(row)]
    budgets = sorted({r.epsilon for r in rows if r.standing is Standing.PROVEN})
    if not budgets:
        return None
    budget = budgets[len(budgets) // 2]
    lines = []
    for row in rows:
        if row.standing is Standing.PROVEN and row.epsilon != budget:
            continue
        if row.standing is not Standing.CLAIMED and row.cpu_seconds:
            lines.append(
                figures.Line(
                    points=((row.cpu_seconds, 100 * row.y, 0.0),),
                    standing=row.standing,
                    index=ranked.index(row.name),
                    label=row.label,
                )
            )
    lines = figures.drawable(lines)
    proven = [v for v in lines if v.standing is Standing.PROVEN]
    if not proven:
        return None
    low, high = plot.window(
        [line.points[0][1:] for line in proven],
        [line.points[0][1] for line in lines],
    )
    lines = [line for line in lines if low <= line.points[0][1] <= high]
    caption = (
        f"What accuracy costs: processor seconds of one training, features "
        f"and tuning excluded, at epsilon {budget:g} and, where it is near, "
        "without privacy (hollow). Up and to the left is better."
    )
    return parts.line_figure(
        folder,
        "",
        lines,
        caption=caption,
        alt=caption,
        x_label="CPU seconds",
        y_label="test accuracy, %",
        decimal_x=True,
        window=(low, high),
    )


def _is_placed(row):
    """Whether it has a result, and a budget where it is private."""
    if not checked.finite(row.y) or abs(row.y) > _LARGEST:
        return False
    return checked.finite(row.epsilon) if row.is_private else True


def _ranked(rows):
    """The `Grid` of the rows."""
    kinds = {
        Standing.PROVEN: "proven",
        Standing.CLAIMED: "claimed",
        Standing.NO_PRIVACY: "no privacy",
    }
    return grid.of(
        grid.Place(
            name=row.name,
            epsilon=row.epsilon if row.is_private else None,
            value=row.y,
            kind=kinds[row.standing],
            relation=row.neighbours,
        )
        for row in rows
        if _is_placed(row)
    )


def _accuracies(rows, ranked):
    """Methods down, epsilons across."""
    rows = [row for row in rows if _is_placed(row)]
    found = {
        (row.name, row.epsilon if row.is_private else None): row for row in rows
    }
    first = {row.name: row for row in rows}

    def cell_of(epsilon):
        def cell(name):
            row = found.get((name, epsilon), found.get((name, None)))
            if row is None or not row.mean():
                return parts.number(None)
            return Cell(
                text=row.mean(),
                key=row.y * row.scale,
                aside=row.around(),
                is_best=(name, epsilon) in ranked.best,
            )

        return cell

    columns = [
        parts.text_column("method", lambda name: Cell(text=first[name].label)),
        *(
            parts.column(
                "no ε" if epsilon is None else f"ε\u00a0{epsilon:g}",
                cell_of(epsilon),
            )
            for epsilon in ranked.epsilons or [None]
        ),
        parts.text_column(
            "standing", lambda name: parts.standing(first[name].standing)
        ),
    ]
    names = dict.fromkeys(n for some in ranked.names.values() for n in some)
    return parts.table(
        "Test accuracy, %, mean ± standard deviation; marked: the best "
        "proven of a column and relation",
        columns,
        names,
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


def _command(spec):
    """The command line of a run that did not record its own."""
    known = dict(spec.words())
    words = ["keras-fm compare"]
    for name in known_lib.FLAGS:
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
