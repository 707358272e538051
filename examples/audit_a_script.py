"""A training that knows nothing of keras_fm, audited from the command line.

    keras-fm audit --fit=examples/audit_a_script.py:fit \
        --control=examples/audit_a_script.py:control \
        --dataset=examples/audit_a_script.py:data --classes=2 \
        --epsilon=2 --delta=1e-5 --neighbours=add_remove \
        --design=include --kind=unit --bound=1 --canaries=2000 \
        --curve=gaussian --seeds=1

DP-SGD by hand, for a linear model: the gradients of all records, each clipped,
and Gaussian noise on their sum. `half_the_noise` claims the same and has half
of it; give it as `--fit`.

Canaries of kind `unit` have one feature of their own each, so that a weight
shows a canary and the noise, and nothing else: the strongest attack there is
on a linear model.
"""

import math

import keras
import numpy as np
from keras_fm.mechanisms import gaussian_multiplier

FEATURES, STEPS, CLIP, RATE = 2000, 10, 0.1, 0.01


def data():
    """Two blobs in a few of many features."""
    rng = np.random.default_rng(1)
    y = rng.random(2000) < 0.75
    x = np.zeros((2000, FEATURES), "float32")
    x[:, -5:] = 0.3 * rng.normal(size=(2000, 5)) + 0.2 * y[:, None]
    return x, y.astype(int)


def fit(x, y):
    """(2, 1e-5), add_remove."""
    return descend(x, y, noise=gaussian_multiplier(2.0, 1e-5))


def half_the_noise(x, y):
    return descend(x, y, noise=gaussian_multiplier(2.0, 1e-5) / 2)


def control(x, y):
    """The same without privacy."""
    return descend(x, y, noise=0.0)


def descend(x, y, noise, clip=CLIP, steps=STEPS):
    """A Keras model after so many steps.

    `noise`: of all steps together, in units of the clip.
    """
    weights = np.zeros(x.shape[1])
    rng = np.random.default_rng()
    for _ in range(steps):
        errors = 1 / (1 + np.exp(-(x @ weights))) - y
        norms = np.abs(errors) * np.linalg.norm(x, axis=1)
        total = (errors * np.minimum(1, clip / np.maximum(norms, 1e-9))) @ x
        stddev = noise * min(clip, CLIP) * math.sqrt(steps)
        weights -= RATE * (total + stddev * rng.normal(size=len(weights)))
    output = keras.layers.Dense(1, use_bias=False)
    model = keras.Sequential([keras.Input(x.shape[1:]), output])
    output.set_weights([weights[:, None]])
    return model
