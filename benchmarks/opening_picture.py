"""The README's picture: measured rows of USPS, and of MNIST over claims.

    python benchmarks/opening_picture.py

Draws `docs/results/opening.png` from the stored rows of USPS and MNIST
(docs/results/side_by_side.md and mnist.md have their commands) and the printed
numbers of the papers (`keras_fm/lab/reproduce/facts.json`). Nothing is measured
here.
"""

import json
import pathlib

import matplotlib

from keras_fm.lab.reproduce import facts

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (after its backend)

RESULTS = pathlib.Path(__file__).parent.parent / "docs" / "results"
MEASURED = {
    "rounds": ("80 rounds, whitened features", "tab:orange", "s", "-"),
    "dp_sgd_whitened": (
        "DP-SGD, whitened features",
        "tab:red",
        ">",
        "--",
    ),
    "dp_sgd_head": ("DP-SGD, the features", "tab:brown", "<", "--"),
    "one_release": ("one release, the features", "tab:blue", "o", "-"),
}
CLAIMS = (
    ("adlm", "AdLM", "AdLM, claimed", "D"),
    ("adlm", "ILM", "ILM, claimed", "v"),
    ("pcdbn", "pCDBN", "pCDBN, claimed", "P"),
    ("dpmac", "DP-MAC", "DP-MAC, claimed", "X"),
)


def measured(axes, folder, name):
    """Draws what a file has of `MEASURED`."""
    text = (RESULTS / folder / "summary.json").read_text(encoding="utf-8")
    rows = json.loads(text)["rows"]
    for method, (label, colour, marker, line) in MEASURED.items():
        points = [
            (row["epsilon"], 100 * row["accuracy"], 100 * row["spread"])
            for row in rows
            if row["method"] == method
        ]
        axes.errorbar(
            *zip(*sorted(points)), color=colour, marker=marker, ls=line,
            label=f"proven: {label}",
        )  # fmt: skip
    (seeds,) = {row["seeds"] for row in rows}
    axes.set_title(f"{name}, mean of {seeds} draws", fontsize=10)
    axes.set_xscale("log", base=2)
    axes.set_xticks(
        [0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"]
    )
    axes.grid(alpha=0.3)


def main():
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.2), dpi=160)
    measured(left, "side_by_side/usps_heads", "USPS")
    left.set_xlabel("epsilon")
    left.set_ylabel("test accuracy, %")
    measured(right, "mnist", "MNIST")
    for paper, system, label, marker in CLAIMS:
        points = sorted(
            (fact.epsilon, 100 * fact.value)
            for fact in facts.select(paper, "mnist", "accuracy")
            if fact.system == system and fact.epsilon is not None
        )
        right.plot(
            *zip(*points), color="0.55", marker=marker, ls=":", label=label
        )
    right.set_xlabel("epsilon (grey: as the papers claim it)")
    for axes in (left, right):
        axes.legend(fontsize=7, loc="lower right")
    figure.suptitle(
        "Public features, delta = 1e-5, add_remove, DP-SGD by "
        "tensorflow-privacy",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(RESULTS / "opening.png")


if __name__ == "__main__":
    main()
