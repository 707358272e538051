"""The files of a comparison: table, CSV, JSON, plot, TensorBoard."""

import csv
import dataclasses
import importlib.util
import json
import math
import os

from keras_fm.lab import provenance
from keras_fm.lab.compare.methods import METHODS
from keras_fm.lab.compare.outcome import Outcome, summarise, table
from keras_fm.training.tensorboard_files import tensorflow


def write(spec, outcomes, out, command=None):
    """Writes table, CSV, JSON, plot and TensorBoard logs to `out`."""
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "table.txt"), "w") as f:
        f.write(table(outcomes) + "\n")
    fields = [f.name for f in dataclasses.fields(Outcome)]
    fields.remove("statement")
    with open(os.path.join(out, "runs.csv"), "w", newline="") as f:
        writer = csv.DictWriter(f, fields, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(o) for o in outcomes)
    summary = {
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
    }
    with open(os.path.join(out, "summary.json"), "w") as f:
        json.dump(provenance.finite(summary), f, indent=1)
    plot_path = os.path.join(out, "accuracy.png")
    plot(spec, outcomes, plot_path)
    _write_tensorboard(spec, outcomes, out, plot_path)


def plot(spec, outcomes, path):
    """Accuracy against epsilon as PNG: a panel for what is proven, one for
    what is only claimed, horizontal lines without privacy."""
    from matplotlib.figure import Figure

    rows = summarise(outcomes)
    panels = {True: [], False: []}
    for method in METHODS:
        points = [r for r in rows if r["method"] == method]
        if points and METHODS[method].private:
            proven = all(math.isfinite(r["proven"]) for r in points)
            panels[proven].append(points)
    shown = [proven for proven, part in panels.items() if part] or [True]
    figure = Figure(figsize=(7.5 * len(shown), 6.5), layout="constrained")
    for axes, proven in zip(
        figure.subplots(1, len(shown), squeeze=False)[0], shown
    ):
        # Colours begin anew in each panel: never two alike in one.
        here = _styles([points[0]["method"] for points in panels[proven]])
        for points in panels[proven]:
            _line(axes, spec, points, here[points[0]["method"]], proven)
        for r in rows:
            if not METHODS[r["method"]].private:
                axes.axhline(
                    100 * r["accuracy"],
                    linewidth=1,
                    linestyle="-" if r["method"] == "non_private" else "-.",
                    label=f"{r['label']} (no privacy)",
                    color="black",
                )
        axes.set_xscale("log", base=2)
        axes.set_xticks(spec.epsilons, [f"{e:g}" for e in spec.epsilons])
        axes.set_xlabel(
            f"proven epsilon (delta = {spec.delta:g}, {spec.neighbours})"
            if proven
            else "claimed epsilon: no valid proof"
        )
        axes.set_ylabel("test accuracy, %")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(
        f"{os.path.basename(spec.dataset)}: mean and standard deviation of "
        f"{spec.seeds} runs"
    )
    figure.savefig(path, dpi=120)


def _line(axes, spec, points, style, proven):
    label = points[0]["label"]
    rival = METHODS[points[0]["method"]].tuned is not None
    if points[0]["neighbours"] != spec.neighbours:
        label += f" ({points[0]['neighbours']})"
    axes.errorbar(
        [r["epsilon"] for r in points],
        [100 * r["accuracy"] for r in points],
        yerr=[100 * r["spread"] for r in points],
        linestyle=":" if not proven else "--" if rival else "-",
        linewidth=1.5,
        elinewidth=0.8,
        capsize=2,
        label=label,
        **style,
    )


_MARKERS = "osD^v<>PX*"


def _styles(methods):
    """Ten colours, then the same with another marker: never two alike."""
    return {
        method: {
            "color": f"C{index % 10}",
            "marker": _MARKERS[(index + index // 10) % len(_MARKERS)],
        }
        for index, method in enumerate(methods)
    }


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
