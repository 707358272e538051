"""What DP-SGD does, whichever library clips and adds the noise.

Settings, plan, guarantee, ledger and report of a classifier trained by
DP-SGD. `dp_sgd` trains one by tensorflow-privacy, `dp_sgd_jax` by
jax-privacy. Sampler and accountant are one object
(`keras_fm.sampling.SamplingPlan`), so they cannot disagree.
"""

import math
import secrets
import statistics
import time

import keras
import numpy as np
from scipy import special

from keras_fm.kernel import checks
from keras_fm.kernel.budget import Neighbours, PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_entry import LedgerEntry
from keras_fm.kernel.ledger.statement import RECORD
from keras_fm.kernel.reads import columns
from keras_fm.lab.baselines.dp_sgd_config import (
    DPSGDConfig,
    check_budget,
    check_records,
)
from keras_fm.lab.baselines.record_views import Views, told


class DPSGDTrainer:
    """Base of classifiers trained by DP-SGD; a subclass names the library.

    A subclass sets `_library`, `_generator`, `_form` and `_clipping`, which
    the report names, and defines `_import_library`, `_train`, `_forward` and
    `to_keras`.
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
        delta,
        *,
        seed=None,
        neighbours="add_remove",
        augment=None,
    ):
        checks.instance("config", config, DPSGDConfig, "a DPSGDConfig")
        check_budget(epsilon, delta)
        if (augment is None) != (config.views == 1):
            raise ValueError(
                "`augment` makes each of the `views` of a record: give both, "
                f"views > 1. Received: augment={told(augment)}, "
                f"views={config.views}"
            )
        self._augment = augment
        if model is not None and not isinstance(model, keras.Sequential):
            model = keras.Sequential(list(model))
        self.config = config
        self.epsilon = float(epsilon)
        self.delta = float(delta)
        self.neighbours = Neighbours.of(neighbours)
        self.seed = seed
        self.plan = None
        self._model = model
        self._seconds = None
        self._step_seconds = []

    def fit(self, x, y, num_classes=None):
        """Trains on the records `x`, `y`, once.

        Args:
            x: array `(n, ...)` of numbers, at most 1e6 in modulus.
            y: int array `(n,)` of class numbers.
            num_classes: int. Required with `model=None` (the number of
                classes is public and never read from `y`); otherwise it must
                equal the width of the model's output, if given.

        Returns:
            self.

        Raises:
            ImportError: if the library is not installed, or cannot work
                with Keras's backend.
            RuntimeError: if called again: a second fit on the same records
                would spend again, which a new classifier makes visible.
            ValueError: if the data do not fit the model.
        """
        if self.plan is not None:
            raise RuntimeError(
                f"This {type(self).__name__} was fitted already. Another fit "
                "on the same records spends epsilon again: build another "
                "classifier."
            )
        library = self._import_library()
        began = time.perf_counter()
        x, y = self._check_data(x, y, num_classes)
        plan = self.config.plan(
            len(x), self.epsilon, self.delta, self.neighbours
        )
        entropy = secrets.randbits(256) if self.seed is None else self.seed
        batches = plan.batches(np.random.default_rng(entropy))
        self._views = None
        if self._augment is not None:
            # Neither the stream of the batches nor that of the noise.
            seed = np.random.SeedSequence(entropy).spawn(2)[1]
            self._views = Views(
                self._augment, self.config.views, x.shape[1:], seed
            )
        self._train(library, x, y, plan, batches)
        self._seconds = time.perf_counter() - began
        return self

    def _import_library(self):
        raise NotImplementedError

    def _train(self, library, x, y, plan, batches):
        """Prepares a step and hands it to `_take`."""
        raise NotImplementedError

    def _take(self, step, plan, batches):
        """Takes all steps; `step` returns when one is done, and has and
        takes weights."""
        kept, average = self.config.average, None
        # From the first read on, the budget counts as spent.
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

    def predict(self, x):
        """Class probabilities.

        Args:
            x: array `(m, ...)`.

        Returns:
            float32 array `(m, num_classes)`.
        """
        return special.softmax(self._outputs(x), axis=1)

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
        """What was read, what it costs and what proves it.

        The epsilons are those of `ledger`.

        Returns:
            dict: `mechanism`, `epsilon_claimed`, `epsilon_proven` (infinite
            for `"shuffled"` and for a seeded fit), `delta`, `neighbours`,
            `record` (what one is, in words), `private` (not with a seed, nor
            if delta is one over the number of records or more),
            `noise_multiplier`, `l2_norm_clip`, `sampling`,
            `sampling_rate`, `steps`, `expected_batch_size`,
            `overflow_probability`, `form`, `clipping` (`"norms"`: per-record
            gradients were never formed, or `"gradients"`), `seconds` (of the
            fit, tracing included), `step_seconds` (median over the steps
            after the first), `notes`.
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
            ValueError: for the noiseless twin, which no ledger can hold.
        """
        self._check_fitted()
        if not math.isfinite(self.epsilon):
            raise ValueError("A fit without noise has no privacy ledger.")
        plan, config = self.plan, self.config
        ledger = Ledger(
            PrivacyBudget(self.epsilon, self.delta),
            neighbours=self.neighbours,
        )
        claimed = config.sampling == "shuffled"
        # The plan's multiplier is relative to the clip; a replaced record
        # moves the sum by twice that.
        moves = 2 if self.neighbours.replaces else 1
        mechanism = plan.mechanism(
            plan.noise_multiplier / moves, moves * config.l2_norm_clip
        ).config()
        if claimed:
            mechanism["claimed_epsilon"] = self.epsilon
        ledger.charge(
            [
                LedgerEntry(
                    name="DP-SGD",
                    guarantee="claimed" if claimed else "proven",
                    neighbours=str(self.neighbours),
                    mechanism=mechanism,
                    reads=(
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
            ]
        )
        return ledger

    def _notes(self):
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
        """Logits, float32, of few records at a time."""
        self._check_fitted()
        x = np.asarray(x, dtype="float32")
        return np.concatenate(
            [
                np.asarray(self._forward(x[i : i + 4096]), dtype="float32")
                for i in range(0, len(x), 4096)
            ]
        )

    def _forward(self, x):
        """Logits, of the library's own."""
        raise NotImplementedError

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
            # Public: never read from the labels.
            checks.integer("num_classes", num_classes, at_least=2)
            head = keras.layers.Dense(num_classes, kernel_initializer="zeros")
            self._model = keras.Sequential([head])
        if not self._model.built:
            self._model.build((None, *x.shape[1:]))
        if y.min() < 0 or y.max() >= self._model.output_shape[-1]:
            raise ValueError(
                "`y` must hold class numbers from 0 to "
                f"{self._model.output_shape[-1] - 1}."
            )
        return x, y


def small_cnn(input_shape, num_classes):
    """The small convolutional network usual for DP-SGD on digits, built.

    Two strided convolutions (16 of 8x8, 32 of 4x4), each with a 2x2 maximum
    of stride 1, a dense layer of 32 and a linear read-out; tanh throughout,
    whose bounded range suits clipped gradients. Images below 14x14 have
    kernels half as large, the second without a stride.

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
