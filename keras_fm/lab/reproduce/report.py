"""Table, CSV and JSON of an experiment: ours, the paper's, the difference."""

import dataclasses
import itertools
import math
import shlex
import statistics

from keras_fm.lab import provenance
from keras_fm.lab.engine import files, rival
from keras_fm.lab.engine.means import mean, most
from keras_fm.lab.reproduce import facts as facts_lib

_WORDS = {
    "claimed": "claimed, not proven",
    "proven": "proven",
    "no privacy": "no privacy",
    "calculated": "calculated",
    "formula": "as printed, no bound",
}


def points(outcome):
    """Means over seeds, one dict for each series, epsilon and x.

    `is_last` marks the last point of a training's curve, the one that stands
    in the table.
    """
    found = {}
    for row in outcome.rows:
        for index, (x, y) in enumerate(row["curve"]):
            key = row["series"], row["epsilon"], row["at"], x
            is_last = (
                outcome.experiment.x.name != "epochs"
                or index == len(row["curve"]) - 1
            )
            found.setdefault(key, []).append((y, row, is_last))
    return [
        {
            "series": series,
            "guarantee": outcome.experiment.find(series).kind,
            "epsilon": epsilon,
            "x": x,
            **mean([row for _, row, _ in group], [y for y, _, _ in group]),
            "is_last": group[0][2],
        }
        for (series, epsilon, _, x), group in found.items()
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Line:
    """A line of the table: our point, the paper's number beside it, or one of
    them alone."""

    experiment: object
    point: dict | None = None
    fact: object = None

    @property
    def series(self):
        return self.experiment.find(self.point["series"])

    def place(self):
        """Where on the axes it stands."""
        point, fact, axis = self.point, self.fact, self.experiment.x.name
        if point is None:
            if axis == "category":
                return fact.category
            if fact.epsilon_range:
                return "{:g} to {:g}".format(*fact.epsilon_range)
            return _or_dash(fact.epsilon, "g")
        if "words" in point or axis == "category":
            return point.get("words", point["x"])
        words = []
        if any(s.is_private for s in self.experiment.series):
            words.append(_or_dash(point["epsilon"], "g"))
        if axis != "epsilon":
            words.append(f"{point['x']:g}")
        return ", ".join(words)

    def ours(self):
        """Label, guarantee, epsilons, value, seconds."""
        point, scale = self.point, self.experiment.y.scale
        if point is None:
            return "-", "", "", "", "-", "", ""
        value = _number(point["y"] * scale)
        if point["spread"]:
            value += f" +- {_number(point['spread'] * scale)}"
        is_claimed = self.series.kind == "claimed"
        return (
            self.series.label,
            _WORDS[self.series.kind],
            _or_dash(point["claimed"] if is_claimed else None),
            _or_dash(point["proven"]),
            value,
            f"{point['seconds']:.1f}",
            f"{point['cpu_seconds']:.1f}",
        )

    def papers(self):
        """Number, difference, system."""
        fact, scale = self.fact, self.experiment.y.scale
        if fact is None:
            return "-", "", ""
        system = fact.system
        if fact.epochs:
            system += f", {fact.epochs} epochs"
        if fact.value is None:
            return "only a figure", "", system
        difference = ""
        if self.point is not None:
            missed = (self.point["y"] - fact.value) * scale
            difference = ("+" if missed >= 0 else "") + _number(missed)
        return _number(fact.value * scale), difference, system

    def cells(self):
        label, kind, claimed, proven, value, *seconds = self.ours()
        return [
            label,
            self.place(),
            kind,
            claimed,
            proven,
            value,
            *self.papers(),
            *seconds,
        ]


def _lines(outcome):
    """Every point with the facts of the systems that it stands beside at the
    same x and epsilon; facts with no point of ours follow alone."""
    experiment, used, lines = outcome.experiment, set(), []
    made = [p for p in points(outcome) if p["is_last"]]

    def add(point, fact):
        used.add(fact and fact.id)
        lines.append(_Line(experiment=experiment, point=point, fact=fact))

    for point in made:
        systems = experiment.find(point["series"]).beside
        partners = [
            fact
            for fact in outcome.facts
            if fact.system in systems and _same(experiment, point, fact)
        ]
        for fact in partners or [None]:
            add(point, fact)
    for fact in [f for f in outcome.facts if f.id not in used]:
        for series in experiment.series:
            average = _average(made, series, fact)
            if average is not None:
                add(average, fact)
        if fact.id not in used:
            lines.append(_Line(experiment=experiment, fact=fact))
    return sorted(lines, key=lambda line: line.point is None)


def _same(experiment, point, fact):
    """Whether a number of the paper is for the same thing as a point."""
    if fact.setting is not None or experiment.x.name == "category":
        return point["x"] == fact.category
    if fact.epsilon_range is not None or "mean" in fact.id.split("-"):
        return False
    return point["epsilon"] == fact.epsilon


def _average(made, series, fact):
    """The mean of our points in the range of budgets of a printed mean;
    `None` for fewer than two, which are no mean."""
    if fact.system not in series.beside or fact.epsilon_range is None:
        return None
    low, high = fact.epsilon_range
    mine = [
        p
        for p in made
        if p["series"] == series.name and low <= (p["epsilon"] or 0) <= high
    ]
    if len(mine) < 2:
        return None
    return {
        **mine[0],
        "y": statistics.fmean(p["y"] for p in mine),
        "spread": 0.0,
        "epsilon": None,
        "words": f"mean of {len(mine)}",
        "claimed": most(p["claimed"] for p in mine),
        "proven": most(p["proven"] for p in mine),
    }


_LEFT = ("ours", "guarantee", "paper's system")


def table(outcome):
    """Ours beside the paper's numbers, as text."""
    experiment = outcome.experiment
    place = {"category": "what"}.get(experiment.x.name, experiment.x.name)
    if place not in ("epsilon", "what"):
        if any(s.is_private for s in experiment.series):
            place = f"epsilon, {place}"
    head = ["ours", place, "guarantee", "claimed", "proven"]
    head += [experiment.y.label, "paper", "difference", "paper's system"]
    head += ["seconds", "CPU"]
    rows = [line.cells() for line in _lines(outcome)]
    # Columns in which nothing stands say nothing.
    said = [any(c not in ("", "-") for c in column) for column in zip(*rows)]
    head, *rows = (list(itertools.compress(r, said)) for r in (head, *rows))
    lines = files.text_table(head, rows, _LEFT)
    return "\n".join([*_heading(outcome), "", *lines, *_remarks(outcome)])


def _heading(outcome):
    experiment = outcome.experiment
    paper = facts_lib.papers()[experiment.paper]
    lines = [
        f"{experiment.name} ({outcome.form} form): {experiment.title}",
        f"{paper['authors']}: {paper['title']}. {paper['venue']} "
        f"{paper['year']}",
    ]
    if "data" in outcome.settings:
        lines.append(f"data: {outcome.settings['data']}")
    proven = [r for r in outcome.rows if r["proven"] not in (None, math.inf)]
    if proven:
        words = [f"{d:g}" for d in sorted({r["delta"] for r in proven})]
        words += sorted({r["neighbours"] for r in proven})
        lines.append("proven rows: delta = " + ", ".join(words))
    return lines


def _remarks(outcome):
    experiment, lines = outcome.experiment, [""]
    if experiment.why_no_facts:
        lines.append(f"No number of the paper: {experiment.why_no_facts}")
    elif not outcome.facts:
        lines.append(
            "The paper's numbers are left out: they are for other data "
            f"({experiment.dataset})."
        )
    else:
        if any(
            f.metric in ("accuracy", "squared_error") for f in outcome.facts
        ):
            lines.append(
                "The paper's numbers are at an epsilon that it claims."
            )
        if experiment.facts_dataset:
            lines.append(experiment.facts_dataset)
        lines += sorted(
            {
                f"{f.system}, {_number(f.value * experiment.y.scale)}: "
                f"{f.note}."
                for f in outcome.facts
                if f.note and f.value is not None
            }
        )
    if experiment.deviations:
        lines.append(f"Differs from the paper: {experiment.deviations}")
    if any(point["runs"] > 1 for point in points(outcome)):
        lines.append("+-: standard deviation over seeds.")
    if any(experiment.find(r["series"]).needs_dp_sgd for r in outcome.rows):
        lines.append(rival.UNCHARGED)
    for name, why in outcome.skipped.items():
        lines.append(f"Left out: {experiment.find(name).label}: {why}.")
    return lines


def _number(value):
    size = abs(value)
    if size and (size >= 1e5 or size < 1e-3):
        return f"{value:.2e}"
    return (
        f"{value:.4g}" if size < 1 else f"{value:.2f}".rstrip("0").rstrip(".")
    )


def _or_dash(value, spec=".4g"):
    return "-" if value is None else f"{value:{spec}}"


def command(outcome):
    """The command line that gives these points."""
    experiment, settings = outcome.experiment, outcome.settings
    form = experiment.full if outcome.form == "full" else experiment.small
    words = ["keras-fm", "reproduce", experiment.name]
    if outcome.form == "full":
        words.append("--full")
    if settings.get("epsilons") != form.get("epsilons"):
        words.append(
            "--epsilons=" + ",".join(f"{e:g}" for e in settings["epsilons"])
        )
    for name in ("seeds", "data"):
        if settings.get(name) != form.get(name):
            words.append(f"--{name}={settings[name]}")
    return shlex.join(words)


def summary(outcome):
    """All of a run as a dict for JSON."""
    experiment = outcome.experiment
    statements = {}
    for row in outcome.rows:
        if row["statement"]:
            name = row["series"]
            if row["epsilon"] is not None:
                name += f" {row['epsilon']:g}"
            if row["at"] is not None:
                name += f" {experiment.x.name}={row['at']:g}"
            statements.setdefault(name, row["statement"])
    return provenance.finite(
        {
            "kind": "reproduce",
            "experiment": experiment.name,
            "title": experiment.title,
            "paper": facts_lib.papers()[experiment.paper],
            "shows": experiment.shows,
            "form": outcome.form,
            "settings": outcome.settings,
            "when": max((row["when"] for row in outcome.rows), default=""),
            "versions": provenance.versions(),
            "x": dataclasses.asdict(experiment.x),
            "y": dataclasses.asdict(experiment.y),
            "reproduce": command(outcome),
            "series": {
                s.name: {"label": s.label, "guarantee": s.kind}
                for s in experiment.series
            },
            "points": points(outcome),
            "facts": [
                {k: v for k, v in dataclasses.asdict(f).items() if v != ""}
                for f in outcome.facts
            ],
            "why_no_facts": experiment.why_no_facts,
            "facts_dataset": experiment.facts_dataset,
            "deviations": experiment.deviations,
            "skipped": outcome.skipped,
            "notes": [
                {
                    **row["notes"],
                    "series": row["series"],
                    "epsilon": row["epsilon"],
                }
                for row in outcome.rows
                if row["notes"]
            ],
            "statements": statements,
            "seconds": sum(row["seconds"] for row in outcome.rows),
            "cpu_seconds": sum(row["cpu_seconds"] for row in outcome.rows),
        }
    )


_FIELDS = (
    "series",
    "guarantee",
    "epsilon",
    "x",
    "y",
    "spread",
    "runs",
    "claimed",
    "proven",
    "delta",
    "neighbours",
    "seconds",
    "cpu_seconds",
)


def write(outcome, folder):
    """Writes `points.csv`, `summary.json` and `table.txt`."""
    files.write_csv(folder, "points.csv", _FIELDS, points(outcome))
    files.write_json(folder, "summary.json", summary(outcome))
    files.write_text(folder, "table.txt", table(outcome))
