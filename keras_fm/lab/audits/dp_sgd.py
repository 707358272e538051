"""DP-SGD by its own libraries, as published (shuffled batches under Poisson's
accountant) and as proven (Poisson samples)."""

import keras

from keras_fm.lab import baselines
from keras_fm.lab.audits import controls
from keras_fm.lab.engine import rival

_LIBRARIES = {
    "dp_sgd": baselines.DPSGDClassifier,
    "jax_privacy": baselines.JaxDPSGDClassifier,
}


def fit(subject, x, y, classes):
    """`(model, ledger)`."""
    settings = rival.config(
        len(x),
        subject.learning_rate,
        optimizer="adam",
        batch_size=subject.batch_size,
    ) | {"steps": None, "epochs": subject.epochs}
    if subject.is_published:
        settings["sampling"] = "shuffled"
    classifier = _LIBRARIES[subject.model](
        _network(subject, x.shape[1:], classes),
        baselines.DPSGDConfig(**settings),
        subject.epsilon,
        subject.delta,
    )
    classifier.fit(x, y, num_classes=classes)
    return classifier.to_keras(), classifier.ledger


def control(subject, x, y, classes):
    """The model without privacy."""
    return controls.learn(
        subject, _network(subject, x.shape[1:], classes), x, y
    )


def _network(subject, inputs, classes):
    return keras.Sequential(
        [
            keras.Input(inputs),
            keras.layers.Dense(subject.hidden, activation="tanh"),
            keras.layers.Dense(classes),
        ]
    )
