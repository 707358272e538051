"""Views of a record, each made from that record and chance alone."""

import keras
import numpy as np


class RecordViews:
    """Rows of one record, by a function of it.

    The function is called on one record at a time, with a generator of that
    record's own, and Keras keeps nothing of a call.

    Args:
        function: of one record and a `numpy.random.Generator` to a record of
            the same shape.
        views: int, rows of a record.
        shape, dtype: of a record.

    Raises:
        ValueError: if the function, tried on a made-up record, returns
            another shape or kind of numbers.
    """

    def __init__(self, function, views, shape, dtype):
        self._function, self._views = function, views
        self._view(np.zeros(shape, dtype), _generator(0, 0))

    def rows(self, records, key):
        """Yields the views of each record, record by record.

        Args:
            records: `(n, ...)`.
            key: int of 128 bits, unknown to whoever sees what is released.

        Raises:
            ValueError: if one cannot be made; it shows nothing of a record.
        """
        for place, record in enumerate(records):
            rng = _generator(key, place)
            for _ in range(self._views):
                try:
                    view = self._view(record, rng)
                except Exception:
                    view = None
                # Not inside `except`: the function's own error may hold
                # values.
                if view is None:
                    raise ValueError(
                        "`augment` failed on a record, or returned another "
                        "shape or kind of numbers for it. Try it on records "
                        "of your own: what it said may show the record."
                    )
                yield view

    def _view(self, record, rng):
        record = record.view()
        record.flags.writeable = False
        # No call leaves anything in a variable, or the seed of a layer.
        with keras.StatelessScope():
            view = np.asarray(self._function(record, rng))
        if view.shape != record.shape or not np.can_cast(
            view.dtype, record.dtype, "same_kind"
        ):
            raise ValueError(
                "`augment` must return a record of the shape and kind of "
                f"numbers that it was given. Received: {view.dtype} of shape "
                f"{view.shape} for {record.dtype} of shape {record.shape}"
            )
        return view


def _generator(key, place):
    return np.random.Generator(np.random.Philox(key=key, counter=place << 128))


def told(function):
    """A function as an error may show it: the `repr` of a
    `functools.partial` holds its arguments, which may be records."""
    return None if function is None else type(function).__name__
