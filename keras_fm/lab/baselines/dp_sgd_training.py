"""The part of DP-SGD that does not depend on the library.

Settings, plan, guarantee, ledger and report of a classifier trained by
DP-SGD. `dp_sgd` trains by tensorflow-privacy, `dp_sgd_jax` by jax-privacy,
`dp_sgd_opacus` by Opacus. If a library cannot train a model, the noisy steps of
`keras_fm.make_private` do, and the report names them. Sampler and accountant
are one object, a `SamplingPlan` of `keras_fm.kernel`, so they cannot disagree.
"""

import contextlib
import functools
import importlib
import math
import secrets
import statistics
import time
import types

import keras
import numpy as np
from scipy import special

from keras_fm.callbacks import PrivateModel
from keras_fm.core.guarantee import Proven
from keras_fm.kernel import checks
from keras_fm.kernel.access import columns
from keras_fm.kernel.budget import Neighbours, PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_entry import LedgerEntry
from keras_fm.kernel.ledger.statement import RECORD
from keras_fm.lab.baselines.dp_sgd_config import (
    DPSGDConfig,
    check_budget,
    check_records,
)
from keras_fm.lab.baselines.record_views import Views, told
from keras_fm.per_example.private_network import make_private

_OURS = "keras_fm.make_private"


class DPSGDTrainer:
    """Base of classifiers trained by DP-SGD; a subclass names the library.

    A subclass sets `_library`, `_generator`, `_form` and `_clipping`, which the
    report names, and defines `_import_library`, `_train` and `_why_not`. One
    that trains a copy of the model also defines `_forward` and `to_keras`.
    """

    _library: str | None = None
    _generator: str | None = None
    _form: str | None = None
    _clipping: str | None = None

    def __init__(
        self,
        model,
        config,
        epsilon,
        delta=None,
        *,
        seed=None,
        neighbours="add_remove",
        augment=None,
    ):
        checks.instance("config", config, DPSGDConfig, "a DPSGDConfig")
        self._ledger = None
        if isinstance(epsilon, Ledger):
            self._ledger, neighbours = epsilon, epsilon.neighbours
            epsilon, delta = epsilon.budget.epsilon, epsilon.budget.delta
        check_budget(epsilon, delta)
        if (augment is None) != (config.views == 1):
            raise ValueError(
                "`augment` makes each of the `views` of a record: give both, "
                f"views > 1. Received: augment={told(augment)}, "
                f"views={config.views}"
            )
        self._augment = augment
        if model is not None and not isinstance(model, keras.Model):
            model = keras.Sequential(list(model))
        self.config = config
        self.epsilon = float(epsilon)
        self.delta = float(delta)
        self.neighbours = Neighbours.of(neighbours)
        self.seed = seed
        self.plan = None
        self._model = in_a_row(model)
        # The `PrivateModel`, if `make_private` trains.
        self._callback = None
        self._seconds = None
        self._step_seconds = []

    def fit(self, x, y, num_classes=None):
        """Trains once on the records `x`, `y`.

        Args:
            x: array `(n, ...)` of numbers, at most 1e6 in modulus.
            y: int array `(n,)` of class numbers.
            num_classes: int. Required with `model=None` (the number of classes
                is public and never computed from `y`); otherwise it must equal
                the width of the model's output, if given.

        Returns:
            self.

        Raises:
            ImportError: if the library is not installed, or cannot work
                with Keras's backend.
            RuntimeError: if called again. A second fit would spend budget
                again: make a new classifier for it.
            ValueError: if the data do not fit the model.
        """
        if self.plan is not None:
            raise RuntimeError(
                f"This {type(self).__name__} was fitted already. Another fit "
                "on the same records spends epsilon again: build another "
                "classifier."
            )
        shape = np.shape(x)[1:]
        why = self._model is not None and self._why_not(self._model, shape)
        library = None if why else self._import_library()
        began = time.perf_counter()
        x, y = self._check_data(x, y, num_classes)
        if why:
            self._library = f"{_OURS}, since {self._library} cannot take {why}"
            self._train = self._by_noisy_steps
        others = self._ledger.entries if self._ledger else ()
        plan = self.config.plan(
            len(x),
            self.epsilon,
            self.delta,
            self.neighbours,
            others=[entry.build_mechanism() for entry in others],
        )
        entropy = secrets.randbits(256) if self.seed is None else self.seed
        batches = plan.batches(np.random.default_rng(entropy))
        self._views = None
        if self._augment is not None:
            # Not the random stream of the batches or of the noise.
            seed = np.random.SeedSequence(entropy).spawn(2)[1]
            self._views = Views(
                self._augment, self.config.views, x.shape[1:], seed
            )
        self._train(library, x, y, plan, batches)
        self._seconds = time.perf_counter() - began
        return self

    def _import_library(self):
        raise NotImplementedError

    def _why_not(self, model, shape):
        """Why the library cannot train a model on records of a shape, in words,
        or `None`."""

    def _train(self, library, x, y, plan, batches):
        """Prepares a step and passes it to `_take`."""
        raise NotImplementedError

    def _by_noisy_steps(self, library, x, y, plan, batches):
        """Trains by `make_private`, which draws its own samples by an equal
        plan."""
        config, model = self.config, self._model
        plain = config.sampling != "shuffled" and not config.average
        if self._views or not plain or math.isinf(self.epsilon):
            raise ValueError(
                f"This model is trained by {self._library}. It takes neither "
                'sampling="shuffled" nor `average`, `views` or an infinite '
                f"epsilon. Received: {config}, epsilon={self.epsilon}"
            )
        self._form = self._clipping = "make_private"
        private = make_private(
            model,
            clip=config.l2_norm_clip,
            physical_batch_size=config.physical_batch_size,
        )
        optimizer = config.keras_optimizer(plan.steps)
        private.compile(optimizer, self._keras_loss(model, x.shape[1:]))
        budget = self._ledger or PrivacyBudget(self.epsilon, self.delta)
        self._callback = PrivateModel(
            budget,
            guarantee=Proven(neighbours=str(self.neighbours)),
            reproducible_noise=self.seed,
        )
        # From here on the budget counts as spent.
        self.plan = plan
        private.fit(
            x,
            y,
            batch_size=plan.expected_batch_size,
            steps_per_epoch=plan.steps,
            callbacks=[self._callback],
            verbose=0,
        )

    def _take(self, step, plan, batches):
        """Takes all steps; `step` has `weights` and `assign`."""
        kept, average = self.config.average, None
        if self._ledger is not None:
            self._ledger.charge([self._entry(plan)])
        # From the first step on, the budget counts as spent.
        self.plan = plan
        for batch in batches:
            began = time.perf_counter()
            step(batch)
            self._step_seconds.append(time.perf_counter() - began)
            if kept:
                now = [np.asarray(w) for w in step.weights()]
                average = [
                    kept * a + (1 - kept) * w
                    for a, w in zip(average or now, now, strict=True)
                ]
        if average:
            step.assign(average)

    def to_keras(self):
        """The trained Keras 3 model: the one that was given, or
        `Sequential([Dense(num_classes)])` with `model=None`."""
        self._check_fitted()
        return self._model

    def predict(self, x):
        """Class probabilities.

        Args:
            x: array `(m, ...)`.

        Returns:
            float32 array `(m, num_classes)`.
        """
        z = self._outputs(x)
        if z.shape[1] == 1:
            z = np.hstack([0 * z, z])
        return special.softmax(z, axis=1)

    def evaluate(self, x, y):
        """Mean cross-entropy and accuracy on held-out records.

        Returns:
            dict with `"loss"` and `"accuracy"`.
        """
        p = self.predict(x)
        y = np.asarray(y).reshape(-1)
        picked = np.maximum(p[np.arange(len(y)), y], 1e-30)
        return {
            "loss": float(-np.mean(np.log(picked))),
            "accuracy": float(np.mean(p.argmax(axis=1) == y)),
        }

    def report(self):
        """The facts of the fit: mechanism, cost and settings.

        The epsilons are those of `ledger`.

        Returns:
            dict: `mechanism`, `epsilon_claimed`, `epsilon_proven` (infinite
            for `"shuffled"` and for a seeded fit), `delta`, `neighbours`,
            `record` (the unit, in words), `private` (false with a seed, or if
            delta is at least one over the number of records),
            `noise_multiplier`, `l2_norm_clip`, `sampling`, `sampling_rate`,
            `steps`, `expected_batch_size`, `overflow_probability`, `form`,
            `clipping` (`"norms"` if per-record gradients were never formed,
            else `"gradients"`), `seconds` (of the fit, with tracing),
            `step_seconds` (median over the steps after the first), `notes`.
        """
        self._check_fitted()
        plan, config = self.plan, self.config
        if math.isfinite(self.epsilon):
            ledger = self.ledger
            claimed, proven = ledger.claimed_epsilon(), ledger.epsilon()
        else:
            claimed = proven = math.inf
        times = self._step_seconds[1:] or self._step_seconds
        return {
            "mechanism": f"DP-SGD ({self._library})",
            "epsilon_claimed": claimed,
            "epsilon_proven": proven,
            "delta": self.delta,
            "neighbours": str(self.neighbours),
            "record": RECORD,
            "private": self._private and self.delta * plan.n < 1,
            "noise_multiplier": plan.noise_multiplier,
            "l2_norm_clip": config.l2_norm_clip,
            "sampling": config.sampling,
            "sampling_rate": plan.sampling_rate,
            "steps": plan.steps,
            "expected_batch_size": plan.expected_batch_size,
            "overflow_probability": plan.overflow_probability,
            "form": self._form,
            "clipping": self._clipping,
            "seconds": self._seconds,
            "step_seconds": statistics.median(times) if times else None,
            "notes": self._notes(),
        }

    @property
    def ledger(self):
        """The `keras_fm.Ledger` of the fit.

        Raises:
            RuntimeError: before `fit`.
            ValueError: for a fit without noise, which no ledger can hold.
        """
        self._check_fitted()
        if self._callback is not None:
            return self._callback.ledger
        if self._ledger is not None:
            return self._ledger
        if not math.isfinite(self.epsilon):
            raise ValueError("A fit without noise has no privacy ledger.")
        ledger = Ledger(
            PrivacyBudget(self.epsilon, self.delta),
            neighbours=self.neighbours,
        )
        ledger.charge([self._entry(self.plan)])
        return ledger

    def _entry(self, plan):
        """The ledger's entry for a fit."""
        config = self.config
        claimed = config.sampling == "shuffled"
        # The plan's multiplier is relative to the clip; replacing a record
        # changes the sum by twice the clip.
        moves = 2 if self.neighbours.replaces else 1
        mechanism = plan.mechanism(
            plan.noise_multiplier / moves, moves * config.l2_norm_clip
        ).config()
        if claimed:
            mechanism["claimed_epsilon"] = self.epsilon
        return LedgerEntry(
            name="DP-SGD",
            guarantee="claimed" if claimed else "proven",
            neighbours=str(self.neighbours),
            mechanism=mechanism,
            uses=(
                f"clipped gradients of {plan.steps} "
                f"{config.sampling} batches of {plan.n} records"
            ),
            proof=(
                "none: shuffled batches are accounted as if Poisson"
                if claimed
                else "Abadi et al. 2016, in real arithmetic"
            ),
            private=self.seed is None,
            notes=self._notes(),
        )

    def _notes(self):
        if self._callback is not None:
            return self._callback.ledger.entries[-1].notes
        notes = [
            "n is public",
            "initial weights: public by declaration",
            f"noise: float32, {self._generator}",
        ]
        if self.config.sampling == "shuffled":
            notes.append("shuffled batches accounted as if Poisson")
        if self.seed is not None:
            notes.append("reproducible noise: not private")
        return tuple(notes)

    @property
    def _private(self):
        return self.seed is None and math.isfinite(self.epsilon)

    def _check_fitted(self):
        if self.plan is None:
            raise RuntimeError(
                f"This {type(self).__name__} is not fitted. Call `fit` first."
            )

    def _outputs(self, x):
        """Logits, float32, computed for a few records at a time."""
        self._check_fitted()
        x = np.asarray(x, dtype="float32")
        forward = self._forward
        if self._callback is not None:
            forward = functools.partial(self._keras_outputs, self._model)
        return np.concatenate(
            [
                np.asarray(forward(x[i : i + 4096]), dtype="float32")
                for i in range(0, len(x), 4096)
            ]
        )

    def _forward(self, x):
        """Logits, from the library's copy of the model if it has one."""
        with without_softmax(self._model):
            return logits_of(self._model, x)

    def _keras_loss(self, model, shape):
        """The loss by which `make_private` trains a model."""
        return loss_of(model, shape)

    def _keras_outputs(self, model, x):
        """The outputs that `_forward` would return for the model."""
        return logits_of(model, x)

    def _check_data(self, x, y, num_classes):
        x = columns.as_numbers(x, dtype=np.float32)
        y = columns.as_numbers(y, "y", np.int32)
        if x.ndim < 2 or y.shape != x.shape[:1]:
            raise ValueError(
                "`x` must have shape (n, ...) and `y` shape (n,). "
                f"Received: x.shape={x.shape}, y.shape={y.shape}"
            )
        check_records(x)
        if self._model is None:
            # Public: never computed from the labels.
            checks.integer("num_classes", num_classes, at_least=2)
            head = keras.layers.Dense(num_classes, kernel_initializer="zeros")
            self._model = keras.Sequential([head])
        if not self._model.built:
            self._model.build((None, *x.shape[1:]))
        last = max(1, units_of(self._model, x.shape[1:]) - 1)
        if y.min() < 0 or y.max() > last:
            raise ValueError(f"`y` must hold class numbers from 0 to {last}.")
        return x, y


def parts_of(library, backend, install, **places):
    """The parts of a library by the names in `places`, each `"module"` or
    `"module:attribute"`.

    Raises:
        ImportError: if Keras has another backend, or one is not installed.
    """
    if keras.backend.backend() != backend:
        raise ImportError(
            f"DP-SGD by {library} needs the {backend} backend of Keras. "
            f"Received: backend={keras.backend.backend()!r}. It is chosen "
            f"before Keras is imported: {install}"
        )
    found = {}
    try:
        for name, place in places.items():
            module, _, attribute = place.partition(":")
            found[name] = importlib.import_module(module)
            if attribute:
                found[name] = getattr(found[name], attribute)
    except ImportError as error:
        raise ImportError(
            f"DP-SGD by {library}: {install}. The import that failed: {error}"
        ) from error
    return types.SimpleNamespace(**found)


# Models of any kind ---------------------------------------------------------


def units_of(model, shape):
    """Number of outputs of a model for records of a shape."""
    return model(np.zeros((1, *shape), "float32")).shape[-1]


def in_a_row(model):
    """A functional model that is a chain of layers as a sequential model of the
    same layers; any other model unchanged."""
    layers = getattr(model, "layers", ())
    inputs = getattr(model, "inputs", None) or ()
    if isinstance(model, keras.Sequential) or len(inputs) != 1:
        return model
    last = inputs[0]
    layers = [v for v in layers if not isinstance(v, keras.layers.InputLayer)]
    for layer in layers:
        if layer.input is not last:
            return model
        last = layer.output
    if len(layers) == 0 or model.outputs[0] is not last:
        return model
    return keras.Sequential([keras.Input(inputs[0].shape[1:]), *layers])


def _activation(model):
    """The name of a model's last activation."""
    layers = getattr(model, "layers", None) or [None]
    found = getattr(layers[-1], "activation", None)
    if isinstance(layers[-1], keras.layers.Softmax):
        return "softmax"
    return getattr(found, "__name__", None)


def loss_of(model, shape):
    """The cross-entropy for a model's outputs: probabilities if it ends in a
    softmax or sigmoid, else logits."""
    raw = _activation(model) not in ("softmax", "sigmoid")
    if units_of(model, shape) == 1:
        return keras.losses.BinaryCrossentropy(from_logits=raw)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=raw)


def with_weights(model, weights, x):
    """Outputs of a model in training with other trainable weights, and the
    scope of its assignments, which are not carried out."""
    mapping = list(zip(model.trainable_variables, weights, strict=True))
    with keras.StatelessScope(mapping) as scope:
        return model(x, training=True), scope


def changing_state(model, shape):
    """The part of a model that differs from step to step (a state, or random
    numbers), in words, or `None`."""
    x = np.random.default_rng(0).random((64, *shape), np.float32)
    model(x)
    weights = [v.value for v in model.trainable_variables]
    first, scope = with_weights(model, weights, x)
    # PyTorch's generator is not a layer's state.
    second, _ = with_weights(model, weights, x)
    pairs = [("seed_generator", first, second)]
    for state in model.non_trainable_variables:
        pairs.append((state.path, state, scope.get_current_value(state)))
    for path, before, after in pairs:
        if after is not None and np.any(
            keras.ops.convert_to_numpy(keras.ops.not_equal(before, after))
        ):
            if "seed_generator" in path:
                return "a layer that draws random numbers in training"
            layer = path.split("/")[-2]
            return f"the layer {layer!r}, whose state training changes"
    return None


@contextlib.contextmanager
def without_softmax(model):
    """The model without the softmax of its last layer."""
    last = (getattr(model, "layers", None) or [None])[-1]
    activation = getattr(last, "activation", None)
    if activation is not keras.activations.softmax:
        yield
        return
    last.activation = keras.activations.linear
    try:
        yield
    finally:
        last.activation = activation


def of_classes(model, outputs):
    """One output for each class: a single output of two classes becomes two."""
    if outputs.shape[1] > 1:
        return outputs
    middle = 0.5 if _activation(model) == "sigmoid" else 0.0
    return np.hstack([np.full_like(outputs, middle), outputs])


def logits_of(model, x):
    """Logits of a model with any last activation."""
    found = keras.ops.convert_to_numpy(model(x, training=False))
    ends = _activation(model)
    if ends not in ("softmax", "sigmoid"):
        return found
    found = np.clip(found.astype("float64"), 1e-30, 1 - 1e-16)
    return special.logit(found) if ends == "sigmoid" else np.log(found)


def small_cnn(input_shape, num_classes):
    """A built small convolutional network, usual for DP-SGD on digits.

    Two strided convolutions (16 of 8x8, 32 of 4x4), each with a 2x2 maximum
    of stride 1, a dense layer of 32 and a linear read-out; tanh throughout,
    whose bounded range suits clipped gradients. For images below 14x14 kernels
    are half as large, and the second convolution has stride 1.

    Args:
        input_shape: `(height, width, channels)`, at least 8x8.
        num_classes: int.

    Returns:
        A built Keras 3 `Sequential` that ends in logits; 26,010 weights for
        `(28, 28, 1)` and 10 classes.

    Source: the architecture of tensorflow-privacy's MNIST tutorial, with the
    activation of Papernot et al., "Tempered Sigmoid Activations for Deep
    Learning with Differential Privacy", 2021.
    """
    layers, wide = keras.layers, min(input_shape[:2]) >= 14
    sizes, stride = ((8, 4), 2) if wide else ((4, 2), 1)
    first = {"strides": 2, "padding": "same", "activation": "tanh"}
    return keras.Sequential(
        [
            layers.Input(tuple(input_shape)),
            layers.Conv2D(16, sizes[0], data_format="channels_last", **first),
            layers.MaxPooling2D(2, strides=1, data_format="channels_last"),
            layers.Conv2D(
                32,
                sizes[1],
                strides=stride,
                activation="tanh",
                data_format="channels_last",
            ),
            layers.MaxPooling2D(2, strides=1, data_format="channels_last"),
            layers.Flatten(data_format="channels_last"),
            layers.Dense(32, activation="tanh"),
            layers.Dense(num_classes),
        ]
    )
