"""Batches in which the row of a record depends on that record alone.

A network computes the rows of a batch in vectors and blocks, and what it makes
of a record may differ in its last bits from one row to another. Were records
simply read in order, one that is added would move all that follow, and with
them a little of every feature. Here a record has its row by a public hash of
its own numbers, in batches of one size, whoever else is there. Records that
are equal share a row.
"""

import numpy as np

# Records that wait for a batch, for each of its rows: rows are queues, of which
# one in eight is then idle.
_WAITING = 4
# Of the hash: public, and the same everywhere.
_KEY = 0x6B657261735F666D
_MIX = np.uint64(0x9E3779B97F4A7C15)
_KINDS = "biuf"


def placed(batches, size):
    """Yields `(x, y, rows)`, batches of `size` rows with free ones among them.

    Memory is constant in the number of records. Data of other types than
    numbers keep their order, and fill their rows from the first.

    Args:
        batches: iterable of `(x, y)` arrays; y may be `None`.
        size: int, rows of a batch.

    Yields:
        x `(size, ...)` and y `(size, ...)` (or `None`), zeros where no record
        is, and the rows in which records are: `(records,)` int, a row once
        for every record in it.

    Example:

    >>> for x, y, rows in placed([(records, labels)], 256):
    ...     features = extractor.predict_on_batch(x)[rows], y[rows]
    """
    waiting = None
    for x, y in batches:
        x, y = np.asarray(x), None if y is None else np.asarray(y)
        if not _are_numbers(x, y):
            for part in _parts(x, y, size):
                yield _in_order(*part, size)
            continue
        if waiting is None or not waiting.takes(x, y):
            if waiting is not None:
                yield from waiting.rest()
            waiting = _Waiting(x, y, size)
        while len(x):
            # What is given next does not depend on how records were read.
            first = next(_parts(x, y, waiting.room))
            waiting.add(*first)
            x, y = x[len(first[0]) :], None if y is None else y[len(first[0]) :]
            if not waiting.room:
                yield waiting.next()
    if waiting is not None:
        yield from waiting.rest()


def _parts(x, y, size):
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        yield x[part], None if y is None else y[part]


def _are_numbers(x, y):
    return x.dtype.kind in _KINDS and (y is None or y.dtype.kind in _KINDS)


def _in_order(x, y, size):
    def filled(array):
        free = np.zeros((size - len(array), *array.shape[1:]), array.dtype)
        return np.concatenate([array, free])

    return filled(x), None if y is None else filled(y), np.arange(len(x))


class _Waiting:
    """Records that have no batch yet, in a pool of fixed size."""

    def __init__(self, x, y, size):
        room = _WAITING * size
        self._size = size
        self._x = np.empty((room, *x.shape[1:]), x.dtype)
        self._y = None if y is None else np.empty((room, *y.shape[1:]), y.dtype)
        self._hash = np.empty(room, np.uint64)
        self._used = np.zeros(room, bool)
        self.count = 0

    @property
    def room(self):
        """How many records more may wait."""
        return len(self._used) - self.count

    def takes(self, x, y):
        """Whether these are of the shapes and types of the others."""
        return _kind(x) == _kind(self._x) and _kind(y) == _kind(self._y)

    def add(self, x, y):
        free = np.flatnonzero(~self._used)[: len(x)]
        self._x[free] = x
        if y is not None:
            self._y[free] = y
        self._hash[free] = _hashes(x, y)
        self._used[free] = True
        self.count += len(x)

    def next(self):
        """A batch of one record for each row that any waits for."""
        used = np.flatnonzero(self._used)
        row = (self._hash[used] >> np.uint64(20)) % np.uint64(self._size)
        row = row.astype(np.int64)
        rows, first = np.unique(row, return_index=True)
        chosen = used[first]
        # The chosen one of every record's row; equal records go with it.
        leader = np.empty(self._size, np.int64)
        leader[rows] = chosen
        with_it = leader[row]
        alike = self._hash[used] == self._hash[with_it]
        used, with_it, row = used[alike], with_it[alike], row[alike]
        equal = np.ones(len(used), bool)
        for array in (self._x, self._y):
            if array is not None:
                equal &= np.all(
                    _bytes(array[used]) == _bytes(array[with_it]), axis=1
                )
        taken, row = used[equal], row[equal]
        x = self._placed(self._x, rows, chosen)
        y = None if self._y is None else self._placed(self._y, rows, chosen)
        self._used[taken] = False
        self.count -= len(taken)
        return x, y, row

    def _placed(self, array, rows, chosen):
        found = np.zeros((self._size, *array.shape[1:]), array.dtype)
        found[rows] = array[chosen]
        return found

    def rest(self):
        while self.count:
            yield self.next()


def _kind(array):
    return None if array is None else (array.shape[1:], array.dtype)


def _bytes(array):
    """`(n, bytes of a record)`; signs of zeros and NaNs are told apart."""
    array = np.ascontiguousarray(array)
    return array.reshape(len(array), -1).view(np.uint8).reshape(len(array), -1)


def _hashes(x, y):
    """Of records, 64 bits: sums of words times public odd numbers, mixed."""
    parts = [_bytes(x)] + ([] if y is None else [_bytes(y)])
    raw = np.concatenate(parts, axis=1)
    raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8)))
    words = np.ascontiguousarray(raw).view(np.uint64)
    factors = np.random.Philox(key=_KEY).random_raw(words.shape[1])
    found = (words * (factors | np.uint64(1))).sum(axis=1, dtype=np.uint64)
    for _ in range(2):
        found = (found ^ (found >> np.uint64(32))) * _MIX
    return found
