"""The files of a comparison: table, CSV, JSON, plot, TensorBoard."""

import dataclasses
import math
import os

from keras_fm.core import event_file
from keras_fm.lab import provenance
from keras_fm.lab.compare.methods import METHODS
from keras_fm.lab.compare.outcome import (
    Outcome,
    grid_of,
    standing,
    summarise,
    table,
)
from keras_fm.lab.engine import files, plot


def write(spec, outcomes, out, command=None):
    """Writes table, CSV, JSON, plot and TensorBoard logs to `out`."""
    files.write_text(out, "table.txt", table(outcomes))
    fields = [f.name for f in dataclasses.fields(Outcome)]
    fields.remove("statement")
    rows = [dataclasses.asdict(o) for o in outcomes]
    files.write_csv(out, "runs.csv", fields, rows)
    files.write_json(
        out,
        "summary.json",
        {
            "kind": "compare",
            **provenance.record(command),
            "spec": dataclasses.asdict(spec),
            "rows": summarise(outcomes),
            "notes": outcomes.notes,
            "methods": {name: METHODS[name].about for name in spec.methods},
            "statements": {
                f"{METHODS[o.method].label}, epsilon {o.epsilon:g}": o.statement
                for o in outcomes
                if o.statement and o.seed == 0
            },
        },
    )
    plot_path = os.path.join(out, "accuracy.png")
    draw(spec, outcomes, plot_path)
    _write_tensorboard(spec, outcomes, out, plot_path)


def draw(spec, outcomes, path):
    """Accuracy against epsilon as PNG: a panel for what is proven, one for
    what is only claimed."""
    rows = summarise(outcomes)
    ranked = [n for names in grid_of(rows).names.values() for n in names]
    lines = {"proven": [], "claimed": [], "no privacy": []}
    for name in ranked:
        points = [r for r in rows if r["method"] == name]
        lines[METHODS[name].kind].append(_line(spec, METHODS[name], points))
    shown = [k for k in ("proven", "claimed") if lines[k]] or ["no privacy"]
    figure, panels = plot.new(len(shown), size=(6.4 * len(shown), 4.8))
    for axes, kind in zip(panels, shown):
        # They begin anew in each panel: never two lines alike in one.
        count = len(lines[kind])
        looks = zip(plot.colors(count), plot.markers(count))
        for line, (color, marker) in zip(lines[kind], looks):
            line.style.setdefault("color", color)
            line.style["marker"] = marker
        _accuracies(axes, spec, kind, lines[kind], lines["no privacy"])
    runs = "one run each"
    if spec.seeds > 1:
        runs = f"mean and standard deviation of {spec.seeds} runs"
    figure.suptitle(
        f"{os.path.basename(spec.dataset)}: {runs}", parse_math=False
    )
    figure.savefig(path, dpi=110)


def _accuracies(axes, spec, kind, lines, levels):
    heights = [
        (100 * y, 100 * spread)
        for line in lines
        for _, y, spread in line.points
    ]
    level = [100 * line.points[0][1] for line in levels]
    low, high = plot.window(heights, level)
    near = [v for v, y in zip(levels, level) if low <= y <= high]
    plot.draw(axes, [*lines, *(v for v in near if v not in lines)], scale=100)
    axes.set_xscale("log", base=2)
    plot.ticks(axes, spec.epsilons)
    axes.set_ylim(low, high)
    axes.set_xlabel(_AXES[kind].format(spec))
    axes.set_ylabel("test accuracy, %")
    ends = {line.label: line for line in (*lines, *near)}
    plot.end_labels(
        axes,
        [
            (x, 100 * y, plot.shortened(name), _color(line))
            for name, line in ends.items()
            for x, y, _ in line.points[-1:]
        ],
    )


_AXES = {
    "proven": "proven epsilon\n(delta = {0.delta:g}, {0.neighbours})",
    "claimed": "claimed epsilon: no valid proof",
    "no privacy": "no privacy",
}


def _color(line):
    return line.style.get("color", "black")


def _line(spec, method, points):
    label, style = method.label, {}
    if not method.is_private:
        style = {"color": "black"}
        style["linestyle"] = "-" if method.name == "non_private" else "-."
    elif method.kind == "proven" and points[0]["neighbours"] != spec.neighbours:
        label += f" ({points[0]['neighbours']})"
    if method.tuned:
        # A rival.
        style = {"linestyle": "--"}
    points = sorted(points, key=lambda r: r["epsilon"] or 0.0)
    return plot.Line(
        label=label,
        kind=method.kind,
        points=tuple(
            (r["epsilon"], r["accuracy"], r["spread"]) for r in points
        ),
        style=style,
    )


# TensorBoard --------------------------------------------------------------


def run_folder(out, method, epsilon):
    """The TensorBoard folder of one method and budget."""
    name = method if epsilon is None else f"{method}_epsilon_{epsilon:g}"
    return os.path.join(out, "tensorboard", name)


def _write_tensorboard(spec, outcomes, out, plot_path):
    if not event_file.can_be_written():
        return
    for row in summarise(outcomes):
        folder = run_folder(out, row["method"], row["epsilon"])
        file = event_file.EventFile(folder)
        for name in ("accuracy", "cpu_seconds"):
            file.scalar(f"comparison/{name}", row[name])
        file.hparams(
            {
                "method": row["label"],
                "epsilon": row["epsilon"] or "none",
                "standing": standing(row),
                "epsilon spent": row["proven"]
                if math.isfinite(row["proven"])
                else "no proof",
                "features": spec.features,
                "hidden": spec.hidden,
                **{
                    k: v
                    for k, v in row["settings"].items()
                    if isinstance(v, (bool, int, float, str))
                },
            },
            os.path.basename(folder),
        )
        for o in outcomes:
            same = (o.method, o.epsilon) == (row["method"], row["epsilon"])
            if same and o.statement and o.seed == 0:
                file.text("privacy/statement", f"```\n{o.statement}\n```")
        file.close()
    file = event_file.EventFile(os.path.join(out, "tensorboard"))
    with open(plot_path, "rb") as f:
        file.image("comparison/accuracy", f.read())
    file.text("comparison/table", f"```\n{table(outcomes)}\n```")
    file.close()
