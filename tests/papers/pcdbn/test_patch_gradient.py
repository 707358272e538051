"""The gradient of the energy is that of the backend's autodiff."""

import keras
import numpy as np
import pytest
from patches import ORDERS, make, some_patches

SERIES = (0.5, 0.24, 0.03, -0.017)


def autodiff(patches, filters, coefficients, scale):
    """Gradient of the exact truncated energy by the backend's autodiff."""

    def energy(w, u):
        x = u @ w
        hidden = sum(a * (x / scale) ** l for l, a in enumerate(coefficients))
        return -keras.ops.sum(x * hidden) / patches.shape[1]

    u = patches.reshape(-1, patches.shape[-1])
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        w, u = tf.constant(filters), tf.constant(u)
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = energy(w, u)
        return tape.gradient(loss, w).numpy()
    if backend == "jax":
        import jax

        return np.asarray(jax.grad(energy)(filters, u))
    import torch

    w = torch.tensor(filters, requires_grad=True)
    energy(w, torch.tensor(u)).backward()
    return w.grad.numpy()


@pytest.mark.parametrize("order", ORDERS)
def test_the_gradient_is_autodiff_of_the_exact_truncated_energy(order):
    """To 1e-10 in double precision; JAX computes in single: 1e-5."""
    objective = make(10, order, bound=1.5, constant=0.8)
    patches = some_patches(objective, n=15, positions=6)
    (made,) = objective.accumulate(objective.zero(), patches)
    filters = np.random.default_rng(4).normal(size=(10, 5))
    tolerance = 1e-5 if keras.backend.backend() == "jax" else 1e-10
    for length in range(1, order + 1):
        series = SERIES[:length]
        found = objective.gradient(filters, made, series, 1.7)
        expected = autodiff(patches, filters, series, 1.7)
        assert found.shape == (10, 5)
        largest = np.abs(expected).max()
        assert largest > 1e-2
        assert np.abs(found - expected).max() <= tolerance * largest
