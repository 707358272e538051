"""What `keras-fm compose` wrote: one plan by every composition theorem."""

import re

from keras_fm.lab.report import checked, figures, parts
from keras_fm.lab.report.content import Cell, Run, Standing

_CAVEATS = (
    "Every row called a proven bound is a valid upper bound of the same "
    "plan: the smallest is the one to use, the others show what a theorem "
    "costs.",
    "A row as printed is a formula of a survey that drops terms. It is no "
    "bound, whatever it says.",
    "Rows without sampled_ read the plan as if every run saw all records: "
    "valid, but wasteful for a sampled plan.",
    "A bound holds for noise of the stated size, in real arithmetic, and "
    "for records that really were sampled so.",
)
# Columns of table.txt: method, epsilon, delta, kind, note.
_LINE = re.compile(r"(\S+)\s+(\S+)\s+(\S+)\s+(bound|as printed)(?:\s+(.*))?$")


class _Row:
    """One method's epsilon for a number of runs."""

    def __init__(self, fields, count=None):
        self.count = count
        self.method = fields.text("method") or "unnamed"
        self.epsilon = fields.number("epsilon", 0)
        self.delta = fields.number("delta", 0)
        self.note = fields.text("note").removeprefix("n/a: ")
        if not checked.finite(self.epsilon):
            self.standing = Standing.NOT_APPLICABLE
        elif fields.text("kind") == "bound":
            self.standing = Standing.BOUND
        else:
            self.standing = Standing.AS_PRINTED


_FIRST = (
    parts.text_column("method", lambda row: Cell(text=row.method)),
    parts.text_column("standing", lambda row: parts.standing(row.standing)),
)
_BOUND = (
    parts.column(
        "ε", lambda row: parts.number(row.epsilon), "at the δ beside it"
    ),
    parts.column("δ", lambda row: parts.number(row.delta)),
)


def read(folder):
    """Reads a folder of `keras-fm compose`.

    Raises:
        ValueError: if a file of it is broken.
    """
    series = _series(folder)
    title, rows = _table_text(folder)
    if not rows:
        last = max((row.count for row in series), default=None)
        rows = [row for row in series if row.count == last]
        title = f"{last:g} runs" if rows else "no run"
    summary = _summary(folder)
    command = summary.text("command")
    return Run(
        kind="compose",
        title=f"Composition: {title}",
        lead=(
            "What many reads of the same records cost together, by every "
            "composition theorem."
        ),
        facts=parts.known(
            [
                ("Plan", title),
                ("Methods", str(len(rows))),
                ("Run", parts.when(summary)),
            ]
        ),
        caveats=_CAVEATS,
        figures=parts.some(_figure(folder, series)),
        tables=parts.some(_table(rows)),
        command=command,
        is_recorded=bool(command),
        setting=parts.known(
            [
                ("run", parts.when(summary)),
                ("plan", title),
                ("randomness", "none: composition is calculated"),
                *parts.versions(summary),
            ]
        ),
        tables_after=parts.some(_all_counts(series)),
    )


def _summary(folder):
    if checked.has(folder, "summary.json"):
        return checked.read_json(folder, "summary.json")
    return checked.Fields({}, "summary.json")


def _series(folder):
    rows = []
    for fields in checked.read_csv(folder, "composition.csv"):
        count = fields.number("count", 0)
        if not checked.finite(count):
            raise ValueError(f"`count` of {fields.where} must be a number.")
        rows.append(_Row(fields, count))
    return rows


def _table_text(folder):
    """Title and rows of table.txt, where there is one."""
    if not checked.has(folder, "table.txt"):
        return "", []
    lines = checked.read_text(folder, "table.txt").splitlines()
    rows = []
    for line in lines[1:]:
        match = _LINE.match(line.strip())
        if match:
            names = ("method", "epsilon", "delta", "kind", "note")
            found = dict(zip(names, match.groups()))
            for name in ("epsilon", "delta"):
                if found[name] == "-":
                    found[name] = None
            rows.append(_Row(checked.Fields(found, "a row of table.txt")))
    return checked.clean(lines[0]) if lines else "", rows


def _table(rows):
    bounds = [r for r in rows if r.standing is Standing.BOUND]
    best = min(bounds, key=lambda r: r.epsilon, default=None)

    def note(row):
        if row is not best:
            return parts.words(row.note)
        smallest = "smallest: the one to use"
        return parts.words(smallest + (row.note and "; " + row.note))

    columns = (*_FIRST, *_BOUND, parts.text_column("note", note))
    return parts.table("Every theorem", columns, rows)


def _figure(folder, series):
    points, families = {}, {}
    for row in series:
        if row.standing is Standing.BOUND:
            points.setdefault(row.method, []).append(
                (row.count, row.epsilon, 0.0)
            )
            # A theorem keeps its colour with and without sampling.
            family = row.method.removeprefix("sampled_")
            families.setdefault(family, len(families))
    lines = []
    for method, found in points.items():
        line = figures.Line(
            points=tuple(sorted(found)),
            standing=Standing.BOUND,
            index=families[method.removeprefix("sampled_")],
            label=method,
            is_dashed=f"sampled_{method}" in points,
        )
        lines.append(line)
    return parts.line_figure(
        folder,
        "composition.png",
        lines,
        caption=(
            "Proven bounds on epsilon against the number of runs. Dashed "
            "lines do not use that samples were drawn. Formulas that are no "
            "bounds are left out."
        ),
        alt=(
            "Epsilon of every composition theorem against the number of "
            "runs; the tables have all numbers."
        ),
        x_label="runs",
        y_label="epsilon",
        log_y=True,
        decimal_x=True,
    )


def _all_counts(series):
    columns = (
        *_FIRST,
        parts.column("runs", lambda row: parts.number(row.count, ",.0f")),
        *_BOUND,
        parts.text_column("note", lambda row: parts.words(row.note)),
    )
    return parts.table("All numbers of runs", columns, series)
