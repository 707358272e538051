"""ILM, and an output layer alone (dPA's head).

ILM is given a batch normalisation after the noisy layer, which takes a shift
that all records share out again.
"""

import math

import keras
import numpy as np

from keras_fm.heads.private_dense import PrivateDense
from keras_fm.lab.audits import controls
from keras_fm.papers.adlm import recipe as adlm
from keras_fm.papers.adlm.perturbed_layers import PerturbedAffine
from keras_fm.papers.batch_standardization import BatchStandardization
from keras_fm.public.normalization_layer import NormalizationLayer


def fit(subject, x, y, classes):
    """`(model, ledger)`."""
    model = build(subject, x.shape[1:], classes)
    training = subject.training(x)
    if subject.is_published:
        made = adlm.perturbed(training, model, (x, y), subject.noise)
    else:
        made = training.release(model, (x, y))
    return _view(model), made.ledger


def control(subject, x, y, classes):
    """The model without privacy."""
    model = build(subject, x.shape[1:], classes, unprotected=True)
    learn = controls.learn if subject.is_published else controls.learn_output
    return _view(learn(subject, model, x, y))


def build(subject, inputs, classes, unprotected=False):
    """ILM or dPA's head as a model, not compiled."""
    body = _ilm_layers if subject.model == "ilm" else _head_layers
    return keras.Sequential(
        [
            keras.Input(inputs),
            *body(subject, inputs, unprotected),
            PrivateDense(classes, unprotected=unprotected, name="output"),
        ]
    )


def _ilm_layers(subject, inputs, unprotected):
    del inputs
    after = {
        "batch": [keras.layers.BatchNormalization(momentum=0.9)],
        "minmax": [NormalizationLayer(mode="batch")],
        "none": [],
    }[subject.normalization]
    return [
        *_box(subject),
        PerturbedAffine(subject.hidden, unprotected=unprotected, name="affine"),
        *after,
        keras.layers.Activation("relu"),
        *_bounded(),
    ]


def _bounded():
    """The last hidden layer, with features in [0, 1], which claims are for:
    as AdLM's dense form."""
    return [
        keras.layers.Dense(25, activation="relu"),
        NormalizationLayer(norm="linf", mode="batch"),
    ]


def _box(subject):
    """Inputs that the claims are for; the records are in it."""
    if not subject.is_published:
        return []
    return [NormalizationLayer((0.0, 1.0), "linf", name="box")]


def _head_layers(subject, inputs, unprotected):
    del unprotected
    if subject.is_published:
        return [
            keras.layers.Dense(subject.hidden, activation="relu"),
            *_bounded(),
        ]
    # Frozen features must be many, or even the control fits no label.
    return [
        keras.layers.Dense(
            16 * subject.hidden,
            activation="tanh",
            kernel_initializer=keras.initializers.RandomNormal(
                stddev=2 / math.sqrt(np.prod(inputs))
            ),
            trainable=False,
        ),
        keras.layers.UnitNormalization(),
    ]


def _view(model):
    """How the attack looks at a trained model.

    The noise that shifts all inputs is absent at inference, so moving
    averages of a batch normalisation do not fit there. The attack takes the
    statistics of the records that it asks about.
    """
    batch = keras.layers.BatchNormalization
    if not any(isinstance(layer, batch) for layer in model.layers):
        return model
    layers = []
    for layer in model.layers:
        if isinstance(layer, batch):
            same = BatchStandardization(momentum=1.0, epsilon=layer.epsilon)
            same.build(layer.input.shape)
            same.set_weights(layer.get_weights())
            layer = same
        layers.append(layer)
    return keras.Sequential([keras.Input(model.input_shape[1:]), *layers])
