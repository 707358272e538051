"""DP-MAC: its classifier, its auto-encoder, what its noise is worth."""

import typing

import keras
import numpy as np

from keras_fm.callbacks import PrivateModel
from keras_fm.kernel import mechanisms, sampling
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.lab.reproduce import dpmac_networks as networks
from keras_fm.lab.reproduce import facts, sources, training
from keras_fm.lab.reproduce.experiment import (
    ACCURACY,
    EPSILON,
    Axis,
    Experiment,
    Measured,
    Series,
)
from keras_fm.models import DeepPrivateAutoencoder


def _flat(name):
    return tuple(
        (x.reshape(len(x), -1).astype("float32"), y)
        for x, y in sources.images(name)
    )


def _fit(model, optimizer, train, job, batch, epochs):
    batch = min(batch, len(train[0]) // 4)
    return networks.fit(
        model, optimizer, train, job.series, job.epsilon, batch, epochs
    )


# The classifier ------------------------------------------------------------


def _classifier(job, context):
    if job.series == "dp_sgd":
        return training.dense_dp_sgd(job, context, networks.DELTA)
    train, test = context.data
    model = networks.classifier(
        train[0].shape[1], unprotected=job.series == "twin"
    )
    batch, epochs, rate = _classifier_setting(job.epsilon)
    epochs = max(1, round(epochs * context["share_of_epochs"]))
    if job.epsilon is not None and job.epsilon >= 8:
        rate = keras.optimizers.schedules.CosineDecay(
            rate, max(1, epochs * len(train[0]) // batch)
        )
    ledger = _fit(model, keras.optimizers.Adam(rate), train, job, batch, epochs)
    score = training.accuracy(model, *test)
    return Measured(curve=((job.epsilon, score),), ledger=ledger)


def _classifier_setting(epsilon):
    """(batch size, epochs, learning rate), by the budget."""
    if epsilon is not None and epsilon < 1:
        return 1000, 10, 1e-2
    if epsilon is not None and epsilon >= 8:
        return 2000, 40, 1e-2
    return 2000, 20, 1e-2


# The auto-encoder ----------------------------------------------------------


def _squared_error(reconstructed, x):
    """Summed over pixels, mean over images, as the paper prints it."""
    missed = np.clip(reconstructed, 0.0, 1.0) - x
    return float(np.square(missed, dtype="float64").sum(axis=1).mean())


def _autoencoder(job, context):
    (x, _), (x_test, _) = context.data
    if job.series == "dpa_20":
        model = DeepPrivateAutoencoder(x.shape[1:], hidden=(20,))
        private = PrivateModel(
            PrivacyBudget(job.epsilon, networks.DELTA), data=x
        )
        model.pretrain(x, private)
        found, ledger = model.reconstruct(x_test), private.ledger
    elif job.series == "strokes":
        model, ledger = _after_strokes(job, context, x)
        found = model.predict(x_test, batch_size=1000, verbose=0)
    else:
        model, ledger = _from_scratch(job, context, x)
        found = model.predict(x_test, batch_size=1000, verbose=0)
    score = _squared_error(found, x_test)
    return Measured(curve=((job.epsilon, score),), ledger=ledger)


def _from_scratch(job, context, x):
    inputs = x.shape[1]
    model = networks.autoencoder(
        networks.autoencoder_layers(inputs),
        inputs,
        unprotected=job.series == "twin",
    )
    optimizer = keras.optimizers.Adam(3e-3)
    ledger = _fit(model, optimizer, (x, x), job, 500, context["epochs"])
    return model, ledger


def _after_strokes(job, context, x):
    def make():
        keras.utils.set_random_seed(job.seed)
        return networks.public_start(
            x.shape[1], context["stroke_shapes"], context["stroke_steps"]
        )

    start = context.once(("strokes", job.seed), make)
    return networks.after_start(start, x, job.epsilon, context["stroke_epochs"])


# The noise -----------------------------------------------------------------

_NOISE = facts.select("dpmac", metric="epsilon")


def _noise(job, context):
    del context
    curve = []
    for fact in _NOISE:
        s = fact.setting
        steps = round(s["epochs"] * s["records"] / s["batch_size"])
        samples = sampling.plan(
            s["records"],
            batch_size=s["batch_size"],
            steps=steps,
            delta=fact.delta,
        )
        parts = [samples.mechanism(s["noise_multiplier"])]
        if s["pca_noise_multiplier"]:
            parts.append(
                mechanisms.GaussianMechanism(
                    sensitivity=1.0,
                    noise_multiplier=s["pca_noise_multiplier"],
                )
            )
        compose = {
            "renyi": sampling.rdp_epsilon,
            "pld": mechanisms.compose_epsilon,
        }[job.series]
        word = (
            f"{fact.dataset}, sigma {s['noise_multiplier']:g}, "
            f"{s['epochs']} epochs"
        )
        curve.append((word, float(compose(parts, fact.delta))))
    return Measured(curve=tuple(curve))


_RIVAL: dict[str, typing.Any] = {"kind": "proven", "needs_dp_sgd": True}

EXPERIMENTS = (
    Experiment(
        name="dpmac:mnist",
        title="accuracy of the classifier on MNIST",
        shows="Test accuracy of DP-MAC and DP-SGD at epsilon 0.5, 2 and 8.",
        dataset="mnist",
        x=EPSILON,
        y=ACCURACY,
        series=(
            Series(
                name="proven",
                label="DP-MAC, Poisson batches",
                kind="proven",
                beside=("DP-MAC",),
            ),
            Series(
                name="published",
                label="DP-MAC, shuffled batches",
                kind="claimed",
                beside=("DP-MAC",),
            ),
            Series(
                name="dp_sgd",
                label="DP-SGD, 784-300-10",
                beside=("DP-SGD (Abadi et al.)",),
                **_RIVAL,
            ),
            Series(
                name="twin",
                label="the same network without noise",
                kind="no privacy",
            ),
        ),
        facts=facts.select("dpmac", "mnist", "accuracy"),
        measure=_classifier,
        load=_flat,
        small={
            "data": "mnist",
            "epsilons": (0.5, 2.0, 8.0),
            "seeds": 1,
            "share_of_epochs": 0.5,
            "dp_sgd_steps": 100,
            "dp_sgd_rates": (4.0, 16.0),
        },
        full={
            "data": "mnist",
            "epsilons": (0.5, 2.0, 8.0),
            "seeds": 3,
            "share_of_epochs": 1.0,
            "dp_sgd_steps": 200,
            "dp_sgd_rates": (1.0, 4.0, 16.0, 64.0),
        },
        minutes=1.5,
        deviations=(
            "one Z-step of SGD, whitened components and a public factor of "
            "8; noise by privacy loss distributions. small: half of the "
            "epochs, DP-SGD 100 steps."
        ),
    ),
    Experiment(
        name="dpmac:usps",
        title="squared error of the auto-encoder on USPS",
        shows=(
            "Test error of DP-MAC and DP-SGD auto-encoders, 20 units in the "
            "middle, at epsilon 1, 2, 4 and 8."
        ),
        dataset="usps",
        x=EPSILON,
        y=Axis(
            name="squared_error",
            label="squared error, summed over pixels",
            is_log=True,
        ),
        series=(
            Series(
                name="strokes",
                label="DP-MAC after a public start on pen strokes",
                kind="proven",
                beside=("DP-MAC",),
            ),
            Series(
                name="proven",
                label="DP-MAC from scratch, Poisson batches",
                kind="proven",
                beside=("DP-MAC",),
            ),
            Series(
                name="published",
                label="DP-MAC from scratch, shuffled batches",
                kind="claimed",
                beside=("DP-MAC",),
            ),
            Series(
                name="dpa_20", label="dPA, 20 units, one read", kind="proven"
            ),
            Series(
                name="twin",
                label="the network from scratch without noise",
                kind="no privacy",
            ),
        ),
        facts=facts.select("dpmac", "usps", "squared_error"),
        measure=_autoencoder,
        load=_flat,
        small={
            "data": "usps",
            "epsilons": (1.0, 2.0, 4.0, 8.0),
            "seeds": 1,
            "epochs": 8,
            "stroke_shapes": 10_000,
            "stroke_steps": 1_500,
            "stroke_epochs": 20,
        },
        full={
            "data": "usps",
            "epsilons": (1.0, 2.0, 4.0, 8.0),
            "seeds": 2,
            "epochs": 50,
            "stroke_shapes": 40_000,
            "stroke_steps": 24_000,
            "stroke_epochs": 60,
        },
        minutes=1.3,
        deviations=(
            "reconstructions clipped to [0, 1]; the start on drawn strokes "
            "is public data that the paper has not; its DP-SGD is not "
            "trained here. small: 8 epochs from scratch, 1,500 public steps "
            "instead of 24,000, 20 private epochs instead of 60."
        ),
    ),
    Experiment(
        name="dpmac:accounting",
        title="what the paper's noise costs by newer accounting",
        shows="Noise and epochs of every experiment, and the epsilon stated.",
        aliases=("dpmac:table-2",),
        dataset="none",
        x=Axis(name="category", label=""),
        y=Axis(name="epsilon", label="epsilon at delta = 1e-5", is_log=True),
        series=(
            Series(
                name="pld",
                label="privacy loss distribution",
                kind="calculated",
                beside=("moments accountant",),
                is_random=False,
            ),
            Series(
                name="renyi",
                label="Renyi moments",
                kind="calculated",
                beside=("moments accountant",),
                is_random=False,
            ),
        ),
        facts=_NOISE,
        measure=_noise,
        small={"seeds": 1},
        full={"seeds": 1},
        minutes=0.1,
        deviations=(
            "bounds for Poisson samples under add_remove; the paper's code "
            "shuffles, so they are not its guarantee."
        ),
    ),
)
