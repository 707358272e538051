"""The files of a comparison: table, CSV, JSON, plot, TensorBoard."""

import dataclasses
import importlib.util
import math
import os

from keras_fm.lab import provenance
from keras_fm.lab.compare.methods import METHODS
from keras_fm.lab.compare.outcome import Outcome, summarise, table
from keras_fm.lab.engine import files, plot
from keras_fm.training.tensorboard_files import tensorflow


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
            "methods": {name: METHODS[name].about for name in spec.methods},
            "statements": {
                f"{o.method} {o.epsilon:g}": o.statement
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
    what is only claimed, horizontal lines without privacy."""
    rows = summarise(outcomes)
    kinds = {"proven": [], "claimed": [], "no privacy": []}
    for method in METHODS.values():
        points = [r for r in rows if r["method"] == method.name]
        if points:
            kinds[method.kind].append(_line(spec, method, points))
    shown = [k for k in ("proven", "claimed") if kinds[k]] or ["proven"]
    figure, panels = plot.new(len(shown), size=(7.5 * len(shown), 6.5))
    for axes, kind in zip(panels, shown):
        # Colours begin anew in each panel: never two alike in one.
        for line, color in zip(kinds[kind], plot.colors(len(kinds[kind]))):
            line.style["color"] = color
        plot.draw(axes, kinds[kind] + kinds["no privacy"], scale=100)
        axes.set_xscale("log", base=2)
        plot.ticks(axes, spec.epsilons)
        axes.set_xlabel(
            f"proven epsilon (delta = {spec.delta:g}, {spec.neighbours})"
            if kind == "proven"
            else "claimed epsilon: no valid proof"
        )
        axes.set_ylabel("test accuracy, %")
        axes.legend(fontsize=8)
    figure.suptitle(
        f"{os.path.basename(spec.dataset)}: mean and standard deviation of "
        f"{spec.seeds} runs"
    )
    figure.savefig(path, dpi=120)


def _line(spec, method, points):
    label, style = method.label, {}
    if not method.is_private:
        label += " (no privacy)"
        style = {"color": "black"}
        style["linestyle"] = "-" if method.name == "non_private" else "-."
    elif points[0]["neighbours"] != spec.neighbours:
        label += f" ({points[0]['neighbours']})"
    if method.tuned:
        # A rival.
        style = {"linestyle": "--", "marker": "s"}
    return plot.Line(
        label=label,
        kind=method.kind,
        points=tuple(
            (r["epsilon"], r["accuracy"], r["spread"]) for r in points
        ),
        style=style,
    )


# TensorBoard --------------------------------------------------------------


def can_write_logs():
    """TensorBoard logs are written by TensorFlow, on every backend."""
    return all(map(importlib.util.find_spec, ("tensorboard", "tensorflow")))


def run_folder(out, method, epsilon):
    """The TensorBoard folder of one method and budget."""
    name = method if epsilon is None else f"{method}_epsilon_{epsilon:g}"
    return os.path.join(out, "tensorboard", name)


def _write_tensorboard(spec, outcomes, out, plot_path):
    if not can_write_logs():
        return
    tf = tensorflow("The table and the plot hold the same.")
    from tensorboard.plugins.hparams import api as hparams

    for row in summarise(outcomes):
        folder = run_folder(out, row["method"], row["epsilon"])
        writer = tf.summary.create_file_writer(folder)
        with writer.as_default(step=0):
            for name in ("accuracy", "claimed", "proven", "seconds"):
                value = row[name]
                if value is not None and math.isfinite(value):
                    tf.summary.scalar(f"comparison/{name}", value)
            hparams.hparams(
                {
                    "method": row["label"],
                    "epsilon": row["epsilon"] or "none",
                    "proven": math.isfinite(row["proven"]),
                    "features": spec.features,
                    "hidden": spec.hidden,
                    **{
                        k: v
                        for k, v in row["settings"].items()
                        if isinstance(v, (bool, int, float, str))
                    },
                },
                trial_id=os.path.basename(folder),
            )
            for o in outcomes:
                same = (o.method, o.epsilon) == (row["method"], row["epsilon"])
                if same and o.statement and o.seed == 0:
                    text = f"```\n{o.statement}\n```"
                    tf.summary.text("privacy/statement", text)
        writer.close()
    writer = tf.summary.create_file_writer(os.path.join(out, "tensorboard"))
    with writer.as_default(step=0):
        with open(plot_path, "rb") as f:
            image = tf.io.decode_png(f.read(), channels=3)
        tf.summary.image("comparison/accuracy", image[None])
        text = f"```\n{table(outcomes)}\n```"
        tf.summary.text("comparison/table", text)
    writer.close()
