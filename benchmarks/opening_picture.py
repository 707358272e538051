"""The README's picture: measured rows of MNIST over the papers' claims.

    python benchmarks/opening_picture.py

Draws `docs/results/opening.png` from `docs/results/mnist/summary.json`
(docs/results/mnist.md has its command) and the printed numbers of the papers
(`keras_fm/lab/reproduce/facts.json`). Nothing is measured here.
"""

import json
import pathlib

import matplotlib

from keras_fm.lab.reproduce import facts

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (after its backend)

RESULTS = pathlib.Path(__file__).parent.parent / "docs" / "results"
MEASURED = (
    ("rounds_proven", "80 rounds, whitened features", "tab:orange", "s", "-"),
    (
        "dp_sgd_head",
        "DP-SGD, the features (tensorflow-privacy)",
        "tab:brown",
        "<",
        "--",
    ),
    ("proven", "one release, the features", "tab:blue", "o", "-"),
)
CLAIMS = (
    ("adlm", "AdLM", "AdLM, claimed", "D"),
    ("adlm", "ILM", "ILM, claimed", "v"),
    ("pcdbn", "pCDBN", "pCDBN, claimed", "P"),
    ("dpmac", "DP-MAC", "DP-MAC, claimed", "X"),
)


def main():
    rows = json.loads((RESULTS / "mnist" / "summary.json").read_text())["rows"]
    figure, axes = plt.subplots(figsize=(7.2, 4.2), dpi=160)
    for method, label, colour, marker, line in MEASURED:
        points = [
            (row["epsilon"], 100 * row["accuracy"], 100 * row["spread"])
            for row in rows
            if row["method"] == method
        ]
        axes.errorbar(
            *zip(*sorted(points)), color=colour, marker=marker, ls=line,
            label=f"proven: {label}",
        )  # fmt: skip
    for paper, system, label, marker in CLAIMS:
        points = sorted(
            (fact.epsilon, 100 * fact.value)
            for fact in facts.select(paper, "mnist", "accuracy")
            if fact.system == system and fact.epsilon is not None
        )
        axes.plot(
            *zip(*points), color="0.55", marker=marker, ls=":", label=label
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(
        [0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"]
    )
    axes.set_xlabel("epsilon (grey: as the papers claim it)")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(
        "MNIST, public features, delta = 1e-5, add_remove; mean of three draws"
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(RESULTS / "opening.png")


if __name__ == "__main__":
    main()
