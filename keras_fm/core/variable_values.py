"""Values of variables where Keras runs a step and holds them elsewhere."""

import keras
import numpy as np

from keras_fm.core import fit_frame


def values(variables, model=None):
    """NumPy values of variables, or `None` where they have none now.

    Inside a compiled step a TensorFlow variable is read outside of the graph;
    JAX has taken the values of the model that trains into its own state.
    """
    found = _of_state(model) if keras.backend.backend() == "jax" else {}
    try:
        return [_value(v, found) for v in variables]
    # Whatever a backend raises for what a traced step makes.
    except Exception:
        return None


def _value(variable, found):
    if id(variable) in found:
        return np.asarray(found[id(variable)])
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.init_scope():
            # Not `value`: the step of a half policy would cast it.
            value = variable._value
            # Of the first replica, where there are several.
            value = getattr(value, "values", [value])[0]
            return value.numpy()
    if backend == "jax":
        # Not `value`: a scope would give the tracer.
        if variable._value is None:
            raise ValueError("taken by a fit")
        return np.asarray(variable._value)
    return keras.ops.convert_to_numpy(variable._value)


def _state(model):
    """JAX: pairs of the variables that the running fit took, and values."""
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


def _of_state(model):
    if model is None:
        return {}
    return {id(variable): value for variable, value in _state(model)}


def give_back(model):
    """JAX: what a fit took, before an error ends it."""
    if keras.backend.backend() == "jax" and model is not None:
        for variable, value in _state(model):
            variable._value = value
