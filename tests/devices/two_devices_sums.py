"""Sums of a release and of rounds on two devices of one process: the integers
of NumPy.

python tests/devices/two_devices_sums.py
"""

# ruff: noqa: E402  (devices are set before Keras is imported)

import contextlib

import two_devices  # sets the devices

BACKEND = two_devices.BACKEND

import keras
import numpy as np

import keras_fm as fm
from keras_fm.core import device_sums

if BACKEND == "tensorflow":
    import tensorflow as tf

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5000, 6))
X = (0.9 * X / np.linalg.norm(X, axis=1, keepdims=True)).astype("float32")
Y = RNG.integers(3, size=5000)
places = []


def released(rounds):
    """All arrays of a release, in bytes."""
    keras.utils.set_random_seed(0)
    head = fm.layers.PrivateDense(3, rounds=rounds)
    model = keras.Sequential([keras.Input((6,)), head])
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(
        1.0, 1e-5, data=(X, Y), reproducible_noise=1
    )
    model.fit(X[:64], Y[:64], verbose=0, callbacks=[private])
    found = private.release.statistics
    return {name: np.asarray(v).tobytes() for name, v in found.items()}


def noted(spread=device_sums._spread):
    def run(array):
        tensor = spread(array)
        if BACKEND == "jax":
            places.append(len(tensor.devices()))
        return tensor

    return run


def several():
    """Two devices, for Keras."""
    if BACKEND == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        return contextlib.nullcontext()
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()


if __name__ == "__main__":
    expected = [released(rounds) for rounds in (None, 3)]
    device_sums.available = lambda: True
    device_sums._spread = noted()
    with several():
        found = [released(rounds) for rounds in (None, 3)]
    assert found == expected, "other bits"
    # Two of the release, three of the rounds, on two devices each.
    assert BACKEND != "jax" or (len(places) >= 5 and {*places} == {2}), places
    print("the same bits")
