"""Records of a linear layer, the sum of their clipped gradients, and reads of
them without noise."""

import numpy as np

from keras_fm.kernel.mechanisms import SampledGaussianMechanism
from keras_fm.queries import GradientQuery


class Silent(SampledGaussianMechanism):
    """Charged as the noise it states, but adds none."""

    def perturb(self, exact, source, **kwargs):
        return np.array(exact, np.float64)

    def config(self):
        return super().config() | {"mechanism": "SampledGaussianMechanism"}


def silent(steps, rate=1.0, sensitivity=1.0):
    return Silent(
        sensitivity=sensitivity,
        noise_multiplier=1e3,
        sampling_rate=rate,
        steps=steps,
    )


def records(n=60, m=4, outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(n, m))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    return h, rng.integers(0, max(outputs, 2), n)


def objective(m=4, outputs=3, **kwargs):
    return GradientQuery(num_features=m, num_outputs=outputs, **kwargs)


def gradients(h, y, weights, clip):
    """Sum of the records' clipped gradients of softmax regression."""
    total = np.zeros_like(weights)
    for row, label in zip(h, y):
        p = np.exp(row @ weights)
        p /= p.sum()
        p[label] -= 1
        one = np.outer(row, p)
        total += one * min(1, clip / np.linalg.norm(one))
    return total
