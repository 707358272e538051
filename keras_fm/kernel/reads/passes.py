"""Several passes over the same records."""

from keras_fm.kernel.reads import columns
from keras_fm.kernel.records import is_function


class Passes:
    """Whole passes over records: each must give as many as the first.

    Args:
        n: int, how many there are; `None` until the first pass has ended.
        n_public: whether an error may say so.
    """

    def __init__(self, n=None, n_public=False):
        self.n, self._public = n, n_public

    def over(self, batches):
        """Yields the batches, tuples `(x, ...)`, of one pass.

        Raises:
            ValueError: at its end, if it was another than the first.
        """
        n = 0
        for x, *more in batches:
            n += columns.count(x)
            yield x, *more
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
