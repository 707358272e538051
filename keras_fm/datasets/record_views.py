"""Views of a record, each made from that record and chance alone."""

import functools
import secrets

import keras
import numpy as np

from keras_fm.datasets.chance_elsewhere import OtherGenerators

# Records that a function is tried on, made up.
_TRIED = 64
# Other threads may draw from a global generator, too, but not at every try.
_REPEATED = 8


class _ChanceElsewhereError(ValueError):
    """A view that depends on more than its record; says nothing of either."""

    def __init__(self):
        super().__init__(
            "`augment` must draw all chance from the generator it is given, "
            "and keep nothing: a view would depend on how many other records "
            "there are. It drew from another generator (the global one of "
            "NumPy, Python or the backend, `keras.random`, a Keras layer such "
            "as RandomFlip, or one that the function holds) or changed a "
            "Keras variable. Write for example `def augment(record, rng): "
            "return record[:, ::-1] if rng.random() < 0.5 else record`."
        )


class RecordViews:
    """Rows of one record, by a function of it.

    What a record's rows are may depend on no other record. Every record has a
    generator of its own, Keras keeps nothing of a call (a `StatelessScope`),
    and a function that changes the state of any other generator, or remembers
    what it was given, is refused.

    Args:
        function: of one record and a `numpy.random.Generator` to a record of
            the same shape.
        views: int, rows of a record.
        shape, dtype: of a record.

    Raises:
        ValueError: if the function, tried on made-up records, returns another
            shape or kind of numbers, draws from another generator, or does
            not return the same for the same record and generator.
    """

    def __init__(self, function, views, shape, dtype):
        self._function, self._views = function, views
        self._try(shape, dtype)

    def __getstate__(self):
        # Another process has generators of its own.
        return {k: v for k, v in vars(self).items() if k != "_others"}

    @functools.cached_property
    def _others(self):
        return OtherGenerators(self._function)

    def rows(self, records, key):
        """Yields the views of each record, record by record.

        Args:
            records: `(n, ...)`.
            key: int of 128 bits, unknown to whoever sees what is released.

        Raises:
            ValueError: if one cannot be made, or after the last if the
                function drew from another generator; neither shows anything
                of a record.
        """
        before = self._others.states()
        for i, record in enumerate(records):
            for view in self._made(record, _generator(key, i)):
                # Not inside `except`: the function's own error may hold
                # values.
                if view is None:
                    raise ValueError(
                        "`augment` failed on a record, or returned another "
                        "shape or kind of numbers for it. Try it on records "
                        "of your own: what it said may show the record."
                    )
                yield view
        if self._others.states() != before:
            for i, record in enumerate(records):
                self._check_chance(record, key, i)

    def _made(self, record, rng):
        for _ in range(self._views):
            try:
                view = self._view(record, rng)
            except _ChanceElsewhereError:
                raise
            except Exception:
                view = None
            yield view

    def _check_chance(self, record, key, place):
        """Refuses a function whose every call on a record, from the same
        generator, changes the state of another."""
        for _ in range(_REPEATED):
            before = self._others.states()
            for _ in self._made(record, _generator(key, place)):
                pass
            if self._others.states() == before:
                return
        raise _ChanceElsewhereError()

    def _view(self, record, rng):
        record = record.view()
        record.flags.writeable = False
        # No call leaves anything in a variable, or the seed of a layer.
        with keras.StatelessScope() as scope:
            view = np.asarray(self._function(record, rng))
        if scope.state_mapping:
            raise _ChanceElsewhereError()
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
        key, before = secrets.randbits(128), self._others.states()

        def record(i):
            return np.random.default_rng(i).integers(0, 2, shape).astype(dtype)

        def digest(i):
            view = self._view(record(i), _generator(key, i))
            return hash((view.dtype.str, view.tobytes()))

        first = [digest(i) for i in range(_TRIED)]
        if self._others.states() != before:
            for i in range(_TRIED):
                self._check_chance(record(i), key, i)
        for i in reversed(range(_TRIED)):
            if digest(i) != first[i]:
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
