import contextlib
import os
import secrets

import keras
import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.parts import optimizer_state, variable_values
from keras_fm.parts.hidden_state import HiddenVariable
from keras_fm.parts.private_part import ReleasedLayer
from keras_fm.stacks import sum_noise

_COUNTERS = ("steps_taken", "steps_allowed", "steps_refused")
# Steps that may be taken now, those before included: never in a file.
_ARMED = "steps_armed"
# Rows of keys where none are asked for: words enough for any generator.
_ROWS = 4


@keras.saving.register_keras_serializable(package="keras_fm")
class StepNoise(ReleasedLayer):
    """Fresh Gaussian noise for every training step, and a count of steps.

    The identity on its inputs. Part of `keras_fm.models.DPMAC` and
    `GradientNet`, which hand it the clipped sums of a batch at each step; what
    comes back is all that a step may know of the records. Steps beyond the
    allowed number come back as zeros.

    The keys of a step come from a stream that the operating system seeds: on
    JAX and PyTorch NumPy's Philox with a key of 128 bits, on TensorFlow one
    of two words. On JAX the key of a step travels with its batch. The stream
    is no variable of the model and in no weight, file, config or repr, and is
    forgotten when a private fit ends.
    Noise has the precision of the sums, single or double, as in every form of
    DP-SGD: no statement covers its floating-point grid.

    The counts are saved, with the public facts of the noise and the ledger,
    but are no weights: `set_weights` (`EarlyStopping` with
    `restore_best_weights`, for one) does not turn them back. They say what
    was: what a step may do is decided by the ledger that arms it
    (`keras_fm.callbacks.PrivateModel`), for one epoch of one fit at a time.

    Input shape: any. Output shape: that of the input.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._facts = None
        # Plain: the weights belong to the layers of the network.
        self.__dict__["_describes"] = []
        # The callback whose fit may take steps, and the process it runs in:
        # one that was forked from it has the same noise.
        self.__dict__["_armed_by"] = self.__dict__["_armed_in"] = None
        # The mechanism of the ledger's entry, which draws the noise: in no
        # file, a fit that goes on has it from its ledger.
        self.__dict__["_mechanism"] = None
        # A digest of what the optimizer remembered when a fit ended.
        self.__dict__["_optimizer_left"] = None
        # Whether the seed was asked for, so that a pause does not change it.
        self.__dict__["_known_seed"] = False
        # The key of the batch that a compiled step of JAX runs on, and how
        # often it was used.
        self.__dict__["_of_batch"] = None
        # Changes whenever a compiled step is stale.
        self.generation = 0
        # Set when a training step with noise is traced.
        self.objective_in_use = False

    def build(self, input_shape):
        for name in (*_COUNTERS, _ARMED):
            self._make_counter(name)
        if keras.backend.backend() != "tensorflow":
            return
        # Found by compiled steps of TensorFlow, and no variable of the layer.
        self._hidden.variables["seed"] = HiddenVariable(
            np.zeros(2),
            dtype=keras.random.SeedGenerator(0).state.dtype,
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
            name="seed",
        )

    def call(self, inputs, training=None):
        self.in_training(training)
        return inputs

    def enter_training(self):
        if not self.may_step:
            self.refuse_step()

    @property
    def may_step(self):
        """Whether a training step may be taken now."""
        return self.unprotected or (
            self._armed_by is not None
            and self._armed_in == os.getpid()
            and self.has_seed
        )

    def refuse_step(self):
        """Refuses a step that no fit with its ledger takes.

        Raises:
            ValueError: saying how it is taken.
        """
        owner = self.owner()
        kind = "DPMAC" if owner is None else type(owner).__name__
        name = getattr(owner, "name", self.name)
        variable_values.give_back(self._trainer())
        if not self.is_perturbed:
            raise ValueError(
                f"{kind} '{name}' has no noise, so training it would use the "
                "records unprotected. Give fit `callbacks=["
                "keras_fm.callbacks.PrivateModel(epsilon=1.0, delta=1e-5)]` "
                "and "
                "`keras_fm.datasets.PoissonBatches`. A non-private twin is "
                f"built with `{kind}(..., unprotected=True)`."
            )
        raise ValueError(
            f"The noise of {kind} '{name}' acts in a fit with its ledger "
            "only: a step would read records unprotected. Continue with the "
            "same callback, or with `PrivateModel(Ledger.open(path))`, where "
            "the file knows which steps are left."
        )

    _counter = "steps_taken"

    def describe(self, weights):
        """Names the weights of the network that its steps lead to."""
        self.__dict__["_describes"] = list(weights)

    def described_weights(self):
        return self._describes

    def compute_output_shape(self, input_shape):
        return input_shape

    # What is public ------------------------------------------------------

    def _count(self, name):
        return int(ops.convert_to_numpy(self._get_hidden(name)))

    @property
    def steps_taken(self):
        """Noisy steps that were released."""
        return self._count("steps_taken")

    @property
    def steps_allowed(self):
        """Noisy steps that may be, those taken included."""
        return self._count("steps_allowed")

    @property
    def steps_refused(self):
        """Steps beyond the allowed number: nothing was released."""
        return self._count("steps_refused")

    @property
    def noise_multiplier(self):
        """Standard deviation in units of the sensitivity, or `None`."""
        return None if self._facts is None else self._facts[0]

    @property
    def expected_batch_size(self):
        """What noisy sums are divided by, or `None`."""
        return None if self._facts is None else self._facts[1]

    @property
    def deviation(self):
        """Standard deviation of the noise on what `release` returns."""
        return self._mechanism.stddev / self.expected_batch_size

    @property
    def is_perturbed(self):
        """Whether noise was fixed, in this process or before saving."""
        return self._facts is not None

    @property
    def has_seed(self):
        """Whether there is a stream of noise: not after loading, and of a
        private fit not after its end."""
        return self._hidden.seed is not None

    @property
    def is_mirrored(self):
        """Whether TensorFlow keeps counts and seed the same on replicas."""
        taken = self._get_hidden("steps_taken").value
        return len(getattr(taken, "values", ())) > 1

    # Noise ---------------------------------------------------------------

    def fix(
        self,
        mechanism,
        expected_batch_size,
        steps,
        seed=None,
        ledger_json=None,
        published=False,
    ):
        """Fixes the noise of all steps before the first, or goes on.

        Args:
            mechanism: a `GaussianNoise`, of the ledger's entry that pays for
                the steps: nothing else decides how much noise they get.
            expected_batch_size: float > 0, public.
            steps: int, steps that may be, those taken before included.
            seed: `None`, or an int: the noise then is known to whoever knows
                it, which protects nobody.
            ledger_json: `None`, or str, kept with the layer when it is saved.
            published: whether what these steps release has no proof.

        Raises:
            ValueError: if a value is outside its range, or steps under other
                values are still allowed.
        """
        facts = (
            mechanism.noise_multiplier,
            checks.norm_bound("expected_batch_size", expected_batch_size),
        )
        steps = checks.count("steps", steps)
        wanted = "`None` or an integer of at least 0"
        checks.optional(checks.integer, "seed", seed, at_least=0, wanted=wanted)
        taken, allowed = self.steps_taken, self.steps_allowed
        if taken < allowed and facts != self._facts:
            raise ValueError(
                "The noise was fixed already, and "
                f"{allowed - taken} of its steps are still allowed. Received: "
                f"noise_multiplier={facts[0]:g}, expected_batch_size="
                f"{facts[1]:g}; fixed: noise_multiplier={self._facts[0]:g}, "
                f"expected_batch_size={self._facts[1]:g}"
            )
        if steps <= taken:
            raise ValueError(
                "`steps` counts the steps that were taken before: it must be "
                f"greater. Received: steps={steps}, taken: {taken}"
            )
        if ledger_json is not None:
            self.check_no_twin()
        if not self.has_seed or seed is not None:
            self._set_seed(seed, taken)
        self._facts = facts
        self.__dict__["_mechanism"] = mechanism
        self._get_hidden("steps_allowed").assign(steps)
        if ledger_json is not None:
            self.mark_released(ledger_json, published)
        self.generation += 1

    def arm(self, callback):
        """Lets the fit of a callback take the steps it reserves."""
        self.__dict__["_armed_by"] = callback
        self.__dict__["_armed_in"] = os.getpid()
        self.allow(0)

    def allow(self, more):
        """Lets `more` steps be taken from now on, and no others."""
        self._get_hidden(_ARMED).assign(self.steps_taken + more)

    def begin_optimizer(self):
        """Lets the optimizer of the model go on from the last noisy step, or
        begin anew if something else has used it."""
        optimizer_state.begin(self.owner(), self._optimizer_left)

    def note_optimizer(self):
        """Notes what noisy steps have left in the optimizer."""
        self.__dict__["_optimizer_left"] = optimizer_state.left(self.owner())

    def disarm(self):
        """No step is taken until the next fit arms it, under a new seed:
        whoever has the old one has the noise of all steps."""
        self.__dict__["_armed_by"] = None
        # Reads nothing: an interrupted step of JAX may have lost the counts.
        self._get_hidden(_ARMED).assign(0)
        if not self._known_seed:
            if keras.backend.backend() == "tensorflow":
                self._get_hidden("seed").assign(np.zeros(2))
            self._hidden.seed = None

    @property
    def armed_by(self):
        """The callback whose fit may take steps, or `None`."""
        return self._armed_by

    def _set_seed(self, seed, taken):
        self.__dict__["_known_seed"] = seed is not None
        if seed is None:
            key = np.random.SeedSequence(secrets.randbits(128))
        else:
            # Steps after a pause must not see the noise of those before.
            key = np.random.SeedSequence([seed, taken])
        if keras.backend.backend() == "tensorflow":
            stream = keras.random.SeedGenerator(0)
            stream.state = self._get_hidden("seed")
            words = key.generate_state(2) % sum_noise.WORD
            stream.state.assign(words.tolist())
            self._hidden.seed = stream
            return
        self._hidden.seed = np.random.Generator(np.random.Philox(key))

    # Keys ------------------------------------------------------------------

    def key_of_batch(self):
        """Two words for the next batch of a compiled step of JAX."""
        if self._hidden.seed is None:
            return np.zeros(2, "uint32")
        return self._hidden.seed.integers(0, 2**32, 2, "uint32")

    @contextlib.contextmanager
    def on_batch(self, key):
        """A step that takes its random numbers from the key of a batch."""
        self.__dict__["_of_batch"] = [key, 0]
        try:
            yield
        finally:
            self.__dict__["_of_batch"] = None

    def keys(self, rows=_ROWS, streams=1):
        """Words that nobody knows, new at every call: `(rows, streams, 2)`."""
        stream, shape = self._hidden.seed, (rows, streams, 2)
        backend = keras.backend.backend()
        if backend == "tensorflow":
            return keras.random.randint(
                shape, 0, sum_noise.WORD, dtype="int32", seed=stream
            )
        if backend == "jax" and self._of_batch is not None:
            import jax

            key, used = self._of_batch
            self._of_batch[1] += 1
            key = jax.random.fold_in(sum_noise.jax_key(key), used)
            return jax.random.randint(key, shape, 0, sum_noise.WORD, "int32")
        if backend == "jax":
            _check_runs()
        words = stream.integers(0, sum_noise.WORD, shape)
        return ops.convert_to_tensor(words.astype(sum_noise.DTYPE))

    def release(self, sums, symmetric=None, keys=None):
        """Noisy sums over the expected batch size; counts one step.

        Replicas of a step add up their sums, and the first one's noise is
        the noise of all: it is added once, whatever the others drew.

        Args:
            sums: list of tensors, over the records of this replica: together
                the vector of the query that the noise was paid for, in its
                units.
            symmetric: `None`, or list of bools, see `sum_noise.noisy`.
            keys: `None`, or what `keys` returned for this step.

        Returns:
            list of tensors, all zeros if the step is not allowed.
        """
        taken = self._get_hidden("steps_taken")
        refused = self._get_hidden("steps_refused")
        allowed = ops.less(taken.value, self._get_hidden(_ARMED).value)
        if self.has_seed:
            keys = self.keys() if keys is None else keys
            noisy = sum_noise.noisy(self._mechanism, sums, keys, symmetric)
            noisy = [value / self.expected_batch_size for value in noisy]
        else:
            # Nothing to draw from, so nothing to release.
            allowed, noisy = ops.zeros_like(allowed), sums
        found = [
            ops.where(allowed, value, ops.zeros_like(value)) for value in noisy
        ]
        counted = ops.cast(allowed, taken.dtype)
        taken.assign_add(counted)
        refused.assign_add(1 - counted)
        self.objective_in_use = True
        return found

    # Saving: counts and public facts, neither seed nor noise --------------

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["counts"] = np.array([self._count(name) for name in _COUNTERS])
        if self.is_perturbed:
            store["facts"] = np.array(self._facts)
        if self.published:
            store["published"] = np.array(True)
        if self._armed_by is not None:
            # A checkpoint of a fit that goes on.
            self.note_optimizer()
        if self._optimizer_left is not None:
            store["optimizer"] = np.frombuffer(self._optimizer_left, np.uint8)

    def load_own_variables(self, store):
        counts = [int(value) for value in np.asarray(store["counts"])]
        facts = None
        if "facts" in store.keys():
            facts = tuple(float(value) for value in np.asarray(store["facts"]))
        if self.is_perturbed and facts not in (None, self._facts):
            raise ValueError(
                "The file holds a model under other noise than this one. "
                "Load it with `keras.saving.load_model`."
            )
        # Refuses before anything is changed.
        self._stored_release(store)
        for name, count in zip(_COUNTERS, counts):
            known = self._get_hidden(name)
            known.assign(max(count, self._count(name)))
        self._load_carried(store, "published" in store.keys())
        left = None
        if "optimizer" in store.keys():
            left = bytes(np.asarray(store["optimizer"]))
        self.__dict__["_optimizer_left"] = left
        if facts is not None:
            self._facts = facts
        self.generation += 1


def _check_runs():
    """Refuses to take words of the host into a compiled step of JAX, where
    they would be the same in every run."""
    import jax

    if isinstance(jax.numpy.add(0, 1), jax.core.Tracer):
        raise ValueError(
            "A compiled step of JAX has its noise from the key of its batch. "
            "Train with `model.fit`."
        )
