"""Every way of training that a comparison knows."""

import collections.abc
import dataclasses
import functools
import importlib.util

import keras

from keras_fm import baselines
from keras_fm.heads.private_dense import PrivateDense
from keras_fm.heads.rounds import Rounds
from keras_fm.lab.engine.job import Series
from keras_fm.lab.engine.watch import Watch
from keras_fm.lab.recipes import adlm, dpa, dpmac, functional_net, pcdbn
from keras_fm.lab.recipes.training import exact
from keras_fm.papers.adlm.perturbed_affine import PerturbedAffine
from keras_fm.private_maps.dp_pca import DPPCA
from keras_fm.public.normalization_layer import NormalizationLayer

_DPMAC_EPOCHS = 30
_DPMAC_RATE = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(Series):
    """A way of training, as a comparison sees it.

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
        tuned: `None`, or the name of the choice on a validation split that
            it shares with others of the same name.
        optimizer: of a rival.
    """

    about: str
    train: collections.abc.Callable
    before: collections.abc.Callable | None = None
    on_images: bool = False
    needs_delta: bool = False
    packages: tuple = ()
    backend: str | None = None
    tuned: str | None = None
    optimizer: str = "sgd"

    def available(self):
        """Whether the packages and the backend at hand can run it."""
        if self.backend not in (None, keras.backend.backend()):
            return False
        return all(map(importlib.util.find_spec, self.packages))


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


def _many_reads(task, seed, training):
    keras.utils.set_random_seed(seed)
    width = task.spec.hidden or task.x.shape[1]
    model = keras.Sequential(
        [
            keras.Input(task.x.shape[1:]),
            *task.body(seed, trainable=False),
            DPPCA(width, whitening=0.5),
            NormalizationLayer(),
            PrivateDense(task.classes, use_bias=False, rounds=Rounds(reads=80)),
        ]
    )
    return training.release(model, task.data)


# The papers ----------------------------------------------------------------


def _ilm(task, seed, training):
    return adlm.perturbed(
        training, task.model(seed, kind=PerturbedAffine), task.data
    )


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
    )


def _adlm_proven(task, seed, training):
    body = task.body(seed, trainable=False)
    keras.utils.set_random_seed(seed)
    top = keras.Sequential(body, name="body") if body else None
    return adlm.proven(training, task.data, task.classes, top=top)


def _dpa_published(task, seed, training):
    # Public features are of unit length: each is in [-1, 1].
    model = dpa.network(
        task.x.shape[1:],
        task.classes,
        task.units,
        guarantee="published",
        bounds=(-1.0, 1.0),
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
    return pcdbn.network(task.images.shape[1:], task.classes, **kwargs)


def _pcdbn_published(task, seed, training):
    model = _pcdbn_network(task, guarantee="published", strides=2, pooling=1)
    pretraining = training.but(pretraining_epochs=2, pretraining_rate=1e-3)
    return pcdbn.published(pretraining, model, (task.images, task.y))


def _pcdbn_proven(task, seed, training):
    return training.release(_pcdbn_network(task), (task.images, task.y))


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
        is_published,
        below=[keras.layers.Rescaling(functional_net.NORM)],
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


def _dp_sgd(
    task, seed, epsilon, form=None, kind=baselines.DPSGDClassifier, body=True
):
    def fit(settings, x, y):
        return kind(
            rival_network(task, seed, x.shape[1:], body),
            baselines.DPSGDConfig(form=form, **settings),
            epsilon=epsilon,
            delta=task.spec.delta,
            neighbours=task.spec.neighbours,
        ).fit(x, y)

    return fit


def _rival(name, label, about, tuned="all", optimizer="sgd", **kwargs):
    jax = kwargs.get("kind") is baselines.JaxDPSGDClassifier
    return Method(
        name=name,
        label=label,
        kind="proven",
        about=about,
        train=functools.partial(_dp_sgd, **kwargs),
        needs_delta=True,
        packages=("jax_privacy",)
        if jax
        else ("tensorflow_privacy", "tf_keras"),
        backend="jax" if jax else None,
        tuned=tuned,
        optimizer=optimizer,
    )


_JAX = {"kind": baselines.JaxDPSGDClassifier}
_FAST = {"form": "fast_clipping"}
# The output layer only: the rival feature for feature.
_HEAD = {"body": False}


def _method(name, label, about, train, kind="proven", **kwargs):
    return Method(
        name=name, label=label, kind=kind, about=about, train=train, **kwargs
    )


_published = functools.partial(_method, kind="claimed")
_plain = functools.partial(_method, kind="no privacy")

METHODS = {
    method.name: method
    for method in (
        _plain(
            "non_private",
            "non-private",
            "All layers, exact softmax cross-entropy.",
            _non_private,
        ),
        _plain(
            "truncated",
            "truncated (Taylor)",
            "All layers, Taylor cross-entropy, no noise.",
            _truncated,
        ),
        _published(
            "published",
            "published (ILM), claimed",
            "`PerturbedAffine` and noisy coefficients, one noise for all "
            "steps.",
            _ilm,
        ),
        _published(
            "adlm_published",
            "published (AdLM), claimed",
            "`AdaptiveLaplace` as published: its own ReLU layer, min-max "
            "normalisation, a pre-trained twin.",
            _adlm_published,
            before=_pretrain_adlm,
        ),
        _method(
            "proven",
            "proven, one read",
            "The output layer's objective is released once.",
            _one_read,
        ),
        _method(
            "rounds_proven",
            "proven, 80 reads",
            "80 reads of the output layer, whitened by a released moment.",
            _many_reads,
            needs_delta=True,
        ),
        _method(
            "adlm_proven",
            "proven, adaptive (AdLM)",
            "`AdaptiveLaplace` around the layers of `proven`: the same budget "
            "also pays for the relevance that scales the features.",
            _adlm_proven,
        ),
        _published(
            "dpa_published",
            "published (dPA), claimed",
            "One encoder, pre-trained, then fine-tuned, as published.",
            _dpa_published,
        ),
        _method(
            "dpa_proven",
            "proven, auto-encoder (dPA)",
            "The affine layer becomes a `PrivateEncoder`: the same budget "
            "also pays for its moments.",
            _dpa_proven,
        ),
        _published(
            "pcdbn_published",
            "published (pCDBN), claimed",
            "`PrivateCDBN` as published, on images; strides of 2 for pooling, "
            "as in its authors' code.",
            _pcdbn_published,
            on_images=True,
        ),
        _method(
            "pcdbn_proven",
            "proven, filters (pCDBN)",
            "`PrivateCDBN`: every layer's filters from a release, on images.",
            _pcdbn_proven,
            on_images=True,
        ),
        _published(
            "dpmac_published",
            "published (DP-MAC), claimed",
            "Shuffled batches of a fixed size, accounted as the paper does.",
            functools.partial(_dpmac, form="published"),
            needs_delta=True,
        ),
        _method(
            "dpmac_proven",
            "proven, DP-MAC",
            "All layers, noisy clipped coefficients of Poisson batches.",
            functools.partial(_dpmac, form="proven"),
            needs_delta=True,
        ),
        _published(
            "functional_published",
            "published (FunctionalNet), claimed",
            "All layers, sigmoid, ten rounds, sums clipped as printed.",
            functools.partial(_functional, is_published=True),
        ),
        _method(
            "functional_proven",
            "proven, FunctionalNet",
            "All layers, tanh, ten rounds, records clipped.",
            functools.partial(_functional, is_published=False),
        ),
        _rival(
            "dp_sgd_vectorized",
            "DP-SGD, vectorized optimizer",
            "tensorflow-privacy, all layers, per-record gradients.",
            form="vectorized",
        ),
        _rival(
            "dp_sgd_fast",
            "DP-SGD, fast clipping",
            "tensorflow-privacy, all layers, norms of gradients only.",
            **_FAST,
        ),
        _rival(
            "dp_adam",
            "DP-Adam, fast clipping",
            "tensorflow-privacy, all layers, Adam.",
            "all, adam",
            "adam",
            **_FAST,
        ),
        _rival(
            "dp_sgd_head",
            "DP-SGD on proven's features",
            "tensorflow-privacy, output layer only.",
            "head",
            **_FAST,
            **_HEAD,
        ),
        _rival(
            "jax_privacy",
            "DP-SGD, jax-privacy",
            "jax-privacy on the JAX backend, all layers.",
            **_JAX,
        ),
        _rival(
            "jax_privacy_head",
            "jax-privacy on proven's features",
            "jax-privacy on the JAX backend, output layer only.",
            "head",
            **_JAX,
            **_HEAD,
        ),
    )
}


def available():
    """Names of the methods that run here."""
    return tuple(name for name, m in METHODS.items() if m.available())
