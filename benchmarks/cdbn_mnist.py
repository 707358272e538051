"""pCDBN on MNIST (the paper's Figs. 5 and 6), proven and published.

    KERAS_FM_DATA=... python benchmarks/cdbn_mnist.py
    KERAS_FM_DATA=... python benchmarks/cdbn_mnist.py --parts=proven

`proven`: `PrivateCDBN` as it stands (32 and 64 maps of 5 x 5, dense 1024) on
all training images; the same with random directions in the place of the
released principal ones, standardised by the same releases; and with filters
of order 4 in the first layer. Fresh noise for every draw.

`published`: claimed, with its two noise-free twins, accuracy after every
epoch of `fit`. A small form for two cores: 20,000 training images and stride
2 in the place of pooling (as in the authors' code), both layers pre-trained
for two epochs.

`degree`: the same at epsilon 0.5 with L in {1, 2, 3, 5, 7}.

Nothing is chosen on the test images. Results are written after every run; a
second call goes on where one stopped.
"""

import statistics
import time
from unittest import mock

import keras
import numpy as np
from absl import app, flags, logging
from results_file import ResultsFile

import keras_fm as fm
from keras_fm.lab.reproduce import training
from keras_fm.papers.pcdbn import filters

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "cdbn_mnist", "Name of the files.")
_PARTS = flags.DEFINE_list("parts", ["proven", "published", "degree"], "")
_EPSILONS = flags.DEFINE_list("epsilons", ["0.25", "0.5", "1", "2", "8"], "")
_DRAWS = flags.DEFINE_integer("draws", 2, "Runs of the proven form.")
_RECORDS = flags.DEFINE_integer("records", 20_000, "Of the published form.")
_EPOCHS = flags.DEFINE_integer("epochs", 40, "Of the published fit.")
DELTA = 1e-5
LOT = 500
PRETRAIN = 2
DEGREES = (1, 2, 3, 5, 7)
LABELS = {
    "energy": "pCDBN, proven: released filters",
    "random": "random directions, proven",
    "order_4": "released filters, order 4, proven",
    "published": "pCDBN, as printed, claimed",
    "code": "pCDBN, authors' code, claimed",
    "cdbn": "CDBN, no noise",
    "tcdbn": "TCDBN, no noise",
}


def random_directions(covariance, count):
    rows = np.random.default_rng(0).standard_normal((len(covariance), count))
    return np.linalg.qr(rows)[0]


def proven(kind, train, test, epsilon):
    model = fm.models.PrivateCDBN(
        train[0].shape[1:], 10, moment_order=4 if kind == "order_4" else 2
    )
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, DELTA), data=train
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    choose = random_directions if kind == "random" else filters.principal
    with mock.patch.object(filters, "principal", choose):
        model.fit(
            *train,
            batch_size=1000,
            steps_per_epoch=1,
            callbacks=[private],
            verbose=0,
        )
    score = model.evaluate(*test, batch_size=2000, verbose=0)[1]
    return [float(score)], private.ledger


class Watch(keras.callbacks.Callback):
    """Test accuracy after every epoch."""

    def __init__(self, maps, y, found):
        super().__init__()
        self.maps, self.y, self.found = maps, y, found

    def on_epoch_end(self, epoch, logs=None):
        self.found.append(accuracy(self.model, self.maps, self.y))


def accuracy(model, x, y):
    # Published models normalise by the batch they predict.
    z = model.predict(x, batch_size=2000, verbose=0)
    return float(np.mean(z.argmax(axis=1) == y))


POLYNOMIALS = {"cdbn": "exact", "published": "chebyshev", "tcdbn": "chebyshev"}


def published(kind, train, test, epsilon, degree=7):
    x, y = (part[: _RECORDS.value] for part in train)
    model = fm.models.PrivateCDBN(
        x.shape[1:],
        10,
        guarantee="published",
        unprotected=epsilon is None,
        form="code" if kind == "code" else "paper",
        polynomial=POLYNOMIALS.get(kind, "published"),
        degree=degree,
        strides=2,
        pooling=1,
        dense=25 if kind == "code" else 1024,
    )
    private, callbacks = None, []
    if epsilon is not None:
        private = fm.callbacks.PrivateModel(
            epsilon, data=(x, y), guarantee=model.guarantee(lot=LOT)
        )
        callbacks = [private]
    model.pretrain(
        x,
        private,
        epochs=PRETRAIN,
        batch_size=LOT,
        optimizer=keras.optimizers.Adam(1e-3),
    )
    # The first epoch fixes the noise; the RBMs rest, so their maps are made
    # once for the others.
    model.compile(keras.optimizers.Adam(1e-3), fm.losses.TaylorCrossEntropy())
    model.fit(x, y, batch_size=LOT, callbacks=callbacks, verbose=0)
    found = [accuracy(model, *test)]
    head, maps = training.above_maps(model, x)
    _, test_maps = training.above_maps(model, test[0])
    head.compile(keras.optimizers.Adam(1e-3), fm.losses.TaylorCrossEntropy())
    head.fit(
        maps,
        y,
        initial_epoch=1,
        epochs=_EPOCHS.value,
        batch_size=LOT,
        callbacks=[Watch(test_maps, test[1], found)],
        verbose=0,
    )
    return found, private and private.ledger


def jobs():
    """(part, kind, epsilon, degree, draw)."""
    epsilons = [float(e) for e in _EPSILONS.value]
    if "proven" in _PARTS.value:
        for draw in range(_DRAWS.value):
            for epsilon in epsilons:
                yield "proven", "energy", epsilon, 7, draw
            if draw == 0:
                for kind in ("random", "order_4"):
                    for epsilon in (0.5, 8.0):
                        yield "proven", kind, epsilon, 7, draw
    if "published" in _PARTS.value:
        for kind in ("cdbn", "tcdbn"):
            yield "published", kind, None, 7, 0
        for kind in ("published", "code"):
            for epsilon in epsilons:
                yield "published", kind, epsilon, 7, 0
    if "degree" in _PARTS.value:
        for kind, epsilon in (("tcdbn", None), ("published", 0.5)):
            for degree in DEGREES:
                yield "degree", kind, epsilon, degree, 0


def table(rows):
    epsilons = sorted({r["epsilon"] for r in rows if r["epsilon"]})
    lines = ["| | " + " | ".join(f"{e:g}" for e in epsilons) + " |"]
    lines.append("|---" * (len(epsilons) + 1) + "|")
    for kind, label in LABELS.items():
        cells = []
        for epsilon in epsilons:
            values = [
                r["accuracy"][-1]
                for r in rows
                if r["part"] != "degree"
                and r["kind"] == kind
                and r["epsilon"] in (epsilon, None)
            ]
            spread = ""
            if len(values) > 1:
                spread = f" ± {100 * statistics.stdev(values):.1f}"
            mean = 100 * statistics.fmean(values) if values else 0.0
            cells.append(f"{mean:.1f}{spread}" if values else "-")
        if any(cell != "-" for cell in cells):
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += ["", "| L | " + " | ".join(map(str, DEGREES)) + " |"]
    lines.append("|---" * (len(DEGREES) + 1) + "|")
    for kind in ("tcdbn", "published"):
        found = {
            r["degree"]: f"{100 * r['accuracy'][-1]:.1f}"
            for r in rows
            if (r["part"], r["kind"]) == ("degree", kind)
        }
        if found:
            cells = [found.get(degree, "-") for degree in DEGREES]
            lines.append(f"| {LABELS[kind]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(rows, path):
    from matplotlib.figure import Figure

    degrees_run = len({r["degree"] for r in rows}) > 2
    count = 3 if degrees_run else 2
    figure = Figure(figsize=(5 * count, 4.5), layout="constrained")
    by_epsilon, by_epoch, *rest = figure.subplots(1, count)
    for index, (kind, label) in enumerate(LABELS.items()):
        mine = [r for r in rows if r["kind"] == kind]
        claimed = kind in ("published", "code")
        style = ":" if claimed else "-"
        points = {}
        for r in mine:
            if r["part"] != "degree" and r["epsilon"]:
                points.setdefault(r["epsilon"], []).append(r["accuracy"][-1])
        if points:
            by_epsilon.plot(
                sorted(points),
                [100 * statistics.fmean(points[e]) for e in sorted(points)],
                style + ("x" if claimed else "o"),
                color=f"C{index}",
                label=label,
            )
        for r in mine:
            if r["part"] == "published" and r["epsilon"] in (None, 0.5):
                by_epoch.plot(
                    range(1, len(r["accuracy"]) + 1),
                    [100 * a for a in r["accuracy"]],
                    style if claimed else "--",
                    color=f"C{index}",
                    label=label,
                )
        degrees = sorted(
            (r["degree"], 100 * r["accuracy"][-1])
            for r in mine
            if r["part"] == "degree"
        )
        if degrees and rest:
            rest[0].plot(
                *zip(*degrees), style + "o", color=f"C{index}", label=label
            )
    by_epsilon.set_xscale("log", base=2)
    ticks = sorted({r["epsilon"] for r in rows if r["epsilon"]})
    by_epsilon.set_xticks(ticks, [f"{t:g}" for t in ticks])
    labels = ("epsilon", "epochs at epsilon 0.5", "degree L at epsilon 0.5")
    for ax, words in zip((by_epsilon, by_epoch, *rest), labels):
        ax.set_xlabel(words)
        ax.grid(alpha=0.3)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize=8)
    by_epsilon.set_ylabel("MNIST test accuracy, %")
    by_epsilon.set_title("proven: all images; dotted = claimed, small form")
    figure.savefig(path, dpi=130)


def main(_):
    logging.set_verbosity(logging.ERROR)
    keys = ("part", "kind", "epsilon", "degree", "draw")
    file = ResultsFile(_OUT.value, _NAME.value, keys)
    train, test = fm.datasets.load("mnist")
    for job in jobs():
        if file.has(*job):
            continue
        part, kind, epsilon, degree, draw = job
        keras.utils.clear_session()
        keras.utils.set_random_seed(draw)
        start = time.process_time()
        if part == "proven":
            found, ledger = proven(kind, train, test, epsilon)
        else:
            found, ledger = published(kind, train, test, epsilon, degree)
        file.add(
            job,
            ledger,
            accuracy=found,
            cpu_seconds=round(time.process_time() - start),
        )
    plot(file.rows, f"{file.base}.png")
    file.finish(table(file.rows))


if __name__ == "__main__":
    app.run(main)
