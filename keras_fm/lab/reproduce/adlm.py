"""AdLM: accuracy of AdLM, ILM and DP-SGD against epsilon and epochs."""

import dataclasses

import keras

from keras_fm.lab.engine.job import Measured
from keras_fm.lab.engine.training import Curve
from keras_fm.lab.reproduce import points
from keras_fm.papers.adlm import recipe as adlm
from keras_fm.public import features as features_lib

_DELTA = 1e-5
_CLASSES = 10
# Records that a training of the twin takes at a time.
_TWIN_LOT = 600


_PRINTED = "_printed"


def _architecture(job, context):
    """Of the printed form, where the series says so, or of the code."""
    form = "paper" if job.series.endswith(_PRINTED) else "code"
    names = ("architecture", "width")
    return {"form": form, **{name: context[name] for name in names}}


def _training(job, context, **kwargs):
    """By Adam, looked at after some epochs."""
    (x, _), test = context.data
    made = points.training(job, context, lot=points.lot(context, len(x)))
    made = made.but(**kwargs)
    return made.but(callbacks=(Curve(*test, made.epochs),))


def _twin(job, context):
    """The network without noise and its curve."""
    architecture = _architecture(job, context)

    def make():
        keras.utils.set_random_seed(0)
        training = _training(
            job,
            context,
            epsilon=None,
            epochs=context["pretraining_epochs"],
            lot=min(_TWIN_LOT, points.lot(context, len(context.data[0][0]))),
        )
        model = adlm.twin(training, context.data[0], _CLASSES, **architecture)
        return model, training.callbacks[0].points

    return context.once(("twin", architecture["form"]), make)


def _published(job, context):
    adaptive = job.series.removesuffix(_PRINTED) == "adlm"
    twin = _twin(job, context)[0] if adaptive else None
    keras.utils.set_random_seed(job.seed)
    training = _training(job, context)
    made = adlm.published(
        training,
        context.data[0],
        _CLASSES,
        twin=twin,
        adaptive=adaptive,
        **_architecture(job, context),
    )
    return Measured(
        curve=tuple(training.callbacks[0].points), ledger=made.ledger
    )


def _features(context):
    """What the proven form reads: a public map of every image."""

    def make():
        (x, y), (x_test, y_test) = context.data
        body = features_lib.build(context["features"], x.shape[1:])
        h, h_test = (features_lib.extract(body, v) for v in (x, x_test))
        return (h, y), (h_test, y_test)

    return context.once("features", make)


def _proven(job, context):
    train, test = _features(context)
    made = adlm.proven(
        points.training(job, context),
        train,
        _CLASSES,
        adaptive=job.series == "proven",
    )
    made = points.scored(job, made, test)
    return dataclasses.replace(made, curve=((1, made.curve[0][1]),))


def _plain_network(context):
    """The same convolutions and dense layers, for DP-SGD."""
    inputs = context.data[0][0].shape[1:]

    def convolution(count, size, **kwargs):
        maps = max(1, round(count * context["width"]))
        return keras.layers.Conv2D(
            maps, size, padding="same", activation="relu", **kwargs
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
            keras.Input(inputs),
            *body,
            keras.layers.Flatten(),
            keras.layers.Dense(hidden, activation="relu"),
            keras.layers.Dense(_CLASSES),
        ]
    )


def _rival(measure, job, context):
    return measure(
        job,
        context,
        lambda: _plain_network(context),
        *context.data,
        delta=_DELTA,
        most=context["rival_lot"],
    )


def curve(job, context):
    """The whole curve over epochs."""
    if job.series == "twin":
        return Measured(curve=tuple(_twin(job, context)[1]))
    if job.series == "dp_sgd":
        return _rival(points.dp_sgd_curve, job, context)
    if job.series.removesuffix(_PRINTED) in ("adlm", "ilm"):
        return _published(job, context)
    return _proven(job, context)


def last(job, context):
    """The accuracy after the last epoch, at its epsilon."""
    if job.series == "dp_sgd":
        return _rival(points.dp_sgd, job, context)
    made = curve(job, context)
    return dataclasses.replace(made, curve=((job.epsilon, made.curve[-1][1]),))
