"""Fixtures that several test modules ask for."""

import keras
import pytest


@pytest.fixture
def untraced(request):
    """Eager TensorFlow: tracing costs more than all steps of short fits.

    A test whose name holds the module's `TRACED` is compiled all the same.
    """
    traced = getattr(request.module, "TRACED", None)
    if keras.backend.backend() != "tensorflow" or (
        traced and traced in request.node.name
    ):
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
