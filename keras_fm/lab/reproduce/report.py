"""Table, CSV and JSON of an experiment: ours, the paper's, the difference."""

import dataclasses
import itertools
import math
import statistics

from keras_fm.lab import provenance
from keras_fm.lab.engine import files
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


def beside(outcome):
    """Lines of the table: `(point or None, series or None, fact or None)`.

    Every point comes with the facts of the systems that it stands beside at
    the same x and epsilon; facts with no point of ours follow alone.
    """
    experiment, used, lines = outcome.experiment, set(), []
    made = [p for p in points(outcome) if p["is_last"]]
    for point in made:
        series = experiment.find(point["series"])
        partners = [
            fact
            for fact in outcome.facts
            if fact.system in series.beside and _same(experiment, point, fact)
        ]
        used.update(fact.id for fact in partners)
        lines += [(point, series, fact) for fact in partners or [None]]
    for fact in outcome.facts:
        if fact.id in used:
            continue
        for series in experiment.series:
            mean = _mean(experiment, made, series, fact)
            if mean is not None:
                used.add(fact.id)
                lines.append((mean, series, fact))
    lines += [(None, None, f) for f in outcome.facts if f.id not in used]
    return lines


def _same(experiment, point, fact):
    """Whether a number of the paper is for the same thing as a point."""
    if fact.setting is not None or experiment.x.name == "category":
        return point["x"] == fact.category
    if fact.epsilon_range is not None:
        return False
    if "mean" in fact.id.split("-"):
        return False
    return point["epsilon"] == fact.epsilon


def _mean(experiment, made, series, fact):
    """The mean of our points in the range of budgets of a printed mean."""
    if fact.system not in series.beside or fact.epsilon_range is None:
        return None
    low, high = fact.epsilon_range
    mine = [
        p
        for p in made
        if p["series"] == series.name and low <= (p["epsilon"] or 0) <= high
    ]
    if not mine:
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


def table(outcome):
    """Ours beside the paper's numbers, as text."""
    experiment = outcome.experiment
    head = [
        "ours",
        _x_name(experiment),
        "guarantee",
        "claimed",
        "proven",
        experiment.y.label,
        "paper",
        "difference",
        "paper's system",
        "seconds",
        "CPU",
    ]
    rows = [_cells(experiment, *line) for line in beside(outcome)]
    # Columns in which nothing stands say nothing.
    said = [any(row[i] not in ("", "-") for row in rows) for i in range(11)]
    head, *rows = (list(itertools.compress(r, said)) for r in (head, *rows))
    lines = files.text_table(
        head, rows, ("ours", "guarantee", "paper's system")
    )
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


def _x_name(experiment):
    if experiment.x.name in ("epsilon", "category"):
        return experiment.x.name.replace("category", "what")
    if not any(s.is_private for s in experiment.series):
        return experiment.x.name
    return f"epsilon, {experiment.x.name}"


def _x_words(experiment, point, fact):
    if point is None:
        words = "-" if fact.epsilon is None else f"{fact.epsilon:g}"
        if fact.epsilon_range:
            words = "{:g} to {:g}".format(*fact.epsilon_range)
        if experiment.x.name == "category":
            words = fact.category
        return words
    if "words" in point:
        return point["words"]
    if experiment.x.name == "category":
        return point["x"]
    words = "-" if point["epsilon"] is None else f"{point['epsilon']:g}"
    if not any(s.is_private for s in experiment.series):
        return f"{point['x']:g}"
    if experiment.x.name != "epsilon":
        words += f", {point['x']:g}"
    return words


def _cells(experiment, point, series, fact):
    scale = experiment.y.scale
    ours = ["-", "", "", "", "-", "", ""]
    if point is not None:
        value = _number(point["y"] * scale)
        if point["spread"]:
            value += f" +- {_number(point['spread'] * scale)}"
        ours = [
            series.label,
            _WORDS[series.kind],
            _or_dash(point["claimed"]) if series.kind == "claimed" else "-",
            _or_dash(point["proven"]),
            value,
            f"{point['seconds']:.1f}",
            f"{point['cpu_seconds']:.1f}",
        ]
    label, kind, claimed, proven, value, *seconds = ours
    printed, difference, system = "-", "", ""
    if fact is not None:
        system = fact.system + (
            f", {fact.epochs} epochs" if fact.epochs else ""
        )
        if fact.value is not None:
            printed = _number(fact.value * scale)
            if point is not None:
                difference = f"{_sign((point['y'] - fact.value) * scale)}"
        else:
            printed = "only a figure"
    return [
        label,
        _x_words(experiment, point, fact),
        kind,
        claimed,
        proven,
        value,
        printed,
        difference,
        system,
        *seconds,
    ]


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


def _sign(value):
    return ("+" if value >= 0 else "") + _number(value)


def _or_dash(value):
    return "-" if value is None else f"{value:.4g}"


def command(outcome):
    """The command line that gives these points."""
    experiment, settings = outcome.experiment, outcome.settings
    form = experiment.full if outcome.form == "full" else experiment.small
    words = ["keras-fm reproduce", experiment.name]
    if outcome.form == "full":
        words.append("--full")
    if settings.get("epsilons") != form.get("epsilons"):
        words.append(
            "--epsilons=" + ",".join(f"{e:g}" for e in settings["epsilons"])
        )
    for name in ("seeds", "data"):
        if settings.get(name) != form.get(name):
            words.append(f"--{name}={settings[name]}")
    return " ".join(words)


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
