"""Steps that clip refuse devices whose float32 products have fewer digits."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.stacks import step_precision

BACKEND = keras.backend.backend()
RNG = np.random.default_rng(0)


@pytest.fixture
def card(monkeypatch):
    """A device that rounds, as its library presents it; gives what has it
    round no more."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        listed = tf.config.list_physical_devices
        monkeypatch.setattr(
            tf.config,
            "list_physical_devices",
            lambda kind=None: ["a card"] if kind == "GPU" else listed(kind),
        )
        rounds = tf.config.experimental.enable_tensor_float_32_execution
        yield lambda: rounds(False)
        rounds(True)
    elif BACKEND == "jax":
        import jax

        before = jax.config.jax_default_matmul_precision
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        yield lambda: jax.config.update(
            "jax_default_matmul_precision", "highest"
        )
        jax.config.update("jax_default_matmul_precision", before)
    else:
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
        yield lambda: monkeypatch.setattr(
            torch.backends.cudnn, "allow_tf32", False
        )


def test_a_card_that_rounds_is_refused_before_anything_is_spent(card):
    model = fm.models.GradientNet((4,), [keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1))
    x, y = RNG.random((20, 4), "float32"), np.arange(20) % 3
    batches = fm.datasets.PoissonBatches(x, y, batch_size=5)
    private = fm.callbacks.PrivateModel(fm.PrivacyBudget(1.0, 1e-5))
    with pytest.raises(ValueError, match="Before the fit, write `"):
        model.fit(batches, epochs=1, callbacks=[private], verbose=0)
    assert not private.ledger.entries
    card()
    step_precision.check()


def test_a_processor_does_not_round():
    step_precision.check()
