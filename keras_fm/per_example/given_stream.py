"""Rows that are read once, in the order of the data, and not kept."""

import itertools
import math

import keras
import numpy as np

from keras_fm.kernel import checks, records
from keras_fm.per_example import given_records


def is_stream(x):
    """Whether x yields batches one after the other."""
    return (
        given_records.is_data_set(x)
        or hasattr(x, "dataset")
        or hasattr(x, "__next__")
        or callable(x)
    )


class GivenStream:
    """As `GivenRecords`, with the rows of a few steps in memory.

    The number of places is public. Rows beyond it are not read, and unused
    places stay empty.

    Args:
        x: a `tf.data.Dataset`, a `PyDataset`, a `DataLoader`, a generator, or
            a function that returns one, of batches.
        batch_size: int, rows of a step, or `None` for those of the first batch.
        steps: int, or `None`: the number of batches, if known.
        classes: `None`, or a list of class names.

    Attributes:
        x, y, weights: of the first batch.
        n: int, the number of places.

    Raises:
        ValueError: if the number of steps is not known.
    """

    owners = None

    def __init__(self, x, batch_size=None, steps=None, classes=None):
        self._classes, self._held, self._next, self._rest = classes, {}, 0, []
        self._check = lambda y: None
        count = None
        if given_records.is_data_set(x):
            batches = given_records.batches_of(x)
            if hasattr(x, "cardinality"):
                count = max(int(x.cardinality()), 0) or None
            else:
                count = x.num_batches
        else:
            if hasattr(getattr(x, "dataset", None), "__len__"):
                given_records.check_loader(x)
                records.check_loader(x)
                count = len(x)
            batches = iter(x() if callable(x) else x)
        first = next(batches, None)
        if first is None:
            raise ValueError("`x` must hold at least one row. Received: none")
        self.x, self.y, self.weights = self._example = self._arrays(first)
        self._batches = itertools.chain([first], batches)
        size = len(keras.tree.flatten(self.x)[0])
        self.batch_size = checks.count("batch_size", batch_size or size)
        if steps is None and count is not None:
            steps = math.ceil(count * size / self.batch_size)
        if steps is None:
            raise ValueError(
                "The number of batches of `x` is not known, and the noise "
                "depends on it. Pass the number of steps: "
                "`steps_per_epoch=1000`."
            )
        self.n = steps * self.batch_size

    def watch(self, check):
        """Sets a function that checks labels as they are read."""
        self._check = check

    def part(self, step, taken):
        """The `GivenRecords` of a step, after `taken` steps."""
        for old in [s for s in self._held if s < taken]:
            del self._held[old]
        while self._next <= step:
            self._held[self._next] = self._read()
            self._next += 1
        return self._held[step]

    def _read(self):
        parts, size = self._rest, self.batch_size
        while sum(map(_length, parts)) < size:
            batch = next(self._batches, None)
            if batch is None:
                break
            parts.append(self._arrays(batch))
        empty = keras.tree.map_structure(
            _none_or(lambda v: v[:0]), self._example
        )
        joined = given_records.together(np.concatenate, [empty, *parts])
        self._rest = [_rows(joined, slice(size, None))]
        x, y, weights = _rows(joined, slice(size))
        return _Part(x, y, weights)

    def _arrays(self, batch):
        """x, y and weights of a batch, with the types of the first batch."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        given = given_records.GivenRecords(x, y, weights, 1, self._classes)
        found = given.x, given.y, given.weights
        if hasattr(self, "_example"):
            same = keras.tree.map_structure(
                _none_or(lambda v: v.shape[1:]), self._example
            ) == keras.tree.map_structure(
                _none_or(lambda v: v.shape[1:]), found
            )
            if not same:
                raise ValueError(
                    "All batches of `x` must hold rows of one shape. Pad them "
                    "to a public length."
                )
            self._check(given.y)
        return found


class _Part:
    """The rows of a step."""

    owners = None

    def __init__(self, x, y, weights):
        self.x, self.y, self.weights = x, y, weights


def _none_or(function):
    return lambda v: None if v is None else function(v)


def _length(rows):
    return len(keras.tree.flatten(rows[0])[0])


def _rows(rows, places):
    return keras.tree.map_structure(_none_or(lambda v: v[places]), tuple(rows))
