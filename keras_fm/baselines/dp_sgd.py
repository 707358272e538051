"""DP-SGD through tensorflow-privacy: the rival every comparison needs.

The clipping and the noise are tensorflow-privacy's own code, in one of its
two forms; this file gives it the same architecture and the same initial
weights as a Keras 3 model, a sampler, and a noise multiplier calibrated for
exactly that sampler. Sampler and accountant are one object
(`keras_fm.sampling.SamplingPlan`), so they cannot disagree.

tensorflow-privacy 0.9.0 speaks Keras 2. It runs on tf-keras beside Keras 3 in
one process; TensorFlow is imported only when a classifier is fitted.

What tensorflow-privacy does with a batch of c rows, and what is made of it:

* both forms return `(sum of clipped gradients + z * clip * N(0, 1)) / c`
  when `num_microbatches` is None, with c the number of *rows*, padding
  included. DP-SGD divides by the *expected* batch size, which is a constant:
  the true size of a Poisson batch is private. The gradient is therefore
  multiplied by `c / expected_batch_size` before the optimizer sees it, which
  holds for every optimizer (a rescaled learning rate would not for Adam).
* a row of weight 0 has loss 0, gradient exactly 0, and is not touched by
  clipping, so padding to a fixed shape changes nothing and nothing retraces.
* a large batch is cut into k chunks of equal shape, each of which carries
  noise of multiplier `z / sqrt(k)`. The sum of k independent normals of
  variance z^2 / k is one of variance z^2, so the update has the distribution
  of the unchunked one. Partial sums never leave the step.
"""

import dataclasses
import functools
import importlib
import math
import secrets
import sys
import time
import types

import keras
import numpy as np

from keras_fm import sampling as sampling_lib
from keras_fm.budget import Neighbours, PrivacyBudget
from keras_fm.ledger import Ledger, LedgerEntry

_FORMS = ("vectorized", "sequential")
_OPTIMIZERS = ("sgd", "adam")

# Twin layers: the arguments of the Keras 3 layer that its tf-keras twin gets.
_LAYERS = {
    "Activation": ("activation",),
    "AveragePooling2D": ("pool_size", "strides", "padding"),
    "Conv2D": (
        "filters",
        "kernel_size",
        "strides",
        "padding",
        "dilation_rate",
        "activation",
        "use_bias",
    ),
    "Dense": ("units", "activation", "use_bias"),
    "Flatten": (),
    "GlobalAveragePooling2D": ("keepdims",),
    "GlobalMaxPooling2D": ("keepdims",),
    "MaxPooling2D": ("pool_size", "strides", "padding"),
    "Reshape": ("target_shape",),
    "UnitNormalization": ("axis",),
}
# Activations that Keras 2 and Keras 3 define alike ("hard_sigmoid" differs).
_ACTIVATIONS = frozenset(
    "linear relu tanh sigmoid softmax elu selu softplus softsign silu gelu "
    "exponential".split()
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPSGDConfig:
    """How DP-SGD trains. Every field is public.

    Args:
        learning_rate: float > 0.
        l2_norm_clip: float > 0. Each record's gradient, over all weights
            together, is scaled down to at most this L2 norm.
        form: `"vectorized"` (tensorflow-privacy's
            `VectorizedDPKerasSGDOptimizer` / `...AdamOptimizer`: per-record
            gradients through a Jacobian) or `"sequential"` (its
            `DPSequential`: only the norms of per-record gradients when every
            trainable layer is `Dense`, per-record gradients otherwise).
            Both define the same mechanism.
        optimizer: `"sgd"` or `"adam"`.
        momentum: float in [0, 1), of `"sgd"`.
        sampling: `"poisson"` (each record joins each batch independently
            with probability `batch_size / n`; proven), `"full"` (each step
            reads all records; proven) or `"shuffled"` (batches of a fixed
            size from a fresh permutation in each epoch, accounted *as if*
            they were Poisson, as is common practice: only claimed).
        batch_size: int, the expected batch size; `None` with `"full"`.
        steps: int, number of updates. Give `steps` or `epochs`.
        epochs: float, number of updates in units of `n / batch_size`.
        physical_batch_size: int, rows handed to TensorFlow at a time; `None`
            chooses one that keeps memory near 1 GB. It changes time
            and memory, not the mechanism.

    Raises:
        ValueError: if a value is outside its range, NaN or infinite, or two
            of them contradict each other.

    Example:

    >>> DPSGDConfig(
    ...     learning_rate=2.0, l2_norm_clip=0.1, batch_size=256, steps=100
    ... ).sampling
    'poisson'

    Source: Abadi et al., "Deep Learning with Differential Privacy", 2016.
    """

    learning_rate: float
    l2_norm_clip: float
    form: str = "sequential"
    optimizer: str = "sgd"
    momentum: float = 0.9
    sampling: str = "poisson"
    batch_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    physical_batch_size: int | None = None

    def __post_init__(self):
        _check_choice("form", self.form, _FORMS)
        _check_choice("optimizer", self.optimizer, _OPTIMIZERS)
        _check_choice("sampling", self.sampling, sampling_lib.SAMPLINGS)
        _check_positive("learning_rate", self.learning_rate)
        _check_positive("l2_norm_clip", self.l2_norm_clip)
        if not (_is_number(self.momentum) and 0 <= self.momentum < 1):
            raise ValueError(
                "`momentum` must be in [0, 1). "
                f"Received: momentum={self.momentum}"
            )
        for name in ("batch_size", "steps", "physical_batch_size"):
            value = getattr(self, name)
            if value is not None and not (_is_integer(value) and value > 0):
                raise ValueError(
                    f"`{name}` must be a positive integer. "
                    f"Received: {name}={value}"
                )
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                "Exactly one of `steps` and `epochs` must be given. "
                f"Received: steps={self.steps}, epochs={self.epochs}"
            )
        if self.epochs is not None:
            _check_positive("epochs", self.epochs)
        if (self.sampling == "full") != (self.batch_size is None):
            raise ValueError(
                '`batch_size` must be None with sampling="full" and a '
                "positive integer otherwise. Received: "
                f"batch_size={self.batch_size}, sampling={self.sampling!r}"
            )

    def plan(self, n, epsilon, delta, neighbours="add_remove"):
        """What a fit on `n` records does and costs, before anything is read.

        Args:
            n: int, number of records, public by declaration.
            epsilon: float in (0, 100], or infinite for the clipped,
                noiseless twin.
            delta: float in (0, 1).
            neighbours: `"add_remove"` or `"replace_one"`.

        Returns:
            A `DPSGDPlan`.

        Raises:
            ValueError: if the batch is larger than `n`, a budget is outside
                its range, or the relation has no accounting here (Poisson
                batches under `"replace_one"`).
        """
        neighbours = Neighbours.of(neighbours)
        _check_budget(epsilon, delta)
        sampling_lib.check_neighbours(self.sampling, neighbours)
        batch = sampling_lib.expected_batch_size(
            n, self.sampling, self.batch_size
        )
        steps = self.steps
        if steps is None:
            steps = max(1, round(self.epochs * n / batch))
        reads = sampling_lib.plan(
            n,
            sampling=self.sampling,
            batch_size=self.batch_size,
            steps=steps,
            delta=delta,
            epsilon=epsilon,
        )
        return DPSGDPlan(
            **dataclasses.asdict(reads),
            noise_multiplier=_noise_multiplier(
                reads, epsilon, delta, neighbours
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPSGDPlan(sampling_lib.SamplingPlan):
    """Which records each step reads, and the noise that pays for it.

    Attributes:
        noise_multiplier: standard deviation of the noise on the sum of
            clipped gradients, in units of `l2_norm_clip`. Under
            `"replace_one"` the sum moves by twice the clip, which is
            contained in this number. 0 without noise.
    """

    noise_multiplier: float


def _noise_multiplier(reads, epsilon, delta, neighbours):
    if math.isinf(epsilon):
        return 0.0
    sensitivity = 2 if neighbours is Neighbours.REPLACE_ONE else 1
    return sensitivity * sampling_lib.noise_multiplier(
        reads, PrivacyBudget(epsilon, delta), neighbours=neighbours
    )


class DPSGDClassifier:
    """A Keras 3 classifier trained by tensorflow-privacy's DP-SGD.

    Needs the extra `pip install "keras-fm[dp-sgd]"` and Python < 3.12.

    The loss is the softmax cross-entropy. The model may end in logits or in a
    softmax. Features must be public or computed record by record beforehand:
    `x` is what the trained layers see.

    *Guarantee.* With `sampling="poisson"` or `"full"` the final weights are
    (epsilon, delta)-DP with respect to the records given to `fit`, as is
    every iterate: the noisy sum of each step is a (sampled) Gaussian
    mechanism, composed by privacy loss distributions; labels count as part
    of a record; n is public. With `sampling="shuffled"` the same number is
    only claimed. *Not covered*: tuning on the same records, metrics on them,
    and the finite precision of the noise, which tensorflow-privacy draws in
    float32 from TensorFlow's ordinary generator (neither cryptographic nor
    safe against floating-point attacks).

    Args:
        model: a Keras 3 `Sequential` or a list of Keras 3 layers (`Dense`,
            `Conv2D`, pooling, `Flatten`, `Reshape`, `Activation`); `None`
            for softmax regression from zero weights.
        config: a `DPSGDConfig`.
        epsilon: float in (0, 100], or infinite to train the clipped twin
            without noise.
        delta: float in (0, 1).
        seed: int, for tests and studies only. Whoever knows it can subtract
            the noise, so a seeded fit is reported as not private.
        neighbours: `"add_remove"` or `"replace_one"` (full batches only; the
            sum of clipped gradients then moves by twice the clip, and the
            noise doubles).

    Raises:
        ValueError: if an argument is outside its range or a layer is not
            supported.

    Example:

    ```python
    config = DPSGDConfig(
        learning_rate=2.0, l2_norm_clip=0.1, batch_size=256, steps=100
    )
    rival = DPSGDClassifier(None, config, epsilon=2.0, delta=1e-5)
    rival.fit(x, y, num_classes=10)
    rival.evaluate(x_test, y_test)["accuracy"]
    ```

    Source: Abadi et al. 2016; fast clipping: Lee and Kifer, "Scaling up
    Differentially Private Deep Learning with Fast Per-Example Gradient
    Clipping", 2020.
    """

    def __init__(
        self,
        model,
        config,
        epsilon,
        delta,
        *,
        seed=None,
        neighbours="add_remove",
    ):
        if not isinstance(config, DPSGDConfig):
            raise ValueError(
                f"`config` must be a DPSGDConfig. Received: config={config!r}"
            )
        _check_budget(epsilon, delta)
        if model is not None and not isinstance(model, keras.Sequential):
            if not isinstance(model, (list, tuple)):
                raise ValueError(
                    "`model` must be a keras.Sequential, a list of Keras "
                    f"layers or None. Received: model={model!r}"
                )
            model = keras.Sequential(list(model))
        if model is not None:
            _check_layers(model.layers)
        self.config = config
        self.epsilon = float(epsilon)
        self.delta = float(delta)
        self.neighbours = Neighbours.of(neighbours)
        self.seed = seed
        self.plan = None
        self._model = model
        self._twin = None
        self._clipping = None
        self._seconds = None

    def fit(self, x, y, num_classes=None):
        """Trains on the records `x`, `y`, once.

        Args:
            x: array `(n, ...)` of finite numbers.
            y: int array `(n,)` of class numbers.
            num_classes: int. Required with `model=None` (the number of
                classes is public and never read from `y`); otherwise it must
                equal the width of the model's output, if given.

        Returns:
            self.

        Raises:
            ImportError: if tensorflow-privacy is not installed.
            RuntimeError: if called again: a second fit on the same records
                would spend again, which a new classifier makes visible.
            ValueError: if the data do not fit the model.
        """
        if self._twin is not None:
            raise RuntimeError(
                "This DPSGDClassifier was fitted already. Another fit on the "
                "same records spends epsilon again: build another classifier."
            )
        tf, tf_keras, privacy = _import_tensorflow_privacy()
        began = time.perf_counter()
        x, y = self._check_data(x, y, num_classes)
        plan = self.config.plan(
            len(x), self.epsilon, self.delta, self.neighbours
        )
        entropy = secrets.randbits(256) if self.seed is None else self.seed
        rng = np.random.default_rng(entropy)
        # tensorflow-privacy draws its noise by TensorFlow's global seed. One
        # that the caller set for something else must not decide the noise;
        # without one TensorFlow asks the operating system.
        caller_seed = _global_seed(tf)
        tf.random.set_seed(self.seed)
        try:
            step = _Step(
                tf,
                tf_keras,
                privacy,
                self._model,
                self.config,
                plan,
                x,
                y,
                self._loss(tf_keras),
            )
            # From the first read on, the budget counts as spent.
            self.plan, self._twin = plan, step.twin
            self._clipping = step.clipping
            for batch in plan.batches(rng):
                step(batch)
        finally:
            tf.random.set_seed(caller_seed)
        self._seconds = time.perf_counter() - began
        return self

    def predict(self, x):
        """Class probabilities.

        Args:
            x: array `(m, ...)`.

        Returns:
            float32 array `(m, num_classes)`.
        """
        logits = self._outputs(x)
        logits -= logits.max(axis=1, keepdims=True)
        exp = np.exp(logits)
        return exp / exp.sum(axis=1, keepdims=True)

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

    def to_keras(self):
        """Copies the trained weights into the Keras 3 model and returns it.

        With `model=None` that is `Sequential([Dense(num_classes)])`.
        """
        self._check_fitted()
        twins = [v for v in self._twin.layers if v.name != "dp_sgd_input"]
        for layer, twin in zip(self._model.layers, twins, strict=True):
            layer.set_weights(twin.get_weights())
        return self._model

    def report(self):
        """What was read, what it costs and what proves it.

        The epsilons are those of `ledger`.

        Returns:
            dict: `epsilon_claimed`, `epsilon_proven` (infinite for
            `"shuffled"` and for a seeded fit), `delta`, `neighbours`,
            `private`, `noise_multiplier`, `sampling`, `sampling_rate`,
            `steps`, `expected_batch_size`, `overflow_probability`, `form`,
            `clipping` (`"norms"`: per-record gradients were never formed,
            or `"gradients"`), `seconds` (tracing included), `notes`.
        """
        self._check_fitted()
        plan, config = self.plan, self.config
        if math.isfinite(self.epsilon):
            ledger = self.ledger
            claimed, proven = ledger.claimed_epsilon(), ledger.epsilon()
        else:
            claimed = proven = math.inf
        notes = self._notes()
        return {
            "mechanism": "DP-SGD (tensorflow-privacy)",
            "epsilon_claimed": claimed,
            "epsilon_proven": proven,
            "delta": self.delta,
            "neighbours": str(self.neighbours),
            "private": self.seed is None and math.isfinite(self.epsilon),
            "noise_multiplier": plan.noise_multiplier,
            "l2_norm_clip": config.l2_norm_clip,
            "sampling": config.sampling,
            "sampling_rate": plan.sampling_rate,
            "steps": plan.steps,
            "expected_batch_size": plan.expected_batch_size,
            "overflow_probability": plan.overflow_probability,
            "form": config.form,
            "clipping": self._clipping,
            "seconds": self._seconds,
            "notes": notes,
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
        moves = 2 if self.neighbours is Neighbours.REPLACE_ONE else 1
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
        notes = ["n is public", "noise: float32, TensorFlow's generator"]
        if self.config.sampling == "shuffled":
            notes.append("shuffled batches accounted as if Poisson")
        if self.seed is not None:
            notes.append("reproducible noise: not private")
        return tuple(notes)

    def _check_fitted(self):
        if self._twin is None:
            raise RuntimeError(
                f"This {type(self).__name__} is not fitted. Call `fit` first."
            )

    @staticmethod
    def _loss(tf_keras):
        """Function from a reduction to the loss of a batch."""
        return functools.partial(
            tf_keras.losses.SparseCategoricalCrossentropy, from_logits=True
        )

    def _outputs(self, x):
        self._check_fitted()
        x = np.asarray(x, dtype="float32")
        return np.concatenate(
            [
                np.asarray(self._twin(x[i : i + 4096], training=False))
                for i in range(0, len(x), 4096)
            ]
        )

    def _check_data(self, x, y, num_classes):
        x = np.asarray(x, dtype="float32")
        y = np.asarray(y)
        if x.ndim < 2 or y.shape != x.shape[:1] or len(x) == 0:
            raise ValueError(
                "`x` must have shape (n, ...) and `y` shape (n,). "
                f"Received: x.shape={x.shape}, y.shape={y.shape}"
            )
        if not np.issubdtype(y.dtype, np.integer):
            raise ValueError(
                "`y` must hold integer class numbers. "
                f"Received: y.dtype={y.dtype}"
            )
        if not np.all(np.isfinite(x)):
            raise ValueError(
                "`x` must be finite: the gradient of a record with NaN or "
                "infinite features has no norm to clip."
            )
        if self._model is None:
            if not (_is_integer(num_classes) and num_classes > 1):
                raise ValueError(
                    "`num_classes` must be an integer greater than 1 with "
                    f"model=None. Received: num_classes={num_classes}"
                )
            head = keras.layers.Dense(num_classes, kernel_initializer="zeros")
            self._model = keras.Sequential([head])
        if not self._model.built:
            self._model.build((None, *x.shape[1:]))
        if tuple(self._model.input_shape[1:]) != x.shape[1:]:
            raise ValueError(
                f"The model expects inputs of shape (n, "
                f"{', '.join(map(str, self._model.input_shape[1:]))}). "
                f"Received: x.shape={x.shape}"
            )
        shape = self._model.output_shape
        if len(shape) != 2 or num_classes not in (None, shape[-1]):
            raise ValueError(
                "The model must end in one output per class. Received: "
                f"output_shape={shape}, num_classes={num_classes}"
            )
        if y.min() < 0 or y.max() >= shape[-1]:
            raise ValueError(
                f"`y` must hold class numbers from 0 to {shape[-1] - 1}."
            )
        return x, y.astype("int32")


class _Step:
    """One DP-SGD update: clip and noise chunk by chunk, then apply."""

    def __init__(self, tf, tf_keras, privacy, model, config, plan, x, y, loss):
        rows = min(plan.capacity, _physical_rows(model, config))
        chunks = -(-plan.capacity // rows)
        # Even chunks need less padding.
        rows = -(-plan.capacity // chunks)
        self._chunks, self._rows = chunks, rows
        self._constant = tf.constant
        noise = plan.noise_multiplier / math.sqrt(chunks)
        scale = rows / plan.expected_batch_size
        layers = _twin_layers(tf_keras, model)
        if config.form == "vectorized":
            self.twin = tf_keras.Sequential(layers)
            self.clipping = "gradients"
            noisy_mean, apply = _vectorized(
                tf, tf_keras, privacy, self.twin, config, noise, loss
            )
        else:
            self.twin, noisy_mean, apply = _sequential(
                tf, tf_keras, privacy, layers, config, noise, loss
            )
            # Set by DPSequential when the layers and its graph allow it.
            fast = self.twin._enable_fast_peg_computation
            self.clipping = "norms" if fast else "gradients"
        _copy_weights(model, self.twin)
        variables = self.twin.trainable_variables
        sums = [
            tf.Variable(tf.zeros_like(v), trainable=False) for v in variables
        ]
        x, y = tf.constant(x), tf.constant(y)

        def accumulate(batch, weights):
            xs, ys = tf.gather(x, batch), tf.gather(y, batch)
            for total, g in zip(sums, noisy_mean(xs, ys, weights), strict=True):
                total.assign_add(g)

        def update():
            apply([scale * total for total in sums])
            for total in sums:
                total.assign(tf.zeros_like(total))

        # Traced once, here: the noise operations take their seeds now.
        logger = tf.get_logger()
        level = logger.level
        logger.setLevel("ERROR")  # One line per slow operation otherwise.
        try:
            self._accumulate = tf.function(
                accumulate, autograph=False
            ).get_concrete_function(
                tf.TensorSpec([rows], tf.int32),
                tf.TensorSpec([rows], tf.float32),
            )
            self._update = tf.function(
                update, autograph=False
            ).get_concrete_function()
        finally:
            logger.setLevel(level)

    def __call__(self, batch):
        size = self._chunks * self._rows
        padded = np.zeros(size, "int32")
        padded[: len(batch)] = batch
        weights = np.zeros(size, "float32")
        weights[: len(batch)] = 1.0
        for start in range(0, size, self._rows):
            chunk = slice(start, start + self._rows)
            self._accumulate(
                self._constant(padded[chunk]), self._constant(weights[chunk])
            )
        self._update()


def _vectorized(tf, tf_keras, privacy, twin, config, noise, loss):
    """Noisy mean and update of the vectorised optimizers."""
    bases = tf_keras.optimizers.legacy
    make = privacy.vectorized.make_vectorized_keras_optimizer_class
    arguments = {
        "l2_norm_clip": config.l2_norm_clip,
        "noise_multiplier": noise,
        "learning_rate": config.learning_rate,
    }
    if config.optimizer == "sgd":
        optimizer = make(bases.SGD)(momentum=config.momentum, **arguments)
    else:
        optimizer = make(bases.Adam)(**arguments)
    per_record = loss(reduction=tf_keras.losses.Reduction.NONE)
    variables = twin.trainable_variables
    optimizer._create_all_weights(variables)

    def noisy_mean(x, y, weights):
        with tf.GradientTape() as tape:
            losses = per_record(y, twin(x, training=True)) * weights
        # The public `minimize` would apply them undivided.
        pairs = optimizer._compute_gradients(losses, variables, tape=tape)
        return [gradient for gradient, _ in pairs]

    def apply(gradients):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return noisy_mean, apply


def _sequential(tf, tf_keras, privacy, layers, config, noise, loss):
    """Twin, noisy mean and update of `DPSequential`."""
    registry = privacy.layer_registry.LayerRegistry()
    registry.insert(
        tf_keras.layers.Dense, privacy.layer_registry.dense_layer_computation
    )
    twin = privacy.keras_model.make_dp_model_class(tf_keras.Sequential)(
        l2_norm_clip=config.l2_norm_clip,
        noise_multiplier=noise,
        use_xla=False,
        layer_registry=registry,
        layers=layers,
    )

    class GradientCatcher(tf_keras.optimizers.SGD):
        """Keeps what `train_step` hands to its optimizer."""

        def apply_gradients(self, grads_and_vars, **kwargs):
            self.caught = [gradient for gradient, _ in grads_and_vars]

    catcher = GradientCatcher()
    twin.compile(
        optimizer=catcher,
        loss=loss(reduction=tf_keras.losses.Reduction.SUM_OVER_BATCH_SIZE),
    )
    if config.optimizer == "sgd":
        optimizer = tf_keras.optimizers.SGD(
            config.learning_rate, momentum=config.momentum
        )
    else:
        optimizer = tf_keras.optimizers.Adam(config.learning_rate)
    variables = twin.trainable_variables
    optimizer.build(variables)

    def noisy_mean(x, y, weights):
        twin.train_step((x, y, weights))
        caught, catcher.caught = catcher.caught, None
        return caught

    def apply(gradients):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return twin, noisy_mean, apply


def small_cnn(input_shape, num_classes):
    """The small convolutional network usual for DP-SGD on digits, built.

    Two strided convolutions (16 of 8x8, 32 of 4x4), each with a 2x2 maximum
    of stride 1, a dense layer of 32 and a linear read-out; tanh throughout,
    whose bounded range suits clipped gradients.

    Args:
        input_shape: `(height, width, channels)`, at least 14x14.
        num_classes: int.

    Returns:
        A built Keras 3 `Sequential` that ends in logits; 26,010 weights for
        `(28, 28, 1)` and 10 classes.

    Source: the architecture of tensorflow-privacy's MNIST tutorial, with the
    activation of Papernot et al., "Tempered Sigmoid Activations for Deep
    Learning with Differential Privacy", 2021.
    """
    if len(input_shape) != 3 or min(input_shape[:2]) < 14:
        raise ValueError(
            "`input_shape` must be (height, width, channels) with at least "
            f"14 x 14 pixels. Received: input_shape={input_shape}"
        )
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input(tuple(input_shape)),
            layers.Conv2D(16, 8, strides=2, padding="same", activation="tanh"),
            layers.MaxPooling2D(2, strides=1),
            layers.Conv2D(32, 4, strides=2, activation="tanh"),
            layers.MaxPooling2D(2, strides=1),
            layers.Flatten(),
            layers.Dense(32, activation="tanh"),
            layers.Dense(num_classes),
        ]
    )


# Keras 3 to tf-keras ------------------------------------------------------


def _check_layers(layers):
    for layer in layers:
        name = type(layer).__name__
        if getattr(keras.layers, name, None) is not type(layer) or (
            name not in _LAYERS
        ):
            hint = ""
            if name == "BatchNormalization":
                hint = (
                    " It mixes the records of a batch, so no record has a "
                    "gradient of its own to clip."
                )
            raise ValueError(
                f"DP-SGD does not support the layer {layer.name!r} of type "
                f"{name}.{hint} Supported: {', '.join(sorted(_LAYERS))}. "
                "Apply public feature layers to the data beforehand."
            )
        config = layer.get_config()
        for key, value in config.items():
            if key.endswith(("_regularizer", "_constraint")) and value:
                raise ValueError(
                    f"DP-SGD does not support `{key}` of the layer "
                    f"{layer.name!r}: the two forms of tensorflow-privacy "
                    "treat it differently."
                )
        if config.get("groups", 1) != 1:
            raise ValueError(
                "DP-SGD does not support `groups` other than 1. Received: "
                f"groups={config['groups']} in the layer {layer.name!r}"
            )
        if config.get("data_format") == "channels_first":
            raise ValueError(
                'DP-SGD needs data_format="channels_last". Received: '
                f'"channels_first" in the layer {layer.name!r}'
            )
        activation = config.get("activation") or "linear"
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"DP-SGD does not support the activation {activation!r} of "
                f"the layer {layer.name!r}. Supported: "
                f"{', '.join(sorted(_ACTIVATIONS))}"
            )
    last = layers[-1].get_config().get("activation") if layers else None
    if last not in (None, "linear", "softmax"):
        raise ValueError(
            "The model must end in logits or a softmax. "
            f"Received: activation={last!r} in the last layer"
        )


def _twin_layers(tf_keras, model):
    twins = [
        tf_keras.layers.InputLayer(model.input_shape[1:], name="dp_sgd_input")
    ]
    for layer in model.layers:
        name = type(layer).__name__
        config = layer.get_config()
        arguments = {key: config[key] for key in _LAYERS[name]}
        if layer is model.layers[-1] and "activation" in arguments:
            # The loss takes logits, which is the stable form.
            arguments["activation"] = "linear"
        arguments["trainable"] = layer.trainable
        twins.append(getattr(tf_keras.layers, name)(**arguments))
    return twins


def _copy_weights(model, twin):
    layers = [v for v in twin.layers if v.name != "dp_sgd_input"]
    for layer, copy in zip(model.layers, layers, strict=True):
        copy.set_weights([np.asarray(w) for w in layer.get_weights()])


def _physical_rows(model, config):
    """Rows per chunk: as many as time and about 1 GB of memory allow."""
    if config.physical_batch_size is not None:
        return config.physical_batch_size
    shapes = [layer.output.shape[1:] for layer in model.layers]
    kernels = [
        max([math.prod(w.shape) for w in layer.trainable_weights], default=0)
        for layer in model.layers
    ]
    if config.form == "vectorized":
        # The Jacobian sends every record's loss back through the whole
        # chunk: arithmetic grows with the square of the rows. This many
        # rows cost about as much arithmetic as one call costs overhead.
        work = sum(
            2 * k * math.prod(s[:-1])
            for k, s in zip(kernels, shapes, strict=True)
        )
        return max(1, min(512, round(math.sqrt(1e8 / max(work, 1)))))
    width = math.prod(model.input_shape[1:]) + sum(map(math.prod, shapes))
    per_record = 4 * width
    if any(
        layer.trainable_weights and not isinstance(layer, keras.layers.Dense)
        for layer in model.layers
    ):
        per_record += 2 * sum(kernels)
    return max(1, int(4e8 // per_record))


# tensorflow-privacy on tf-keras -------------------------------------------


@functools.lru_cache(maxsize=1)
def _import_tensorflow_privacy():
    """Returns `tensorflow`, `tf_keras` and the parts of tensorflow-privacy.

    Importing the package itself pulls in estimators that TensorFlow no longer
    has; its own switch, an attribute of `sys`, leaves them out.
    """
    switch = "skip_tf_privacy_import"
    had_switch = hasattr(sys, switch)
    if not had_switch:
        setattr(sys, switch, True)
    root = "tensorflow_privacy.privacy."
    try:
        tf = importlib.import_module("tensorflow")
        tf_keras = importlib.import_module("tf_keras")
        modules = {
            "vectorized": "optimizers.dp_optimizer_keras_vectorized",
            "keras_model": "keras_models.dp_keras_model",
            "clip_grads": "fast_gradient_clipping.clip_grads",
            "utils": "fast_gradient_clipping.gradient_clipping_utils",
            "layer_registry": "fast_gradient_clipping.layer_registry",
        }
        privacy = types.SimpleNamespace(
            **{k: importlib.import_module(root + v) for k, v in modules.items()}
        )
    except ImportError as error:
        raise ImportError(
            "The DP-SGD baseline needs TensorFlow, tf-keras and "
            "tensorflow-privacy 0.9.0, which need Python < 3.12: "
            'pip install "keras-fm[dp-sgd]". '
            f"The import that failed: {error}"
        ) from error
    finally:
        if not had_switch:
            delattr(sys, switch)
    if tf.keras.Model is not tf_keras.Model:
        # `tf.keras` is Keras 3 here. Without this, DPSequential would not
        # recognise a tf-keras model and would silently clip the slow way.
        legacy = _WithLegacyKeras(tf, tf_keras)
        for module in vars(privacy).values():
            module.tf = legacy
    return tf, tf_keras, privacy


class _WithLegacyKeras(types.ModuleType):
    """The module `tensorflow` with `tf.keras` bound to tf-keras."""

    def __init__(self, tf, tf_keras):
        super().__init__("tensorflow")
        self._tf = tf
        self.keras = tf_keras

    def __getattr__(self, name):
        return getattr(self._tf, name)


def _global_seed(tf):
    """The seed given to `tf.random.set_seed`, or None.

    TensorFlow has no getter for it; a traced graph inherits it.
    """
    graph = tf.function(lambda: tf.constant(0)).get_concrete_function().graph
    return graph.seed


# Validation ---------------------------------------------------------------


def _is_number(value):
    number = isinstance(value, (int, float, np.integer, np.floating))
    return number and not isinstance(value, bool) and not math.isnan(value)


def _is_integer(value):
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}. "
            f"Received: {name}={value!r}"
        )


def _check_positive(name, value):
    if not (_is_number(value) and 0 < value < math.inf):
        raise ValueError(
            f"`{name}` must be a finite number greater than 0. "
            f"Received: {name}={value}"
        )


def _check_budget(epsilon, delta):
    if not (
        _is_number(epsilon) and (0 < epsilon <= 100 or epsilon == math.inf)
    ):
        raise ValueError(
            "`epsilon` must be in (0, 100], or infinite for no noise. "
            f"Received: epsilon={epsilon}"
        )
    if not (_is_number(delta) and 0 < delta < 1):
        raise ValueError(
            "`delta` must be in (0, 1): no Gaussian noise meets delta = 0. "
            f"Received: delta={delta}"
        )
