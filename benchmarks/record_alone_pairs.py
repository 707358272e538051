"""Accuracy of `make_private` beside jax-privacy, ten pairs.

    KERAS_BACKEND=jax python benchmarks/record_alone_pairs.py

Both train the same network from the same first weights, with the same rate,
clip, samples' size and number of steps, at the same epsilon, on 10,000 training
rows of MNIST; they are measured on 10,000 others of them. The rate was not
tuned for either. The interval is that of Student's t of the differences.
"""

import json
from pathlib import Path

import keras
import numpy as np
from absl import app, flags
from scipy import stats

import keras_fm as fm
from keras_fm import baselines

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_PAIRS = flags.DEFINE_integer("pairs", 10, "How many pairs.")
_N, _BATCH, _STEPS, _RATE, _CLIP, _EPSILON, _DELTA = (
    *(10_000, 250, 400, 1.0, 1.0),
    *(2.0, 1e-5),
)


def network(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 8, strides=2, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def ours(x, y, seed):
    model = network(seed)
    private = fm.make_private(model, clip=_CLIP)
    private.compile(
        keras.optimizers.SGD(_RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    budget = fm.callbacks.PrivateModel(epsilon=_EPSILON, delta=_DELTA)
    epochs = _STEPS * _BATCH // _N
    private.fit(
        x, y, batch_size=_BATCH, epochs=epochs, verbose=0, callbacks=[budget]
    )
    return model


def theirs(x, y, seed):
    config = baselines.DPSGDConfig(
        learning_rate=_RATE,
        momentum=0.0,
        l2_norm_clip=_CLIP,
        batch_size=_BATCH,
        steps=_STEPS,
    )
    rival = baselines.JaxDPSGDClassifier(
        network(seed), config, _EPSILON, _DELTA
    )
    return rival.fit(x, y)


def accuracy(model, x, y):
    found = np.asarray(model.predict(x))
    return float(np.mean((found.argmax(-1) if found.ndim > 1 else found) == y))


def main(_):
    (x, y), _ = fm.datasets.load("mnist")
    x = np.asarray(x, "float32").reshape(-1, 28, 28, 1)
    order = np.random.default_rng(0).permutation(len(x))
    train, held = order[:_N], order[_N : 2 * _N]
    rows = []
    for seed in range(_PAIRS.value):
        rows.append(
            [
                accuracy(fit(x[train], y[train], seed), x[held], y[held])
                for fit in (ours, theirs)
            ]
        )
        print(seed, rows[-1], flush=True)
    rows = np.array(rows)
    apart = rows[:, 0] - rows[:, 1]
    half = stats.t.ppf(0.975, len(apart) - 1) * stats.sem(apart)
    found = {
        "accuracy": dict(
            zip(("keras_fm", "jax-privacy"), rows.mean(0).round(4).tolist())
        ),
        "difference": round(float(apart.mean()), 4),
        "interval_95": [
            round(float(apart.mean() + s * half), 4) for s in (-1, 1)
        ],
        "pairs": len(rows),
        "epsilon": _EPSILON,
        "steps": _STEPS,
        "rows": rows.round(4).tolist(),
    }
    print(json.dumps(found, indent=1))
    path = Path(_OUT.value) / "record_alone_pairs.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
