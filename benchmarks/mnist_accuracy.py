"""MNIST: proven accuracy against DP-SGD, from raw images to weights.

    python benchmarks/mnist_accuracy.py --cnn_epsilons=
    python benchmarks/mnist_accuracy.py --parts= --name=mnist_cnn

delta = 1e-5, add_remove. Proven: three fresh noise draws per epsilon, every
choice fixed in advance (feature maps, 800 dimensions, ridge rule; 50
dimensions, quadratic_scale 2 and ridge_factor 1 for pure epsilon, chosen on
the last 10,000 training images). DP-SGD (tensorflow-privacy): learning rate
chosen for each epsilon on the last 10,000 training images, then one fit on
all of them for each of three noise draws; on the same features (output layer
only), and on raw pixels with a small CNN (one draw: it is slow).
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
_NAME = flags.DEFINE_string("name", "mnist_accuracy", "Name of the file.")
_EPSILONS = flags.DEFINE_list(
    "epsilons", ["0.25", "0.5", "1", "2", "8"], "Budgets."
)
_DRAWS = flags.DEFINE_integer("draws", 3, "Noise draws per epsilon.")
_CNN = flags.DEFINE_list(
    "cnn_epsilons", ["0.5", "2", "8"], "Budgets of DP-SGD on a small CNN."
)
_PARTS = flags.DEFINE_list(
    "parts", ["scattering", "scattering_strokes"], "Feature maps."
)

DELTA = 1e-5
HELD_OUT = 10_000
RATES = (16.0, 64.0, 256.0, 1024.0)
CNN_RATES = (2.0, 8.0)


def fit_proven(x, y, epsilon, delta=DELTA, ridge_factor=0.5, **head):
    """One release on features; returns model, callback and seconds."""
    start = time.perf_counter()
    model = keras.Sequential(
        [keras.Input(x.shape[1:]), fm.layers.PrivateDense(10, **head)]
    )
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, delta),
        data=(x, y),
        guarantee=fm.Proven(ridge_factor=ridge_factor),
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    model.fit(x, y, batch_size=10_000, callbacks=[private], verbose=0)
    return model, private, time.perf_counter() - start


def accuracy(model, x, y):
    predicted = model.predict(x, batch_size=5000, verbose=0).argmax(axis=1)
    return float(np.mean(predicted == y))


def row(method, features, epsilon, accuracies, seconds, ledger, **more):
    result = {
        "method": method,
        "features": features,
        "epsilon": epsilon,
        "accuracy": round(100 * statistics.fmean(accuracies), 2),
        "spread": round(
            100 * statistics.stdev(accuracies) if accuracies[1:] else 0.0, 2
        ),
        "draws": len(accuracies),
        "proven": ledger.epsilon(),
        "delta": ledger.budget.delta,
        "neighbours": str(ledger.neighbours),
        "seconds": round(seconds, 2),
        **more,
    }
    print(json.dumps(result), flush=True)
    return result


def config(rate, n, steps=109, batch=8192):
    return dp_sgd.DPSGDConfig(
        learning_rate=rate,
        l2_norm_clip=0.1,
        batch_size=min(batch, n),
        steps=steps,
    )


def fit_dp_sgd(x, y, epsilon, rate):
    rival = dp_sgd.DPSGDClassifier(None, config(rate, len(x)), epsilon, DELTA)
    return rival.fit(x, y, num_classes=10)


def fit_cnn(x, y, epsilon, rate):
    setting = dp_sgd.DPSGDConfig(
        learning_rate=rate, l2_norm_clip=0.1, batch_size=2048, steps=200
    )
    rival = dp_sgd.DPSGDClassifier(
        dp_sgd.small_cnn((28, 28, 1), 10), setting, epsilon, DELTA
    )
    return rival.fit(x, y)


def choose(fit, rates, x, y, epsilon):
    """The rate with the best accuracy on the last 10,000 training rows."""
    scores = []
    for rate in rates:
        rival = fit(x[:-HELD_OUT], y[:-HELD_OUT], epsilon, rate)
        held_out = rival.evaluate(x[-HELD_OUT:], y[-HELD_OUT:])
        scores.append(held_out["accuracy"])
    return rates[int(np.argmax(scores))]


def main(_):
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = fm.datasets.load("mnist")
    epsilons = [float(e) for e in _EPSILONS.value]
    rows, times = [], {}
    for name in _PARTS.value:
        start = time.perf_counter()
        body = fm.features.build(name, x.shape[1:])
        times[f"{name}: build (public data only)"] = time.perf_counter() - start
        start = time.perf_counter()
        h = fm.features.extract(body, x)
        times[f"{name}: features of 60,000 images"] = (
            time.perf_counter() - start
        )
        h_test = fm.features.extract(body, x_test)
        for epsilon in epsilons:
            runs = [
                fit_proven(h, y, epsilon, use_bias=False)
                for _ in range(_DRAWS.value)
            ]
            rows.append(
                row(
                    "proven, one read",
                    name,
                    epsilon,
                    [accuracy(r[0], h_test, y_test) for r in runs],
                    statistics.median(r[2] for r in runs),
                    runs[0][1].ledger,
                )
            )
            rate = choose(fit_dp_sgd, RATES, h, y, epsilon)
            rivals = [
                fit_dp_sgd(h, y, epsilon, rate) for _ in range(_DRAWS.value)
            ]
            rows.append(
                row(
                    "DP-SGD, 109 Poisson batches",
                    name,
                    epsilon,
                    [r.evaluate(h_test, y_test)["accuracy"] for r in rivals],
                    statistics.median(r.report()["seconds"] for r in rivals),
                    rivals[0].ledger,
                    learning_rate=rate,
                )
            )
        if name == "scattering_strokes":
            # The kernel's columns are sorted: a smaller map is a prefix.
            body = fm.features.build(name, x.shape[1:], units=50)
            h, h_test = (fm.features.extract(body, v) for v in (x, x_test))
            runs = [
                fit_proven(
                    h, y, 0.5, 0.0, 1.0, use_bias=False, quadratic_scale=2.0
                )
                for _ in range(_DRAWS.value)
            ]
            rows.append(
                row(
                    "proven, one read, pure",
                    f"{name}, 50 dims",
                    0.5,
                    [accuracy(r[0], h_test, y_test) for r in runs],
                    statistics.median(r[2] for r in runs),
                    runs[0][1].ledger,
                )
            )
        del h, h_test
        whole = time.perf_counter()
        body = fm.features.build(name, x.shape[1:])
        model, _, _ = fit_proven(fm.features.extract(body, x), y, 1.0)
        times[f"{name}: raw images to weights, everything"] = (
            time.perf_counter() - whole
        )
    for epsilon in map(float, _CNN.value):
        rate = choose(fit_cnn, CNN_RATES, x, y, epsilon)
        rival = fit_cnn(x, y, epsilon, rate)
        rows.append(
            row(
                "DP-SGD, small CNN",
                "pixels",
                epsilon,
                [rival.evaluate(x_test, y_test)["accuracy"]],
                rival.report()["seconds"],
                rival.ledger,
                learning_rate=rate,
            )
        )
    os.makedirs(_OUT.value, exist_ok=True)
    with open(os.path.join(_OUT.value, f"{_NAME.value}.json"), "w") as f:
        json.dump({"rows": rows, "seconds": times}, f, indent=1)
    print(json.dumps(times, indent=1))


if __name__ == "__main__":
    app.run(main)
