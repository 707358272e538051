"""The README's picture: measured rows of MNIST over the papers' claims.

    python benchmarks/opening_picture.py

Draws `docs/results/opening.png` from `docs/results/rounds_mnist.json`
(docs/results/rounds.md says how it was measured) and the printed numbers of the
papers (`keras_fm/lab/reproduce/facts.json`). Nothing is measured here.
"""

import json
import pathlib

import matplotlib
import numpy as np

from keras_fm.lab.reproduce import facts

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (after its backend)

RESULTS = pathlib.Path(__file__).parent.parent / "docs" / "results"
OURS = (
    (
        "whitened",
        "scattering",
        "80 rounds, whitened features",
        "tab:orange",
        "s",
    ),
    ("one_read", "scattering", "one release, the features", "tab:blue", "o"),
)
DP_SGD = ("DP-SGD, the features (tensorflow-privacy)", "tab:brown", "<")
CLAIMS = (
    ("adlm", "AdLM", "AdLM, claimed", "D"),
    ("adlm", "ILM", "ILM, claimed", "v"),
    ("pcdbn", "pCDBN", "pCDBN, claimed", "P"),
    ("dpmac", "DP-MAC", "DP-MAC, claimed", "X"),
)


def measured(method, features):
    rows = json.loads((RESULTS / "rounds_mnist.json").read_text())
    found = sorted(
        (row["epsilon"], 100 * np.array(row["accuracies"]))
        for row in rows
        if (row["method"], row["features"]) == (method, features)
        and not row["held_out"]
    )
    return (
        [epsilon for epsilon, _ in found],
        [values.mean() for _, values in found],
        [values.std(ddof=1) for _, values in found],
    )


def main():
    figure, axes = plt.subplots(figsize=(7.2, 4.2), dpi=160)
    for method, features, label, colour, marker in OURS:
        x, y, spread = measured(method, features)
        axes.errorbar(
            x, y, spread, color=colour, marker=marker, label=f"proven: {label}"
        )
    label, colour, marker = DP_SGD
    x, y, spread = measured("dp_sgd_438", "scattering")
    axes.errorbar(
        x, y, spread, color=colour, marker=marker, ls="--",
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
        "MNIST, wavelet features, delta = 1e-5, add_remove; mean of three draws"
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(RESULTS / "opening.png")


if __name__ == "__main__":
    main()
