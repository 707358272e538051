"""Every way of training that a comparison knows."""

import collections.abc
import dataclasses
import difflib
import functools
import math
import warnings

import keras
import numpy as np

from keras_fm.callbacks import PrivateModel
from keras_fm.core.guarantee import Proven
from keras_fm.heads.private_dense import PrivateDense
from keras_fm.heads.rounds import Rounds
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.lab import baselines, known
from keras_fm.lab.baselines import dp_sgd
from keras_fm.lab.baselines.dp_sgd_opacus import OpacusClassifier
from keras_fm.lab.baselines.dp_sgd_ours import NoisyStepsClassifier
from keras_fm.lab.baselines.dp_sgd_training import loss_of
from keras_fm.lab.engine.job import Series
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
from keras_fm.public.quadratic_features import QuadraticFeatures
from keras_fm.public.random_features import RandomFeatures

# Public features are of unit length: each is in these bounds, from which
# published forms map them to [0, 1].
_FEATURES = (-1.0, 1.0)
_DPMAC_EPOCHS = 30
_DPMAC_RATE = 0.01
_FEWEST_FEATURES, _MOST_FEATURES = 64, 1500
# Records times epsilon from which directions of patches are learned.
_TOLD = 5000
# Directions that are whitened at the most: a second moment of more is slow.
_MOST = 4000
# Of the budget, as in the rounds.
_WHITENING_SHARE = 0.1


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
        default: whether it runs unless others are named.
        slow: whether even `methods=("all",)` leaves it out: its tuning takes
            minutes.
        own: whether it can train a model of yours.
        only_own: whether it is for models of yours only.
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
    default: bool = False
    slow: bool = False
    own: bool = False
    only_own: bool = False
    tuned: str | None = None
    optimizer: str = "sgd"

    def available(self):
        """Whether the packages and the backend at hand can run it."""
        return known.runs_here(self.packages, self.backend)


# Without privacy -----------------------------------------------------------


def _non_private(task, seed, training):
    model = task.network(seed)
    loss = loss_of(model, task.data[0].shape[1:])
    return training.fit(model, task.data, loss=lambda: loss)


def _truncated(task, seed, training):
    head = functools.partial(PrivateDense, unprotected=True)
    return training.fit(task.model(seed, head=head), task.data)


# The output layer: what is below stays at its initial weights, which makes it
# public. ---------------------------------------------------------------------


def _one_release(task, seed, training):
    return training.release(task.model(seed, trainable=False), task.data)


def _head_of_rounds(task):
    return PrivateDense(
        task.classes, use_bias=False, rounds=Rounds(rounds=80), name="output"
    )


def _rounds(task, seed, training, products=False):
    body = task.body(seed, trainable=False)
    return _rounds_on(task, seed, training, body, task.data, products)


def _rounds_on(task, seed, training, body, data, products=False):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input(data[0].shape[1:])
    width = (
        keras.Sequential([inputs, *body]).output_shape[-1]
        if body
        else (inputs.shape[-1])
    )
    above = _products() if products else _whitening(width)
    layers = [*body, *above, _head_of_rounds(task)]
    return training.release(keras.Sequential([inputs, *layers]), data)


def _whitening(width):
    whitening = DPPCA(min(width, _MOST), whitening=0.5, name="whitening")
    return whitening, NormalizationLayer()


def _products():
    return NormalizationLayer(), QuadraticFeatures()


# Public features of the records, whatever the user's model is. ----------------


def _features_release(task, seed, training):
    keras.utils.set_random_seed(seed)
    head = PrivateDense(task.classes, name="output")
    model = keras.Sequential([keras.Input(task.x.shape[1:]), head])
    return training.release(model, (task.x, task.y))


def _features_rounds(task, seed, training):
    return _rounds_on(task, seed, training, [], (task.x, task.y))


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
    # Padded, so that small images have a second layer.
    model = _pcdbn_network(
        task, guarantee="published", strides=2, pooling=1, padding="same"
    )
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
            _head_of_rounds(task),
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


def network(task, seed, inputs):
    """The Keras 3 model that DP-SGD trains."""
    del inputs
    return task.network(seed)


def _for_steps(task, seed, inputs):
    del inputs
    return task.for_steps(seed)


def _head(task, seed, inputs):
    """Its output layer alone."""
    keras.utils.set_random_seed(seed)
    head = keras.layers.Dense(
        task.classes, kernel_initializer=task.head_initializer(seed)
    )
    return keras.Sequential([keras.Input(inputs), head])


def _rival_cnn(task, seed, inputs):
    keras.utils.set_random_seed(seed)
    return dp_sgd.small_cnn(inputs, task.classes)


def _dp_sgd(
    task,
    seed,
    epsilon,
    form=None,
    kind=baselines.DPSGDClassifier,
    network=network,
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


def _dp_sgd_products(task, seed, epsilon):
    train = _dp_sgd(task, seed, epsilon, "fast_clipping", network=_head)

    def fit(settings, x, y):
        below = keras.Sequential([keras.Input(x.shape[1:]), *_products()])
        return _Behind(below, train(settings, _seen(below, x), y))

    return fit


def _dp_sgd_whitened(task, seed, epsilon):
    return WhitenedDPSGD(
        functools.partial(_head, task, seed),
        epsilon,
        task.spec.delta,
        task.spec.neighbours,
    )


@dataclasses.dataclass(frozen=True)
class WhitenedDPSGD:
    """tensorflow-privacy's DP-SGD of an output layer on features that a
    second moment whitens, released for a tenth of the budget.

    `rival.tune` takes it: all trials of a choice share the whitening of
    `prepare`, and a call whitens anew.

    Args:
        head: function from the shape of a row of features to a Keras model.
        epsilon, delta, neighbours: of both together.
    """

    head: collections.abc.Callable
    epsilon: float
    delta: float
    neighbours: str = "add_remove"

    def __call__(self, settings, x, y):
        white, ledger = self._whiten(x)
        made = self._train(settings, _seen(white, x), y, ledger)
        return _Behind(white, made)

    def prepare(self, x):
        """A function that whitens features, and one that trains on these;
        every training is charged for the whitening, too."""
        white, whitened = self._whiten(x)

        def fit(settings, x, y):
            ledger = self._ledger()
            ledger.charge(whitened.entries)
            return self._train(settings, x, y, ledger)

        return functools.partial(_seen, white), fit

    def _ledger(self):
        budget = PrivacyBudget(self.epsilon, self.delta)
        return Ledger(budget, neighbours=self.neighbours)

    def _whiten(self, x):
        ledger = self._ledger()
        whitening = _whitening(x.shape[1])
        white = keras.Sequential([keras.Input(x.shape[1:]), *whitening])
        white.compile("sgd", "mse")
        released = PrivateModel(
            ledger, data=x, guarantee=Proven(spends=_WHITENING_SHARE)
        )
        # Nothing of it trains but by the release.
        few = x[:1], np.zeros((1, white.output_shape[-1]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            white.fit(*few, callbacks=[released], verbose=0)
        return white, ledger

    def _train(self, settings, x, y, ledger):
        config = baselines.DPSGDConfig(form="fast_clipping", **settings)
        head = self.head(x.shape[1:])
        return baselines.DPSGDClassifier(head, config, ledger).fit(x, y)


def _seen(model, x):
    return model.predict(x, batch_size=4096, verbose=0)


class _Behind:
    """A rival that sees what a model makes of records."""

    def __init__(self, model, rival):
        self._model, self._rival = model, rival
        self.ledger = rival.ledger

    def predict(self, x):
        return self._rival.predict(_seen(self._model, x))

    def evaluate(self, x, y):
        return self._rival.evaluate(_seen(self._model, x), y)


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
_OPACUS_KIND = {"kind": OpacusClassifier}
_MENDED = {"network": _for_steps}
_OURS = {"kind": NoisyStepsClassifier}
_HEAD = {"network": _head}
_CNN = {"network": _rival_cnn}
_IMAGES = {"on_images": True}
# Names, labels and needs are in `methods.json`.
_HOW = {
    "non_private": {"train": _non_private},
    "truncated": {"train": _truncated},
    "published": {"train": _ilm},
    "adlm_published": {"train": _adlm_published, "before": _pretrain_adlm},
    "one_release": {"train": _one_release},
    "rounds": {"train": _rounds},
    "rounds_products": _of(_rounds, products=True),
    "features_release": {"train": _features_release},
    "features_rounds": {"train": _features_rounds},
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
    # One choice for all who clip and add noise to the same sums.
    "all_layers": _rival("all", **_MENDED, **_OURS),
    "dp_sgd_vectorized": _rival("all", form="vectorized"),
    "dp_sgd_fast": _rival("all", **_FAST),
    "dp_adam": _rival("all, adam", "adam", **_FAST),
    "dp_sgd_cnn": {**_rival("cnn", form="vectorized", **_CNN), **_IMAGES},
    # The output layer only: the rival feature for feature.
    "dp_sgd_head": _rival("head", **_HEAD, **_FAST),
    "dp_sgd_whitened": {"train": _dp_sgd_whitened, "tuned": "head, whitened"},
    "dp_sgd_products": {"train": _dp_sgd_products, "tuned": "head, products"},
    "jax_privacy": _rival("all", **_MENDED, **_JAX_KIND),
    "jax_privacy_cnn": {**_rival("cnn", **_CNN, **_JAX_KIND), **_IMAGES},
    "jax_privacy_head": _rival("head", **_HEAD, **_JAX_KIND),
    "opacus": _rival("all", **_MENDED, **_OPACUS_KIND),
    "opacus_head": _rival("head", **_HEAD, **_OPACUS_KIND),
}


METHODS = {
    name: Method(name=name, **told, **_HOW[name])
    for name, told in known.methods().items()
}


def available(delta, own=False, whole=False):
    """Names of the methods that run here and at this delta.

    Args:
        delta: float.
        own: whether they train a model of the user's.
        whole: whether not only those of the default.
    """
    return tuple(
        name
        for name, m in METHODS.items()
        if m.available()
        and (delta or not m.needs_delta)
        and (m.own if own else not m.only_own)
        and (m.default or whole and not m.slow)
    )


def check_name(name):
    """Refuses a name that no method has.

    Raises:
        ValueError: naming what comes near.
    """
    if name not in METHODS:
        near = difflib.get_close_matches(str(name), METHODS, n=4, cutoff=0.4)
        raise ValueError(
            f"`methods` must be names of methods. Received: {name!r}. "
            f"Near it are: {', '.join(near or available(1.0))}"
        )
