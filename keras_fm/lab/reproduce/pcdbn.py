"""pCDBN: digits, behaviour, polynomials, and how long training takes."""

import dataclasses
import time

from keras_fm.lab.engine.job import Measured
from keras_fm.lab.engine.training import Curve, Training, accuracy, taylor
from keras_fm.lab.reproduce import dpa, dpmac, facts, points
from keras_fm.models import (
    BehaviorAutoencoder,
    BehaviorCDBN,
    PrivateCDBN,
    PublishedCDBN,
)
from keras_fm.papers.pcdbn import recipe as pcdbn
from keras_fm.public import polynomials

_CLASSES = 10
_POLYNOMIALS = {
    "cdbn": "exact",
    "tcdbn": "chebyshev",
    "pcdbn": "chebyshev",
    "pcdbn_te": "taylor",
    "pcdbn_pw": "piecewise",
    "printed": "published",
    "code": "published",
}


def _published(job, context, model, train, test):
    """Test accuracy after some epochs."""
    lot = points.lot(context, len(train[0]))
    training = points.training(job, context, lot=lot)
    private = pcdbn.begin(training, model, train)
    # The first epoch fixes the noise; the RBMs rest, so their maps are made
    # once for the others.
    made = training.but(epochs=1).fit(model, train, private)
    first = (1, accuracy(model, *test))
    below, head = pcdbn.split(model)
    maps, test_maps = (
        below.predict(x, batch_size=1000, verbose=0)
        for x in (train[0], test[0])
    )
    watch = Curve(test_maps, test[1], training.epochs)
    head.compile(training.adam(), taylor())
    head.fit(
        maps,
        train[1],
        initial_epoch=1,
        epochs=training.epochs,
        batch_size=training.lot,
        callbacks=[watch],
        verbose=0,
    )
    return Measured(curve=(first, *watch.points), ledger=made.ledger)


# Digits --------------------------------------------------------------------


def _digits(context, x, **kwargs):
    names = ("maps", "dense")
    given = {name: context[name] for name in names} | kwargs
    return PrivateCDBN(x.shape[1:], _CLASSES, **given)


def digits_curve(job, context):
    """Accuracy after some epochs; at once where all is released."""
    train, test = context.data
    if job.series == "proven":
        training = points.training(job, context)
        made = training.release(_digits(context, train[0]), train)
        score = accuracy(made.model, *test)
        return Measured(curve=((1, score),), ledger=made.ledger)
    # The published form learns from the first so many.
    train = tuple(part[: context["records"]] for part in train)
    is_code = job.series == "code"
    model = _digits(
        context,
        train[0],
        guarantee=PublishedCDBN(form="code" if is_code else "paper"),
        unprotected=job.epsilon is None,
        polynomial=_POLYNOMIALS[job.series],
        degree=job.at and int(job.at),
        strides=context["strides"],
        padding=context["padding"],
        pooling=context["pooling"],
        dense=25 if is_code else context["dense"],
    )
    return _published(job, context, model, train, test)


def digits(job, context):
    """The last epoch's accuracy, at its epsilon or degree."""
    if job.series == "dp_sgd":
        return dpmac.dense_dp_sgd(job, context)
    made = digits_curve(job, context)
    last = (points.place(job), made.curve[-1][1])
    return dataclasses.replace(made, curve=(last,))


# Behaviour -----------------------------------------------------------------


def _behavior_form(job, context):
    """As printed, or, of an experiment that names the maps, ours."""
    polynomial = _POLYNOMIALS[job.series]
    if "maps" in context.settings:
        maps = context["maps"]
        return {"polynomial": polynomial, "degree": 7, "maps": maps}
    return {"polynomial": "tanh" if polynomial == "taylor" else polynomial}


def behavior(job, context):
    """Accuracy after some epochs."""
    train, test = context.data
    rows = (train.x, train.y), (test.x, test.y)
    if job.series in _POLYNOMIALS:
        model = BehaviorCDBN.of(
            train,
            guarantee=PublishedCDBN(l1=1e-5),
            unprotected=job.epsilon is None,
            dense=100,
            **_behavior_form(job, context),
        )
        return _published(job, context, model, *rows)
    if job.series == "dp_sgd":
        made = dpa.logistic_dp_sgd(job, context, train, test)
    else:
        kind = BehaviorAutoencoder if job.series == "dpah" else BehaviorCDBN
        fitted = dpa.released(job, context, train, kind.of(train))
        made = points.scored(job, fitted, rows[1])
    # Once released, accuracy does not depend on epochs: a level line.
    score = made.curve[0][1]
    level = ((1, score), (context["epochs"], score))
    return dataclasses.replace(made, curve=level)


# Seconds -------------------------------------------------------------------


def seconds(job, context):
    """Seconds of one training, scaled to the paper's epochs."""
    clock = {"cpu": time.process_time, "wall": time.perf_counter}[
        context["clock"]
    ]
    (images, _), (windows, _) = context.data
    rows = windows.x, windows.y
    training = Training(epsilon=context["epsilon"])
    if job.series == "published":
        jobs = (
            ("pCDBN, mnist", images, _digits(context, images[0],
                                             guarantee="published")),
            ("pCDBN, yesiwell", rows, BehaviorCDBN.of(
                windows, guarantee="published", dense=100)),
        )  # fmt: skip
        epochs = {
            f"{f.system}, {f.dataset}": f.epochs
            for f in facts.select("pcdbn", metric="seconds")
        }
        return Measured(
            curve=tuple(
                (word, epochs[word] * _epoch(training, *parts, context, clock))
                for word, *parts in jobs
            )
        )
    curve = []
    for word, data, build in (
        ("pCDBN, mnist", images, lambda: _digits(context, images[0])),
        ("pCDBN, yesiwell", rows, lambda: BehaviorCDBN.of(windows)),
        ("dPAH, yesiwell", rows, lambda: BehaviorAutoencoder.of(windows)),
    ):
        begin = clock()
        training.release(build(), data)
        curve.append((word, clock() - begin))
    return Measured(curve=tuple(curve))


def _epoch(training, train, model, context, clock):
    """Seconds of an epoch of `fit`, after a first one that compiles."""
    data = tuple(part[: context["records"]] for part in train)
    training = training.but(lot=points.lot(context, len(data[0])))
    private = training.claimed(data, model.guarantee(lot=training.lot))
    training.pretrain(model, data[0][: training.lot], private)
    training.fit(model, data, private)
    begin = clock()
    given = {"batch_size": training.lot, "callbacks": [private], "verbose": 0}
    model.fit(*data, **given)
    return (clock() - begin) * len(train[0]) / len(data[0])


# Polynomials ---------------------------------------------------------------


def polynomial(job, context):
    """Largest error on [-1, 1] as an approximation of the logistic."""
    degree = int(job.at)
    if job.series == "printed":
        made = polynomials.published(degree)
    else:
        made = getattr(polynomials, job.series)("sigmoid", degree, 1.0)
    return Measured(curve=((degree, float(made.error)),))
