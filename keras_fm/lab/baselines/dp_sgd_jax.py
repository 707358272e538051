"""DP-SGD by jax-privacy, on the JAX backend of Keras.

jax-privacy clips (`clipped_grad`), adds the noise (`gaussian_privatizer`) and
pads batches. The model is the Keras 3 model itself, the optimizer a Keras
optimizer. Batches and noise multiplier come from a plan (`dp_sgd_training`).

How jax-privacy 2.0.0 treats a batch, and how this file adapts it:

* `clipped_grad` maps the gradient over records by `jax.vmap`, each in a batch
  of one, and sums the clipped gradients. It divides by the *expected* batch
  size (`normalize_by`), a constant: the true size of a Poisson batch is
  private.
* it gets a mask of the records that pad a batch (`is_padding_example`), which
  makes their gradients exactly 0.
* `microbatch_size` rows are mapped at a time, in a loop that ends at the last
  real record. Noise is drawn once for each step.
* without a key, `gaussian_privatizer` draws 31 bits from NumPy's global
  generator, so a caller's `keras.utils.set_random_seed` would determine the
  noise. Here it gets its own key.

`jax_privacy.keras_api.make_private` is not used: without
`poisson_sampling_in_fit` it accounts Keras's shuffled batches as if they were
Poisson (here `sampling="shuffled"`, only claimed), and it draws seeds from
NumPy's global generator.
"""

import math
import secrets

import keras
import numpy as np

from keras_fm.lab.baselines.dp_sgd_training import (
    DPSGDTrainer,
    changing_state,
    loss_of,
    parts_of,
    with_weights,
    without_softmax,
)

# Memory for gradients at a time. A processor is fastest if they fit into its
# caches, an accelerator if it is busy.
_CACHED_BYTES = 8e6
_DEVICE_BYTES = 1e9


class JaxDPSGDClassifier(DPSGDTrainer):
    """A Keras 3 classifier trained by jax-privacy's DP-SGD.

    Needs `pip install "jax-privacy>=2,<3" jax`, Python 3.11 or later and the
    JAX backend of Keras (`KERAS_BACKEND=jax`). jax-privacy and
    tensorflow-privacy need different versions of dp-accounting, so install it
    in a separate environment (docs/comparison.md).

    `fit` trains the model object itself: its weights change at the end. The
    loss is the softmax cross-entropy. The model may end in logits or in a
    softmax activation. Features must be public or computed record by record
    beforehand: `x` is the input of the trained layers.

    *Guarantee.* As for `DPSGDClassifier`: with `sampling="poisson"` or `"full"`
    the weights after every step are (epsilon, delta)-DP with respect to the
    records given to `fit`. With `"shuffled"` this is only claimed. *Not
    covered*: tuning on the same records, metrics on them, and the finite
    precision of the noise, which jax-privacy draws in float32 from JAX's
    generator under a key of 64 bits (neither cryptographic nor safe against
    floating-point attacks).

    Args:
        model: a Keras 3 model or a list of Keras 3 layers; `None` for softmax
            regression from zero weights. `keras_fm.make_private` trains a model
            with state that training changes (`Dropout`).
        config: a `DPSGDConfig` with `form=None`.
        epsilon: float in (0, 100], or infinite to clip without noise.
        delta: float in (0, 1).
        seed: int >= 0, for tests and studies only. Anybody who knows it can
            subtract the noise, so a seeded fit is reported as not private.
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
    rival = JaxDPSGDClassifier(None, config, epsilon=2.0, delta=1e-5)
    rival.fit(x, y, num_classes=10)
    rival.evaluate(x_test, y_test)["accuracy"]
    ```

    Source: Abadi et al., "Deep Learning with Differential Privacy", 2016.
    """

    _library = "jax-privacy"
    _generator = "JAX's generator"
    _form = "vmap"
    _clipping = "gradients"

    def _import_library(self):
        return parts_of(
            "jax-privacy",
            "jax",
            'pip install "jax-privacy>=2,<3" jax, in an environment without '
            "tensorflow-privacy, with Python 3.11 or later and "
            "KERAS_BACKEND=jax",
            jax="jax",
            batch_selection="jax_privacy.batch_selection",
            clipped_grad="jax_privacy.clipping:clipped_grad",
            noise_addition="jax_privacy.noise_addition",
        )

    def _why_not(self, model, shape):
        return changing_state(model, shape)

    def _train(self, library, x, y, plan, batches):
        with without_softmax(self._model):
            step = _Step(self, library, plan, x, y)
            self._take(step, plan, batches)
        step.write_weights()


class _Step:
    """One DP-SGD update: clip and sum, add the noise, apply."""

    def __init__(self, trainer, library, plan, x, y):
        jax, model = library.jax, trainer._model
        config, views = trainer.config, trainer._views
        rows = config.physical_batch_size or _microbatch_rows(jax, model)
        self._size = plan.capacity
        self._rows = rows if rows < plan.capacity else None
        if self._rows:
            self._size = -(-plan.capacity // rows) * rows
        self._pad = library.batch_selection.split_and_pad_global_batch
        self._wait = jax.block_until_ready
        self._variables = model.trainable_variables
        optimizer = config.keras_optimizer(plan.steps)
        optimizer.build(self._variables)
        crossentropy = loss_of(model, x.shape[1:])

        def loss(weights, x, y):
            if views:
                # One record: its views form a batch, whose mean loss is the
                # record's.
                x, y = x[0], keras.ops.repeat(y, views.count)
            logits, _ = with_weights(model, weights, x)
            return crossentropy(y, logits)

        clipped_mean = library.clipped_grad(
            loss,
            l2_clip_norm=config.l2_norm_clip,
            normalize_by=float(plan.expected_batch_size),
            batch_argnums=(1, 2),
            microbatch_size=self._rows,
        )
        # The plan's multiplier is in units of the clip for all relations.
        privatizer = library.noise_addition.gaussian_privatizer(
            stddev=plan.noise_multiplier * clipped_mean.l2_norm_bound,
            prng_key=_noise_key(jax, trainer.seed),
        )

        def update(state, x, y, padding):
            weights, slots, noise_state = state
            mean = clipped_mean(weights, x, y, is_padding_example=padding)
            mean, noise_state = privatizer.update(mean, noise_state)
            weights, slots = optimizer.stateless_apply(slots, mean, weights)
            return weights, slots, noise_state

        weights = [v.value for v in self._variables]
        slots = [v.value for v in optimizer.variables]
        self._state = (weights, slots, privatizer.init(weights))
        self._views = views
        if views:
            self._update, self._x, self._y = jax.jit(update), x, y
            return
        self._update = jax.jit(
            lambda state, x, y, rows, padding: update(
                state, x[rows], y[rows], padding
            )
        )
        self._x, self._y = jax.device_put(x), jax.device_put(y)

    def __call__(self, batch):
        (rows,) = self._pad(np.asarray(batch, "int32"), self._size, self._rows)
        # A padding row uses record 0, without effect.
        held = np.maximum(rows, 0)
        if self._views:
            # The library may put padding anywhere.
            x = np.zeros((len(rows), self._views.count, *self._x.shape[1:]))
            real = self._x[rows[rows >= 0]]
            x[rows >= 0] = self._views(real, len(real))
            given = (x.astype("float32"), self._y[held])
        else:
            given = (self._x, self._y, held)
        self._state = self._update(self._state, *given, rows < 0)
        self._wait(self._state[0])

    def weights(self):
        """The weights after the last step."""
        return self._state[0]

    def assign(self, weights):
        """Sets the weights."""
        self._state = (weights, *self._state[1:])

    def write_weights(self):
        """Puts the trained weights into the model."""
        for variable, value in zip(
            self._variables, self.weights(), strict=True
        ):
            variable.assign(value)


def _noise_key(jax, seed):
    if seed is None:
        words = np.frombuffer(secrets.token_bytes(8), np.uint32)
    else:
        # Not the stream that draws the batches.
        words = np.random.SeedSequence(seed).spawn(1)[0].generate_state(2)
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def _microbatch_rows(jax, model):
    """Records whose gradients are in memory at a time."""
    weights = sum(math.prod(v.shape) for v in model.trainable_variables)
    outputs = sum(math.prod(v.output.shape[1:]) for v in model.layers)
    memory = _CACHED_BYTES if jax.default_backend() == "cpu" else _DEVICE_BYTES
    return max(8, int(memory // (4 * (weights + outputs))))
