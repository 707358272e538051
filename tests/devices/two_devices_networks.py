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
from keras_fm.per_example.participation import CorrelatedNoise

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


class Constant(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.sum(0.0 * y_pred, axis=-1)


def fitted(epsilon, size, units, loss, owned=None, **given):
    """How far a fit moves the weights, its mechanism, and the model."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(units, activation="tanh"),
            keras.layers.Dense(2),
        ]
    )
    private = fm.make_private(model, rows_per_owner=owned)
    private.compile(keras.optimizers.SGD(1.0), loss)
    budget = fm.callbacks.PrivateModel(fm.PrivacyBudget(epsilon, 1e-3))
    if owned is not None:
        given["owners"] = np.arange(len(X)) // owned
    before = model.get_weights()
    private.fit(
        X, Y, batch_size=size, epochs=2, verbose=0, callbacks=[budget], **given
    )
    (entry,) = budget.ledger.entries
    pairs = zip(before, model.get_weights())
    moved = np.concatenate([(b - a).ravel() for a, b in pairs])
    return moved, entry.build_mechanism(), model


def learned(size=40, **given):
    """Steps of all records, with hardly any noise."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return fitted(1e6, size, 8, loss, **given)[0]


def all_learned():
    """Of records, of owners, and of records in their order."""
    order = {"participation": fm.Participation(bands=3), "shuffle": False}
    return learned(), learned(20, owned=2), learned(10, **order)


def noise():
    """Of each way to take records, the deviation of the noise of 8 steps over
    the one that is charged."""
    found, weights = {}, CorrelatedNoise(3, 4, 8).weights
    # Of a step its own noise, and of later steps what they take back.
    sums = np.minimum.accumulate(np.cumsum([*weights, *[0] * 5]))
    ways = {
        "samples": ({}, np.sqrt(8)),
        "owners": ({"owned": 2}, np.sqrt(8)),
        "bins": ({"participation": fm.BallsInBins()}, np.sqrt(8)),
        "order": (
            {"participation": fm.Participation(bands=3)},
            np.linalg.norm(sums),
        ),
    }
    for name, (given, scale) in ways.items():
        size = 5 if "owned" in given else 10
        moved, charged, model = fitted(2.0, size, 400, Constant(), **given)
        found[name] = float(moved.std() / (charged.stddev / size * scale))
    return found, model


def copies(model):
    """The weights of every device, as bytes."""
    return two_devices.copies(model.trainable_variables)


def main():
    alone = all_learned()
    if BACKEND == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        devices, scope = len(keras.distribution.list_devices()), None
    else:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        devices, scope = strategy.num_replicas_in_sync, strategy.scope()
    with scope or contextlib.nullcontext():
        both = all_learned()
        ratios, model = noise()
    found = {
        "devices": devices,
        "difference": [float(np.abs(a - b).max()) for a, b in zip(alone, both)],
        "moved": [float(np.abs(a).max()) for a in alone],
        "noise": ratios,
        "copies": [
            len(set(parts)) == 1 and len(parts) for parts in copies(model)
        ],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
