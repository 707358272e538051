"""Batches in which the row of a record depends on that record alone.

A network computes the rows of a batch in vectors and blocks. Its result for a
record may differ in the last bits from one row to another. If records were
simply read in order, an added one would move all that follow, and change every
feature a little. Here a public hash of its own numbers gives a record its row,
in batches of one size, whatever other records there are. Equal records share a
row.
"""

import functools
import math

import numpy as np

from keras_fm.kernel import sums
from keras_fm.kernel.access import columns

# Records that wait for a batch, for each of its rows. Rows are queues; with
# this many, one in fifty is idle.
_WAITING = 16
# Numbers that are hashed at a time, so that they stay in a processor's cache.
_HASHED = 2**16
# The key of the hash: public, and the same everywhere.
_KEY = 0x6B657261735F666D
_MIX = np.uint64(0x9E3779B97F4A7C15)


def placed(batches, size, by_labels=True):
    """Yields `(x, y, rows)`: batches of `size` rows, some of which are free.

    Memory does not depend on the number of records.

    Args:
        batches: iterable of `(x, y)`; x is an array or a list of arrays, y an
            array or `None`.
        size: int, rows of a batch.
        by_labels: whether the hash includes y. It must not if only labels
            are secret, and features are released unchanged.

    Yields:
        x and y in the form that they were given, of `size` rows. Free rows
        hold zeros or empty text. `rows`, `(records,)` int, has the row of
        every record; equal records share one.

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
            # The next batch must not depend on how records were batched.
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
        # How many of the arrays the hash includes.
        self._hashed = hashed
        self.kinds, self._form = kinds, (is_list, labelled)
        self._size = size
        self._arrays = [columns.filled(array, room) for array in arrays]
        self._hash = np.empty(room, np.uint64)
        self._used = np.zeros(room, bool)
        self.count = 0

    @property
    def room(self):
        """How many more records may wait."""
        return len(self._used) - self.count

    def add(self, arrays):
        free = np.flatnonzero(~self._used)[: len(arrays[0])]
        for held, array in zip(self._arrays, arrays):
            held[free] = array
        self._hash[free] = hashes(arrays[: self._hashed])
        self._used[free] = True
        self.count += len(free)

    def next(self):
        """A batch with one record for each row that has waiting ones."""
        used = np.flatnonzero(self._used)
        row = (self._hash[used] >> np.uint64(20)) % np.uint64(self._size)
        row = row.astype(np.int64)
        # For every row the first record that waits; equal ones go with it.
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
    """64-bit hashes of records: sums of words times public odd numbers, mixed.

    Numbers are hashed by value, whatever their type: one record decides which
    type an array of lists or of a table has.

    Args:
        arrays: list of `(n, ...)` arrays.

    Returns:
        `(n,)` uint64, each a function of its record alone.
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
    # The lower bits of most whole numbers are zeros as floats, and products
    # keep as many.
    words = words ^ (words >> np.uint64(32)) ^ (words >> np.uint64(52))
    found = np.einsum("ij,j->i", words, _factors(words.shape[1]))
    for _ in range(2):
        found = (found ^ (found >> np.uint64(32))) * _MIX
    return found


@functools.lru_cache(maxsize=8)
def _factors(count):
    return np.random.Philox(key=_KEY).random_raw(count) | np.uint64(1)
