"""Fits on one device and on two of one process: how far they differ.

Used by two_devices_steps.py, which has one process for all.
"""

# ruff: noqa: E402  (devices are set before Keras is imported)

import os

BACKEND = os.environ["KERAS_BACKEND"]
if BACKEND == "jax":
    # Beside those by which tests compile quickly.
    os.environ["XLA_FLAGS"] = " ".join(
        [
            os.environ.get("XLA_FLAGS", ""),
            "--xla_force_host_platform_device_count=2",
        ]
    )
else:
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )

import keras
import numpy as np

import keras_fm as fm

(X, Y), _ = fm.datasets.load("digits")
X, Y = X[:500], Y[:500]


def fit(guarantee):
    keras.utils.set_random_seed(0)
    first = keras.layers.Dense(32, activation="relu", trainable=False)
    below = []
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(2.0, 1e-5),
        data=(X, Y),
        guarantee=fm.Proven(start="current"),
        reproducible_noise=0,
    )
    if guarantee == "published":
        first = fm.layers.PerturbedAffine(32, activation="relu")
        below = [fm.layers.NormalizationLayer((0, 1), "linf")]
        private = fm.callbacks.PrivateModel(
            100.0, 0.0, guarantee=fm.Published(lot=100), reproducible_noise=0
        )
    model = keras.Sequential(
        [
            keras.Input(X.shape[1:]),
            keras.layers.Flatten(),
            *below,
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


def both():
    return [fit(guarantee) for guarantee in ("proven", "published")]


def compared(alone, together):
    """Of each guarantee."""
    return [
        {
            "moved": float(np.abs(a[0][-2]).max()),
            "difference": max(
                float(np.abs(u - v).max()) for u, v in zip(a[0], b[0])
            ),
            "losses": [a[1], b[1]],
            "entries": [a[2], b[2]],
        }
        for a, b in zip(alone, together)
    ]


def copies(variables):
    """The values of variables on every device, as bytes."""
    found = []
    for variable in variables:
        value = variable.value
        if BACKEND == "jax":
            parts = [shard.data for shard in value.addressable_shards]
        else:
            parts = getattr(value, "values", [value])
        found.append([np.asarray(part).tobytes() for part in parts])
    return found
