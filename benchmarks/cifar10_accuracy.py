"""CIFAR-10: proven accuracy on public features, beside DP-SGD on the same.

    python benchmarks/cifar10_accuracy.py

delta = 1e-5, add_remove, three fresh noise draws. Features: wavelet
scattering of every colour, normalised per image, a random projection to
3,000 dimensions, unit norm; no public image is used. Chosen on the last
10,000 training images: 3,000 dimensions among 800, 1,500 and 3,000, and
`ridge_factor` 0.25 among 0.25, 0.5 and 1, once for all budgets; DP-SGD's
learning rate for each epsilon. A run that was interrupted goes on where it
stopped. AdLM: the same features and ridge, default
shares and power.
"""

import json
import os
import statistics
import time

import keras
import numpy as np
from absl import app, flags

import keras_fm as fm
from keras_fm.baselines import dp_sgd

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "cifar10_accuracy", "Name of the file.")
_EPSILONS = flags.DEFINE_list("epsilons", ["1", "3", "8"], "Budgets.")
_DRAWS = flags.DEFINE_integer("draws", 3, "Noise draws per epsilon.")
_UNITS = flags.DEFINE_integer("units", 3000, "Dimensions kept.")

DELTA = 1e-5
HELD_OUT = 10_000
RIDGE_FACTOR = 0.25
RATES = (16.0, 64.0, 256.0, 1024.0)


def fit_proven(x, y, epsilon, adaptive):
    model = fm.models.AdaptiveLaplace(x.shape[1:], 10, adaptive=adaptive)
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, DELTA),
        data=(x, y),
        guarantee=fm.Proven(ridge_factor=RIDGE_FACTOR),
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    model.fit(x, y, batch_size=10_000, callbacks=[private], verbose=0)
    return model, private.ledger


def fit_dp_sgd(x, y, epsilon, rate):
    setting = dp_sgd.DPSGDConfig(
        learning_rate=rate,
        l2_norm_clip=0.1,
        batch_size=8192,
        steps=109,
    )
    rival = dp_sgd.DPSGDClassifier(None, setting, epsilon, DELTA)
    return rival.fit(x, y, num_classes=10)


def chosen_rate(x, y, epsilon):
    scores = []
    for rate in RATES:
        rival = fit_dp_sgd(x[:-HELD_OUT], y[:-HELD_OUT], epsilon, rate)
        held_out = rival.evaluate(x[-HELD_OUT:], y[-HELD_OUT:])
        scores.append(held_out["accuracy"])
    return RATES[int(np.argmax(scores))]


def accuracy(model, x, y):
    predicted = model.predict(x, batch_size=5000, verbose=0).argmax(axis=1)
    return float(np.mean(predicted == y))


def main(_):
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = fm.datasets.load("cifar10")
    begin = time.perf_counter()
    body = fm.features.build("scattering", x.shape[1:], units=_UNITS.value)
    h, h_test = (fm.features.extract(body, v) for v in (x, x_test))
    seconds = {"features of 60,000 images": time.perf_counter() - begin}
    rows = []
    base = os.path.join(_OUT.value, f"{_NAME.value}.json")
    if os.path.exists(base):
        with open(base) as f:
            rows = json.load(f)["rows"]
    done = {(r["method"], r["epsilon"]) for r in rows}

    def record(method, epsilon, accuracies, begin, ledger, **more):
        row = {
            "method": method,
            "epsilon": epsilon,
            "accuracy": round(100 * statistics.fmean(accuracies), 2),
            "spread": round(
                100 * statistics.stdev(accuracies) if accuracies[1:] else 0, 2
            ),
            "draws": len(accuracies),
            "proven": ledger.epsilon(),
            "delta": DELTA,
            "neighbours": str(ledger.neighbours),
            "seconds": round(
                (time.perf_counter() - begin) / len(accuracies), 1
            ),
            **more,
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
        os.makedirs(_OUT.value, exist_ok=True)
        with open(base, "w") as f:
            json.dump({"rows": rows, "seconds": seconds}, f, indent=1)

    for epsilon in map(float, _EPSILONS.value):
        for name, adaptive in (("one read", False), ("AdLM", True)):
            if (f"proven, {name}", epsilon) in done:
                continue
            begin = time.perf_counter()
            runs = [
                fit_proven(h, y, epsilon, adaptive) for _ in range(_DRAWS.value)
            ]
            record(
                f"proven, {name}",
                epsilon,
                [accuracy(model, h_test, y_test) for model, _ in runs],
                begin,
                runs[0][1],
            )
        if ("DP-SGD, 109 Poisson batches", epsilon) in done:
            continue
        rate = chosen_rate(h, y, epsilon)
        begin = time.perf_counter()
        rivals = [fit_dp_sgd(h, y, epsilon, rate) for _ in range(_DRAWS.value)]
        record(
            "DP-SGD, 109 Poisson batches",
            epsilon,
            [r.evaluate(h_test, y_test)["accuracy"] for r in rivals],
            begin,
            rivals[0].ledger,
            learning_rate=rate,
        )


if __name__ == "__main__":
    app.run(main)
