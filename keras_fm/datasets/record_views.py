"""Views of a record, each made from that record and chance alone."""

import secrets

import numpy as np

# Records that a function is tried on, made up.
_TRIED = 3


class RecordViews:
    """Rows of one record, by a function of it.

    What a record's rows are may depend on no other record: every record has
    a generator of its own, and a function that remembers what it was given,
    or draws from elsewhere, is refused.

    Args:
        function: of one record and a `numpy.random.Generator` to a record of
            the same shape.
        views: int, rows of a record.
        shape, dtype: of a record.

    Raises:
        ValueError: if the function, tried on made-up records, returns another
            shape or kind of numbers, or not the same for the same record and
            generator.
    """

    def __init__(self, function, views, shape, dtype):
        self._function, self._views = function, views
        self._try(shape, dtype)

    def rows(self, records, key):
        """Yields the views of each record, record by record.

        Args:
            records: `(n, ...)`.
            key: int of 128 bits, unknown to whoever sees what is released.

        Raises:
            ValueError: if one cannot be made, which shows nothing of it.
        """
        for view in self._made(records, key):
            # Not inside `except`: the function's own error may hold values.
            if view is None:
                raise ValueError(
                    "`augment` failed on a record, or returned another shape "
                    "or kind of numbers for it. Try it on records of your "
                    "own: what it said may show the record."
                )
            yield view

    def _made(self, records, key):
        for i, record in enumerate(records):
            rng = _generator(key, i)
            for _ in range(self._views):
                try:
                    view = self._view(record, rng)
                except Exception:
                    view = None
                yield view

    def _view(self, record, rng):
        record = record.view()
        record.flags.writeable = False
        view = np.asarray(self._function(record, rng))
        if view.shape != record.shape:
            raise ValueError(
                "`augment` must return a record of the shape it was given. "
                f"Received: {view.shape} for {record.shape}"
            )
        if not np.can_cast(view.dtype, record.dtype, "same_kind"):
            raise ValueError(
                "`augment` must return numbers of the kind it was given: "
                "others would be rounded. Give x as floats. "
                f"Received: {view.dtype} for {record.dtype}"
            )
        return view

    def _try(self, shape, dtype):
        made = np.random.default_rng(0).integers(0, 2, (_TRIED, *shape))
        made = made.astype(dtype)
        key = secrets.randbits(128)
        apart = [self._view(record, _generator(key, 0)) for record in made]
        for record, view in zip(made[::-1], apart[::-1]):
            again = self._view(record, _generator(key, 0))
            if not np.array_equal(view, again, equal_nan=True):
                raise ValueError(
                    "`augment` must return the same for the same record and "
                    "generator, whatever it was given before: a view depends "
                    "on one record. Draw all chance from the generator."
                )


def _generator(key, place):
    return np.random.Generator(np.random.Philox(key=key, counter=place << 128))


def told(function):
    """A function as an error may show it: the `repr` of a
    `functools.partial` holds its arguments, which may be records."""
    return None if function is None else type(function).__name__
