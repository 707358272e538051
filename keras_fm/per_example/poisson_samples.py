"""The samples of a private fit, each with fresh secret keys."""

import math
import secrets

import keras
import numpy as np
from keras import ops

from keras_fm.kernel.access import sampling
from keras_fm.per_example.given_records import is_text
from keras_fm.per_example.sum_noise import WORD

RECORDS, KEYS, FACTORS = "records", "keys", "factors"


def are_drawn(x):
    """Whether x is a batch of `PoissonSamples`."""
    return isinstance(x, dict) and set(x) == {RECORDS, KEYS, FACTORS}


class PoissonSamples(keras.utils.PyDataset):
    """Poisson samples: every record joins independently; padded to one shape.

    Every batch has its own keys from the operating system, one for each row.
    All its random numbers come from them, none from a variable.

    Args:
        records: a `GivenRecords`.
        plan: a `keras_fm.kernel.access.sampling.SamplingPlan`.
        rows: int, rows of a batch, at least the capacity of the plan.
        key_shape: shape of the key of one record.
        key_dtype: dtype of keys.
        seed: `None`, or an int: reproducible, hence not private.
        per_epoch: int, batches of an epoch.
    """

    def __init__(
        self, records, plan, rows, key_shape, key_dtype, seed=None, per_epoch=1
    ):
        super().__init__()
        self._records, self._plan, self._rows = records, plan, rows
        self._key_shape, self._key_dtype = tuple(key_shape), key_dtype
        self._drawn = 0
        self._seed = seed
        self._per_epoch, self._order = per_epoch, None
        self._shuffles = np.random.default_rng(seed)

    @property
    def num_batches(self):
        return self._per_epoch

    def __getitem__(self, index):
        rng = self._generator()
        joined = self._joined(index, rng)
        return self._batch(self._records, joined, self._keys(rng), rng)

    def _generator(self):
        """Secret random numbers from the operating system."""
        if self._seed is None:
            seed = np.random.SeedSequence(secrets.randbits(256))
        else:
            seed = np.random.SeedSequence([self._seed, self._drawn])
            self._drawn += 1
        return np.random.Generator(np.random.Philox(seed))

    def _joined(self, index, rng):
        """The records that join a batch."""
        if self._plan.sampling == "poisson":
            return sampling.poisson_sample(
                self._plan.n, self._plan.sampling_rate, self._plan.capacity, rng
            )
        if self._plan.sampling == "shuffled":
            return self._shuffled(index)
        return np.arange(self._plan.n)

    def _keys(self, rng):
        shape = (self._rows, *self._key_shape)
        return rng.integers(0, WORD, shape, "int64")

    def _batch(self, given, joined, keys, rng):
        """The batch of the given records, padded, with the keys of a step."""
        size = self._rows
        rows, places = joined, np.arange(len(joined))
        factors = np.ones(len(joined), "float32")
        if given.owners is not None:
            rows, shares, factors = given.owners.drawn(
                joined, given.weights, rng
            )
        elif given.weights is not None:
            factors = given.weights[joined]

        def padded(values, rows):
            shape = (size, *rows.shape[1:], *values.shape[1:])
            if is_text(values):
                batch = np.full(shape, "", values.dtype)
            else:
                batch = _empty(shape, values.dtype)
                batch[len(rows) :] = 0
            # Indices are valid: with "raise" rows would be copied once more.
            found = batch[: len(rows)]
            np.take(values, rows, axis=0, out=found, mode="clip")
            return batch

        def taken(tree):
            return keras.tree.map_structure(
                lambda v: _shared(padded(v, rows)), tree
            )

        records = taken(given.x)
        if given.owners is not None:
            records = (records, padded(shares, places))
        x = {
            RECORDS: records,
            KEYS: keys.astype(self._key_dtype),
            FACTORS: padded(factors, places),
        }
        batch = (x,) if given.y is None else (x, taken(given.y))
        if keras.backend.backend() == "tensorflow":
            # TensorFlow's data sets have no lists, and text only as tensors.
            batch = keras.tree.map_structure(
                lambda v: ops.convert_to_tensor(v) if is_text(v) else v,
                keras.tree.lists_to_tuples(batch),
            )
        return batch

    def _shuffled(self, index):
        """Records of a batch in the shuffled order of an epoch, as in published
        forms; the last batch may be smaller."""
        if self._order is None:
            self._order = self._shuffles.permutation(self._plan.n)
        size = self._plan.expected_batch_size
        start = index % -(-self._plan.n // size) * size
        return self._order[start : start + size]

    def on_epoch_end(self):
        self._order = None


class BinnedSamples(PoissonSamples):
    """Batches of `BallsInBins`: in each epoch every record is in one.

    Args:
        records, plan, rows, key_shape, key_dtype, **kwargs: as of
            `PoissonSamples`.
        taken: function that gives the number of steps that are over.
    """

    def __init__(self, *args, taken, **kwargs):
        super().__init__(*args, **kwargs)
        self._taken, self._bins = taken, {}

    def _joined(self, index, rng):
        step = _step(self._taken(), self._per_epoch, index)
        epoch = step // self._per_epoch
        if epoch not in self._bins:
            # Drawn once an epoch, even if Keras requests a batch again.
            self._bins = {
                epoch: rng.integers(0, self._per_epoch, self._plan.n, "int32")
            }
        joined = np.flatnonzero(self._bins[epoch] == index)
        return sampling.checked_size(joined, self._plan.capacity)


class OrderedSamples(PoissonSamples):
    """Batches of all records in a fixed order, with the noise keys of the step
    and of the steps before.

    Noise keys stay in memory as long as a step needs them. A step always has
    the same batch, even if Keras requests it again, and no batch once it is
    over: reused noise would not protect other sums.

    Args:
        records, plan, rows, key_shape, key_dtype, **kwargs: as of
            `PoissonSamples`.
        bands: int, of the `CorrelatedNoise`.
        taken: function that gives the number of steps that are over.
        shuffle: bool, whether the order is drawn. Otherwise it is that of the
            records, or of the `GivenStream` that is passed as `records`.
    """

    def __init__(self, *args, bands, taken, shuffle, **kwargs):
        super().__init__(*args, **kwargs)
        self._bands, self._taken, self._noise = bands, taken, {}
        if not hasattr(self._records, "part"):
            self._order = np.arange(self._plan.n)
        if shuffle:
            self._order = self._generator().permutation(self._order)

    def __getitem__(self, index):
        taken = self._taken()
        step = _step(taken, self._per_epoch, index)
        for old in [s for s in self._noise if s < taken - self._bands]:
            del self._noise[old]
        rng = self._generator()
        past = [self._words(step - i) for i in range(1, self._bands)]
        keys = self._keys(rng)
        keys[:, 0] = self._words(step)
        keys = np.concatenate([keys, *(v[:, None] for v in past)], axis=1)
        if not hasattr(self._records, "part"):
            return self._batch(self._records, self._shuffled(index), keys, rng)
        part = self._records.part(step, taken)
        rows = len(keras.tree.flatten(part.x)[0])
        return self._batch(part, np.arange(rows), keys, rng)

    def _words(self, step):
        """Key words of a step's noise; zeros for steps before the first."""
        if step < 0:
            return np.zeros((self._rows, 2), "int64")
        if step not in self._noise:
            self._noise[step] = self._generator().integers(
                1, WORD, (self._rows, 2), "int64"
            )
        return self._noise[step]

    def on_epoch_end(self):
        """Keeps the order."""


def _step(taken, per_epoch, index):
    """The step number of a batch of the running epoch."""
    step = taken - taken % per_epoch + index
    if step < taken:
        raise RuntimeError(
            "Keras requested the batch of an earlier step again, and its "
            "noise cannot be drawn twice. Begin another fit."
        )
    return step


def _empty(shape, dtype):
    """Memory, aligned so that a backend uses it without a copy."""
    size = math.prod(shape) * dtype.itemsize
    held = np.empty(size + 64, "uint8")
    start = -held.ctypes.data % 64
    return held[start : start + size].view(dtype).reshape(shape)


def _shared(array):
    """On PyTorch a tensor that shares an array's memory: Keras would copy
    it."""
    if keras.backend.backend() != "torch" or array.dtype.kind not in "fi":
        return array
    import torch

    return torch.from_numpy(array)
