"""DP-SGD by tensorflow-privacy, the baseline of every comparison.

tensorflow-privacy clips and adds the noise, in one of two forms. This file
gives it the architecture and the initial weights of a Keras 3 model, and the
batches and the noise multiplier of a plan (`dp_sgd_training`).

* *fast clipping*: `DPSequential` with a layer registry. A dense layer's
  per-record gradient is an outer product, whose norm is the product of two
  norms. With all norms known, one backward pass of a weighted loss gives the
  sum of clipped gradients. tensorflow-privacy 0.9.0 does this for dense layers
  (and embeddings and parts of transformers, which this file does not
  translate). If any trainable layer is of another kind, its `DPSequential`
  forms per-record gradients by `tf.vectorized_map` for all layers.
* *vectorised*: the Jacobian of the records' losses, for any layer.

The library's third form, the plain `DPKerasSGDOptimizer`, uses the same
Jacobian and clips in a loop; the fourth, for sparse embedding gradients, needs
embeddings.

tensorflow-privacy 0.9.0 needs Keras 2. It runs on tf-keras beside Keras 3 in
one process; TensorFlow is imported only when a classifier is fitted.

How tensorflow-privacy treats a batch of c rows, and how this file adapts it:

* both forms return `(sum of clipped gradients + z * clip * N(0, 1)) / c`
  when `num_microbatches` is None, with c the number of *rows*, padding
  included. DP-SGD divides by the *expected* batch size, which is a constant:
  the true size of a Poisson batch is private. The gradient is therefore
  multiplied by `c / expected_batch_size` before the optimizer uses it. This is
  right for every optimizer; a rescaled learning rate would be wrong for Adam.
* a row of weight 0 has loss 0 and gradient exactly 0, also after clipping. So
  batches are padded to one shape, and nothing is traced again.
* a large batch is cut into k chunks of equal shape, each of which carries
  noise of multiplier `z / sqrt(k)`. The sum of k independent normals of
  variance z^2 / k is one of variance z^2, so the update has the same
  distribution as without chunks. Partial sums never leave the step.
"""

import functools
import importlib
import math
import sys
import types

import keras
import numpy as np

from keras_fm.lab.baselines import tf_keras_twin
from keras_fm.lab.baselines.dp_sgd_config import DPSGDConfig, DPSGDPlan
from keras_fm.lab.baselines.dp_sgd_training import DPSGDTrainer, small_cnn

__all__ = ["DPSGDClassifier", "DPSGDConfig", "DPSGDPlan", "small_cnn"]


class DPSGDClassifier(DPSGDTrainer):
    """A Keras 3 classifier trained by tensorflow-privacy's DP-SGD.

    Needs the extra `pip install "keras-fm[dp-sgd]"` and Python < 3.12.

    The loss is the softmax cross-entropy. The model may end in logits or in a
    softmax. Features must be public or computed record by record beforehand:
    `x` is the input of the trained layers.

    *Guarantee.* With `sampling="poisson"` or `"full"` the weights after every
    step are (epsilon, delta)-DP with respect to the records given to `fit`. The
    noisy sum of each step is a (sampled) Gaussian mechanism; steps are composed
    by privacy loss distributions. Labels are part of a record; n is public.
    With `sampling="shuffled"` the epsilon is only claimed. *Not covered*:
    tuning on the same records, metrics on them, and the finite precision of the
    noise, which tensorflow-privacy draws in float32 from TensorFlow's ordinary
    generator (neither cryptographic nor safe against floating-point attacks).

    Args:
        model: a Keras 3 model or a list of Keras 3 layers; `None` for softmax
            regression from zero weights. tensorflow-privacy trains sequential
            layers (`Dense`, `Conv2D`, pooling, `Flatten`, `Reshape`,
            activations, `Dropout`, `GroupNormalization`);
            `keras_fm.make_private` trains any other model, and
            `report()["mechanism"]` names it.
        config: a `DPSGDConfig`.
        epsilon: float in (0, 100], or infinite to clip without noise; or a
            `keras_fm.Ledger`, whose remaining budget the fit uses.
        delta: float in (0, 1); omit it with a ledger.
        seed: int, for tests and studies only. Anybody who knows it can subtract
            the noise, so a seeded fit is reported as not private.
        neighbours: `"add_remove"` or `"replace_one"` (full batches only; the
            sum of clipped gradients then moves by twice the clip, and the
            noise doubles).
        augment: with `views` of the config, a function of one record and a
            NumPy generator to a record of the same shape.

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

    _library = "tensorflow-privacy"
    _generator = "TensorFlow's generator"

    def __init__(self, model, config, epsilon, delta=None, **kwargs):
        super().__init__(model, config, epsilon, delta, **kwargs)
        # Only the Jacobian clips the views of a record together.
        self._form = config.form or "fast_clipping"
        if config.views > 1:
            self._form = "vectorized"
        self._twin = None

    def _import_library(self):
        return _import_tensorflow_privacy()

    def _why_not(self, model, shape):
        return tf_keras_twin.why_not(model)

    def _train(self, library, x, y, plan, batches):
        tf = library[0]
        # tensorflow-privacy draws noise by TensorFlow's global seed. A seed
        # that the caller set for something else must not determine the noise;
        # without a seed TensorFlow uses the operating system's randomness.
        caller_seed = _global_seed(tf)
        tf.random.set_seed(self.seed)
        try:
            step = _Step(self, library, plan, x, y)
            self._twin, self._clipping = step.twin, step.clipping
            self._take(step, plan, batches)
        finally:
            tf.random.set_seed(caller_seed)

    def to_keras(self):
        """Copies the trained weights into the Keras 3 model and returns it.

        With `model=None` that is `Sequential([Dense(num_classes)])`.
        """
        self._check_fitted()
        if self._callback is not None:
            return self._model
        twins = [v for v in self._twin.layers if v.name != "dp_sgd_input"]
        for layer, twin in zip(self._model.layers, twins, strict=True):
            layer.set_weights(twin.get_weights())
        return self._model

    @staticmethod
    def _loss(tf_keras):
        """Function from a reduction to the loss of a batch."""
        return functools.partial(
            tf_keras.losses.SparseCategoricalCrossentropy, from_logits=True
        )

    def _forward(self, x):
        return self._twin(x, training=False)


class _Step:
    """One DP-SGD update: clip and noise chunk by chunk, then apply."""

    def __init__(self, trainer, library, plan, x, y):
        tf, tf_keras, _ = library
        model, form, views = trainer._model, trainer._form, trainer._views
        config, loss = trainer.config, trainer._loss(tf_keras)
        rows = min(plan.capacity, _physical_rows(model, form, config))
        chunks = -(-plan.capacity // rows)
        # Even chunks need less padding.
        rows = -(-plan.capacity // chunks)
        self._chunks, self._rows = chunks, rows
        self._constant = tf.constant
        noise = plan.noise_multiplier / math.sqrt(chunks)
        scale = rows / plan.expected_batch_size
        layers = tf_keras_twin.twin_layers(tf_keras, model)
        rates = config.rates(tf_keras.optimizers.schedules, plan.steps)
        self._views = views
        count = views.count if views else 1
        each = (count,) if views else ()
        if form == "vectorized":
            self.twin = tf_keras.Sequential(layers)
            self.clipping = "gradients"
            noisy_mean, optimizer = _vectorized(
                library, self.twin, config, rates, noise, loss, count
            )
        else:
            self.twin, noisy_mean, optimizer = _fast_clipping(
                library, layers, config, rates, noise, loss
            )
            # Set by DPSequential when the layers and its graph allow it.
            fast = self.twin._enable_fast_peg_computation
            self.clipping = "norms" if fast else "gradients"
        tf_keras_twin.copy_weights(model, self.twin)
        variables = self.twin.trainable_variables
        sums = [
            tf.Variable(tf.zeros_like(v), trainable=False) for v in variables
        ]
        # An attribute, not captured: TensorFlow keeps captured arrays.
        self._x = x if views else tf.constant(x)
        self._y, self._gather = tf.constant(y), tf.gather

        def accumulate(xs, ys, weights):
            for total, g in zip(sums, noisy_mean(xs, ys, weights), strict=True):
                total.assign_add(g)

        def update():
            mean = [scale * total for total in sums]
            optimizer.apply_gradients(zip(mean, variables, strict=True))
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
                tf.TensorSpec([rows, *each, *x.shape[1:]], tf.float32),
                tf.TensorSpec([rows, *y.shape[1:]], self._y.dtype),
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
            rows = self._constant(padded[chunk])
            if self._views:
                # Padding may hold any record, so it holds copies of record 0.
                records = self._constant(
                    self._views(self._x[padded[chunk]], self._rows)
                )
            else:
                records = self._gather(self._x, rows)
            self._accumulate(
                records,
                self._gather(self._y, rows),
                self._constant(weights[chunk]),
            )
        self._update()

    def weights(self):
        """The weights after the last step."""
        return self.twin.get_weights()

    def assign(self, weights):
        """Sets the weights."""
        self.twin.set_weights(weights)


def _vectorized(library, twin, config, rates, noise, loss, views):
    """Noisy mean, and the vectorised optimizer."""
    tf, tf_keras, privacy = library
    bases = tf_keras.optimizers.legacy
    make = privacy.vectorized.make_vectorized_keras_optimizer_class
    arguments = {
        "l2_norm_clip": config.l2_norm_clip,
        "noise_multiplier": noise,
        "learning_rate": rates,
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
            if views > 1:
                # The loss of a record is the mean over its views.
                x = tf.reshape(x, [-1, *x.shape[2:]])
                losses = per_record(tf.repeat(y, views), twin(x, training=True))
                losses = tf.reduce_mean(tf.reshape(losses, [-1, views]), 1)
                losses *= weights
            else:
                losses = per_record(y, twin(x, training=True)) * weights
        # The public `minimize` would apply them undivided.
        pairs = optimizer._compute_gradients(losses, variables, tape=tape)
        return [gradient for gradient, _ in pairs]

    return noisy_mean, optimizer


def _fast_clipping(library, layers, config, rates, noise, loss):
    """Twin, noisy mean and optimizer of `DPSequential` with a registry."""
    _, tf_keras, privacy = library
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
        """Keeps the gradients that `train_step` gives its optimizer."""

        def apply_gradients(self, grads_and_vars, **kwargs):
            self.caught = [gradient for gradient, _ in grads_and_vars]

    catcher = GradientCatcher()
    twin.compile(
        optimizer=catcher,
        loss=loss(reduction=tf_keras.losses.Reduction.SUM_OVER_BATCH_SIZE),
    )
    if config.optimizer == "sgd":
        optimizer = tf_keras.optimizers.SGD(rates, momentum=config.momentum)
    else:
        optimizer = tf_keras.optimizers.Adam(rates)
    optimizer.build(twin.trainable_variables)

    def noisy_mean(x, y, weights):
        twin.train_step((x, y, weights))
        caught, catcher.caught = catcher.caught, None
        return caught

    return twin, noisy_mean, optimizer


def _physical_rows(model, form, config):
    """Rows per chunk, limited by time and about 1 GB of memory."""
    if config.physical_batch_size is not None:
        return config.physical_batch_size
    shapes = [layer.output.shape[1:] for layer in model.layers]
    kernels = [
        max([math.prod(w.shape) for w in layer.trainable_weights], default=0)
        for layer in model.layers
    ]
    if form == "vectorized":
        # The Jacobian propagates every record's loss through the whole chunk,
        # so arithmetic grows with the square of the rows. With this many rows,
        # arithmetic takes about as long as the overhead of a call.
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
