"""What `keras-fm reproduce` wrote: a figure of a paper, ours beside it."""

from keras_fm.lab.report import checked, parts, trainings
from keras_fm.lab.report.content import Cell, Detail, Run, Standing
from keras_fm.lab.report.trainings import Training

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


class _Point(Training):
    """One measured number."""

    def __init__(self, fields, series, scale):
        name = fields.text("series") or "unnamed"
        known = series.fields(name)
        label = known.text("label") or name
        super().__init__(fields, name, label, "y", "runs", scale)
        self.stand(fields.text("guarantee") or known.text("guarantee"))
        self.x = _number_or_text(fields, "x")

    def place_cell(self):
        if isinstance(self.x, str):
            return parts.words(self.x)
        return parts.number(None if self.x == self.epsilon else self.x)


def read(folder):
    """Reads a folder of `keras-fm reproduce`.

    Raises:
        ValueError: if a file of it is broken.
    """
    summary = checked.read_json(folder, "summary.json")
    name = summary.text("experiment") or "unnamed experiment"
    title, shown = summary.text("title"), summary.text("shows")
    series = summary.fields("series")
    facts = summary.list_of_fields("facts")
    axis = _axis(summary, facts)
    points = [
        _Point(f, series, axis[1]) for f in summary.list_of_fields("points")
    ]
    settings = summary.fields("settings")
    command = summary.text("command") or summary.text("reproduce")
    when = parts.when(summary)
    seconds = summary.number("seconds")
    data = dict(settings.words()).get("data", "")
    return Run(
        kind="reproduce",
        title=f"{name}: {title}" if title else name,
        lead=f"In the paper: {shown}" if shown else "Ours beside the paper's.",
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
        claimed = [_CLAIMED] if summary.list_of_fields("facts") else []
        found = [*claimed, *_TRAINED]
    if trainings.have_rival(points):
        found.append(trainings.TUNED)
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
    make = parts.column
    if any(isinstance(p.x, str) for p in points):
        make = parts.text_column
    columns = (
        *trainings.first_columns("series"),
        make("x", _Point.place_cell, "where the point stands on the axis"),
        parts.column(axis[0], _Point.result_cell),
        *trainings.privacy_columns(),
        *trainings.cost_columns(),
        parts.column("runs", lambda point: parts.number(point.runs)),
    )
    return parts.table("Ours", columns, points)


def _paper(facts, axis):
    label, scale = axis

    def text(title):
        return parts.text_column(
            title, lambda fact: parts.words(fact.text(title))
        )

    columns = (
        parts.text_column(
            "system", lambda fact: Cell(text=fact.text("system") or "unnamed")
        ),
        parts.text_column("standing", lambda _: parts.standing(Standing.PAPER)),
        parts.column(
            "ε",
            lambda fact: parts.number(fact.number("epsilon")),
            "as the paper claims it",
        ),
        parts.column(
            "epochs", lambda fact: parts.number(fact.number("epochs"))
        ),
        parts.column(
            label,
            lambda fact: parts.number(_times(fact.number("value"), scale)),
        ),
        parts.text_column("of", lambda fact: parts.words(fact.text("metric"))),
        parts.text_column(
            "data", lambda fact: parts.words(fact.text("dataset"))
        ),
        text("where"),
        text("note"),
    )
    return parts.table("The paper's numbers", columns, facts)


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
                standing=trainings.standing_of_kind(kind),
                about=known.text("label"),
                statement=text,
            )
        )
    return tuple(made)
