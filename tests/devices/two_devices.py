"""Fits on one device and on two of one process; prints how far they differ.

python tests/devices/two_devices.py GUARANTEE
"""

# ruff: noqa: E402  (devices are set before Keras is imported)

import json
import os
import sys

BACKEND = os.environ["KERAS_BACKEND"]
if BACKEND == "jax":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
else:
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )

import contextlib

import keras
import numpy as np

import keras_fm as fm

(X, Y), _ = fm.datasets.load("digits")
X, Y = X[:500], Y[:500]


def fit(guarantee):
    keras.utils.set_random_seed(0)
    first = keras.layers.Dense(32, activation="relu", trainable=False)
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(2.0, 1e-5),
        data=(X, Y),
        guarantee=fm.Proven(start="current"),
        reproducible_noise=0,
    )
    if guarantee == "published":
        first = fm.layers.PerturbedAffine(32, activation="relu")
        private = fm.callbacks.PrivateModel(
            100.0, guarantee=fm.Published(lot=100), reproducible_noise=0
        )
    model = keras.Sequential(
        [
            keras.Input(X.shape[1:]),
            keras.layers.Flatten(),
            first,
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(10),
        ]
    )
    model.compile(keras.optimizers.SGD(1e-3), fm.losses.TaylorCrossEntropy())
    # 60 does not divide 500 or halve evenly in the last batch.
    size = 100 if guarantee == "published" else 60
    history = model.fit(
        X, Y, batch_size=size, epochs=2, callbacks=[private], verbose=0,
        shuffle=False,
    )  # fmt: skip
    weights = [keras.ops.convert_to_numpy(w) for w in model.weights]
    return weights, history.history["loss"], len(private.ledger.entries)


def main():
    guarantee = sys.argv[1]
    alone, losses, entries = fit(guarantee)
    if BACKEND == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        devices, scope = len(keras.distribution.list_devices()), None
    else:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        devices, scope = strategy.num_replicas_in_sync, strategy.scope()
    with scope or contextlib.nullcontext():
        together, other_losses, other_entries = fit(guarantee)
    found = {
        "devices": devices,
        "moved": float(np.abs(alone[-2]).max()),
        "difference": max(
            float(np.abs(a - b).max()) for a, b in zip(alone, together)
        ),
        "losses": [losses, other_losses],
        "entries": [entries, other_entries],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
