"""Small private models of every form, with records and labels for them."""

import keras
import numpy as np

import keras_fm as fm

N, D, CLASSES = 60, 6, 3
LABELS = np.arange(N) % CLASSES
RECORDS = np.random.default_rng(7).random((N, D)).astype("float32")
IMAGES = np.random.default_rng(9).random((N, 8, 8, 1)).astype("float32")


def compiled(model, *loss, **arguments):
    model.compile("adam", *loss, **arguments)
    return model


def dense(bounds=None, **arguments):
    inputs = keras.Input((D,))
    x = fm.layers.NormalizationLayer(bounds)(inputs)
    outputs = fm.layers.PrivateDense(CLASSES, name="head", **arguments)(x)
    return compiled(
        keras.Model(inputs, outputs),
        fm.losses.TaylorCrossEntropy(),
        metrics=["accuracy"],
    )


def adaptive():
    return compiled(
        fm.models.AdaptiveLaplace((D,), CLASSES, bounds=(0.0, 1.0)),
        fm.losses.TaylorCrossEntropy(),
    )


def autoencoder(**arguments):
    return compiled(
        fm.models.DeepPrivateAutoencoder(
            (D,), (4,), units=CLASSES, **arguments
        ),
        fm.losses.TaylorCrossEntropy(),
    )


def network():
    return compiled(
        fm.models.FunctionalNet(
            (D,), [keras.layers.Dense(4), keras.layers.Dense(3)], rounds=2
        )
    )


def deep(**arguments):
    return compiled(
        fm.models.AdaptiveLaplace(
            (D,), CLASSES, hidden=4, guarantee="published", **arguments
        ),
        fm.losses.TaylorCrossEntropy(),
    )


def convolutional(guarantee="proven"):
    model = fm.models.PrivateCDBN(
        (8, 8, 1), CLASSES, maps=((3, 3),), dense=4, guarantee=guarantee
    )
    return compiled(model, fm.losses.TaylorCrossEntropy())


def patches():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            fm.layers.PrivatePatches(4, 3, cells=2),
            keras.layers.Flatten(),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(CLASSES, name="head"),
        ]
    )
    return compiled(model, fm.losses.TaylorCrossEntropy())


def projected():
    inputs = keras.Input((D,))
    x = fm.layers.NormalizationLayer()(inputs)
    x = fm.layers.DPPCA(3)(x)
    x = fm.layers.NormalizationLayer()(x)
    outputs = fm.layers.PrivateDense(CLASSES, name="head")(x)
    return compiled(
        keras.Model(inputs, outputs), fm.losses.TaylorCrossEntropy()
    )


def perturbed():
    return compiled(
        keras.Sequential(
            [
                keras.Input((D,)),
                fm.layers.NormalizationLayer((0, 1), "linf"),
                fm.layers.PerturbedAffine(4, activation="sigmoid"),
                fm.layers.PrivateDense(CLASSES),
            ]
        ),
        fm.losses.TaylorCrossEntropy(),
    )


PUBLISHED = {"guarantee": fm.Published(lot=32)}
OF_ALL = {"guarantee": fm.Published(lot="data")}
# How a model is made and what its PrivateModel is given.
FORMS = {
    "dense": (dense, {}),
    "dense pure": (dense, {"budget": fm.PrivacyBudget(4.0, 0.0)}),
    "dense published": (lambda: dense(bounds=(0, 1)), PUBLISHED),
    "rounds": (lambda: dense(rounds=2), {}),
    "AdLM": (adaptive, {}),
    "ILM published": (perturbed, PUBLISHED),
    "dPA": (autoencoder, {}),
    "FunctionalNet": (network, {}),
    "DPPCA": (projected, {}),
    "pCDBN": (convolutional, {}),
    "patches": (patches, {}),
    "AdLM published": (deep, PUBLISHED),
    "dPA published": (
        lambda: autoencoder(guarantee="published"),
        OF_ALL,
    ),
    "pCDBN published": (
        lambda: convolutional("published"),
        OF_ALL,
    ),
}


def records_of(form):
    return IMAGES if form.startswith(("pCDBN", "patches")) else RECORDS
