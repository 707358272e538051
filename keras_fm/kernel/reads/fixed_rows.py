"""Batches in which the row of a record depends on that record alone.

A network computes the rows of a batch in vectors and blocks, and what it makes
of a record may differ in its last bits from one row to another. Were records
simply read in order, one that is added would move all that follow, and with
them a little of every feature. Here a record has its row by a public hash of
its own numbers, in batches of one size, whoever else is there. Records that
are equal share a row.
"""

import functools
import math

import numpy as np

from keras_fm.kernel import sums
from keras_fm.kernel.reads import columns

# Records that wait for a batch, for each of its rows: rows are queues, of which
# one in fifty is then idle.
_WAITING = 16
# Numbers that are hashed at a time.
_HASHED = 2**20
# Of the hash: public, and the same everywhere.
_KEY = 0x6B657261735F666D
_MIX = np.uint64(0x9E3779B97F4A7C15)


def placed(batches, size, by_labels=True):
    """Yields `(x, y, rows)`, batches of `size` rows with free ones among them.

    Memory is constant in the number of records.

    Args:
        batches: iterable of `(x, y)`; x is an array or a list of arrays, y an
            array or `None`.
        size: int, rows of a batch.
        by_labels: whether the hash is of y, too. It must not be where labels
            alone are secret, and features are released as they are.

    Yields:
        x and y in the form that they were given, of `size` rows; zeros or
        empty text where no record is; and the rows in which records are:
        `(records,)` int, a row once for every record in it.

    Example:

    >>> for x, y, rows in placed([(records, labels)], 64):
    ...     features = extractor.predict_on_batch(x)[rows], y[rows]
    """
    waiting = None
    for x, y in batches:
        is_list, labelled = isinstance(x, list), y is not None
        arrays = [*x] if is_list else [x]
        arrays = [
            columns.one_array(v) for v in (*arrays, *([y] if labelled else []))
        ]
        kinds = [(array.shape[1:], array.dtype) for array in arrays]
        if waiting is None or waiting.kinds != kinds:
            if waiting is not None:
                yield from waiting.rest()
            hashed = len(arrays) - (labelled and not by_labels)
            waiting = _Waiting(arrays, kinds, size, is_list, labelled, hashed)
        while len(arrays[0]):
            # What is given next does not depend on how records were read.
            first = waiting.room
            waiting.add([array[:first] for array in arrays])
            arrays = [array[first:] for array in arrays]
            if not waiting.room:
                yield waiting.next()
    if waiting is not None:
        yield from waiting.rest()


class _Waiting:
    """Records that have no batch yet, in a pool of fixed size."""

    def __init__(self, arrays, kinds, size, is_list, labelled, hashed):
        room = _WAITING * size
        # How many of the arrays decide about a row.
        self._hashed = hashed
        self.kinds, self._form = kinds, (is_list, labelled)
        self._size = size
        self._arrays = [columns.filled(array, room) for array in arrays]
        self._hash = np.empty(room, np.uint64)
        self._used = np.zeros(room, bool)
        self.count = 0

    @property
    def room(self):
        """How many records more may wait."""
        return len(self._used) - self.count

    def add(self, arrays):
        free = np.flatnonzero(~self._used)[: len(arrays[0])]
        for held, array in zip(self._arrays, arrays):
            held[free] = array
        self._hash[free] = hashes(arrays[: self._hashed])
        self._used[free] = True
        self.count += len(free)

    def next(self):
        """A batch of one record for each row that any waits for."""
        used = np.flatnonzero(self._used)
        row = (self._hash[used] >> np.uint64(20)) % np.uint64(self._size)
        row = row.astype(np.int64)
        # Of every row the first that waits for it; equal records go with it.
        leader = np.full(self._size, -1)
        leader[row[::-1]] = used[::-1]
        rows = np.flatnonzero(leader >= 0)
        chosen, with_it = leader[rows], leader[row]
        equal = self._hash[used] == self._hash[with_it]
        others = np.flatnonzero(equal & (used != with_it))
        for array in self._arrays:
            one, other = array[used[others]], array[with_it[others]]
            of_row = columns.row_bytes(one) == columns.row_bytes(other)
            equal[others] &= np.all(of_row, axis=1)
        taken, row = used[equal], row[equal]
        found = [self._placed(array, rows, chosen) for array in self._arrays]
        self._used[taken] = False
        self.count -= len(taken)
        is_list, labelled = self._form
        y = found.pop() if labelled else None
        return (found if is_list else found[0]), y, row

    def _placed(self, array, rows, chosen):
        found = columns.filled(array, self._size)
        found[rows] = array[chosen]
        return found

    def rest(self):
        while self.count:
            yield self.next()


def hashes(arrays):
    """Of records, 64 bits: sums of words times public odd numbers, mixed.

    Numbers are hashed for what they are, whatever their type: which one an
    array of lists or of a table has, one record decides.

    Args:
        arrays: list of `(n, ...)` arrays.

    Returns:
        `(n,)` uint64, each of its record alone.
    """
    size = 1 + sum(math.prod(array.shape[1:]) for array in arrays)
    parts = sums.chunks(len(arrays[0]), max(_HASHED // size, 1))
    found = [_hashes([array[part] for array in arrays]) for part in parts]
    return np.concatenate(found)


def _hashes(arrays):
    same = [
        array.astype(np.float64) if array.dtype.kind in "biuf" else array
        for array in arrays
    ]
    raw = np.concatenate(list(map(columns.row_bytes, same)), axis=1)
    if raw.shape[1] % 8:
        raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8)))
    words = np.ascontiguousarray(raw).view(np.uint64)
    # Of most whole numbers the lower bits are zeros, of which products keep
    # as many.
    words = words ^ (words >> np.uint64(32)) ^ (words >> np.uint64(52))
    found = np.einsum("ij,j->i", words, _factors(words.shape[1]))
    for _ in range(2):
        found = (found ^ (found >> np.uint64(32))) * _MIX
    return found


@functools.lru_cache(maxsize=8)
def _factors(count):
    return np.random.Philox(key=_KEY).random_raw(count) | np.uint64(1)
