"""FunctionalNet: one noisy Taylor expansion of the error.

The attack on the published form knows every record and lacks the labels of
the canaries only: that is what a swap of labels hides. The released gradient
is a sum of outer products of the records' features and their errors; with
more features than records its least-squares solution has a row for each
record. Theorem 6 leaves out the sum over incoming units, so the noise stays
what it is however many features there are.
"""

import math

import keras
import numpy as np

from keras_fm.callbacks import PrivateModel
from keras_fm.lab.audits import public_maps, training
from keras_fm.models import FunctionalNet
from keras_fm.parts.guarantee import Proven, Published

# Public features for each unit of `hidden`, published form.
_WIDTH = 256
# Of an error (a probability minus a label), about.
_ERROR_VARIANCE = 0.1


def fit(subject, x, y, classes):
    """`(model, ledger)`; published: `(what the gradient tells, ledger)`."""
    model = _build(subject, x.shape[1:], classes)
    if not subject.is_published:
        private = PrivateModel(
            subject.budget(),
            data=(x, y),
            guarantee=Proven(neighbours=subject.neighbours),
        )
        _read(model, x, y, private)
        return model, private.ledger
    private = PrivateModel(
        subject.epsilon, data=(x, y), guarantee=Published(lot="data")
    )
    _read(model, x, y, private)
    release = private.releases[model.name]
    noise = release.mechanism.coordinate_variance(release.objective.size)
    return _view(model, x, release.statistics["gradient"], noise), (
        private.ledger
    )


def control(subject, x, y, classes):
    """The same layers by ordinary gradients; published: the same gradient
    without noise."""
    model = _build(subject, x.shape[1:], classes)
    if not subject.is_published:
        plain = keras.Sequential([model.feature_model, *model.private_layers])
        return training.fit_exactly(subject, plain, x, y)
    objective = model.objective(clipped=False)
    gradient, _ = objective.accumulate(objective.zero(), model.factors(x, y))
    return _view(model, x, gradient, noise=0.0)


def _read(model, x, y, private):
    model.compile("sgd")
    model.fit(x, y, batch_size=len(x), epochs=1, callbacks=[private], verbose=0)


def _view(model, x, gradient, noise):
    """Each record's part in the gradient, as logits of its label.

    Args:
        model: the `FunctionalNet`, one layer.
        x: the records that were read.
        gradient: `(weights,)`, their sum.
        noise: variance of the noise on each of its entries.

    Returns:
        function from some of the records to `(records, classes)`.
    """
    features = _features(model, x)
    gradient = np.reshape(gradient, (features.shape[1], -1))
    ridge = max(noise / _ERROR_VARIANCE, 1e-6)
    gram = features @ features.T + ridge * np.eye(len(x))
    errors = np.linalg.solve(gram, features @ gradient)
    known = {row.tobytes(): -error for row, error in zip(x, errors)}

    def logits(records):
        return np.stack([known[row.tobytes()] for row in records])

    return logits


def _features(model, x):
    """What the layer reads, a constant 1 for the bias appended."""
    found = model.feature_model.predict(x, batch_size=1000, verbose=0)
    return np.concatenate([found, np.ones((len(x), 1))], 1, dtype=np.float64)


def _build(subject, inputs, classes):
    # What one class of many would learn first.
    rare = keras.initializers.Constant(-math.log(max(1, classes - 1)))
    output = keras.layers.Dense(classes, bias_initializer=rare)
    if not subject.is_published:
        hidden = keras.layers.Dense(subject.hidden, activation="tanh")
        return FunctionalNet(
            inputs, [hidden, output], rounds=10, below=public_maps.centred()
        )
    public = keras.layers.Dense(
        _WIDTH * subject.hidden,
        activation="sigmoid",
        kernel_initializer=keras.initializers.RandomNormal(stddev=10.0),
        trainable=False,
    )
    return FunctionalNet(
        inputs,
        [output],
        rounds=1,
        curvature="diagonal",
        curvature_weight=1.0,
        step_size=1.0,
        momentum=0.0,
        below=[
            keras.layers.LayerNormalization(center=False, scale=False),
            public,
        ],
    )
