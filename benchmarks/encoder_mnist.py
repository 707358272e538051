"""A released encoder under the output layer: MNIST, no public image.

    python benchmarks/encoder_mnist.py
    python benchmarks/encoder_mnist.py --features=scattering_strokes \
        --name=encoder_mnist_strokes

Scattering features with a random projection to 800 dimensions (as in
benchmarks/mnist_accuracy.py), then `PrivateEncoder(800)`, unit norm and
`PrivateDense(10)`: two reads within one budget. The encoder's share of the
budget and its whitening are chosen for each epsilon on the last 10,000
training images, as DP-SGD's rate is in mnist_accuracy.py (a choice that is
charged to neither); test accuracy is the mean of three fresh draws.
"""

import itertools
import json
import os
import statistics

import keras
import numpy as np
from absl import app, flags, logging

import keras_fm as fm

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "encoder_mnist", "Name of the file.")
_EPSILONS = flags.DEFINE_list("epsilons", ["0.25", "0.5", "1", "2", "8"], "")
_FEATURES = flags.DEFINE_string(
    "features", "scattering", "Map of keras_fm.public.features."
)
_DRAWS = flags.DEFINE_integer("draws", 3, "Noise draws on the test part.")
DELTA = 1e-5
UNITS = 800
SHARES = (0.1, 0.3)
WHITENINGS = (0.0, 0.25, 0.5)


def run(train, test, epsilon, share, whitening):
    keras.utils.clear_session()
    layers = [keras.Input(train[0].shape[1:])]
    if share is not None:
        layers += [
            fm.layers.PrivateEncoder(UNITS, whitening=whitening),
            keras.layers.Rescaling(2.0, offset=-1.0),
            fm.layers.NormalizationLayer(),
        ]
    layers.append(fm.layers.PrivateDense(10))
    model = keras.Sequential(layers)
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, DELTA),
        data=train,
        guarantee=fm.Proven(
            shares=None if share is None else (share, 1 - share)
        ),
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


def main(_):
    logging.set_verbosity(logging.ERROR)
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = fm.datasets.load("mnist")
    body = fm.features.build(_FEATURES.value, x.shape[1:], units=UNITS)
    x, x_test = (fm.features.extract(body, v) for v in (x, x_test))
    held_out = (x[:50_000], y[:50_000]), (x[50_000:], y[50_000:])
    rows = []
    os.makedirs(_OUT.value, exist_ok=True)
    for epsilon in map(float, _EPSILONS.value):
        grid = list(itertools.product(SHARES, WHITENINGS))
        scores = [run(*held_out, epsilon, *choice)[0] for choice in grid]
        share, whitening = grid[int(np.argmax(scores))]
        row = {
            "epsilon": epsilon,
            "delta": DELTA,
            "neighbours": "add_remove",
            "share": share,
            "whitening": whitening,
            "held_out": dict(zip(map(str, grid), scores)),
        }
        for name, choice in (
            ("encoder", (share, whitening)),
            ("one_read", (None, None)),
        ):
            runs = [
                run((x, y), (x_test, y_test), epsilon, *choice)
                for _ in range(_DRAWS.value)
            ]
            values = [r[0] for r in runs]
            row[name] = statistics.fmean(values)
            row[f"{name}_spread"] = (
                statistics.stdev(values) if len(values) > 1 else 0.0
            )
            row["proven"] = max(r[1].epsilon() for r in runs)
        rows.append(row)
        print(json.dumps(row), flush=True)
        with open(os.path.join(_OUT.value, f"{_NAME.value}.json"), "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    app.run(main)
