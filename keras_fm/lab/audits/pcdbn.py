"""pCDBN: convolutional RBMs below an output layer.

Published: the form of the authors' code, one small RBM, and a dense layer
that is trained on the records under noise on the output layer's coefficients
alone. Proven: the output layer on the maps, which are many.
"""

import math

import keras

from keras_fm.callbacks import PrivateModel
from keras_fm.lab.audits import public_maps, training
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.models import PrivateCDBN

_PRETRAINING = 20


def fit(subject, x, y, classes):
    """`(model, ledger)`."""
    model, x = _build(subject, x, classes)
    if not subject.is_published:
        ledger = training.fit_released(subject, model, x, y)
        return _flat(model), ledger
    private = PrivateModel(
        subject.epsilon,
        data=(x, y),
        guarantee=model.guarantee(lot=subject.lot(x)),
    )
    _pretrain(subject, model, x, subject.epochs, private)
    training.fit(subject, model, TaylorCrossEntropy(), x, y, [private])
    return _flat(model), private.ledger


def control(subject, x, y, classes):
    """The model without privacy; the RBM rests where it rests in the private
    form: after pre-training, or from the start."""
    model, x = _build(subject, x, classes, unprotected=True)
    if not subject.is_published:
        return _flat(training.fit_output_exactly(subject, model, x, y))
    _pretrain(subject, model, x, subject.control_epochs)
    return _flat(training.fit_exactly(subject, model, x, y))


def _build(subject, x, classes, unprotected=False):
    """The model, and the records as pictures."""
    shape = (*public_maps.picture_shape(x.shape[1]), 1)
    published = {
        "maps": ((8, 3),),
        "dense": subject.hidden,
        "form": "code",
    }
    proven = {"maps": ((max(1, subject.hidden // 4), 3),), "dense": 0}
    model = PrivateCDBN(
        shape,
        classes,
        pooling=1,
        guarantee=subject.guarantee,
        unprotected=unprotected,
        **(published if subject.is_published else proven),
    )
    return model, x.reshape(-1, *shape)


def _pretrain(subject, model, x, epochs, private=None):
    model.pretrain(
        x,
        private,
        epochs=min(_PRETRAINING, epochs),
        batch_size=subject.lot(x),
        optimizer=keras.optimizers.Adam(subject.learning_rate),
    )


def _flat(model):
    """For flat records."""
    shape = model.input_shape[1:]
    return keras.Sequential(
        [keras.Input((math.prod(shape),)), keras.layers.Reshape(shape), model]
    )
