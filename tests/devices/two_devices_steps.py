"""Models with a loss of their own, a DPMAC above all, on one device and on
two of one process; prints how far they differ.

python tests/devices/two_devices_steps.py
"""

# ruff: noqa: E402  (devices are set before Keras is imported)

import contextlib
import json

import two_devices  # sets the devices

BACKEND = two_devices.BACKEND
UNEQUAL = ()
if BACKEND == "tensorflow":
    import tensorflow as tf

    # What Keras itself says of unequal parts, before any callback.
    UNEQUAL = (tf.errors.InvalidArgumentError,)

import keras
import numpy as np

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.datasets import PoissonBatches

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


def batches(capacity=208):
    """All records at every step, and padding."""
    return PoissonBatches(
        X, Y, sampling="full", steps_per_epoch=2, capacity=capacity
    )


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


def steps():
    """Two noisy steps, and two that are not paid for."""
    model = build(keras.optimizers.SGD(1.0), clip=0.05, unprotected=True)
    before = model.get_weights()
    # Sums move a weight by about 0.5, noise by about 0.1.
    model.perturb(20.0, 10.0, steps=2, seed=3)
    history = model.fit(batches(), epochs=2, verbose=0)
    counts = model.steps_taken, model.steps_refused
    return moved(model, before), history.history["loss"], counts, model


def private():
    """The whole fit by the callback."""
    model = build(keras.optimizers.Adam(0.01), clip=0.1)
    before = model.get_weights()
    callback = PrivateModel(fm.PrivacyBudget(20.0, 1e-5), reproducible_noise=0)
    model.fit(batches(), epochs=2, callbacks=[callback], verbose=0)
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
    rival = fm.baselines.ConditionalRBM(
        8, 10, {"present": (0, 64)}, generative_weight=0.0, seed=0
    )
    rival.build((None, 64))
    rival.compile(keras.optimizers.SGD(1.0))
    before = rival.get_weights()
    rival.fit(X, Y, batch_size=100, verbose=0, shuffle=False)
    return [*found, moved(rival, before)]


def copies(model):
    """Weights, counts and seed of every device, as bytes."""
    hidden = model._noise._hidden.variables.values()
    return two_devices.copies([*model.weights, *hidden])


def refusals():
    """What is not supported says so, before anything is spent."""
    model = build(keras.optimizers.SGD(1.0))
    callback = PrivateModel(fm.PrivacyBudget(20.0, 1e-5), reproducible_noise=0)
    attempts = [
        lambda: model.fit(batches(207), callbacks=[callback], verbose=0)
    ]
    if BACKEND == "tensorflow":
        noisy = build(keras.optimizers.SGD(1.0), unprotected=True)
        noisy.perturb(1.0, 10.0, steps=2)
        attempts += [
            lambda: noisy.train_on_batch(X, Y),
            lambda: OUTSIDE.perturb(1.0, 10.0, steps=2),
        ]
    found = []
    for attempt in attempts:
        try:
            attempt()
        except (ValueError, *UNEQUAL) as e:
            found.append(str(e))
    assert not callback.ledger.entries
    return found


def everything():
    # JAX has no sum of its own for several devices.
    orders = (1,) if BACKEND == "jax" else (1, 2)
    plain = [twin(order) for order in orders]
    nets = [] if BACKEND == "jax" else [*network(), *energies()]
    return plain, steps(), private(), nets


def main():
    fits, alone = two_devices.both(), everything()
    if BACKEND == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        devices, scope = len(keras.distribution.list_devices()), None
    else:
        global OUTSIDE
        OUTSIDE = build(keras.optimizers.SGD(1.0), unprotected=True)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        devices, scope = strategy.num_replicas_in_sync, strategy.scope()
    with scope or contextlib.nullcontext():
        guarantees = two_devices.compared(fits, two_devices.both())
        both = everything()
        refused = refusals()

    def difference(a, b):
        return [float(np.abs(a - b).max()), float(np.abs(a).max())]

    same = [
        len(set(parts)) == 1 and len(parts)
        for model in (both[1][3], both[2][2])
        for parts in copies(model)
    ]
    found = {
        "devices": devices,
        "guarantees": guarantees,
        "copies": same,
        "twin": [difference(a[0], b[0]) for a, b in zip(alone[0], both[0])],
        "losses": [[losses for _, losses in part[0]] for part in (alone, both)],
        "steps": difference(alone[1][0], both[1][0]),
        "step_losses": [alone[1][1], both[1][1]],
        "counts": [alone[1][2], both[1][2]],
        "private": difference(alone[2][0], both[2][0]),
        "mechanisms": [alone[2][1], both[2][1]],
        "network": [difference(a, b) for a, b in zip(alone[3], both[3])],
        "refusals": refused,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
