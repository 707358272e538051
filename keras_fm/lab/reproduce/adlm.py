"""AdLM: accuracy of AdLM, ILM and DP-SGD against epsilon and epochs."""

import keras

from keras_fm.callbacks import PrivateModel
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.lab.reproduce import facts, sources, training
from keras_fm.lab.reproduce.experiment import (
    ACCURACY,
    EPSILON,
    Axis,
    Experiment,
    Measured,
    Series,
)
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.models import AdaptiveLaplace
from keras_fm.public import features as features_lib

_DELTA = 1e-5
_DP_SGD = {"l2_norm_clip": 0.1, "batch_size": 1800}
_RATES = (2.0, 8.0)
# Rows that a training of the twin takes at a time.
_TWIN_LOT = 600

_ADLM = Series(
    name="adlm", label="AdLM, as published", kind="claimed", beside=("AdLM",)
)
_ILM = Series(
    name="ilm",
    label="ILM (identical noise), as published",
    kind="claimed",
    beside=("ILM",),
)
_PROVEN = Series(
    name="proven", label="AdLM, proven form", kind="proven", beside=("AdLM",)
)
_PLAIN = Series(
    name="proven_plain",
    label="the same without adaptation",
    kind="proven",
    beside=("ILM",),
)
_RIVAL = Series(
    name="dp_sgd",
    label="DP-SGD, the same convolutions",
    kind="proven",
    beside=("pSGD",),
    needs_dp_sgd=True,
)
_TWIN = Series(
    name="twin", label="AdLM's network without noise", kind="no privacy"
)


def _network(context, adaptive=True, unprotected=False):
    (x, _), _ = context.data
    model = AdaptiveLaplace(
        x.shape[1:],
        10,
        guarantee="published",
        architecture=context["architecture"],
        form="code",
        width=context["width"],
        adaptive=adaptive,
        unprotected=unprotected,
    )
    return _compiled(model, context)


def _compiled(model, context):
    model.compile(
        keras.optimizers.Adam(context["learning_rate"]),
        TaylorCrossEntropy(),
        metrics=["accuracy"],
    )
    return model


def _lot(context):
    (x, _), _ = context.data
    return min(context["lot"], max(1, len(x) // 4))


def _fit(model, context, epochs, lot, callbacks=()):
    """Test accuracy after some epochs."""
    train, test = context.data
    watch = training.Watch(*test, epochs)
    model.fit(
        *train,
        batch_size=lot,
        epochs=epochs,
        callbacks=[*callbacks, watch],
        verbose=0,
    )
    return tuple(watch.curve)


def _twin(context):
    def make():
        keras.utils.set_random_seed(0)
        model = _network(context, unprotected=True)
        lot = min(_TWIN_LOT, _lot(context))
        curve = _fit(model, context, context["pretraining_epochs"], lot)
        return model, curve

    return context.once("twin", make)


def _published(job, context):
    adaptive = job.series == "adlm"
    twin = _twin(context)[0] if adaptive else None
    keras.utils.set_random_seed(job.seed)
    model = _network(context, adaptive)
    if adaptive:
        model.get_layer("perturbed").relevance_of(twin)
    private = PrivateModel(
        job.epsilon,
        data=context.data[0],
        guarantee=model.guarantee(lot=_lot(context)),
    )
    curve = _fit(model, context, context["epochs"], _lot(context), [private])
    return curve, private.ledger


def _features(context):
    """What the proven form reads: a public map of every image."""

    def make():
        (x, y), (x_test, y_test) = context.data
        if context["features"] == "pooled":
            # Colour pixels are more than one release affords.
            body = keras.Sequential(
                [
                    keras.Input(x.shape[1:]),
                    keras.layers.AveragePooling2D(2),
                    *features_lib.build(
                        "pixels", (*(s // 2 for s in x.shape[1:3]), x.shape[3])
                    ).layers,
                ]
            )
        else:
            body = features_lib.build(context["features"], x.shape[1:])
        h, h_test = (features_lib.extract(body, v) for v in (x, x_test))
        return (h, y), (h_test, y_test)

    return context.once("features", make)


def _proven(job, context):
    train, test = _features(context)
    model = AdaptiveLaplace(
        train[0].shape[1:], 10, adaptive=job.series == "proven"
    )
    private = PrivateModel(PrivacyBudget(job.epsilon, _DELTA), data=train)
    _compiled(model, context)
    model.fit(
        *train,
        batch_size=10_000,
        steps_per_epoch=1,
        callbacks=[private],
        verbose=0,
    )
    return ((1, training.accuracy(model, *test)),), private.ledger


def _plain_network(context):
    """The same convolutions and dense layers, for DP-SGD."""
    (x, _), _ = context.data

    def maps(count):
        return max(1, round(count * context["width"]))

    def convolution(count, size, **kwargs):
        return keras.layers.Conv2D(
            maps(count), size, padding="same", activation="relu", **kwargs
        )

    pool = keras.layers.MaxPooling2D
    if context["architecture"] == "mnist":
        body = [convolution(32, 5), pool(2), convolution(64, 5), pool(2)]
        hidden = 25
    else:
        body = [
            convolution(128, 3, strides=2),
            convolution(128, 5),
            convolution(256, 5),
            keras.layers.AveragePooling2D(2),
        ]
        hidden = 30
    return keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            *body,
            keras.layers.Flatten(),
            keras.layers.Dense(hidden, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def _dp_sgd(job, context):
    """One point for every number of steps, each calibrated anew; a ledger of
    the last, the only one that is published."""
    train, test = context.data
    curve, rate = [], None
    for steps in context["dp_sgd_steps"]:
        keras.utils.set_random_seed(job.seed)
        rival, rate = training.dp_sgd_of_best_rate(
            lambda: _plain_network(context),
            train,
            epsilon=job.epsilon,
            delta=_DELTA,
            rates=context["dp_sgd_rates"] if rate is None else (rate,),
            steps=steps,
            **_DP_SGD,
        )
        batch = min(_DP_SGD["batch_size"], len(train[0]) // 4)
        epochs = steps * batch / len(train[0])
        curve.append((epochs, rival.evaluate(*test)["accuracy"]))
    return tuple(curve), rival.ledger, {"learning_rate": rate}


def _measure(job, context):
    """The whole curve over epochs."""
    notes, ledger = {}, None
    if job.series == "twin":
        curve = _twin(context)[1]
    elif job.series in ("adlm", "ilm"):
        curve, ledger = _published(job, context)
    elif job.series == "dp_sgd":
        curve, ledger, notes = _dp_sgd(job, context)
    else:
        curve, ledger = _proven(job, context)
    return Measured(curve=curve, ledger=ledger, notes=notes)


def _measure_last(job, context):
    """The accuracy after the last epoch, at its epsilon."""
    made = _measure(job, context)
    return Measured(
        curve=((job.epsilon, made.curve[-1][1]),),
        ledger=made.ledger,
        notes=made.notes,
    )


_MNIST = {
    "data": "mnist",
    "architecture": "mnist",
    "lot": 1800,
    "seeds": 1,
}
_SMALL_WORDS = (
    "form of the authors' code; the proven form has no convolutions, it "
    "releases the output layer on public features."
)

EXPERIMENTS = (
    Experiment(
        name="adlm:mnist",
        title="accuracy on MNIST against epsilon",
        shows=(
            "Test accuracy of AdLM, ILM and DP-SGD against the claimed epsilon."
        ),
        aliases=("adlm:figure-4", "adlm:mnist-epsilon"),
        dataset="mnist",
        x=EPSILON,
        y=ACCURACY,
        series=(_ADLM, _ILM, _PROVEN, _PLAIN, _RIVAL, _TWIN),
        facts=facts.select("adlm", "mnist", "accuracy"),
        measure=_measure_last,
        load=sources.images,
        small={
            **_MNIST,
            "epsilons": (0.25, 0.5),
            "width": 0.125,
            "epochs": 3,
            "learning_rate": 1e-3,
            "pretraining_epochs": 2,
            "features": "pixels",
            "dp_sgd_steps": (33,),
            "dp_sgd_rates": (8.0,),
        },
        full={
            **_MNIST,
            "epsilons": (0.2, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
            "width": 1.0,
            "epochs": 500,
            "learning_rate": 3e-4,
            "pretraining_epochs": 2,
            "features": "scattering_strokes",
            "dp_sgd_steps": (100,),
            "dp_sgd_rates": _RATES,
        },
        minutes=2,
        deviations=(
            "small: an eighth of the maps, 3 epochs instead of 500, DP-SGD "
            "33 steps at the rate found in docs/results/adlm.md; "
            + _SMALL_WORDS
        ),
    ),
    Experiment(
        name="adlm:mnist-epochs",
        title="accuracy on MNIST against epochs",
        shows="Test accuracy of AdLM, ILM and DP-SGD after every epoch.",
        aliases=("adlm:figure-4",),
        dataset="mnist",
        x=Axis(name="epochs", label="epochs", is_log=True),
        y=ACCURACY,
        series=(_ADLM, _ILM, _RIVAL, _TWIN),
        facts=tuple(
            f
            for f in facts.select("adlm", "mnist", "accuracy")
            if f.epochs is not None
        ),
        measure=_measure,
        load=sources.images,
        small={
            **_MNIST,
            "epsilons": (0.5,),
            "width": 0.0625,
            "epochs": 6,
            "learning_rate": 1e-3,
            "pretraining_epochs": 2,
            "features": "pixels",
            "dp_sgd_steps": (33,),
            "dp_sgd_rates": (8.0,),
        },
        full={
            **_MNIST,
            "epsilons": (0.5, 2.0),
            "width": 1.0,
            "epochs": 500,
            "learning_rate": 3e-4,
            "pretraining_epochs": 2,
            "features": "pixels",
            "dp_sgd_steps": (33, 100, 200),
            "dp_sgd_rates": _RATES,
        },
        minutes=0.7,
        deviations=(
            "small: a sixteenth of the maps, 6 epochs; form of the authors' "
            "code; each point of DP-SGD is a training of its own."
        ),
    ),
    Experiment(
        name="adlm:cifar10",
        title="accuracy on CIFAR-10 against epsilon",
        shows="Average accuracy of AdLM and DP-SGD on CIFAR-10.",
        dataset="cifar10",
        x=EPSILON,
        y=ACCURACY,
        series=(_ADLM, _ILM, _PROVEN, _PLAIN, _RIVAL, _TWIN),
        facts=facts.select("adlm", "cifar10"),
        measure=_measure_last,
        load=sources.images,
        small={
            "data": "cifar10",
            "architecture": "cifar10",
            "lot": 7200,
            "seeds": 1,
            "epsilons": (8.0,),
            "width": 0.0625,
            "epochs": 2,
            "learning_rate": 1e-3,
            "pretraining_epochs": 1,
            "features": "pooled",
            "dp_sgd_steps": (20,),
            "dp_sgd_rates": (8.0,),
        },
        full={
            "data": "cifar10",
            "architecture": "cifar10",
            "lot": 7200,
            "seeds": 1,
            "epsilons": (0.5, 1.0, 2.0, 4.0, 8.0),
            "width": 1.0,
            "epochs": 1700,
            "learning_rate": 3e-4,
            "pretraining_epochs": 4,
            "features": "scattering",
            "dp_sgd_steps": (100,),
            "dp_sgd_rates": _RATES,
        },
        minutes=1,
        deviations=(
            "small: a sixteenth of the maps, 2 epochs instead of 1,700, the "
            "proven form on 16 x 16 pixels; " + _SMALL_WORDS
        ),
    ),
)
