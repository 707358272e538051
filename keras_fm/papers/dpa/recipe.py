"""dPA and dPAH: auto-encoders below an output layer."""

import keras

from keras_fm.heads.private_dense import PrivateDense
from keras_fm.heads.taylor_cross_entropy import TaylorCrossEntropy
from keras_fm.papers.dpa.deep_private_autoencoder import DeepPrivateAutoencoder
from keras_fm.papers.dpa.private_encoder import PrivateEncoder


def network(inputs, classes, units, **architecture):
    """One encoder below the output layer."""
    return DeepPrivateAutoencoder(
        inputs, hidden=(units,), units=classes, **architecture
    )


def published(training, model, data, loss=None):
    """Trains as printed: pre-trains, then fine-tunes. Without an epsilon the
    model must have no noise.

    Args:
        training: a `Training` of the laboratory.
        model: a `DeepPrivateAutoencoder` or a `BehaviorAutoencoder`.
        data: `(x, y)`.
        loss: `None` for the truncated losses, or a function that makes the
            exact loss for pre-training and fine-tuning.
    """
    private = None
    if training.epsilon is not None:
        private = training.claimed(data, model.guarantee())
    training.pretrain(model, data[0], private, loss=loss and loss())
    return training.fit(model, data, private, loss=loss or TaylorCrossEntropy)


def released_encoder(inputs, classes, units, **head):
    """A network with an encoder from released moments in place of a random
    affine layer. Without `units` it keeps all directions."""
    encoder = PrivateEncoder(inputs[0], whitening=0.5)
    if units:
        encoder = PrivateEncoder(min(units, inputs[0]))
    return keras.Sequential(
        [
            keras.Input(inputs),
            encoder,
            keras.layers.Rescaling(2.0, offset=-1.0, name="centred"),
            keras.layers.UnitNormalization(name="unit_norm"),
            PrivateDense(classes, name="output", **head),
        ]
    )
