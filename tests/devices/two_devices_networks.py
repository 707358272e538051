"""A network of `make_private` on one device and on two of one process: what it
learns, and the noise that is in it.

python tests/devices/two_devices_networks.py
"""

# ruff: noqa: E402  (devices are set before Keras is imported)

import contextlib
import json

import two_devices  # sets the devices

BACKEND = two_devices.BACKEND
if BACKEND == "tensorflow":
    import tensorflow as tf

import keras
import numpy as np
from keras import ops

import keras_fm as fm

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


class Constant(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.sum(0.0 * y_pred, axis=-1)


def fitted(epsilon, size, units, loss):
    """How far a fit moves the weights, its mechanism, and the model."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(units, activation="tanh"),
            keras.layers.Dense(2),
        ]
    )
    private = fm.make_private(model)
    private.compile(keras.optimizers.SGD(1.0), loss)
    given = fm.callbacks.PrivateModel(fm.PrivacyBudget(epsilon, 1e-3))
    before = model.get_weights()
    private.fit(X, Y, batch_size=size, epochs=2, verbose=0, callbacks=[given])
    (entry,) = given.ledger.entries
    pairs = zip(before, model.get_weights())
    moved = np.concatenate([(b - a).ravel() for a, b in pairs])
    return moved, entry.build_mechanism(), model


def learned():
    """Two steps of all records, with hardly any noise."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return fitted(1e6, 40, 8, loss)


def noise():
    """The deviation of the noise of 8 steps, over the one that is charged."""
    moved, mechanism, model = fitted(2.0, 10, 400, Constant())
    return moved.std() / (mechanism.stddev / 10 * np.sqrt(8)), model


def copies(model):
    """The weights of every device, as bytes."""
    return two_devices.copies(model.trainable_variables)


def main():
    alone, *_ = learned()
    if BACKEND == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        devices, scope = len(keras.distribution.list_devices()), None
    else:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        devices, scope = strategy.num_replicas_in_sync, strategy.scope()
    with scope or contextlib.nullcontext():
        both, *_ = learned()
        ratio, model = noise()
    found = {
        "devices": devices,
        "difference": float(np.abs(alone - both).max()),
        "moved": float(np.abs(alone).max()),
        "noise": float(ratio),
        "copies": [
            len(set(parts)) == 1 and len(parts) for parts in copies(model)
        ],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
