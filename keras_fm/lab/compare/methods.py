"""Every way of training that a comparison knows."""

import collections.abc
import dataclasses
import functools
import math

import keras

from keras_fm.heads.private_dense import PrivateDense
from keras_fm.heads.rounds import Rounds
from keras_fm.lab import baselines, known
from keras_fm.lab.baselines import dp_sgd
from keras_fm.lab.engine.job import Series
from keras_fm.lab.engine.training import exact
from keras_fm.lab.engine.watch import Watch
from keras_fm.models import PrivateCDBN
from keras_fm.papers.adlm import recipe as adlm
from keras_fm.papers.adlm.perturbed_layers import PerturbedAffine
from keras_fm.papers.dpa import recipe as dpa
from keras_fm.papers.dpmac import recipe as dpmac
from keras_fm.papers.functional_net import recipe as functional_net
from keras_fm.papers.pcdbn import recipe as pcdbn
from keras_fm.papers.pcdbn.private_patches import PrivatePatches
from keras_fm.preprocessing.dp_pca import DPPCA
from keras_fm.preprocessing.private_normalization import PrivateNormalization
from keras_fm.public.normalization_layer import NormalizationLayer
from keras_fm.public.random_features import RandomFeatures

# Public features are of unit length: each is in these bounds, from which
# published forms map them to [0, 1].
_FEATURES = (-1.0, 1.0)
_DPMAC_EPOCHS = 30
_DPMAC_RATE = 0.01
_FEWEST_FEATURES, _MOST_FEATURES = 64, 1500
# Records times epsilon from which directions of patches are learned.
_TOLD = 5000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(Series):
    """A way of training, as a comparison sees it.

    One of your own is put into `METHODS`; it runs in the process that knows
    it.

    Attributes:
        about: str, one sentence.
        train: function `(task, seed, training)` to `Fitted`; of a rival
            `(task, seed)` to the function that `rival.tune` takes.
        before: `None`, or function `(task, seed, training)` to the `Watch`
            of what several runs share.
        on_images: whether it brings its own features and reads the images.
        needs_delta: whether it cannot have delta = 0.
        packages: what must be installed beyond the package's own needs.
        backend: `None`, or the only Keras backend it runs on.
        by_name: whether the default leaves it out: its tuning takes
            minutes.
        tuned: `None`, or the name of the choice on a validation split that
            it shares with others of the same name.
        optimizer: of a rival.

    Example:

    ```python
    def train(task, seed, training):
        model = my_model(task.x.shape[1:], task.classes)
        return training.release(model, task.data)

    experiments.METHODS["mine"] = experiments.Method(
        name="mine", label="mine", kind="proven", about="...", train=train
    )
    ```
    """

    about: str
    train: collections.abc.Callable
    before: collections.abc.Callable | None = None
    on_images: bool = False
    needs_delta: bool = False
    packages: tuple = ()
    backend: str | None = None
    by_name: bool = False
    tuned: str | None = None
    optimizer: str = "sgd"

    def available(self):
        """Whether the packages and the backend at hand can run it."""
        return known.runs_here(self.packages, self.backend)


# Without privacy -----------------------------------------------------------


def _non_private(task, seed, training):
    model = task.model(seed, head=keras.layers.Dense)
    return training.fit(model, task.data, loss=exact)


def _truncated(task, seed, training):
    head = functools.partial(PrivateDense, unprotected=True)
    return training.fit(task.model(seed, head=head), task.data)


# The output layer: the affine layer stays at its random initial weights,
# which makes it public. -----------------------------------------------------


def _one_read(task, seed, training):
    return training.release(task.model(seed, trainable=False), task.data)


def _many_reads_output(task):
    return PrivateDense(
        task.classes, use_bias=False, rounds=Rounds(reads=80), name="output"
    )


def _many_reads(task, seed, training):
    keras.utils.set_random_seed(seed)
    width = task.spec.hidden or task.x.shape[1]
    model = keras.Sequential(
        [
            keras.Input(task.x.shape[1:]),
            *task.body(seed, trainable=False),
            DPPCA(width, whitening=0.5, name="whitening"),
            NormalizationLayer(),
            _many_reads_output(task),
        ]
    )
    return training.release(model, task.data)


# The papers ----------------------------------------------------------------


def _ilm(task, seed, training):
    *body, head = task.model(seed, kind=PerturbedAffine).layers
    # Claims are for inputs, and features of unit length, in [0, 1].
    layers = [NormalizationLayer(_FEATURES, "linf", name="box"), *body]
    if body:
        layers.append(NormalizationLayer(_FEATURES, "linf", name="features"))
    inputs = keras.Input(task.x.shape[1:])
    model = keras.Sequential([inputs, *layers, head])
    return adlm.perturbed(training, model, task.data)


def _pretrain_adlm(task, seed, training):
    """One pre-training serves all budgets; each run counts its cost."""
    if seed not in task.pretrained:
        keras.utils.set_random_seed(seed)
        with Watch() as watch:
            twin = adlm.twin(
                training.but(epsilon=None, log_dir=None),
                task.data,
                task.classes,
                hidden=task.units,
                bounds=_FEATURES,
            )
        task.pretrained[seed] = twin, watch
    return task.pretrained[seed][1]


def _adlm_published(task, seed, training):
    keras.utils.set_random_seed(seed)
    return adlm.published(
        training,
        task.data,
        task.classes,
        twin=task.pretrained[seed][0],
        hidden=task.units,
        bounds=_FEATURES,
    )


def _adlm_proven(task, seed, training):
    body = task.body(seed, trainable=False)
    keras.utils.set_random_seed(seed)
    top = keras.Sequential(body, name="body") if body else None
    return adlm.proven(training, task.data, task.classes, top=top)


def _dpa_published(task, seed, training):
    model = dpa.network(
        task.x.shape[1:],
        task.classes,
        task.units,
        guarantee="published",
        bounds=_FEATURES,
    )
    pretraining = training.but(pretraining_epochs=training.epochs)
    return dpa.published(pretraining, model, task.data)


def _dpa_proven(task, seed, training):
    model = dpa.released_encoder(
        task.x.shape[1:],
        task.classes,
        task.spec.hidden,
        kernel_initializer=task.head_initializer(seed),
    )
    return training.release(model, task.data)


def _pcdbn_network(task, **kwargs):
    """The paper's maps and dense units, or fewer for small images."""
    if min(task.images.shape[1:3]) < 16:
        kwargs |= {"maps": ((16, 3), (32, 3)), "dense": 128}
    return PrivateCDBN(task.images.shape[1:], task.classes, **kwargs)


def _pcdbn_published(task, seed, training):
    # Strides stand for pooling, as in the authors' code.
    model = _pcdbn_network(task, guarantee="published", strides=2, pooling=1)
    pretraining = training.but(pretraining_epochs=2, pretraining_rate=1e-3)
    return pcdbn.published(pretraining, model, (task.images, task.y))


def _pcdbn_proven(task, seed, training):
    return training.release(_pcdbn_network(task), (task.images, task.y))


def _patches(task, seed, training):
    shape = task.images.shape[1:]
    small = {"patch_size": 3, "cells": 2} if min(shape[:2]) < 16 else {}
    if shape[-1] == 3:
        # Photographs show the same mirrored, and colours are many numbers.
        small |= {"flip": True, "components": 80, "moment_strides": 3}
    # Both rules were chosen on held-out training images, see
    # docs/results/pcdbn.md.
    told = len(task.y) * training.epsilon
    patches = PrivatePatches(
        **small, rounds=3 if told >= _TOLD else 0, seed=seed
    )
    units = int(min(_MOST_FEATURES, max(_FEWEST_FEATURES, told / 5)))
    units = min(units, math.prod(patches.compute_output_shape((1, *shape))))
    # Of features of unit length: this many of their deviations.
    bound = 4 / math.sqrt(units)
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input(shape),
            patches,
            keras.layers.Flatten(),
            RandomFeatures(units, seed=seed),
            NormalizationLayer(),
            PrivateNormalization((-bound, bound)),
            NormalizationLayer(),
            DPPCA(units, whitening=0.5, name="whitening"),
            NormalizationLayer(),
            _many_reads_output(task),
        ]
    )
    return training.release(model, (task.images, task.y))


def _dpmac(task, seed, training, form):
    model = dpmac.network(
        task.x.shape[1:],
        task.units,
        task.classes,
        below=[keras.layers.Rescaling(functional_net.NORM)],
    )
    training = training.but(
        lot=max(1, len(task.x) // 4),
        epochs=_DPMAC_EPOCHS,
        learning_rate=_DPMAC_RATE,
    )
    return dpmac.fit(training, model, task.data, form)


def functional_network(task, seed, is_published):
    """All layers, on features of norm 8; ten rounds."""
    hidden = []
    if task.spec.hidden:
        affine = task.affine(seed)
        affine.activation = keras.activations.get(
            functional_net.activation(is_published)
        )
        hidden = [affine]
    trained = functional_net.layers(
        hidden,
        task.classes,
        kernel_initializer=task.head_initializer(seed),
        name="output",
    )
    return functional_net.network(
        task.x.shape[1:],
        trained,
        below=[
            keras.layers.Rescaling(functional_net.NORM),
            *functional_net.inside(is_published),
        ],
    )


def _functional(task, seed, training, is_published):
    model = functional_network(task, seed, is_published)
    return functional_net.fit(training, model, task.data, is_published)


# DP-SGD --------------------------------------------------------------------


def rival_network(task, seed, inputs, body=True):
    """The Keras 3 model that DP-SGD trains."""
    keras.utils.set_random_seed(seed)
    head = keras.layers.Dense(
        task.classes, kernel_initializer=task.head_initializer(seed)
    )
    layers = task.body(seed) if body else []
    return keras.Sequential([keras.Input(inputs), *layers, head])


def _rival_cnn(task, seed, inputs):
    keras.utils.set_random_seed(seed)
    return dp_sgd.small_cnn(inputs, task.classes)


def _dp_sgd(
    task,
    seed,
    epsilon,
    form=None,
    kind=baselines.DPSGDClassifier,
    network=rival_network,
):
    def fit(settings, x, y):
        return kind(
            network(task, seed, x.shape[1:]),
            baselines.DPSGDConfig(form=form, **settings),
            epsilon=epsilon,
            delta=task.spec.delta,
            neighbours=task.spec.neighbours,
        ).fit(x, y)

    return fit


def _rival(tuned, optimizer="sgd", **kwargs):
    """A rival; `kwargs` are those of `_dp_sgd`."""
    return {
        "train": functools.partial(_dp_sgd, **kwargs),
        "tuned": tuned,
        "optimizer": optimizer,
    }


def _of(train, **kwargs):
    return {"train": functools.partial(train, **kwargs)}


_FAST = {"form": "fast_clipping"}
_JAX_KIND = {"kind": baselines.JaxDPSGDClassifier}
_HEAD = {"network": functools.partial(rival_network, body=False)}
_CNN = {"network": _rival_cnn}
_IMAGES = {"on_images": True}
# Names, labels and needs are in `methods.json`.
_HOW = {
    "non_private": {"train": _non_private},
    "truncated": {"train": _truncated},
    "published": {"train": _ilm},
    "adlm_published": {"train": _adlm_published, "before": _pretrain_adlm},
    "proven": {"train": _one_read},
    "rounds_proven": {"train": _many_reads},
    "adlm_proven": {"train": _adlm_proven},
    "dpa_published": {"train": _dpa_published},
    "dpa_proven": {"train": _dpa_proven},
    "pcdbn_published": {"train": _pcdbn_published, **_IMAGES},
    "pcdbn_proven": {"train": _pcdbn_proven, **_IMAGES},
    "patches_proven": {"train": _patches, **_IMAGES},
    "dpmac_published": _of(_dpmac, form="published"),
    "dpmac_proven": _of(_dpmac, form="proven"),
    "functional_published": _of(_functional, is_published=True),
    "functional_proven": _of(_functional, is_published=False),
    "dp_sgd_vectorized": _rival("all", form="vectorized"),
    "dp_sgd_fast": _rival("all", **_FAST),
    "dp_adam": _rival("all, adam", "adam", **_FAST),
    "dp_sgd_cnn": {**_rival("cnn", form="vectorized", **_CNN), **_IMAGES},
    # The output layer only: the rival feature for feature.
    "dp_sgd_head": _rival("head", **_HEAD, **_FAST),
    "jax_privacy": _rival("all", **_JAX_KIND),
    "jax_privacy_cnn": {**_rival("cnn", **_CNN, **_JAX_KIND), **_IMAGES},
    "jax_privacy_head": _rival("head", **_HEAD, **_JAX_KIND),
}


METHODS = {
    name: Method(name=name, **told, **_HOW[name])
    for name, told in known.methods().items()
}


def available(delta):
    """Names of the methods of the default, here and at this delta."""
    return tuple(
        name
        for name, m in METHODS.items()
        if m.available() and not m.by_name and (delta or not m.needs_delta)
    )
