"""Small models for the tests of what keeps records apart."""

import keras
import pytest

from keras_fm.training.row_independence import check_layers

ROWS = 256
TENSORFLOW = keras.backend.backend() == "tensorflow"


def graph(build, shape=(6,), **kwargs):
    """A model of one input."""
    x = keras.Input(shape, **kwargs)
    return keras.Model(x, build(x))


def refused(model, message, declared=(), **kwargs):
    """The message with which a model is refused."""
    with pytest.raises(ValueError, match=message) as e:
        check_layers(model, model.outputs, declared=declared, **kwargs)
    return str(e.value)


def accepted(model, **kwargs):
    """The notes with which a model is accepted."""
    return check_layers(model, model.outputs, **kwargs)


class Own(keras.layers.Layer):
    """A layer of a user's own, of any function."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, inputs, training=False):
        return self.function(self, inputs, training)

    def compute_output_shape(self, input_shape):
        return input_shape
