"""pCDBN: digits, behaviour, polynomials, and how long training takes."""

import time

import keras

from keras_fm.callbacks import PrivateModel
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.lab.reproduce import dpa, facts, sources, training
from keras_fm.lab.reproduce.experiment import (
    ACCURACY,
    EPSILON,
    Axis,
    Experiment,
    Measured,
    Series,
)
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.models import BehaviorAutoencoder, BehaviorCDBN, PrivateCDBN
from keras_fm.public import polynomials

_DELTA = 1e-5
_BEHAVIOR_DELTA = 1e-6
# Steps in a window of behaviour, besides the present.
_HISTORY = 11
_POLYNOMIALS = {
    "cdbn": "exact",
    "tcdbn": "chebyshev",
    "pcdbn": "chebyshev",
    "pcdbn_te": "taylor",
    "pcdbn_pw": "piecewise",
    "printed": "published",
    "code": "published",
}


def _lot(context, records):
    return min(context["lot"], max(1, records // 4))


def _train(model, private, train, test, context):
    """Pre-trains the RBMs, then trains what is above them; accuracy after
    some epochs."""
    x, y = train
    lot = _lot(context, len(x))
    model.pretrain(
        x,
        private,
        epochs=context["pretraining_epochs"],
        batch_size=lot,
        optimizer=keras.optimizers.Adam(1e-3),
    )
    # The first epoch fixes the noise; the RBMs rest, so their maps are made
    # once for the others.
    model.compile(keras.optimizers.Adam(1e-3), TaylorCrossEntropy())
    model.fit(
        x,
        y,
        batch_size=lot,
        callbacks=[private] if private else [],
        verbose=0,
    )
    curve = [(1, training.accuracy(model, *test))]
    head, maps = training.above_maps(model, x)
    _, test_maps = training.above_maps(model, test[0])
    head.compile(keras.optimizers.Adam(1e-3), TaylorCrossEntropy())
    watch = training.Watch(test_maps, test[1], context["epochs"])
    head.fit(
        maps,
        y,
        initial_epoch=1,
        epochs=context["epochs"],
        batch_size=lot,
        callbacks=[watch],
        verbose=0,
    )
    return tuple(curve + watch.curve)


# Digits --------------------------------------------------------------------


def _records(context):
    """The training part of the published form: the first so many."""
    (x, y), _ = context.data
    return x[: context["records"]], y[: context["records"]]


def _digits_published(job, context):
    _, test = context.data
    train = _records(context)
    model = PrivateCDBN(
        train[0].shape[1:],
        10,
        maps=context["maps"],
        guarantee="published",
        unprotected=job.epsilon is None,
        form="code" if job.series == "code" else "paper",
        polynomial=_POLYNOMIALS[job.series],
        degree=int(job.at or 7),
        strides=context["strides"],
        pooling=context["pooling"],
        dense=25 if job.series == "code" else context["dense"],
    )
    private = None
    if job.epsilon is not None:
        private = PrivateModel(
            job.epsilon,
            data=train,
            guarantee=model.guarantee(lot=_lot(context, len(train[0]))),
        )
    curve = _train(model, private, train, test, context)
    return curve, private and private.ledger


def _digits_proven(job, context):
    train, test = context.data
    model = PrivateCDBN(
        train[0].shape[1:], 10, maps=context["maps"], dense=context["dense"]
    )
    private = PrivateModel(PrivacyBudget(job.epsilon, _DELTA), data=train)
    training.fit_released(model, private, *train)
    return ((1, training.accuracy(model, *test)),), private.ledger


def _digits_curve(job, context):
    if job.series == "proven":
        curve, ledger = _digits_proven(job, context)
    else:
        curve, ledger = _digits_published(job, context)
    return Measured(curve=curve, ledger=ledger)


def _digits(job, context):
    """The last epoch's accuracy, at its epsilon or degree."""
    if job.series == "dp_sgd":
        return training.dense_dp_sgd(job, context, _DELTA)
    made = _digits_curve(job, context)
    x = job.epsilon if job.at is None else job.at
    return Measured(curve=((x, made.curve[-1][1]),), ledger=made.ledger)


# Behaviour -----------------------------------------------------------------


def _windows(name):
    return sources.network(name).windows(history=_HISTORY).split(0.8)


def _behavior_published(job, context):
    train, test = context.data
    model = BehaviorCDBN.of(
        train,
        guarantee="published",
        unprotected=job.epsilon is None,
        polynomial=_POLYNOMIALS[job.series],
        degree=7,
        dropout=0.5,
        dense=100,
        l1=1e-5,
    )
    private = None
    if job.epsilon is not None:
        private = PrivateModel(
            job.epsilon,
            data=(train.x, train.y),
            guarantee=model.guarantee(lot=_lot(context, len(train.x))),
        )
    curve = _train(
        model, private, (train.x, train.y), (test.x, test.y), context
    )
    return curve, private and private.ledger


def _behavior_proven(job, context):
    train, test = context.data
    kind = BehaviorAutoencoder if job.series == "dpah" else BehaviorCDBN
    model = kind.of(train)
    private = PrivateModel(
        PrivacyBudget(job.epsilon, _BEHAVIOR_DELTA),
        data=(train.x, train.y),
        notes=(train.note,),
    )
    training.fit_released(model, private, train.x, train.y, batch_size=20_000)
    return training.accuracy(model, test.x, test.y), private.ledger


def _behavior(job, context):
    notes = {}
    if job.series in _POLYNOMIALS:
        curve, ledger = _behavior_published(job, context)
        return Measured(curve=curve, ledger=ledger)
    if job.series == "dp_sgd":
        train, test = context.data
        score, ledger, notes = dpa.logistic_dp_sgd(
            train,
            test,
            job.epsilon,
            _BEHAVIOR_DELTA,
            context["dp_sgd_rates"],
        )
    else:
        score, ledger = _behavior_proven(job, context)
    # Once released, accuracy does not depend on epochs: a level line.
    curve = ((1, score), (context["epochs"], score))
    return Measured(curve=curve, ledger=ledger, notes=notes)


# Seconds -------------------------------------------------------------------

_SECONDS = facts.select("pcdbn", metric="seconds")


def _seconds(job, context):
    """Seconds of one training, scaled to the paper's epochs."""
    clock = _clock(context)
    digits, windows = context.data
    epsilon = context["epsilon"]
    curve = []
    if job.series == "published":
        for word, train, build in (
            ("pCDBN, mnist", digits[0], _digits_model),
            (
                "pCDBN, yesiwell",
                (windows[0].x, windows[0].y),
                lambda c: BehaviorCDBN.of(
                    windows[0], guarantee="published", dense=100, dropout=0.5
                ),
            ),
        ):
            seconds = _of_one_epoch(train, build(context), epsilon, context)
            epochs = next(
                f.epochs for f in _SECONDS if f"{f.system}, {f.dataset}" == word
            )
            curve.append((word, seconds * epochs))
        return Measured(curve=tuple(curve))
    begin = clock()
    budget = PrivacyBudget(epsilon, _DELTA)
    model = _digits_model(context, guarantee="proven")
    _release(model, budget, digits[0])
    curve.append(("pCDBN, mnist", clock() - begin))
    for word, kind in (
        ("pCDBN, yesiwell", BehaviorCDBN),
        ("dPAH, yesiwell", BehaviorAutoencoder),
    ):
        begin = clock()
        train = windows[0]
        _release(kind.of(train), budget, (train.x, train.y))
        curve.append((word, clock() - begin))
    return Measured(curve=tuple(curve))


def _clock(context):
    return {"cpu": time.process_time, "wall": time.perf_counter}[
        context["clock"]
    ]


def _digits_model(context, guarantee="published"):
    (x, _), _ = context.data[0]
    return PrivateCDBN(
        x.shape[1:],
        10,
        maps=context["maps"],
        dense=context["dense"],
        guarantee=guarantee,
    )


def _release(model, budget, train):
    private = PrivateModel(budget, data=train)
    training.fit_released(model, private, *train)


def _of_one_epoch(train, model, epsilon, context):
    """Seconds of an epoch of `fit`, after a first one that compiles."""
    x, y = (part[: context["records"]] for part in train)
    lot = _lot(context, len(x))
    private = PrivateModel(
        epsilon, data=(x, y), guarantee=model.guarantee(lot=lot)
    )
    model.pretrain(x[:lot], private, epochs=1, batch_size=lot)
    model.compile(keras.optimizers.Adam(1e-3), TaylorCrossEntropy())
    model.fit(x, y, batch_size=lot, callbacks=[private], verbose=0)
    clock = _clock(context)
    begin = clock()
    model.fit(x, y, batch_size=lot, callbacks=[private], verbose=0)
    seconds = clock() - begin
    return seconds * len(train[0]) / len(x)


def _both(name):
    return sources.images(name), _windows("health_network_weekly")


# Polynomials ---------------------------------------------------------------


def _polynomial(job, context):
    """Largest error on [-1, 1] as an approximation of the logistic."""
    del context
    degree = int(job.at)
    made = {
        "chebyshev": lambda: polynomials.chebyshev("sigmoid", degree, 1.0),
        "taylor": lambda: polynomials.taylor("sigmoid", degree, 1.0),
        "piecewise": lambda: polynomials.piecewise("sigmoid", degree, 1.0),
        "printed": lambda: polynomials.published(degree),
    }[job.series]()
    return Measured(curve=((degree, float(made.error)),))


_PRINTED = Series(
    name="printed",
    label="pCDBN, as printed",
    kind="claimed",
    beside=("pCDBN",),
)
_CODE = Series(
    name="code", label="pCDBN, authors' code", kind="claimed", beside=("pCDBN",)
)
_CDBN = Series(name="cdbn", label="CDBN, exact", kind="no privacy")
_TCDBN = Series(name="tcdbn", label="TCDBN, Chebyshev", kind="no privacy")
_PROVEN = Series(
    name="proven",
    label="pCDBN, proven form",
    kind="proven",
    beside=("pCDBN",),
)
_SMALL = {
    "data": "mnist",
    "maps": ((8, 5), (16, 5)),
    "dense": 256,
    "records": 3_000,
    "epochs": 8,
    "pretraining_epochs": 1,
    "lot": 500,
    "strides": 2,
    "pooling": 1,
    "seeds": 1,
}
_FULL = {
    "data": "mnist",
    "maps": ((32, 5), (64, 5)),
    "dense": 1024,
    "records": 60_000,
    "epochs": 162,
    "pretraining_epochs": 10,
    "lot": 500,
    "strides": 1,
    "pooling": 2,
    "seeds": 1,
}
_SMALL_WORDS = (
    "small: a quarter of the maps; the claimed forms on 3,000 images, stride "
    "2 in the place of pooling, 8 epochs instead of 162."
)
_EPOCHS = Axis(name="epochs", label="epochs", is_log=True)

EXPERIMENTS = (
    Experiment(
        name="pcdbn:behavior",
        title="behaviour classification against epochs",
        shows=(
            "Accuracy after every epoch at epsilon 0.1, 2 and 8, by polynomial."
        ),
        aliases=("pcdbn:figure-4",),
        dataset="health_network_weekly",
        facts_dataset=(
            "The paper's numbers are of the YesiWell data, which are not "
            "public; ours of a synthetic network: they cannot agree and are "
            "beside each other for orientation only."
        ),
        x=_EPOCHS,
        y=ACCURACY,
        series=(
            Series(
                name="pcdbn",
                label="pCDBN, Chebyshev",
                kind="claimed",
                beside=("pCDBN",),
            ),
            Series(name="pcdbn_te", label="pCDBN_TE, Taylor", kind="claimed"),
            Series(
                name="pcdbn_pw", label="pCDBN_PW, piecewise", kind="claimed"
            ),
            _CDBN,
            _TCDBN,
            _PROVEN,
            Series(name="dpah", label="dPAH, proven form", kind="proven"),
            Series(
                name="dp_sgd",
                label="DP-SGD, logistic",
                kind="proven",
                needs_dp_sgd=True,
            ),
        ),
        facts=facts.select("pcdbn", "yesiwell", "accuracy"),
        measure=_behavior,
        load=_windows,
        small={
            "data": "health_network_weekly",
            "epsilons": (0.1, 2.0, 8.0),
            "seeds": 1,
            "epochs": 20,
            "pretraining_epochs": 1,
            "lot": 512,
            "dp_sgd_rates": (16.0, 64.0),
        },
        full={
            "data": "health_network_weekly",
            "epsilons": (0.1, 2.0, 8.0),
            "seeds": 3,
            "epochs": 600,
            "pretraining_epochs": 10,
            "lot": 512,
            "dp_sgd_rates": (1.0, 4.0, 16.0, 64.0, 256.0),
        },
        minutes=3.5,
        deviations=(
            "synthetic weekly network in the place of YesiWell; proven forms "
            "and DP-SGD do not depend on epochs here and are level lines. "
            "small: 20 epochs instead of 600."
        ),
    ),
    Experiment(
        name="pcdbn:mnist",
        title="accuracy on MNIST against epsilon",
        shows="Test accuracy of pCDBN and DP-SGD against epsilon.",
        aliases=("pcdbn:figures-5-6", "pcdbn:mnist-epsilon"),
        dataset="mnist",
        x=EPSILON,
        y=ACCURACY,
        series=(
            _PROVEN,
            _PRINTED,
            _CODE,
            Series(
                name="dp_sgd",
                label="DP-SGD, 784-300-10",
                kind="proven",
                beside=("pSGD",),
                needs_dp_sgd=True,
            ),
            _CDBN,
            _TCDBN,
        ),
        facts=facts.select("pcdbn", "mnist", "accuracy"),
        measure=_digits,
        load=sources.images,
        small={
            **_SMALL,
            "epsilons": (0.5,),
            "dp_sgd_steps": 100,
            "dp_sgd_rates": (4.0, 16.0),
        },
        full={
            **_FULL,
            "epsilons": (0.25, 0.5, 1.0, 2.0, 8.0),
            "dp_sgd_steps": 200,
            "dp_sgd_rates": (1.0, 4.0, 16.0, 64.0),
        },
        minutes=1.6,
        deviations=_SMALL_WORDS,
    ),
    Experiment(
        name="pcdbn:mnist-epochs",
        title="accuracy on MNIST against epochs at epsilon 0.5",
        shows="Test accuracy of pCDBN and its twins after every epoch.",
        aliases=("pcdbn:figures-5-6",),
        dataset="mnist",
        x=_EPOCHS,
        y=ACCURACY,
        series=(_PRINTED, _CODE, _CDBN, _TCDBN),
        facts=facts.select("pcdbn", "mnist", "accuracy"),
        measure=_digits_curve,
        load=sources.images,
        small={**_SMALL, "epsilons": (0.5,), "epochs": 16},
        full={**_FULL, "epsilons": (0.5,)},
        minutes=0.5,
        deviations=_SMALL_WORDS.replace("8 epochs", "16 epochs"),
    ),
    Experiment(
        name="pcdbn:mnist-degree",
        title="accuracy on MNIST against the degree L at epsilon 0.5",
        shows="The impact of the polynomial's degree.",
        aliases=("pcdbn:figures-5-6",),
        dataset="mnist",
        x=Axis(name="degrees", label="degree L"),
        y=ACCURACY,
        series=(_PRINTED, _TCDBN),
        why_no_facts=(
            "none of the figure's numbers is among the collected ones."
        ),
        measure=_digits,
        load=sources.images,
        small={**_SMALL, "epsilons": (0.5,), "degrees": (1, 7)},
        full={**_FULL, "epsilons": (0.5,), "degrees": (1, 2, 3, 5, 7)},
        minutes=0.4,
        deviations=_SMALL_WORDS,
    ),
    Experiment(
        name="pcdbn:polynomial",
        title="largest error of polynomials for the logistic function",
        shows="A polynomial of degree 7 for the logistic function.",
        dataset="none",
        x=Axis(name="degrees", label="degree L"),
        y=Axis(name="error", label="largest error on [-1, 1]", is_log=True),
        series=(
            Series(
                name="printed",
                label="the printed one",
                kind="formula",
                is_random=False,
            ),
            *(
                Series(
                    name=name,
                    label=label,
                    kind="calculated",
                    is_random=False,
                )
                for name, label in (
                    ("chebyshev", "Chebyshev series"),
                    ("taylor", "Taylor"),
                    ("piecewise", "piecewise, L pieces"),
                )
            ),
        ),
        why_no_facts="the paper prints the polynomial, not its error.",
        measure=_polynomial,
        small={"seeds": 1, "degrees": (1, 3, 5, 7, 9)},
        full={"seeds": 1, "degrees": (1, 3, 5, 7, 9, 11, 13, 15)},
        minutes=0.1,
        deviations="none: no data.",
    ),
    Experiment(
        name="pcdbn:seconds",
        title="seconds of training",
        shows="Seconds of training on a Titan X.",
        dataset="mnist",
        x=Axis(name="category", label=""),
        y=Axis(name="seconds", label="seconds", is_log=True),
        series=(
            Series(
                name="published",
                label="as published: seconds of an epoch times the paper's "
                "epochs",
                kind="calculated",
                beside=("pCDBN",),
            ),
            Series(
                name="released",
                label="proven form: one release, measured",
                kind="calculated",
                beside=("pCDBN", "dPAH"),
            ),
        ),
        facts=_SECONDS,
        measure=_seconds,
        load=_both,
        small={
            "data": "mnist",
            "maps": ((8, 5), (16, 5)),
            "dense": 256,
            "records": 3_000,
            "lot": 500,
            "epsilon": 0.5,
            "seeds": 1,
            "clock": "cpu",
        },
        full={
            "data": "mnist",
            "maps": ((32, 5), (64, 5)),
            "dense": 1024,
            "records": 60_000,
            "lot": 500,
            "epsilon": 0.5,
            "seeds": 1,
            "clock": "wall",
        },
        minutes=1,
        deviations=(
            "this machine, not a Titan X; pre-training not counted; the "
            "synthetic weekly network in the place of YesiWell. small: CPU "
            "seconds of all cores, a quarter of the maps, an epoch of 3,000 "
            "images scaled to all."
        ),
    ),
)
