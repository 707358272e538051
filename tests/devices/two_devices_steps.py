"""Models with a loss of their own, a DPMAC above all, on one device and on
two of one process; prints how far they differ.

python tests/devices/two_devices_steps.py
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

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.lab.baselines.conditional_rbm import ConditionalRBM

(X, Y), _ = fm.datasets.load("digits")
X, Y = X[:200].reshape(200, 64), Y[:200]


def build(optimizer, **kwargs):
    keras.utils.set_random_seed(0)
    stack = [
        keras.layers.Dense(12, activation="tanh"),
        keras.layers.Dense(10),
    ]
    model = fm.models.DPMAC((64,), stack, z_steps=3, **kwargs)
    model.compile(optimizer)
    return model


def moved(model, before):
    pairs = zip(before, model.get_weights())
    return np.concatenate([(b - a).ravel() for b, a in pairs])


def twin(order):
    """Without noise, in batches of which the last is smaller."""
    kwargs = {"order": 2, "curvature_clip": 1.0} if order == 2 else {}
    model = build(keras.optimizers.SGD(0.5), unprotected=True, **kwargs)
    before = model.get_weights()
    history = model.fit(X, Y, batch_size=60, verbose=0, shuffle=False)
    losses = history.history["loss"]
    if order == 1:
        losses.append(model.evaluate(X, Y, batch_size=100, verbose=0))
    return moved(model, before), losses


def private():
    """Four steps of all records, which no two devices share equally, with
    hardly any noise."""
    model = build(keras.optimizers.SGD(1.0), clip=0.05)
    before = model.get_weights()
    callback = PrivateModel(fm.PrivacyBudget(1e6, 1e-3), reproducible_noise=0)
    model.fit(
        X[:199],
        Y[:199],
        batch_size=199,
        epochs=4,
        callbacks=[callback],
        verbose=0,
    )
    (entry,) = callback.ledger.entries
    return moved(model, before), entry.mechanism, model


def expansion(**kwargs):
    keras.utils.set_random_seed(0)
    model = fm.models.FunctionalNet((64,), [keras.layers.Dense(10)], **kwargs)
    model.compile(keras.optimizers.SGD(0.1))
    return model


def network():
    """A FunctionalNet: its own expansion, then a released quadratic."""
    model = expansion(unprotected=True)
    before = model.get_weights()
    model.fit(X, Y, batch_size=60, verbose=0, shuffle=False)
    found = [moved(model, before)]
    model = expansion()
    start = model.get_weights()
    shape = (65, 10)
    model.set_release([np.ones(shape)], [np.ones(shape)], "{}")
    model.fit(X, Y, batch_size=60, verbose=0)
    return [*found, moved(model, start)]


def energies():
    """Boltzmann machines whose losses are their own, without random parts."""
    keras.utils.set_random_seed(0)
    model = fm.models.PrivateCDBN(
        (8, 8, 1),
        None,
        maps=((3, 3),),
        guarantee="published",
        unprotected=True,
    )
    rbm = model.energy_model(contrast="absolute")
    rbm.compile(keras.optimizers.SGD(1.0))
    images = X.reshape(-1, 8, 8, 1).astype("float32")
    before = rbm.get_weights()
    rbm.fit(images, batch_size=100, verbose=0, shuffle=False)
    found = [moved(rbm, before)]
    rival = ConditionalRBM(
        8, 10, {"present": (0, 64)}, generative_weight=0.0, seed=0
    )
    rival.build((None, 64))
    rival.compile(keras.optimizers.SGD(1.0))
    before = rival.get_weights()
    rival.fit(X, Y, batch_size=100, verbose=0, shuffle=False)
    return [*found, moved(rival, before)]


def copies(model):
    """Weights of every device, as bytes."""
    return two_devices.copies(model.weights)


def everything():
    # JAX has no sum of its own for several devices.
    orders = (1,) if BACKEND == "jax" else (1, 2)
    plain = [twin(order) for order in orders]
    nets = [] if BACKEND == "jax" else [*network(), *energies()]
    return plain, private(), nets


def main():
    fits, alone = two_devices.both(), everything()
    if BACKEND == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        devices, scope = len(keras.distribution.list_devices()), None
    else:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        devices, scope = strategy.num_replicas_in_sync, strategy.scope()
    with scope or contextlib.nullcontext():
        guarantees = two_devices.compared(fits, two_devices.both())
        both = everything()

    def difference(a, b):
        return [float(np.abs(a - b).max()), float(np.abs(a).max())]

    same = [len(set(parts)) == 1 and len(parts) for parts in copies(both[1][2])]
    found = {
        "devices": devices,
        "guarantees": guarantees,
        "copies": same,
        "twin": [difference(a[0], b[0]) for a, b in zip(alone[0], both[0])],
        "losses": [[losses for _, losses in part[0]] for part in (alone, both)],
        "private": difference(alone[1][0], both[1][0]),
        "mechanisms": [alone[1][1], both[1][1]],
        "network": [difference(a, b) for a, b in zip(alone[2], both[2])],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
