"""FunctionalNet: one noisy Taylor expansion of the error.

The attack on the published form knows every record and lacks the labels of
the canaries only: that is what a swap of labels hides. The released gradient
is a sum of outer products of the records' features and their errors; with
more features than records its least-squares solution has a row for each
record. Theorem 6 leaves out the sum over incoming units, so the noise stays
what it is however many features there are.
"""

import keras
import numpy as np

from keras_fm.lab.audits import controls
from keras_fm.papers.functional_net import recipe as functional_net

# Public features for each unit of `hidden`, published form.
_WIDTH = 256
# Of an error (a probability minus a label), about.
_ERROR_VARIANCE = 0.1


def fit(subject, x, y, classes):
    """`(model, ledger)`; published: `(what the gradient tells, ledger)`."""
    model = _build(subject, x.shape[1:], classes)
    made = functional_net.fit(
        subject.training(x), model, (x, y), subject.is_published
    )
    if not subject.is_published:
        return model, made.ledger
    release = made.private.releases[model.name]
    noise = release.mechanism.coordinate_variance(release.query.size)
    gradient = release.statistics["gradient"]
    return _view(model, x, gradient, noise), made.ledger


def control(subject, x, y, classes):
    """The same layers by ordinary gradients; published: the same gradient
    without noise."""
    model = _build(subject, x.shape[1:], classes)
    if not subject.is_published:
        return controls.learn_layers(subject, model, x, y)
    objective = model.objective(clipped=False)
    gradient, _ = objective.accumulate(objective.zero(), model.factors(x, y))
    return _view(model, x, gradient, noise=0.0)


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
    if not subject.is_published:
        hidden = [keras.layers.Dense(subject.hidden, activation="tanh")]
        return functional_net.network(
            inputs,
            functional_net.layers(hidden, classes),
            below=functional_net.centred(),
        )
    public = keras.layers.Dense(
        _WIDTH * subject.hidden,
        activation="sigmoid",
        kernel_initializer=keras.initializers.RandomNormal(stddev=10.0),
        trainable=False,
    )
    return functional_net.network(
        inputs,
        functional_net.layers([], classes),
        below=[
            keras.layers.LayerNormalization(center=False, scale=False),
            public,
        ],
        rounds=1,
        curvature_weight=1.0,
    )
