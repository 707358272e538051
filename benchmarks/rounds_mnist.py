"""R reads of the output layer against one read and DP-SGD, on MNIST.

    KERAS_FM_DATA=... python benchmarks/rounds_mnist.py

delta = 1e-5, add_remove, public features of `keras_fm.features`: scattering
with a random projection, and with the map fitted on drawn pen strokes. For
each budget, on the same features and in the same run:

* one read (`PrivateDense(10)`);
* 80 reads (`Rounds(reads=80)`) of the features as they are;
* 80 reads of features whitened by a second moment that is released within the
  same budget (`DPPCA(whitening=0.5)`, its default share);
* DP-SGD (tensorflow-privacy, output layer only, 109 or 438 Poisson batches of
  8,192 expected, clip 0.1, momentum 0.9), its learning rate chosen for each
  budget on the last 10,000 training images (factors of 4, then of 2), which
  is not charged.

Nothing but DP-SGD's rate is chosen here; test accuracy of fresh noise draws.
Results are written after every budget; a second call goes on.
"""

import statistics
import time

import keras
import numpy as np
from absl import app, flags, logging
from results_file import ResultsFile

import keras_fm as fm
from keras_fm.baselines import dp_sgd

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "rounds_mnist", "Name of the files.")
_EPSILONS = flags.DEFINE_list("epsilons", ["0.25", "0.5", "1", "2", "8"], "")
_DRAWS = flags.DEFINE_integer("draws", 3, "Noise draws.")
_FEATURES = flags.DEFINE_list(
    "features", ["scattering", "scattering_strokes"], ""
)
_UNITS = flags.DEFINE_integer("units", 800, "Dimensions of the features.")
_HELD_OUT = flags.DEFINE_bool(
    "held_out", False, "Train on 50,000, score on the last 10,000."
)
DELTA = 1e-5
PART = 10_000
READS = 80
RATES = (8.0, 32.0, 128.0, 512.0, 2048.0)
METHODS = {
    "one_read": "one read",
    "rounds": f"{READS} reads",
    "whitened": f"{READS} reads, whitened by a released second moment",
    "dp_sgd_109": "DP-SGD, 109 batches",
    "dp_sgd_438": "DP-SGD, 438 batches",
}


def proven(kind, train, test, epsilon):
    layers = [keras.Input(train[0].shape[1:])]
    if kind == "whitened":
        units = train[0].shape[1]
        layers += [
            fm.layers.DPPCA(units, whitening=0.5),
            fm.layers.NormalizationLayer(),
        ]
    rounds = None if kind == "one_read" else fm.Rounds(reads=READS)
    layers.append(fm.layers.PrivateDense(10, use_bias=False, rounds=rounds))
    model = keras.Sequential(layers)
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, DELTA), data=train
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    model.fit(
        *train,
        batch_size=10_000,
        steps_per_epoch=1,
        callbacks=[private],
        verbose=0,
    )
    z = model.predict(test[0], batch_size=5000, verbose=0)
    return float(np.mean(z.argmax(axis=1) == test[1])), private.ledger


def rival(train, test, epsilon, steps, rate):
    config = dp_sgd.DPSGDConfig(
        learning_rate=rate, l2_norm_clip=0.1, batch_size=8192, steps=steps
    )
    fitted = dp_sgd.DPSGDClassifier(None, config, epsilon, DELTA)
    fitted.fit(*train, num_classes=10)
    return fitted.evaluate(*test)["accuracy"], fitted.ledger


def split(train):
    x, y = train
    return (x[:-PART], y[:-PART]), (x[-PART:], y[-PART:])


def choose(train, epsilon, steps):
    """The rate with the best accuracy on held-out training images."""
    parts, scores = split(train), {}

    def best(rates):
        for rate in rates:
            if rate not in scores:
                scores[rate] = rival(*parts, epsilon, steps, rate)[0]
        return max(scores, key=scores.get)

    found = best(RATES)
    return best((found / 2, 2 * found))


def measure(method, train, test, epsilon):
    """What the draws of one budget gave, and the ledger of the first."""
    more = {}
    if method.startswith("dp_sgd"):
        steps = int(method.split("_")[-1])
        more["learning_rate"] = choose(train, epsilon, steps)
    found, seconds = [], []
    for _ in range(_DRAWS.value):
        keras.utils.clear_session()
        start = time.perf_counter()
        if more:
            score = rival(train, test, epsilon, steps, more["learning_rate"])
        else:
            score = proven(method, train, test, epsilon)
        found.append(score)
        seconds.append(time.perf_counter() - start)
    # Every draw has the same plan, hence the same ledger.
    return {
        "accuracies": [accuracy for accuracy, _ in found],
        "seconds": round(statistics.median(seconds), 1),
        **more,
    }, found[0][1]


def table(rows):
    epsilons = sorted({r["epsilon"] for r in rows})
    lines = ["| | " + " | ".join(f"{e:g}" for e in epsilons) + " |"]
    lines.append("|---" * (len(epsilons) + 1) + "|")
    for features, units in sorted({(r["features"], r["units"]) for r in rows}):
        for method, label in METHODS.items():
            cells = []
            for epsilon in epsilons:
                key = (features, units, method, epsilon)
                values = [
                    100 * a
                    for r in rows
                    if (r["features"], r["units"], r["method"], r["epsilon"])
                    == key
                    for a in r["accuracies"]
                ]
                spread = ""
                if len(values) > 1:
                    spread = f" ± {statistics.stdev(values):.2f}"
                cells.append(
                    f"{statistics.fmean(values):.2f}{spread}" if values else "-"
                )
            name = f"{features}, {units}: {label}"
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(_):
    logging.set_verbosity(logging.ERROR)
    keras.utils.set_random_seed(0)
    file = ResultsFile(
        _OUT.value,
        _NAME.value,
        ("features", "units", "method", "epsilon", "held_out"),
    )
    (x, y), (x_test, y_test) = fm.datasets.load("mnist")
    for name in _FEATURES.value:
        body = fm.features.build(name, x.shape[1:], units=_UNITS.value)
        train = fm.features.extract(body, x), y
        test = fm.features.extract(body, x_test), y_test
        if _HELD_OUT.value:
            train, test = split(train)
        for epsilon in map(float, _EPSILONS.value):
            for method in METHODS:
                key = (name, _UNITS.value, method, epsilon, _HELD_OUT.value)
                if not file.has(*key):
                    found, ledger = measure(method, train, test, epsilon)
                    file.add(key, ledger, **found)
    file.finish(table(file.rows))


if __name__ == "__main__":
    app.run(main)
