"""What `keras-fm reproduce` wrote: a figure of a paper, ours beside it."""

from keras_fm.lab.report import checked, parts
from keras_fm.lab.report.content import (
    NO_PROOF,
    Cell,
    Column,
    Detail,
    Run,
    Standing,
    Table,
)

_KINDS = {
    "claimed": Standing.CLAIMED,
    "proven": Standing.PROVEN,
    "no privacy": Standing.NO_PRIVACY,
    "calculated": Standing.CALCULATED,
    "formula": Standing.AS_PRINTED,
}
_CLAIMED = (
    "The paper's numbers stand at an epsilon that the paper claims; ours "
    "stand at the epsilon of their own column."
)
_TRAINED = (
    "Noise is drawn fresh in every run: the same command gives slightly "
    "different numbers.",
    "Nothing was chosen on test records.",
)
_CALCULATED = "Nothing was trained: the numbers are calculated."


class _Point:
    """One measured number."""

    def __init__(self, fields, series):
        self.series = fields.text("series") or "unnamed"
        known = series.fields(self.series)
        self.label = known.text("label") or self.series
        kind = fields.text("guarantee") or known.text("guarantee")
        self.proven = fields.number("proven", 0)
        self.claimed = fields.number("claimed", 0)
        self.standing = _KINDS.get(kind, Standing.UNKNOWN)
        # A file may call proven what has no valid proof; a page does not.
        if self.standing is Standing.PROVEN and not checked.finite(self.proven):
            self.standing = (
                Standing.CLAIMED
                if checked.finite(self.claimed)
                else Standing.UNKNOWN
            )
        self.epsilon = fields.number("epsilon", 0)
        self.x = _number_or_text(fields, "x")
        self.y = fields.number("y")
        self.spread = fields.number("spread", 0)
        self.runs = fields.number("runs", 0)
        self.delta = fields.number("delta", 0)
        self.neighbours = fields.text("neighbours")
        self.seconds = fields.number("seconds")

    def cells(self, scale):
        value = parts.number(_times(self.y, scale))
        if value.key is not None and checked.finite(self.spread):
            if checked.finite(self.runs) and self.runs > 1:
                value = Cell(
                    text=f"{value.text} ± {self.spread * scale:.2g}",
                    key=value.key,
                )
        private = self.standing in (Standing.CLAIMED, Standing.PROVEN)
        relation = self.neighbours if private else ""
        if relation and self.delta is not None:
            relation = f"{self.delta:g}, {relation}"
        proven = parts.number(None)
        if self.standing is Standing.PROVEN:
            proven = parts.number(self.proven)
        elif self.standing is Standing.CLAIMED:
            proven = Cell(text=NO_PROOF, key=float("inf"))
        claimed = self.standing is Standing.CLAIMED
        return (
            Cell(text=self.label),
            Cell(text=self.standing.value, standing=self.standing),
            parts.number(self.epsilon),
            parts.words(self.x)
            if isinstance(self.x, str)
            else parts.number(None if self.x == self.epsilon else self.x),
            value,
            proven,
            parts.number(self.claimed if claimed else None),
            parts.words(relation),
            parts.number(self.seconds, ".3g"),
            parts.number(self.runs),
        )


def read(folder):
    """Reads a folder of `keras-fm reproduce`.

    Raises:
        ValueError: if a file of it is broken.
    """
    summary = checked.read_json(folder, "summary.json")
    name = summary.text("experiment") or "unnamed experiment"
    title = summary.text("title")
    series = summary.fields("series")
    points = [_Point(f, series) for f in summary.list_of_fields("points")]
    facts = summary.list_of_fields("facts")
    settings = summary.fields("settings")
    command = summary.text("command") or summary.text("reproduce")
    when = parts.when(summary)
    axis = _axis(summary, facts)
    seconds = summary.number("seconds")
    data = dict(settings.words()).get("data", "")
    return Run(
        kind="reproduce",
        title=f"{name}: {title}" if title else name,
        lead=summary.text("shows") or "Ours beside the paper's numbers.",
        facts=parts.known(
            [
                ("Paper", _citation(summary.fields("paper"))),
                ("Form", summary.text("form")),
                ("Data", data),
                ("δ, relation", _relations(points)),
                ("Run", when),
            ]
        ),
        caveats=_caveats(summary, points),
        figures=parts.some(
            parts.png_figure(
                folder,
                "figure.png",
                caption=(
                    "Solid is proven, dotted only claimed, dashed without "
                    "privacy; open markers are the paper's numbers."
                ),
                alt=f"{title or name}; the tables below have all numbers.",
            )
        ),
        tables=parts.some(_ours(points, axis), _paper(facts, axis)),
        details=_details(folder, summary, series),
        command=command,
        is_recorded=bool(command),
        setting=parts.known(
            [
                ("run", when),
                ("seconds in all", parts.plain(seconds, ".0f")),
                *parts.versions(summary),
            ]
        ),
        settings=settings.words(),
    )


def _axis(summary, facts):
    """Label of the numbers, and what they are multiplied with."""
    y = summary.fields("y")
    scale = y.number("scale", 0)
    if "label" in y:
        return y.text("label"), scale if checked.finite(scale) else 1.0
    if facts and all(f.text("metric") == "accuracy" for f in facts):
        return "accuracy, %", 100.0
    return "value", 1.0


def _number_or_text(fields, name):
    try:
        return fields.number(name)
    except ValueError:
        return fields.text(name)


def _times(value, scale):
    return None if value is None else value * scale


def _citation(paper):
    words = ": ".join(
        part for part in (paper.text("authors"), paper.text("title")) if part
    )
    place = dict(paper.words())
    year = " ".join(
        part for part in (place.get("venue"), place.get("year")) if part
    )
    return f"{words}. {year}" if words and year else words


def _relations(points):
    found = {
        f"{p.delta:g}, {p.neighbours}"
        for p in points
        if p.standing is Standing.PROVEN
        and p.delta is not None
        and p.neighbours
    }
    return "; ".join(sorted(found)) + " (proven rows)" if found else ""


def _caveats(summary, points):
    calculated = (Standing.CALCULATED, Standing.AS_PRINTED)
    if all(point.standing in calculated for point in points):
        found = [_CALCULATED]
    else:
        found = [_CLAIMED, *_TRAINED]
    for name, words in (
        ("deviations", "Differs from the paper"),
        ("facts_dataset", "The paper's data"),
        ("why_no_facts", "No number of the paper"),
    ):
        if summary.text(name):
            found.append(f"{words}: {summary.text(name)}")
    for name, why in summary.fields("skipped").words():
        found.append(f"Left out: {name}: {why}.")
    return tuple(found)


def _ours(points, axis):
    if not points:
        return None
    label, scale = axis
    return Table(
        caption="Ours",
        columns=(
            Column(title="series", is_number=False),
            Column(title="standing", is_number=False),
            Column(title="budget ε"),
            Column(
                title="x",
                is_number=not any(isinstance(p.x, str) for p in points),
                hint="where the point stands on the axis",
            ),
            Column(title=label),
            Column(title="ε proven"),
            Column(title="ε claimed"),
            Column(title="δ, relation", is_number=False),
            Column(title="seconds"),
            Column(title="runs"),
        ),
        rows=tuple(point.cells(scale) for point in points),
    ).without_empty_columns()


def _paper(facts, axis):
    if not facts:
        return None
    label, scale = axis
    return Table(
        caption="The paper's numbers",
        columns=(
            Column(title="system", is_number=False),
            Column(title="standing", is_number=False),
            Column(title="ε", hint="as the paper claims it"),
            Column(title="epochs"),
            Column(title=label),
            Column(title="of", is_number=False),
            Column(title="data", is_number=False),
            Column(title="where", is_number=False),
            Column(title="note", is_number=False),
        ),
        rows=tuple(
            (
                Cell(text=fact.text("system") or "unnamed"),
                Cell(text=Standing.PAPER.value, standing=Standing.PAPER),
                parts.number(fact.number("epsilon")),
                parts.number(fact.number("epochs")),
                parts.number(_times(fact.number("value"), scale)),
                parts.words(fact.text("metric")),
                parts.words(fact.text("dataset")),
                parts.words(fact.text("where")),
                parts.words(fact.text("note")),
            )
            for fact in facts
        ),
    ).without_empty_columns()


def _details(folder, summary, series):
    made = []
    if checked.has(folder, "table.txt"):
        text = checked.clean(checked.read_text(folder, "table.txt"))
        made.append(
            Detail(
                title="Ours beside the paper, as printed",
                statement=text,
                is_aligned=True,
            )
        )
    for name, text in summary.fields("statements").words():
        known = series.fields(name.split(" ")[0])
        kind = known.text("guarantee")
        made.append(
            Detail(
                title=name,
                standing=_KINDS.get(kind),
                about=known.text("label"),
                statement=text,
            )
        )
    return tuple(made)
