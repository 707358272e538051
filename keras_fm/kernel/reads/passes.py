"""Several passes over the same records."""

import numpy as np

from keras_fm.kernel.reads import columns, placed_records
from keras_fm.kernel.reads.data_sets import is_function


class Passes:
    """Whole passes over records: each must give as many as the first.

    Args:
        n: int, how many there are; `None` until the first pass has ended.
        n_public: whether an error may say so.
        compared: whether they must be the same, in any order.
    """

    def __init__(self, n=None, n_public=False, compared=False):
        self.n, self._public = n, n_public
        self._compared, self._digest = compared, None

    def over(self, batches):
        """Yields the batches, tuples `(x, ...)`, of one pass.

        Raises:
            ValueError: at its end, if it was another than the first.
        """
        n, digest = 0, 0
        for x, *more in batches:
            n += columns.count(x)
            if self._compared:
                digest = (digest + _digest(x, *more)) % 2**64
            yield x, *more
        if self.n == n and self._digest not in (None, digest):
            raise ValueError(
                "`data` must give the same records at every pass, in any "
                "order: a later pass had others. A dataset that is shuffled "
                "and then cut (`.shuffle(n).take(m)`) chooses anew, and a "
                "random `.map()` draws anew. Choose first, and write "
                "`.cache()` after what is random, or pass arrays."
            )
        self._digest = digest if self._compared else None
        if self.n is None:
            self.n = n
        elif n != self.n:
            numbers = f" Received: {self.n} records, then {n}."
            raise ValueError(
                "`data` must begin anew at every call and give the same "
                "records: a later pass over it had another number of them."
                + numbers
                * self._public
            )


def _digest(*parts):
    """A sum over records, the same in any order."""
    arrays = [
        columns.one_array(array)
        for part in parts
        if part is not None
        for _, array in columns.flatten(part)
    ]
    found = placed_records.hashes(arrays) if len(arrays[0]) else []
    return int(np.sum(found, dtype=np.uint64))


def check_begins_anew(data):
    """Refuses a function that returns one iterator at every call, where
    records are read more than once; reads nothing."""
    if not is_function(data):
        return
    found = data()
    if found is data() and iter(found) is found:
        raise ValueError(
            "`data` must begin anew at every call and give the same records: "
            "they are read more than once. Return a new iterator, as a "
            "generator function does. Received: a function that returns one "
            f"and the same {type(found).__name__}"
        )
