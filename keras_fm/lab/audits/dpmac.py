"""DP-MAC: clipped, noisy coefficients at every step."""

import keras

from keras_fm import datasets
from keras_fm.callbacks import PrivateModel
from keras_fm.lab.audits import public_maps, training
from keras_fm.models import DPMAC
from keras_fm.parts.guarantee import Proven, Published


def fit(subject, x, y, classes):
    """`(model, ledger)`."""
    model = _build(subject, x.shape[1:], classes)
    # Every step costs noise: an expected batch of a fourth of the records.
    size = min(subject.batch_size or max(1, len(x) // 4), len(x))
    model.compile(keras.optimizers.Adam(subject.learning_rate))
    if subject.is_published:
        private = PrivateModel(
            subject.budget(),
            data=(x, y),
            # The relation is that which its accountant is for.
            guarantee=Published(lot=size, neighbours=subject.neighbours),
        )
        records = {"x": x, "y": y, "batch_size": size}
    else:
        private = PrivateModel(
            subject.budget(), guarantee=Proven(neighbours=subject.neighbours)
        )
        records = {"x": datasets.PoissonBatches(x, y, batch_size=size)}
    model.fit(**records, epochs=subject.epochs, callbacks=[private], verbose=0)
    return model, private.ledger


def control(subject, x, y, classes):
    """The same layers, by ordinary gradients."""
    model = _build(subject, x.shape[1:], classes)
    plain = keras.Sequential([model.feature_model, *model.private_layers])
    return training.fit_exactly(subject, plain, x, y)


def _build(subject, inputs, classes):
    return DPMAC(
        inputs,
        [
            keras.layers.Dense(subject.hidden, activation="relu"),
            keras.layers.Dense(classes),
        ],
        clip=[0.1, 0.3],
        z_steps=1,
        z_optimizer=keras.optimizers.SGD(0.1),
        below=public_maps.centred(),
    )
