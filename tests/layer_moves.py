"""Fits of one linear layer, whose weights show what every step released."""

import math

import keras
import numpy as np
from keras import layers
from scipy import stats

import keras_fm as fm

# Records, what each reads, and units.
N, D, H = 22, 100, 100
CLIP = 0.5


def network(owned=None, **compiled):
    """A private model of the layer."""
    keras.utils.set_random_seed(1)
    layer = layers.Dense(H, use_bias=False)
    model = keras.Sequential([keras.Input((D,)), layer])
    private = fm.make_private(model, clip=CLIP, rows_per_owner=owned)
    private.compile(keras.optimizers.SGD(1.0), "mse", **compiled)
    return private


def nothing(n=N):
    """Records whose gradients are zero."""
    return np.zeros((n, D), "float32"), np.zeros((n, H), "float32")


class Noting(keras.callbacks.Callback):
    """Keeps the weights before and after every step."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def on_train_begin(self, logs=None):
        self.weights.append(self.model.get_weights()[0].ravel())

    def on_train_batch_end(self, batch, logs=None):
        self.on_train_begin()


def moves(private, x, y, budget, batch_size, owned=None, **given):
    """What the steps of two epochs took off the weights, in clips."""
    noting = Noting()
    private.fit(
        x,
        y,
        batch_size=batch_size,
        epochs=2,
        verbose=0,
        callbacks=[budget, noting],
        owners=None if owned is None else np.arange(len(x)) // owned,
        **given,
    )
    return -np.diff(noting.weights, axis=0) * batch_size / CLIP


def are_independent(steps):
    """Whether the moves of steps are independent noise of deviation 1.

    The words are secret, so no seed keeps a test from failing by chance: once
    in 1e6.
    """
    low, high = stats.chi2.ppf([1e-8, 1 - 1e-8], H * D)
    scales = np.sum(steps**2, axis=1)
    products = np.abs(steps @ steps.T)[np.triu_indices(len(steps), 1)]
    return (
        np.all((low < scales) & (scales < high))
        and np.max(products) < math.sqrt(H * D) * 6.5
    )
