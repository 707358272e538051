"""What `keras-fm audit` audits: small forms of our models and their controls.

Every subject is a pair of training functions on one architecture: `fit` with
a `PrivateModel`, and `control` without, on the exact cross-entropy. Layers that
are frozen in the one are frozen in the other: a control that could learn more
than the audited training would promise power that is not there. What a network
memorises shows only after hundreds of epochs.

The published forms are set up where their claim is weakest: small networks,
full batches, and for `ilm` a batch normalisation after the noisy layer, which
takes a shift that all records share out again.
"""

import dataclasses
import json
import math
import os

import keras
import numpy as np

from keras_fm import budget as budget_lib
from keras_fm import datasets, domain, provenance
from keras_fm.auditing import audit
from keras_fm.callbacks import PrivateModel
from keras_fm.layers.normalization_layer import NormalizationLayer
from keras_fm.layers.perturbed_affine import PerturbedAffine
from keras_fm.layers.private_dense import PrivateDense
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.models import DPMAC, DeepPrivateAutoencoder, FunctionalNet

# Which guarantees a model has.
MODELS = {
    "ilm": ("published",),
    "head": ("published", "proven"),
    "dpa": ("published", "proven"),
    "dpmac": ("published", "proven"),
    "functional": ("published", "proven"),
}
# Norm of the inputs of a network that clips coefficients.
_NORM = 8.0
# Of full batches, in one epoch.
_STEPS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """One model to audit. Every field is public and fixed in advance.

    Args:
        model: one of `MODELS`:
            `ilm`: `PerturbedAffine` - batch normalisation - ReLU - 25 units -
            `PrivateDense`; `head`: `PrivateDense` on a layer that is trained
            (published: dPA's head) or frozen (proven); `dpa`:
            `DeepPrivateAutoencoder`; `dpmac`; `functional`: `FunctionalNet`.
        guarantee: `"published"` or `"proven"`.
        epsilon: what the private training claims, or may spend.
        delta: of proven forms and of `dpmac`; the other published claims are
            pure.
        hidden: units of the first layer.
        epochs: of `fit`, where records are trained on in every step.
        control_epochs: of `control`.
        batch_size: int, 0 for all records at once.
        learning_rate: of Adam.
        normalization: of `ilm`, after its first layer: `"batch"`,
            `"minmax"` (over the batch) or `"none"`.
        noise: of `ilm`: `"once"` (the paper) or `"per_step"` (the authors'
            code).

    Raises:
        ValueError: if a value is unknown or outside its range.
    """

    model: str = "ilm"
    guarantee: str = "published"
    epsilon: float = 0.3
    delta: float = 1e-5
    hidden: int = 64
    epochs: int = 600
    control_epochs: int = 600
    batch_size: int = 0
    learning_rate: float = 3e-3
    normalization: str = "batch"
    noise: str = "once"

    def __post_init__(self):
        if self.model not in MODELS:
            raise ValueError(
                f"`model` must be one of {tuple(MODELS)}. Received: "
                f"model={self.model!r}"
            )
        if self.guarantee not in MODELS[self.model]:
            raise ValueError(
                f"`guarantee` of {self.model} must be one of "
                f"{MODELS[self.model]}. Received: "
                f"guarantee={self.guarantee!r}"
            )
        budget_lib.PrivacyBudget(self.epsilon, self.delta)
        domain.check_count("hidden", self.hidden)
        domain.check_count("epochs", self.epochs)
        domain.check_count("control_epochs", self.control_epochs)
        if self.batch_size:
            domain.check_count("batch_size", self.batch_size)
        domain.check_norm_bound("learning_rate", self.learning_rate)
        for name, known in (
            ("normalization", ("batch", "minmax", "none")),
            ("noise", ("once", "per_step")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"`{name}` must be one of {known}. Received: "
                    f"{name}={getattr(self, name)!r}"
                )
        if self.model == "dpmac" and self.delta == 0:
            raise ValueError(
                "The steps of a DPMAC need a `delta` greater than 0."
            )

    def functions(self, classes):
        """`(fit, control)` for `keras_fm.audit`.

        `fit` returns `(model, ledger)`, so that the claim, its relation and
        its guarantee come from the ledger.
        """
        build, train = _FORMS[self.model]

        def fit(x, y):
            model = build(self, x.shape[1:], classes)
            private = train(self, model, x, y)
            return _view(model), private.ledger

        def control(x, y):
            model = build(self, x.shape[1:], classes)
            return _view(_train_exactly(self, model, x, y))

        return fit, control

    @property
    def is_published(self):
        return self.guarantee == "published"

    @property
    def neighbours(self):
        """The relation of the claim."""
        return "add_remove" if self.model == "dpmac" else "replace_one"

    def budget(self):
        return budget_lib.PrivacyBudget(self.epsilon, self.delta)

    def lot(self, x):
        return min(self.batch_size or len(x), len(x))


def load(dataset, records=0):
    """Flat records in [0, 1], their labels and the number of classes.

    Args:
        dataset: see `keras_fm.datasets.load`.
        records: int, only the first so many; 0 for all.

    Returns:
        tuple `(x, y, classes)`; the number of classes is that of the public
        data set.

    Raises:
        ValueError: if it is no data set of images.
    """
    loaded = datasets.load(dataset)
    if not isinstance(loaded, tuple):
        raise ValueError(f"{dataset!r} is no data set of images.")
    (x, y), (_, y_test) = loaded
    classes = int(max(y.max(), y_test.max())) + 1
    x = x.reshape(len(x), -1)
    return (x[:records], y[:records], classes) if records else (x, y, classes)


def run(
    subject,
    dataset="digits",
    *,
    train_records=0,
    canaries=None,
    design="swap",
    kind="labels",
    score="loss",
    seeds=(0, 1, 2),
    out=None,
    progress=True,
    command=None,
):
    """Audits a subject on a data set and writes what was found.

    Args:
        subject: a `Subject`.
        dataset: see `keras_fm.datasets.load`.
        train_records: int, only the first so many; 0 for all.
        canaries, design, kind, score, seeds, progress: see
            `keras_fm.audit`. `"noise"` canaries are uniform in
            [0, 1], `"unit"` ones have one pixel of 1.
        out: folder for `audit.json`, `audit.txt` and `audit.png`; `None`
            writes nothing.
        command: `None`, or the command line to write down.

    Returns:
        An `AuditReport`.

    Raises:
        ValueError: if an argument is invalid.
    """
    if design == "include" and subject.neighbours == "replace_one":
        raise ValueError(
            f'design="include" says nothing about {subject.model}, whose '
            f'statement is for {subject.neighbours}. Use design="swap".'
        )
    x, y, classes = load(dataset, train_records)
    bounds = {
        "noise": {"low": 0.0, "high": 1.0},
        "unit": {"bound": 1.0},
    }.get(kind, {})
    fit, control = subject.functions(classes)
    report = audit(
        fit,
        (x, y),
        control=control,
        classes=classes,
        canaries=canaries,
        design=design,
        kind=kind,
        score=score,
        seeds=seeds,
        progress=progress,
        **bounds,
    )
    if out:
        os.makedirs(out, exist_ok=True)
        data = json.loads(report.to_json()) | provenance.record(command)
        for name, text in (
            ("audit.txt", report.text()),
            ("audit.json", json.dumps(data, indent=1)),
        ):
            with open(os.path.join(out, name), "w") as f:
                f.write(text + "\n")
        report.plot(os.path.join(out, "audit.png"))
    return report


# Training ----------------------------------------------------------------


def _fit(
    subject, model, loss, x, y, callbacks=(), epochs=None, learning_rate=None
):
    epochs = subject.epochs if epochs is None else epochs
    lot, repeats = subject.lot(x), 1
    if lot == len(x):
        # Full batches, several to an epoch: an epoch costs more than a step.
        repeats = min(_STEPS, epochs)
        x, y = (np.concatenate([a] * repeats) for a in (x, y))
    rate = learning_rate or subject.learning_rate
    model.compile(keras.optimizers.Adam(rate), loss)
    model.fit(
        x,
        y,
        batch_size=lot,
        epochs=-(-epochs // repeats),
        shuffle=repeats == 1,
        callbacks=list(callbacks),
        verbose=0,
    )


def _view(model):
    """How the attack looks at a trained model.

    The noise that shifts all inputs is absent at inference, so moving
    averages of a batch normalisation do not fit there. The attack takes the
    statistics of the records that it asks about.
    """
    batch = keras.layers.BatchNormalization
    if not any(isinstance(layer, batch) for layer in model.layers):
        return model

    def logits(x):
        values = keras.ops.convert_to_tensor(x)
        for layer in model.layers:
            if isinstance(layer, batch):
                mean, variance = keras.ops.moments(values, axes=[0])
                scale = layer.gamma / keras.ops.sqrt(variance + layer.epsilon)
                values = (values - mean) * scale + layer.beta
            else:
                values = layer(values, training=False)
        return keras.ops.convert_to_numpy(values)

    return logits


def _train_exactly(subject, model, x, y):
    """Without privacy: what the private form learns, by exact gradients."""
    if isinstance(model, (DPMAC, FunctionalNet)):
        # The same layers, by ordinary gradients.
        model = keras.Sequential([model.feature_model, *model.private_layers])
    if isinstance(model, DeepPrivateAutoencoder):
        # Its encoders are learned in the private form, too.
        if subject.is_published:
            model.pretrain(
                x,
                epochs=max(1, subject.control_epochs // 10),
                batch_size=subject.lot(x),
                optimizer=keras.optimizers.Adam(subject.learning_rate),
            )
        for encoder in model.encoders:
            encoder.trainable = True
            for variable in encoder.trainable_variables:
                variable.trainable = "decoder" not in variable.name
    exact = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # A convex problem stands, and needs, longer steps.
    alone = len(model.trainable_weights) <= 2
    _fit(
        subject,
        model,
        exact,
        x,
        y,
        epochs=subject.control_epochs,
        learning_rate=(10 if alone else 1) * subject.learning_rate,
    )
    return model


def _train_perturbed(subject, model, x, y):
    """The papers' training: records in every step."""
    private = PrivateModel(
        subject.epsilon, guarantee="published", batch_size=subject.lot(x)
    )
    _fit(subject, model, TaylorCrossEntropy(), x, y, [private])
    return private


def _train_released(subject, model, x, y):
    """The proven training starts at the optimum of what it released."""
    private = PrivateModel(
        subject.budget(), data=(x, y), neighbours=subject.neighbours
    )
    _fit(subject, model, TaylorCrossEntropy(), x, y, [private], epochs=1)
    return private


def _train_head(subject, model, x, y):
    published = subject.is_published
    train = _train_perturbed if published else _train_released
    return train(subject, model, x, y)


def _train_dpa(subject, model, x, y):
    if not subject.is_published:
        return _train_released(subject, model, x, y)
    private = PrivateModel(
        subject.epsilon, data=(x, y), **model.private_arguments
    )
    model.pretrain(
        x,
        private,
        epochs=max(1, subject.epochs // 10),
        batch_size=subject.lot(x),
        optimizer=keras.optimizers.Adam(subject.learning_rate),
    )
    _fit(subject, model, TaylorCrossEntropy(), x, y, [private])
    return private


def _train_dpmac(subject, model, x, y):
    # Every step costs noise: an expected batch of a fourth of the records.
    size = min(subject.batch_size or max(1, len(x) // 4), len(x))
    model.compile(keras.optimizers.Adam(subject.learning_rate))
    if subject.is_published:
        private = PrivateModel(
            subject.budget(),
            data=(x, y),
            guarantee="published",
            # That which its accountant is for.
            neighbours=subject.neighbours,
            batch_size=size,
        )
        model.fit(
            x,
            y,
            batch_size=size,
            epochs=subject.epochs,
            callbacks=[private],
            verbose=0,
        )
        return private
    private = PrivateModel(subject.budget(), neighbours=subject.neighbours)
    batches = datasets.PoissonBatches(x, y, batch_size=size)
    model.fit(batches, epochs=subject.epochs, callbacks=[private], verbose=0)
    return private


def _train_functional(subject, model, x, y):
    if subject.is_published:
        private = PrivateModel(
            subject.epsilon, data=(x, y), guarantee="published", lot="data"
        )
    else:
        private = PrivateModel(
            subject.budget(), data=(x, y), neighbours=subject.neighbours
        )
    model.compile("sgd")
    model.fit(x, y, batch_size=len(x), epochs=1, callbacks=[private], verbose=0)
    return private


# Architectures -----------------------------------------------------------


def _build_ilm(subject, inputs, classes):
    after = {
        "batch": [keras.layers.BatchNormalization(momentum=0.9)],
        "minmax": [NormalizationLayer(mode="batch", running=False)],
        "none": [],
    }[subject.normalization]
    return keras.Sequential(
        [
            keras.Input(inputs),
            PerturbedAffine(subject.hidden, noise=subject.noise, name="affine"),
            *after,
            keras.layers.Activation("relu"),
            keras.layers.Dense(25, activation="relu"),
            PrivateDense(classes, name="output"),
        ]
    )


def _build_head(subject, inputs, classes):
    """Frozen features must be many, or even the control fits no label."""
    if subject.is_published:
        body = [
            keras.layers.Dense(subject.hidden, activation="relu"),
            keras.layers.Dense(25, activation="relu"),
        ]
    else:
        body = [
            keras.layers.Dense(
                16 * subject.hidden,
                activation="tanh",
                kernel_initializer=keras.initializers.RandomNormal(
                    stddev=2 / math.sqrt(np.prod(inputs))
                ),
                trainable=False,
            ),
            keras.layers.UnitNormalization(),
        ]
    return keras.Sequential(
        [
            keras.Input(inputs),
            *body,
            PrivateDense(classes, name="output"),
        ]
    )


def _build_dpa(subject, inputs, classes):
    return DeepPrivateAutoencoder(
        inputs,
        hidden=(subject.hidden,),
        units=classes,
        guarantee=subject.guarantee,
    )


def _below():
    """Every record centred and of one norm: public maps of one record."""
    return [
        keras.layers.LayerNormalization(center=False, scale=False),
        NormalizationLayer(),
        keras.layers.Rescaling(_NORM),
    ]


def _build_dpmac(subject, inputs, classes):
    return DPMAC(
        inputs,
        [
            keras.layers.Dense(subject.hidden, activation="relu"),
            keras.layers.Dense(classes),
        ],
        clip=[0.1, 0.3],
        z_steps=1,
        z_optimizer=keras.optimizers.SGD(0.1),
        below=_below(),
    )


def _build_functional(subject, inputs, classes):
    # What one class of many would learn first.
    rare = keras.initializers.Constant(-math.log(max(1, classes - 1)))
    output = keras.layers.Dense(classes, bias_initializer=rare)
    if not subject.is_published:
        hidden = keras.layers.Dense(subject.hidden, activation="tanh")
        return FunctionalNet(
            inputs, [hidden, output], rounds=10, below=_below()
        )
    # Theorem 6 leaves out the sum over incoming units: one layer on many
    # public features in [0, 1], where that matters most.
    public = keras.layers.Dense(
        128 * subject.hidden,
        activation="sigmoid",
        kernel_initializer=keras.initializers.RandomNormal(stddev=10.0),
        trainable=False,
    )
    return FunctionalNet(
        inputs,
        [output],
        rounds=1,
        curvature="diagonal",
        curvature_weight=1.0,
        step_size=1.0,
        momentum=0.0,
        below=[
            keras.layers.LayerNormalization(center=False, scale=False),
            public,
        ],
    )


_FORMS = {
    "ilm": (_build_ilm, _train_perturbed),
    "head": (_build_head, _train_head),
    "dpa": (_build_dpa, _train_dpa),
    "dpmac": (_build_dpmac, _train_dpmac),
    "functional": (_build_functional, _train_functional),
}
