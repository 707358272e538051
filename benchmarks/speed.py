"""Speed as ratios measured in one run; medians, no pass or fail.

    python benchmarks/speed.py [--out=DIR]

1. A published-form fit step against the same plain Keras model: with the
   papers' last hidden layer of 25 units, and with one of 300, whose
   quadratic coefficients are 10 x 301 x 301.
2. An epoch against both tensorflow-privacy forms, same architecture.

The statistics pass is in `scale.py`.
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
_REPEATS = flags.DEFINE_integer("repeats", 7, "Repetitions per median.")


def build(affine, head, last=()):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((784,)),
            affine(300, activation="relu"),
            *(keras.layers.Dense(units, activation="relu") for units in last),
            keras.layers.UnitNormalization(),
            head(10),
        ]
    )
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    return model


def step_time(last=(), n=32_768, batch=256):
    """Median epoch time, alternating between the models."""
    x = np.random.default_rng(0).random((n, 784), np.float32)
    y = np.arange(n) % 10
    plain = build(keras.layers.Dense, keras.layers.Dense, last)
    published = build(fm.layers.PerturbedAffine, fm.layers.PrivateDense, last)
    private = fm.callbacks.PrivateModel(
        1.0, guarantee="published", batch_size=batch
    )
    fits = {
        "plain": lambda: plain.fit(x, y, batch_size=batch, verbose=0),
        "published": lambda: published.fit(
            x, y, batch_size=batch, verbose=0, callbacks=[private]
        ),
    }
    return ratios(fits, _REPEATS.value, steps=n // batch)


def ratios(fits, repeats, steps):
    for fit in fits.values():
        fit()  # tracing
    seconds = {name: [] for name in fits}
    for _ in range(repeats):
        for name, fit in fits.items():
            start = time.perf_counter()
            fit()
            seconds[name].append(time.perf_counter() - start)
    medians = {k: statistics.median(v) for k, v in seconds.items()}
    base = medians[next(iter(medians))]
    return {
        name: {
            "ms_per_step": round(1000 * s / steps, 3),
            "ratio": round(s / base, 3),
        }
        for name, s in medians.items()
    }


def dp_sgd_epoch(n=16_384, batch=1024):
    """Seconds per step of DP-SGD's forms, tracing taken off by difference."""
    x = np.random.default_rng(0).random((n, 784), np.float32)
    y = np.arange(n) % 10
    short, long_ = 2, 2 + n // batch
    results = {}
    for form in ("vectorized", "fast_clipping"):

        def seconds(steps, form=form):
            layers = [
                keras.Input((784,)),
                keras.layers.Dense(300, activation="relu"),
                keras.layers.UnitNormalization(),
                keras.layers.Dense(10),
            ]
            config = dp_sgd.DPSGDConfig(
                form=form,
                learning_rate=1.0,
                l2_norm_clip=0.1,
                batch_size=batch,
                steps=steps,
            )
            rival = dp_sgd.DPSGDClassifier(
                keras.Sequential(layers), config, 1.0, 1e-5
            )
            rival.fit(x, y)
            return rival.report()["seconds"]

        seconds(short)  # first imports, calibration caches
        epoch = seconds(long_) - seconds(short)
        results[form] = {
            "ms_per_step": round(1000 * epoch / (long_ - short), 2)
        }
    plain = build(keras.layers.Dense, keras.layers.Dense)
    published = build(fm.layers.PerturbedAffine, fm.layers.PrivateDense)
    private = fm.callbacks.PrivateModel(
        1.0, guarantee="published", batch_size=batch
    )
    results |= ratios(
        {
            "plain": lambda: plain.fit(x, y, batch_size=batch, verbose=0),
            "published": lambda: published.fit(
                x, y, batch_size=batch, verbose=0, callbacks=[private]
            ),
        },
        _REPEATS.value,
        steps=n // batch,
    )
    base = results["plain"]["ms_per_step"]
    for result in results.values():
        result["ratio"] = round(result["ms_per_step"] / base, 2)
    return results


def main(_):
    results = {
        "published step / plain step, 784-300-25-10, batch 256": step_time(
            last=(25,)
        ),
        "published step / plain step, 784-300-10, batch 256": step_time(),
        "epoch, 784-300-10, batch 1024": dp_sgd_epoch(),
    }
    text = json.dumps(results, indent=1)
    print(text)
    os.makedirs(_OUT.value, exist_ok=True)
    with open(os.path.join(_OUT.value, "speed.json"), "w") as f:
        f.write(text)


if __name__ == "__main__":
    app.run(main)
