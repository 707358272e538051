"""Poisson samples of arrays as fixed-shape batches for any Keras model."""

import dataclasses
import secrets
import threading

import keras
import numpy as np

from keras_fm.datasets.record_views import RecordViews, told
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel.reads import columns
from keras_fm.kernel.reads import sampling as sampling_lib

# Without a given capacity, a run of this many batches overflows with at most
# the probability below.
_BATCHES = 10**6
_OVERFLOW_PROBABILITY = 1e-12

_FIXED = frozenset(
    "n batch_size capacity sampling_rate steps_per_epoch sampling reproducible "
    "views _x _y _owned _augmented _most_rows _most_units".split()
)


class PoissonBatches(keras.utils.PyDataset):
    """Batches that every record joins independently, padded to one shape.

    Privacy by sampling (DP-SGD, DP-MAC, noisy reads) is proven for such
    batches, not for the shuffled ones of `Model.fit`. Any Keras model on any
    backend trains on them. By itself this is only the sampling: what is
    computed from the batches must be clipped, noised and charged.

    A batch is `(x, y, mask)` of `capacity` rows: the sampled records, then
    zeros. The float32 mask `(capacity,)`, which Keras takes as the sample
    weight, is 1 for records and 0 for padding. The true size of a batch is
    private; nothing but the noisy sum may depend on it.

    Every `dataset[i]` is a fresh sample, whatever `i` is: the order, the
    workers (threads or processes) and batches that are drawn and thrown away
    (Keras looks at two for their shape with TensorFlow) do not matter.

    *Loss.* With the default reduction `"sum_over_batch_size"`, Keras divides
    the loss of a batch by the number of rows, padding included: by
    `capacity`, a constant. The gradient is therefore that of the sum over
    the records divided by `capacity`; for the usual `batch_size` multiply
    the loss by `capacity / batch_size`, or use `reduction="sum"` and divide.
    `"mean_with_sample_weight"` divides by the true size, which is private:
    do not use it for a private step. Metrics see the mask only as
    `weighted_metrics`. Batch normalization mixes records, and would read the
    padding.

    Args:
        x: array `(n, ...)` of finite numbers, or a tuple or dict of such
            arrays for several inputs.
        y: the same for targets. `None`: the targets are the inputs, as an
            auto-encoder needs them (`(x, None, mask)` is not a batch for
            Keras with TensorFlow; a model without targets ignores them).
        batch_size: int, the expected number of records of a batch;
            each record is in with probability `batch_size / n`. `None` with
            `sampling="full"`.
        steps_per_epoch: int, number of batches of an epoch. Default:
            `n / batch_size`, rounded, at least 1.
        capacity: int, rows of a batch, at least `batch_size`: that of the
            `keras_fm.sampling.plan` of the run. Default: the smallest for
            which one of 10^6 batches overflows with probability at most
            1e-12 (a Chernoff bound). `n` with `sampling="full"`.
        sampling: `"poisson"`, or `"full"`: every batch holds all records.
        seed: int, for tests and studies only: whoever knows the samples gets
            no privacy from sampling. `None` asks the operating system for
            256 bits for each batch.
        owners: `None` (a record joins by itself), or `(n,)` ids of the
            records' owners: an owner joins a batch with all its records, and
            each of them has the mask one over their number, so that an owner
            weighs as much as one record. `n`, `batch_size` and the rate then
            count owners.
        rows_per_owner: int, public bound on the number of an owner's records,
            needed with `owners`: the rows of a batch are this many for each
            owner that fits. More records are an error.
        augment: `None`, or a function of one record of x and a NumPy
            generator to a record of the same shape: every record in a batch
            is given as `views` rows one after the other, as a model with
            `views` takes them together (`GradientNet`). Each is made by a
            call of its own from that record, which it may not write to, and
            from a generator of that record's own. The function must draw all
            chance from that generator and hold nothing of other records. One
            that changes the state of another generator (a global one, that
            of a Keras layer, one that it holds) is refused, and so is one
            that does not return the same for the same two. That a function
            holds other records from where it was written, nobody can see.
        views: int, rows of a record, with `augment`.
        **kwargs: `workers`, `use_multiprocessing` (not with a seed) and
            `max_queue_size` of `keras.utils.PyDataset`.

    Attributes:
        n, batch_size, capacity, sampling_rate, steps_per_epoch, sampling:
            public facts of the sampling.
        views: int, rows of a record; of a batch `capacity` times as many.
        reproducible: bool, whether it is seeded, hence not private.

    Raises:
        ValueError: if a value is outside its range, NaN or infinite, or
            arrays differ in length.
        RuntimeError: by `dataset[i]`, if a sample exceeds `capacity`.

    Example:

    ```python
    batches = keras_fm.datasets.PoissonBatches(x, y, batch_size=250)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(batches, epochs=10)
    ```

    Source: Abadi et al., "Deep Learning with Differential Privacy", 2016
    (the sampling); the capacity is proven in docs/proofs/mechanisms.md.
    """

    def __init__(
        self,
        x,
        y=None,
        *,
        batch_size=None,
        steps_per_epoch=None,
        capacity=None,
        sampling="poisson",
        seed=None,
        owners=None,
        rows_per_owner=None,
        augment=None,
        views=1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        checks.either("sampling", sampling, ("poisson", "full"))
        if seed is not None and self.use_multiprocessing:
            raise ValueError(
                "Processes would repeat the samples of a `seed`. Use threads, "
                "or no seed. Received: use_multiprocessing=True"
            )
        self._x = _arrays("x", x)
        self._y = None if y is None else _arrays("y", y)
        leaves = keras.tree.flatten([self._x, [] if y is None else self._y])
        lengths = [len(leaf) for leaf in leaves]
        if len(set(lengths)) > 1:
            raise ValueError(
                "All arrays of `x` and `y` must hold the same number of "
                f"records. Received lengths: {lengths}"
            )
        self._owned = _owned(owners, rows_per_owner, lengths[0])
        self.views = checks.count("views", views)
        if (augment is None) != (self.views == 1):
            raise ValueError(
                "`augment` makes each of `views` rows of a record: give both, "
                f"views > 1. Received: augment={told(augment)}, "
                f"views={views}"
            )
        if augment is not None and not isinstance(self._x, np.ndarray):
            raise ValueError(
                "`augment` is of records of one array. Received: x="
                f"{type(self._x).__name__} of arrays"
            )
        made = None
        if augment is not None:
            made = RecordViews(
                augment, self.views, self._x.shape[1:], self._x.dtype
            )
        self._augmented = made
        n = lengths[0] if self._owned is None else len(self._owned.counts)
        most = 1 if self._owned is None else self._owned.most
        batch_size = sampling_lib.expected_batch_size(n, sampling, batch_size)
        if steps_per_epoch is None:
            steps_per_epoch = max(1, round(n / batch_size))
        rate = batch_size / n
        if capacity is None:
            capacity = n
            if rate < 1:
                tail = _OVERFLOW_PROBABILITY / _BATCHES
                capacity = sampling_lib.capacity(n, rate, tail)
            capacity *= most
        checks.integer(
            "steps_per_epoch",
            steps_per_epoch,
            at_least=1,
            wanted="an integer of at least 1",
        )
        checks.integer("capacity", capacity, at_least=batch_size * most)
        wanted = "a non-negative integer or None"
        checks.optional(checks.integer, "seed", seed, at_least=0, wanted=wanted)
        self.n = n
        self.batch_size = int(batch_size)
        self.capacity = int(capacity)
        # Of a record or owner that joins, and how many of these may.
        self._most_rows = most
        self._most_units = self.capacity // most
        self.sampling_rate = rate
        self.steps_per_epoch = int(steps_per_epoch)
        self.sampling = sampling
        self.reproducible = seed is not None
        self._draws = _SeededDraws(seed) if self.reproducible else None

    def __setattr__(self, name, value):
        # A plan is made of them, and samples are drawn by them.
        if name in _FIXED and name in self.__dict__:
            raise AttributeError(
                f"`{name}` of PoissonBatches is fixed when they are built. "
                "Build others."
            )
        super().__setattr__(name, value)

    @property
    def data(self):
        """The records, `(x, y)` or x alone: what a release below reads."""
        return self._x if self._y is None else (self._x, self._y)

    @property
    def owners(self):
        """The ids of the records' owners that were given, or `None`."""
        return None if self._owned is None else self._owned.ids

    @property
    def num_batches(self):
        return self.steps_per_epoch

    def plan(self, *, steps, delta, epsilon=None):
        """The `keras_fm.sampling.SamplingPlan` of training `steps` batches.

        It has this capacity, hence its own overflow probability.

        Args:
            steps: int, number of batches that are used.
            delta, epsilon: the budget, as `keras_fm.sampling.plan` takes it.

        Raises:
            ValueError: if a value is outside its range, or overflows of this
                capacity are so likely that delta cannot pay for them.
        """
        full = self.sampling == "full"
        made = sampling_lib.plan(
            self.n,
            sampling=self.sampling,
            batch_size=None if full else self.batch_size,
            steps=steps,
            delta=delta,
            epsilon=epsilon,
        )
        overflow = 0.0
        if self.sampling_rate < 1:
            one = sampling_lib.overflow_bound(
                self.n, self.sampling_rate, self._most_units
            )
            overflow = made.steps * one
            if overflow >= delta:
                raise ValueError(
                    "A Poisson sample exceeds the capacity too often for "
                    f"delta={delta:g} to pay for it. "
                    f"Received: capacity={self.capacity}, of which "
                    f"{made.capacity * self._most_rows} would do."
                )
        return dataclasses.replace(
            made, capacity=self._most_units, overflow_probability=overflow
        )

    def __getitem__(self, index):
        # Without a seed, no state that processes could share.
        if self.reproducible:
            seed = self._draws.next()
        else:
            seed = np.random.SeedSequence(secrets.randbits(256))
        rng = np.random.Generator(np.random.Philox(seed))
        if self.sampling == "full":
            joined = np.arange(self.n)
        else:
            joined = sampling_lib.poisson_sample(
                self.n, self.sampling_rate, self._most_units, rng
            )
        rows, weights = joined, 1.0
        if self._owned is not None:
            rows, weights = self._owned.records(joined)
        views, size = self.views, self.capacity * self.views

        def padded(array):
            batch = np.zeros((size, *array.shape[1:]), array.dtype)
            batch[: len(rows) * views] = np.repeat(array[rows], views, axis=0)
            return batch

        x = keras.tree.map_structure(padded, self._x)
        if self._augmented is not None:
            key = int.from_bytes(rng.bytes(16), "little")
            made = self._augmented.rows(self._x[rows], key)
            for i, view in enumerate(made):
                x[i] = view
        y = x
        if self._y is not None:
            y = keras.tree.map_structure(padded, self._y)
        mask = np.zeros(size, "float32")
        mask[: len(rows) * views] = np.repeat(
            np.broadcast_to(weights, len(rows)), views
        )
        return x, y, mask


@dataclasses.dataclass(frozen=True)
class _Owned:
    """Which records belong together.

    Attributes:
        ids: `(n,)`, as given.
        codes: `(n,)`, from 0 for the first owner.
        counts: numbers of records by code.
        most: the public bound on them.
    """

    ids: np.ndarray
    codes: np.ndarray
    counts: np.ndarray
    most: int

    def records(self, joined):
        """All records of some owners, and the weight of each."""
        chosen = np.zeros(len(self.counts), bool)
        chosen[joined] = True
        rows = np.flatnonzero(chosen[self.codes])
        return rows, 1.0 / self.counts[self.codes[rows]]


def _owned(owners, most, n):
    if owners is None:
        if most is not None:
            raise ValueError(
                "`rows_per_owner` belongs to `owners`. Received: "
                f"rows_per_owner={most}, owners=None"
            )
        return None
    if most is None:
        raise ValueError(
            "`owners` need `rows_per_owner`, a public bound on the number of "
            "an owner's records: the shape of a batch must not tell it."
        )
    most = checks.count("rows_per_owner", most)
    ids = np.array(columns.owner_ids(owners))
    if ids.shape != (n,):
        raise ValueError(
            "`owners` must hold one id for each record. Received: "
            f"owners.shape={ids.shape}, {n} records"
        )
    _, codes, counts = np.unique(ids, return_inverse=True, return_counts=True)
    if counts.max() > most:
        raise ValueError(
            "At least one owner has more records than `rows_per_owner`. "
            "Choose some of them by a rule that looks at this owner alone, "
            f"or raise the bound. Received: rows_per_owner={most}"
        )
    return _Owned(ids, codes.reshape(-1), counts, most)


class _SeededDraws:
    """One seed per draw, counted across threads."""

    def __init__(self, seed):
        self._seed, self._count = seed, 0
        self._lock = threading.Lock()

    def next(self):
        with self._lock:
            self._count += 1
            return np.random.SeedSequence([self._seed, self._count])


def _arrays(name, data):
    def array(value):
        return columns.one_array(value, name)

    if not isinstance(data, (tuple, dict)):
        data = array(data)
    data = keras.tree.map_structure(array, data)
    leaves = keras.tree.flatten(data)
    if not leaves or not all(map(len, leaves)):
        raise ValueError(
            f"`{name}` must hold at least one record along the first axis. "
            f"Received shapes: {[leaf.shape for leaf in leaves]}"
        )
    for leaf in leaves:
        if leaf.dtype.kind not in "biufc":
            advice = "Look words up beforehand."
            if name == "y":
                advice = bounds_lib.NUMBER_THE_CLASSES
            raise ValueError(
                f"`{name}` must hold numbers. {advice} Received: dtype="
                f"{leaf.dtype}"
            )
        if leaf.dtype.kind in "fc":
            checks.finite(name, leaf, ". It holds NaN or inf.")
        elif leaf.dtype.itemsize == 8 and keras.backend.backend() == "jax":
            _check_kept(name, leaf)
    return data


def _check_kept(name, leaf):
    if leaf.max(initial=0) >= 2**31 or leaf.min(initial=0) < -(2**31):
        raise ValueError(
            f"`{name}` holds whole numbers beyond 32 bits, which JAX wraps "
            f'round. Give floats, `{name}.astype("float64")`.'
        )
