"""dPA: behaviour prediction by dPAH and its comparators.

The paper's network of people is not public. A synthetic one stands in
(docs/health_network.md): its numbers compare methods and say nothing about
people, and no number of the paper is drawn beside them.
"""

import keras
import numpy as np

from keras_fm import baselines
from keras_fm.callbacks import PrivateModel
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.lab.reproduce import sources, training
from keras_fm.lab.reproduce.experiment import (
    ACCURACY,
    EPSILON,
    Axis,
    Experiment,
    Measured,
    Series,
)
from keras_fm.layers import NormalizationLayer, PrivateDense
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.models import BehaviorAutoencoder

_DELTA = 1e-6
_LEARNING_RATE = 1e-3
_RATES = (1.0, 4.0, 16.0, 64.0, 256.0)

_SERIES = (
    Series(name="dpah", label="dPAH, proven form", kind="proven"),
    Series(name="dpah_pure", label="dPAH, delta = 0", kind="proven"),
    Series(name="one_read", label="output layer alone", kind="proven"),
    Series(
        name="dp_sgd",
        label="DP-SGD, logistic",
        kind="proven",
        needs_dp_sgd=True,
    ),
    Series(name="fm", label="functional mechanism, delta = 0", kind="proven"),
    Series(name="dpme", label="DPME, delta = 0", kind="proven"),
    Series(
        name="filter_priority",
        label="Filter-Priority, delta = 0",
        kind="proven",
    ),
    Series(name="dpah_published", label="dPAH, as published", kind="claimed"),
    Series(name="dpah_code", label="dPAH, authors' code", kind="claimed"),
    Series(name="da", label="dA, exact loss", kind="no privacy"),
    Series(name="tda", label="TdA, truncated", kind="no privacy"),
    Series(name="crbm", label="CRBM", kind="no privacy"),
    Series(name="sctrbm", label="SctRBM", kind="no privacy"),
)


def _load(name):
    return sources.network(name).windows(history=3, social="public").split(0.8)


def _part(job, context):
    """Training windows of a job, and the test windows."""
    train, test = context.data
    if job.at is not None and job.at < 1:
        train = train.sample(job.at, seed=job.seed)
    return train, test


def _proven(train, test, budget, hidden=(100,)):
    if hidden:
        model = BehaviorAutoencoder.of(train, hidden=hidden)
    else:
        model = keras.Sequential(
            [
                keras.Input(train.x.shape[1:]),
                NormalizationLayer((train.low, train.high), "linf"),
                keras.layers.Rescaling(2.0, offset=-1.0),
                NormalizationLayer(),
                PrivateDense(1),
            ]
        )
    private = PrivateModel(budget, data=(train.x, train.y), notes=(train.note,))
    training.fit_released(model, private, train.x, train.y, batch_size=20_000)
    return training.accuracy(model, test.x, test.y), private.ledger


def _deep(job, context, train, test):
    """dA, TdA and the published form: two encoders of 200 units."""
    model = BehaviorAutoencoder.of(
        train,
        hidden=context["hidden"],
        guarantee="published",
        noise_on="hidden" if job.series == "dpah_code" else "coefficients",
        unprotected=job.epsilon is None,
    )
    private, callbacks, ledger = None, [], None
    if job.epsilon is not None:
        private = PrivateModel(
            job.epsilon,
            data=(train.x, train.y),
            guarantee=model.guarantee(),
        )
        callbacks, ledger = [private], private.ledger
    exact = job.series == "da"
    binary = keras.losses.BinaryCrossentropy(from_logits=True)
    model.pretrain(
        train.x,
        private,
        epochs=context["pretraining_epochs"],
        batch_size=context["batch_size"],
        optimizer=keras.optimizers.Adam(_LEARNING_RATE),
        loss=binary if exact else None,
    )
    model.compile(
        keras.optimizers.Adam(_LEARNING_RATE),
        binary if exact else TaylorCrossEntropy(),
    )
    model.fit(
        train.x,
        train.y,
        epochs=context["epochs"],
        batch_size=context["batch_size"],
        callbacks=callbacks,
        verbose=0,
    )
    return training.accuracy(model, test.x, test.y), ledger


def _scaled(windows):
    return (windows.x - windows.low) / (windows.high - windows.low)


def _rbm(kind, context, train, test):
    model = kind(200, classes=2, columns=train.columns)
    model.compile(keras.optimizers.Adam(_LEARNING_RATE))
    model.fit(
        _scaled(train),
        train.y,
        epochs=context["rbm_epochs"],
        batch_size=context["batch_size"],
        verbose=0,
    )
    return training.accuracy(model, _scaled(test), test.y), None


def logistic_dp_sgd(train, test, epsilon, delta, rates):
    """DP-SGD of a linear model on windows brought to unit length.

    Returns:
        accuracy, ledger and notes.
    """

    def features(windows):
        x = 2 * _scaled(windows) - 1
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    rival, rate = training.dp_sgd_of_best_rate(
        None,
        (features(train), train.y),
        epsilon=epsilon,
        delta=delta,
        rates=rates,
        l2_norm_clip=0.1,
        batch_size=len(train.x) // 4,
        steps=100,
    )
    score = rival.evaluate(features(test), test.y)["accuracy"]
    return score, rival.ledger, {"learning_rate": rate}


def _regression(job, train, test):
    bounds = {"low": train.low, "high": train.high, "neighbours": "add_remove"}
    kinds = {
        "fm": baselines.FunctionalLogisticRegression,
        "dpme": baselines.DPME,
        "filter_priority": baselines.FilterPriority,
    }
    model = kinds[job.series](job.epsilon, **bounds)
    model.fit(train.x, train.y)
    return float(model.score(test.x, test.y)), model.ledger


def _measure(job, context):
    train, test = _part(job, context)
    notes, name = {"records": len(train.x)}, job.series
    if name in ("dpah", "dpah_pure", "one_read"):
        budget = PrivacyBudget(
            job.epsilon, 0.0 if name == "dpah_pure" else _DELTA
        )
        score, ledger = _proven(
            train, test, budget, () if name == "one_read" else (100,)
        )
    elif name == "dp_sgd":
        score, ledger, more = logistic_dp_sgd(
            train, test, job.epsilon, _DELTA, context["dp_sgd_rates"]
        )
        notes |= more
    elif name in ("crbm", "sctrbm"):
        kind = {
            "crbm": baselines.ConditionalRBM,
            "sctrbm": baselines.SocialRBM,
        }[name]
        score, ledger = _rbm(kind, context, train, test)
    elif name in ("fm", "dpme", "filter_priority"):
        score, ledger = _regression(job, train, test)
    else:
        score, ledger = _deep(job, context, train, test)
    x = job.epsilon if job.at is None else job.at
    return Measured(curve=((x, score),), ledger=ledger, notes=notes)


_NO_FACTS = (
    "the paper's figure is of the YesiWell data, which are not public, and "
    "no number of it is among the collected ones."
)
_DEVIATIONS = (
    "synthetic health network in the place of YesiWell; the proven form has "
    "one encoder of 100 units; a record is one (user, window) row; "
)
_SMALL = {
    "data": "health_network_weekly",
    "hidden": (200, 200),
    "pretraining_epochs": 2,
    "epochs": 5,
    "rbm_epochs": 5,
    "batch_size": 256,
    "dp_sgd_rates": (4.0, 16.0, 64.0),
}
_FULL = {
    "data": "health_network",
    "hidden": (200, 200),
    "pretraining_epochs": 5,
    "epochs": 15,
    "rbm_epochs": 20,
    "batch_size": 256,
    "dp_sgd_rates": _RATES,
}

EXPERIMENTS = (
    Experiment(
        name="dpa:health",
        title="behaviour prediction against epsilon",
        shows="Accuracy of dPAH and its comparators against epsilon.",
        aliases=("dpa:figure-3",),
        dataset="health_network",
        x=EPSILON,
        y=ACCURACY,
        series=_SERIES,
        why_no_facts=_NO_FACTS,
        measure=_measure,
        load=_load,
        small={**_SMALL, "epsilons": (0.1, 1.0, 8.0), "seeds": 1},
        full={**_FULL, "epsilons": (0.1, 0.5, 1.0, 2.0, 8.0), "seeds": 3},
        minutes=0.7,
        deviations=_DEVIATIONS + "small: the weekly network, fewer epochs.",
    ),
    Experiment(
        name="dpa:health-cardinality",
        title="behaviour prediction against the share of records, epsilon 1",
        shows=(
            "Accuracy of dPAH and its comparators against the sampling rate "
            "of the training records."
        ),
        aliases=("dpa:figure-2",),
        dataset="health_network",
        x=Axis(name="rates", label="share of the training windows"),
        y=ACCURACY,
        series=tuple(
            s for s in _SERIES if s.name not in ("dpah_code", "tda", "crbm")
        ),
        why_no_facts=_NO_FACTS,
        measure=_measure,
        load=_load,
        small={
            **_SMALL,
            "epsilons": (1.0,),
            "seeds": 1,
            "rates": (0.1, 1.0),
        },
        full={
            **_FULL,
            "epsilons": (1.0,),
            "seeds": 3,
            "rates": (0.1, 0.25, 0.5, 1.0),
        },
        minutes=0.4,
        deviations=_DEVIATIONS + "small: the weekly network, fewer epochs.",
    ),
)
