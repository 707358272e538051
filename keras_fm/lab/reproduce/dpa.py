"""dPA: behaviour prediction by dPAH and its comparators.

The paper's network of people is not public. A synthetic one stands in
(docs/health_network.md): its numbers compare methods and say nothing about
people, and no number of the paper is drawn beside them.
"""

import keras
import numpy as np

from keras_fm.lab.baselines.conditional_rbm import ConditionalRBM, SocialRBM
from keras_fm.lab.baselines.dpme import DPME
from keras_fm.lab.baselines.filter_priority import FilterPriority
from keras_fm.lab.baselines.functional_regression import (
    FunctionalLogisticRegression,
)
from keras_fm.lab.engine.training import Fitted
from keras_fm.lab.reproduce import points
from keras_fm.layers import NormalizationLayer, PrivateDense
from keras_fm.models import BehaviorAutoencoder, PublishedDPA
from keras_fm.papers.dpa import recipe as dpa

DELTA = 1e-6
_REGRESSIONS = {
    "fm": FunctionalLogisticRegression,
    "dpme": DPME,
    "filter_priority": FilterPriority,
}
_MACHINES = {"crbm": ConditionalRBM, "sctrbm": SocialRBM}


def _output_layer(train):
    """A `PrivateDense` on the windows themselves."""
    return keras.Sequential(
        [
            keras.Input(train.x.shape[1:]),
            NormalizationLayer((train.low, train.high), "linf"),
            keras.layers.Rescaling(2.0, offset=-1.0),
            NormalizationLayer(),
            PrivateDense(1),
        ]
    )


def released(job, context, train, model, delta=DELTA):
    """The proven form of a model of windows."""
    training = points.training(job, context, delta=delta, notes=(train.note,))
    return training.release(model, (train.x, train.y))


def _proven(job, context, train):
    model = _output_layer(train)
    if job.series != "one_release":
        model = BehaviorAutoencoder.of(train)
    delta = 0.0 if job.series == "dpah_pure" else DELTA
    return released(job, context, train, model, delta)


def _binary():
    return keras.losses.BinaryCrossentropy(from_logits=True)


def _deep(job, context, train):
    """dA, TdA and the published form: two encoders of 200 units."""
    model = BehaviorAutoencoder.of(
        train,
        hidden=context["hidden"],
        guarantee=PublishedDPA(
            noise_on="hidden" if job.series == "dpah_code" else "coefficients"
        ),
        unprotected=job.epsilon is None,
    )
    training = points.training(job, context, lot=context["batch_size"])
    loss = _binary if job.series == "da" else None
    return dpa.published(training, model, (train.x, train.y), loss)


def scaled(windows):
    """Every feature from 0 to 1."""
    return (windows.x - windows.low) / (windows.high - windows.low)


def _machine(job, context, train):
    model = _MACHINES[job.series](200, classes=2, columns=train.columns)
    model.compile(keras.optimizers.Adam(1e-3))
    model.fit(
        scaled(train),
        train.y,
        epochs=context["rbm_epochs"],
        batch_size=context["batch_size"],
        verbose=0,
    )
    return Fitted(model=model)


def logistic_dp_sgd(job, context, train, test):
    """DP-SGD of a linear model on windows brought to unit length."""

    def part(windows):
        x = 2 * scaled(windows) - 1
        return x / np.linalg.norm(x, axis=1, keepdims=True), windows.y

    return points.dp_sgd(job, context, None, part(train), part(test), DELTA)


def _regression(job, train, test):
    model = _REGRESSIONS[job.series](
        job.epsilon, low=train.low, high=train.high, neighbours="add_remove"
    )
    model.fit(train.x, train.y)
    return points.point(job, float(model.score(test.x, test.y)), model.ledger)


def health(job, context):
    """One method on all training windows, a share of them, or those of the
    last few time points."""
    train, test = context.data
    if "points" in context.settings:
        first = np.unique(train.steps)[-int(job.at) :][0]
        train = train.take(np.flatnonzero(train.steps >= first))
    elif job.at is not None and job.at < 1:
        train = train.sample(job.at, seed=job.seed)
    if job.series == "dp_sgd":
        made = logistic_dp_sgd(job, context, train, test)
    elif job.series in _REGRESSIONS:
        made = _regression(job, train, test)
    else:
        x_test, fit = test.x, _deep
        if job.series in _MACHINES:
            x_test, fit = scaled(test), _machine
        elif job.series in ("dpah", "dpah_pure", "one_release"):
            fit = _proven
        made = points.scored(job, fit(job, context, train), (x_test, test.y))
    made.notes["records"] = len(train.x)
    return made
