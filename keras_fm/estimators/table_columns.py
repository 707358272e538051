"""A table's columns by what is publicly known of each: numbers and words.

Every column becomes numbers of which few are other than zero. That gives two
bounds of a whole record that nobody has to state: with d columns its L2 norm is
at most sqrt(d), and its L1 norm at most d, however many words there are.
"""

import math

import numpy as np

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks

_MISSING = ("NAType", "NaTType")


class TableColumns:
    """Public columns of a table.

    Args:
        columns: `{name: column}` for data frames, or a list of columns in
            the order of an array. A column is a tuple of numbers or a list of
            words, see `PrivateClassifier`.

    Raises:
        ValueError: if a column is neither.
    """

    def __init__(self, columns):
        named = isinstance(columns, dict)
        self.names = list(columns) if named else None
        if not isinstance(columns, dict | list | tuple) or not len(columns):
            checks.refuse(
                "columns",
                columns,
                "a dict from names of columns to what is public of them, or "
                "a list of that",
            )
        self._columns = [
            _checked(name, given)
            for name, given in (
                columns.items() if named else enumerate(columns)
            )
        ]

    def __len__(self):
        return len(self._columns)

    @property
    def width(self):
        """Of an encoded record."""
        return sum(_width(column) for column in self._columns)

    @property
    def scale(self):
        """Brings every encoded record to an L2 norm of at most 1."""
        return len(self) ** -0.5

    @property
    def l1_bound(self):
        """On a record's L1 norm after that."""
        return math.sqrt(len(self))

    def encode(self, table, names):
        """Records as numbers, each a function of its own row alone.

        Args:
            table: `(n, d)` array.
            names: of its columns, or `None`.

        Returns:
            float32 `(n, width)`. A column of words is a place for each, 1 for
            the record's own; one of two numbers is scaled to [-1, 1]; one of
            k numbers is k places, each 1 where the record has that number
            and 0 at the next ones, linear between. What is missing, or no
            word of the list, is zeros.

        Raises:
            ValueError: if a column is not there, or a value no number. The
                message shows no record.
        """
        places = self._places(table.shape[1], names)
        found = np.zeros((len(table), self.width), np.float32)
        start = 0
        for column, place in zip(self._columns, places):
            stop = start + _width(column)
            _encode(column, table[:, place], place, found[:, start:stop])
            start = stop
        return found

    def _places(self, width, names):
        if self.names is None:
            if width != len(self):
                raise ValueError(
                    f"`X` must have the {len(self)} columns of `columns`. "
                    f"Received: {width} columns"
                )
            return range(width)
        names = None if names is None else [str(n) for n in names]
        missing = [n for n in self.names if names is None or n not in names]
        if names is None or missing:
            raise ValueError(
                "`X` must be a data frame with the columns of `columns`; for "
                "an array `columns` is a list. "
                + (f"Missing: {missing}" if names else "")
            )
        return [names.index(n) for n in self.names]


def _checked(name, given):
    if isinstance(given, list) and given and len(set(given)) == len(given):
        return given
    if isinstance(given, tuple) and len(given) >= 2:
        try:
            knots = np.array(given, np.float64)
            bounds_lib.check_bounds(knots[:-1], knots[1:])
            return knots
        except (TypeError, ValueError):
            pass
    raise ValueError(
        f"Column {name!r} must be a tuple of increasing numbers, (low, high) "
        "or more of them, or a list of words, each once, all of them public. "
        f"Received: {given!r}"
    )


def _width(column):
    if isinstance(column, list):
        return len(column)
    return 1 if len(column) == 2 else len(column)


def _encode(column, values, place, found):
    if isinstance(column, list):
        index = {word: i for i, word in enumerate(column)}
        try:
            at = np.array([index.get(v, -1) for v in values], int)
        except TypeError:
            at = None
        if at is None:
            raise ValueError(
                f"Column {place} must hold words. At least one is a container."
            )
        known = np.flatnonzero(at >= 0)
        found[known, at[known]] = 1.0
        return
    numbers = _numbers(values, place)
    there = ~np.isnan(numbers)
    numbers = np.clip(numbers, column[0], column[-1])
    if len(column) == 2:
        width = column[1] - column[0]
        found[there, 0] = 2 * (numbers[there] - column[0]) / width - 1
        return
    for i, hat in enumerate(np.eye(len(column))):
        found[there, i] = np.interp(numbers[there], column, hat)


def _numbers(values, place):
    try:
        return np.array(
            [
                np.nan
                if v is None or type(v).__name__ in _MISSING
                else float(v)
                for v in values
            ]
            if values.dtype == object
            else values,
            np.float64,
        )
    except (TypeError, ValueError):
        pass
    # Outside of `except`: Python's words show a value of a record.
    raise ValueError(
        f"Column {place} must hold numbers. At least one value is none; words "
        "are a list of them in `columns`."
    )
