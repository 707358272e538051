"""pCDBN: behaviour classification against epochs (the paper's Fig. 4).

    python benchmarks/cdbn_behavior.py

The SYNTHETIC weekly health network (docs/health_network.md), windows of
twelve steps (30 attributes x 12 weeks), target "increase". The first 80 % of
the weeks train, the rest tests. Two convolutional RBMs of 10 bases, 4 x 12
and 2 x 6, pooling 2, L = 7, learning rate 1e-3, dropout 0.5, L1: the paper's
model. Published form: pre-trained by CD-1 under noise, then 600 epochs of the
output layer. Every choice is fixed in advance, none by looking at the test
weeks; DP-SGD's rate is chosen on the last fifth of the training windows.

Results are written after every run; a second call goes on where one stopped.
"""

import statistics

import keras
import numpy as np
from absl import app, flags, logging
from results_file import ResultsFile

import keras_fm as fm
from keras_fm.lab.reproduce import training

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "cdbn_behavior", "Name of the files.")
_RESOLUTION = flags.DEFINE_enum("resolution", "weekly", ["weekly", "daily"], "")
_EPSILONS = flags.DEFINE_list("epsilons", ["0.1", "2", "8"], "Budgets.")
_EPOCHS = flags.DEFINE_integer("epochs", 600, "Epochs of the published fit.")
_DRAWS = flags.DEFINE_integer("draws", 3, "Runs of the proven methods.")
_METHODS = flags.DEFINE_list("methods", None, "Default: all.")
DELTA = 1e-6
HISTORY = 11
PRETRAIN = 10
BATCH = 512
SHOWN = (1, 10, 50, 100, 200, 300, 400, 500, 600)

# name: (label, polynomial, whether it is published and takes epsilon)
TRAINED = {
    "cdbn": ("CDBN, exact, no noise", "exact", False),
    "tcdbn": ("TCDBN, Chebyshev, no noise", "chebyshev", False),
    "pcdbn": ("pCDBN, Chebyshev, claimed", "chebyshev", True),
    "pcdbn_te": ("pCDBN_TE, Taylor, claimed", "taylor", True),
    "pcdbn_pw": ("pCDBN_PW, piecewise, claimed", "piecewise", True),
    "pcdbn_printed": ("pCDBN, as printed, claimed", "published", True),
}
PROVEN = {
    "pcdbn_proven": "pCDBN, proven",
    "dpah_proven": "dPAH, proven",
    "dp_sgd": "DP-SGD, logistic, proven",
}


class Watch(keras.callbacks.Callback):
    """Test accuracy at some epochs."""

    def __init__(self, maps, y, found):
        super().__init__()
        self.maps, self.y, self.found = maps, y, found

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 in SHOWN:
            self.found[str(epoch + 1)] = accuracy(self.model, self.maps, self.y)


def accuracy(model, x, y):
    # Published models normalise by the batch they predict.
    z = model.predict(x, batch_size=20_000, verbose=0)[:, 0]
    return float(np.mean((z > 0) == y))


def trained(train, test, polynomial, epsilon):
    """Accuracy by epoch of a model that is trained on the records."""
    model = fm.models.BehaviorCDBN.of(
        train,
        guarantee="published",
        unprotected=epsilon is None,
        polynomial=polynomial,
        degree=7,
        dropout=0.5,
        dense=100,
        l1=1e-5,
    )
    private, callbacks = None, []
    if epsilon is not None:
        private = fm.callbacks.PrivateModel(
            epsilon,
            data=(train.x, train.y),
            guarantee=model.guarantee(lot=BATCH),
        )
        callbacks = [private]
    model.pretrain(
        train.x,
        private,
        epochs=PRETRAIN,
        batch_size=BATCH,
        optimizer=keras.optimizers.Adam(1e-3),
    )
    model.compile(keras.optimizers.Adam(1e-3), fm.losses.TaylorCrossEntropy())
    # The first epoch fixes the noise; the RBMs rest, so their maps are made
    # once for the others.
    model.fit(
        train.x, train.y, batch_size=BATCH, callbacks=callbacks, verbose=0
    )
    found = {"1": accuracy(model, test.x, test.y)}
    head, maps = training.above_maps(model, train.x)
    _, test_maps = training.above_maps(model, test.x)
    head.compile(keras.optimizers.Adam(1e-3), fm.losses.TaylorCrossEntropy())
    head.fit(
        maps,
        train.y,
        initial_epoch=1,
        epochs=_EPOCHS.value,
        batch_size=BATCH,
        callbacks=[Watch(test_maps, test.y, found)],
        verbose=0,
    )
    return found, private and private.ledger


def proven(train, test, kind, epsilon):
    model = kind.of(train)
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, DELTA),
        data=(train.x, train.y),
        notes=(train.note,),
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    model.fit(
        train.x, train.y, batch_size=20_000, callbacks=[private], verbose=0
    )
    return {"1": accuracy(model, test.x, test.y)}, private.ledger


def dp_sgd(train, test, epsilon):
    from keras_fm.lab.compare.methods import dp_sgd as rival_grid

    def features(windows):
        x = 2 * (windows.x - windows.low) / (windows.high - windows.low) - 1
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    x, y = features(train), train.y
    cut = len(x) * 4 // 5

    def fit(config, x, y):
        config = fm.baselines.DPSGDConfig(form="fast_clipping", **config)
        rival = fm.baselines.DPSGDClassifier(
            None, config, epsilon=epsilon, delta=DELTA
        )
        return rival.fit(x, y, num_classes=2)

    grid = [
        rival_grid.config(len(x), rate)
        for rate in (1.0, 4.0, 16.0, 64.0, 256.0)
    ]
    scores = [
        fit(config, x[:cut], y[:cut]).evaluate(x[cut:], y[cut:])["accuracy"]
        for config in grid
    ]
    rival = fit(grid[int(np.argmax(scores))], x, y)
    score = rival.evaluate(features(test), test.y)["accuracy"]
    return {"1": score}, rival.ledger


def jobs():
    """(method, epsilon, draw), fast ones first."""
    epsilons = [float(e) for e in _EPSILONS.value]
    for method in PROVEN:
        for epsilon in epsilons:
            for draw in range(_DRAWS.value):
                yield method, epsilon, draw
    for method, (_, _, private) in TRAINED.items():
        for epsilon in epsilons if private else [None]:
            yield method, epsilon, 0


def run(method, train, test, epsilon):
    if method in TRAINED:
        return trained(train, test, TRAINED[method][1], epsilon)
    if method == "dp_sgd":
        return dp_sgd(train, test, epsilon)
    kind = {
        "pcdbn_proven": fm.models.BehaviorCDBN,
        "dpah_proven": fm.models.BehaviorAutoencoder,
    }[method]
    return proven(train, test, kind, epsilon)


def table(rows):
    lines = []
    epochs = [str(e) for e in SHOWN if e <= _EPOCHS.value]
    lines.append("| | epsilon | " + " | ".join(epochs) + " |")
    lines.append("|---" * (len(epochs) + 2) + "|")
    for row in rows:
        if row["method"] not in TRAINED:
            continue
        cells = [f"{100 * row['accuracy'][e]:.1f}" for e in epochs]
        epsilon = "-" if row["epsilon"] is None else f"{row['epsilon']:g}"
        label = TRAINED[row["method"]][0]
        lines.append(f"| {label} | {epsilon} | " + " | ".join(cells) + " |")
    epsilons = sorted({r["epsilon"] for r in rows if r["method"] in PROVEN})
    lines += ["", "| | " + " | ".join(f"{e:g}" for e in epsilons) + " |"]
    lines.append("|---" * (len(epsilons) + 1) + "|")
    for method, label in PROVEN.items():
        cells = []
        for epsilon in epsilons:
            values = [
                r["accuracy"]["1"]
                for r in rows
                if (r["method"], r["epsilon"]) == (method, epsilon)
            ]
            spread = ""
            if len(values) > 1:
                spread = f" ± {100 * statistics.stdev(values):.1f}"
            cells.append(f"{100 * statistics.fmean(values):.1f}{spread}")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(rows, path, majority):
    from matplotlib.figure import Figure

    epsilons = sorted({r["epsilon"] for r in rows if r["epsilon"]})
    figure = Figure(figsize=(5.5 * len(epsilons), 4.5), layout="constrained")
    panels = figure.subplots(1, len(epsilons), sharey=True, squeeze=False)[0]
    for ax, epsilon in zip(panels, epsilons):
        for index, (method, (label, _, private)) in enumerate(TRAINED.items()):
            for row in rows:
                if row["method"] != method or (
                    private and row["epsilon"] != epsilon
                ):
                    continue
                points = sorted(
                    (int(k), 100 * v) for k, v in row["accuracy"].items()
                )
                ax.plot(
                    *zip(*points),
                    color=f"C{index}",
                    linestyle=":" if private else "--",
                    marker="x" if private else None,
                    label=label,
                )
        for index, (method, label) in enumerate(PROVEN.items()):
            values = [
                100 * r["accuracy"]["1"]
                for r in rows
                if (r["method"], r["epsilon"]) == (method, epsilon)
            ]
            if values:
                ax.axhline(
                    statistics.fmean(values),
                    color=f"C{len(TRAINED) + index}",
                    label=label,
                )
        ax.axhline(100 * majority, color="grey", linewidth=0.7)
        ax.set_xlabel("epochs of the output layer")
        ax.set_title(f"epsilon = {epsilon:g}, synthetic; dotted = claimed")
        ax.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, fontsize=8, loc="outside lower center", ncol=4
    )
    figure.savefig(path, dpi=130)


def main(_):
    logging.set_verbosity(logging.ERROR)
    file = ResultsFile(_OUT.value, _NAME.value, ("method", "epsilon", "draw"))
    name = "health_network" + ("_weekly" * (_RESOLUTION.value == "weekly"))
    windows = fm.datasets.load(name).windows(history=HISTORY)
    train, test = windows.split(0.8)
    majority = float(max(np.mean(test.y), 1 - np.mean(test.y)))
    print(len(train), len(test), round(majority, 4), flush=True)
    for method, epsilon, draw in jobs():
        if file.has(method, epsilon, draw):
            continue
        if _METHODS.value and method not in _METHODS.value:
            continue
        keras.utils.clear_session()
        keras.utils.set_random_seed(draw)
        found, ledger = run(method, train, test, epsilon)
        file.add(
            (method, epsilon, draw), ledger, accuracy=found, records=len(train)
        )
    plot(file.rows, f"{file.base}.png", majority)
    file.finish(table(file.rows))


if __name__ == "__main__":
    app.run(main)
