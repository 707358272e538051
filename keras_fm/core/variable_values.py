"""Values of variables while Keras runs a step and holds them elsewhere."""

import keras
import numpy as np

from keras_fm.core import fit_frame


def values(variables, model=None):
    """NumPy values of variables, or `None` if they have none now.

    Inside a compiled step a TensorFlow variable is read outside of the graph.
    JAX has moved the values of the training model into its own state.
    """
    found = {}
    if keras.backend.backend() == "jax" and model is not None:
        found = {id(variable): value for variable, value in _state(model)}
    try:
        return [_value(v, found) for v in variables]
    # Any error that a backend raises for tensors of a traced step.
    except Exception:
        return None


def _value(variable, found):
    if id(variable) in found:
        return np.asarray(found[id(variable)])
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.init_scope():
            # Not `value`, which the step of a half policy would cast.
            value = variable._value
            # The value on the first replica, if there are several.
            value = getattr(value, "values", [value])[0]
            return value.numpy()
    if backend == "jax":
        # Not `value`, which would give the tracer in a scope.
        if variable._value is None:
            raise ValueError("taken by a fit")
        return np.asarray(variable._value)
    return keras.ops.convert_to_numpy(variable._value)


def _state(model):
    """JAX: pairs of variables that the running fit took, and their values."""
    state = (fit_frame.arguments(model) or {}).get("state") or ()
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables if len(state) == 4 else (),
        model.metrics_variables,
    )
    return [
        (variable, value)
        for variables, held in zip(groups, state)
        for variable, value in zip(variables, held)
        if variable._value is None
    ]


def give_back(model):
    """JAX: gives back what a fit took, before an error ends it."""
    if keras.backend.backend() == "jax" and model is not None:
        for variable, value in _state(model):
            variable._value = value
