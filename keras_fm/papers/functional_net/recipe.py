"""FunctionalNet: the perturbed Taylor expansion of a whole network."""

import math

import keras

from keras_fm.core.guarantee import Published
from keras_fm.papers.functional_net.functional_net import FunctionalNet
from keras_fm.public.normalization_layer import NormalizationLayer

# Norm of the inputs of a network that clips coefficients.
NORM = 8.0


def centred():
    """Public layers that bring every record to mean 0 and the same norm."""
    return [
        keras.layers.LayerNormalization(center=False, scale=False),
        NormalizationLayer(),
        keras.layers.Rescaling(NORM),
    ]


def layers(hidden, classes, **output):
    """Hidden layers and an output layer."""
    # The logit of one class among many: training would first learn this.
    rare = keras.initializers.Constant(-math.log(max(1, classes - 1)))
    head = keras.layers.Dense(classes, bias_initializer=rare, **output)
    return [*hidden, head]


def activation(is_published):
    """Activation of hidden units: the paper's, or ours."""
    return "sigmoid" if is_published else "tanh"


def inside(is_published):
    """Last layers below: the paper's inputs are in [0, 1]."""
    return [keras.layers.Activation("sigmoid")] if is_published else []


def network(inputs, trained, below, rounds=10, **kwargs):
    """A `FunctionalNet` that trains `trained` on the outputs of `below`."""
    return FunctionalNet(inputs, trained, rounds=rounds, below=below, **kwargs)


def fit(training, model, data, is_published):
    """Fits the model; every round uses all records once."""
    if is_published:
        private = training.claimed(data, Published(lot="data"))
    else:
        private = training.proven(data)
    read = training.but(epochs=1, lot=0)
    return read.fit(model, data, private, loss=None, optimizer="sgd")
