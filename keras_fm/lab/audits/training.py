"""Trainings that the subjects share, with privacy and without."""

import keras
import numpy as np

from keras_fm.callbacks import PrivateModel
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.parts.guarantee import Proven, Published

# Of full batches, in one epoch.
_STEPS = 20


def fit(
    subject, model, loss, x, y, callbacks=(), epochs=None, learning_rate=None
):
    """Keras' `fit` with Adam; full batches if the subject has them."""
    epochs = subject.epochs if epochs is None else epochs
    lot, repeats = subject.lot(x), 1
    if lot == len(x):
        # Full batches, several to an epoch: an epoch costs more than a step.
        repeats = min(_STEPS, epochs)
        x, y = (np.concatenate([a] * repeats) for a in (x, y))
    rate = learning_rate or subject.learning_rate
    model.compile(keras.optimizers.Adam(rate), loss)
    model.fit(
        x,
        y,
        batch_size=lot,
        epochs=-(-epochs // repeats),
        shuffle=repeats == 1,
        callbacks=list(callbacks),
        verbose=0,
    )


def fit_exactly(subject, model, x, y, epochs=None):
    """Without privacy: what the private form learns, by exact gradients."""
    exact = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # A convex problem stands, and needs, longer steps.
    alone = len(model.trainable_weights) <= 2
    fit(
        subject,
        model,
        exact,
        x,
        y,
        epochs=epochs or subject.control_epochs,
        learning_rate=(10 if alone else 1) * subject.learning_rate,
    )
    return model


def fit_output_exactly(subject, model, x, y):
    """`fit_exactly` of the last layer alone: what it reads is made once."""
    below = keras.Model(model.inputs[0], model.layers[-2].output)
    features = below.predict(x, batch_size=1000, verbose=0)
    top = keras.Sequential([keras.Input(features.shape[1:]), model.layers[-1]])
    fit_exactly(subject, top, features, y)
    return model


def fit_perturbed(subject, model, x, y):
    """The papers' training: records in every step; returns the ledger."""
    private = PrivateModel(
        subject.epsilon, guarantee=Published(lot=subject.lot(x))
    )
    fit(subject, model, TaylorCrossEntropy(), x, y, [private])
    return private.ledger


def fit_released(subject, model, x, y):
    """The proven training starts at the optimum of what it released; returns
    the ledger."""
    private = PrivateModel(
        subject.budget(),
        data=(x, y),
        guarantee=Proven(neighbours=subject.neighbours),
    )
    fit(subject, model, TaylorCrossEntropy(), x, y, [private], epochs=1)
    return private.ledger
