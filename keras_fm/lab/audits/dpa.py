"""dPA: an auto-encoder below an output layer."""

import keras

from keras_fm.callbacks import PrivateModel
from keras_fm.lab.audits import training
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.models import DeepPrivateAutoencoder


def fit(subject, x, y, classes):
    """`(model, ledger)`."""
    model = _build(subject, x.shape[1:], classes)
    if not subject.is_published:
        return model, training.fit_released(subject, model, x, y)
    private = PrivateModel(
        subject.epsilon, data=(x, y), guarantee=model.guarantee()
    )
    _pretrain(subject, model, x, subject.epochs, private)
    training.fit(subject, model, TaylorCrossEntropy(), x, y, [private])
    return model, private.ledger


def control(subject, x, y, classes):
    """The model without privacy. Its encoder is learned in both private forms,
    too."""
    model = _build(subject, x.shape[1:], classes, unprotected=True)
    if subject.is_published:
        _pretrain(subject, model, x, subject.control_epochs)
    for encoder in model.encoders:
        encoder.trainable = True
        for variable in encoder.trainable_variables:
            variable.trainable = "decoder" not in variable.name
    return training.fit_exactly(subject, model, x, y)


def _build(subject, inputs, classes, **kwargs):
    return DeepPrivateAutoencoder(
        inputs,
        hidden=(subject.hidden,),
        units=classes,
        guarantee=subject.guarantee,
        **kwargs,
    )


def _pretrain(subject, model, x, epochs, private=None):
    model.pretrain(
        x,
        private,
        epochs=max(1, epochs // 10),
        batch_size=subject.lot(x),
        optimizer=keras.optimizers.Adam(subject.learning_rate),
    )
