"""Encodes columns of numbers and words by public facts about each.

Every column becomes numbers, most of which are zero. So two bounds on a whole
record are known without asking the user: with d columns its L2 norm is at most
sqrt(d) and its L1 norm at most d, however many words there are.
"""

import math
import numbers
import os

import numpy as np

from keras_fm.estimators import given_table, table_schema
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks

_MISSING = ("NAType", "NaTType")
_NUMBERS, _TEXT = "numbers", "text"


class TableColumns:
    """Public columns of a table.

    Args:
        columns: `{name: column}` for data frames, the path of a schema file
            with the same content (`table_schema`), or a list of columns in
            the order of an array. A column is a tuple of numbers or a list of
            words, see `PrivateClassifier`.

    Raises:
        ValueError: if a column is neither of the two.
    """

    def __init__(self, columns):
        if isinstance(columns, str | os.PathLike):
            columns = table_schema.load(columns).columns
        named = isinstance(columns, dict)
        self.names = list(columns) if named else None
        if not isinstance(columns, dict | list | tuple) or not len(columns):
            checks.refuse(
                "columns",
                columns,
                "a dict from column names to public ranges or words, or a "
                "list of these",
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
        """The length of an encoded record."""
        return sum(_width(column) for column in self._columns)

    @property
    def scale(self):
        """The factor that gives encoded records an L2 norm of at most 1."""
        return len(self) ** -0.5

    @property
    def l1_bound(self):
        """Bound on the L1 norm of an encoded record times `scale`."""
        return math.sqrt(len(self))

    def select(self, table):
        """Selects these columns of a table, in this order.

        Raises:
            ValueError: if columns have names, and the table does not have
                each of these names once.
        """
        if self.names is not None:
            table = given_table.select(table, self.names)
        return given_table.unnamed(table)

    def encode(self, table):
        """Records as numbers. Each depends on its own row alone.

        Args:
            table: `(n, d)` array of the columns in this order.

        Returns:
            float32 `(n, width)`. A column of words is one-hot. A column with
            two numbers is scaled to [-1, 1]. A column with k numbers (knots)
            has k entries: each is 1 at its knot, 0 at the neighbouring knots,
            and linear between. A missing value, or a word that is not in the
            list, becomes zeros.

        Raises:
            ValueError: if there are other columns, if a value is not a number,
                or if its type differs from that of every word. The message
                shows no record.
        """
        if table.shape[1] != len(self):
            raise ValueError(
                f"`X` must have the {len(self)} columns of `columns`. "
                f"Received: {table.shape[1]} columns"
            )
        names = self.names or list(range(len(self)))
        found = np.zeros((len(table), self.width), np.float32)
        start = 0
        for name, column, values in zip(names, self._columns, table.T):
            stop = start + _width(column)
            _encode(column, values, name, found[:, start:stop])
            start = stop
        return found


def _checked(name, given):
    if isinstance(given, list) and given and _are_different(given):
        if any(map(_is_large, given)):
            raise ValueError(
                f"Column {name!r} must list text, because one fraction in "
                "another column would round whole numbers of 2^53 or more for "
                "all records: `.astype(str)`. "
                f"Received: {given!r}"
            )
        if any(map(_is_missing, given)):
            raise ValueError(
                f"Column {name!r} must list words, none of them missing, "
                "because missing values become zeros. To give them a word, "
                f'write `column.fillna("none")`. Received: {given!r}'
            )
        return given
    if isinstance(given, tuple) and len(given) >= 2:
        try:
            return _knots(given)
        except (TypeError, ValueError, OverflowError):
            pass
    raise ValueError(
        f"Column {name!r} must be a tuple of two or more increasing numbers, "
        "such as (low, high), or a list of different words, all public. "
        f"Received: {given!r}"
    )


def _is_large(word):
    return isinstance(word, numbers.Real) and abs(word) >= 2**53


def _are_different(words):
    try:
        return len(set(words)) == len(words)
    except TypeError:
        return False


def _knots(given):
    if not all(map(checks.is_number, given)):
        raise ValueError("no numbers")
    knots = np.array(given, np.float64)
    bounds_lib.check_bounds(knots[:-1], knots[1:])
    return knots


def _kind(value):
    if isinstance(value, str):
        return _TEXT
    if isinstance(value, numbers.Number | np.bool_):
        return _NUMBERS
    return type(value)


def _is_missing(value):
    if value is None or type(value).__name__ in _MISSING:
        return True
    return isinstance(value, numbers.Real) and bool(value != value)


def _width(column):
    if isinstance(column, list):
        return len(column)
    return 1 if len(column) == 2 else len(column)


def _encode(column, values, name, found):
    if isinstance(column, list):
        at = _places(column, values, name)
        known = np.flatnonzero(at >= 0)
        found[known, at[known]] = 1.0
        return
    values = _numbers(values, name)
    there = ~np.isnan(values)
    values = np.clip(values, column[0], column[-1])
    if len(column) == 2:
        width = column[1] - column[0]
        found[there, 0] = 2 * (values[there] - column[0]) / width - 1
        return
    for i, hat in enumerate(np.eye(len(column))):
        found[there, i] = np.interp(values[there], column, hat)


def _places(words, values, name):
    """The index of each value among the words, or -1."""
    index = {word: i for i, word in enumerate(words)}
    try:
        at = np.array([index.get(v, -1) for v in values], int)
    except TypeError:
        at = None
    if at is None:
        raise ValueError(
            f"Column {name!r} must hold words. At least one is a list."
        )
    kinds = {_kind(word) for word in words}
    for i in np.flatnonzero(at < 0):
        if _kind(values[i]) not in kinds and not _is_missing(values[i]):
            raise ValueError(
                f"Column {name!r} must hold values of the same type as its "
                "words in `columns`. At least one has another type: the text "
                '"1" is not the number 1.'
            )
    return at


def _numbers(values, name):
    for made in (
        lambda: values.astype(np.float64),
        # NumPy cannot convert the missing values of pandas.
        lambda: np.array(
            [np.nan if _is_missing(v) else float(v) for v in values]
        ),
    ):
        try:
            return made()
        except (TypeError, ValueError, OverflowError):
            pass
    # Outside of `except`: Python's words show a value of a record.
    raise ValueError(
        f"Column {name!r} must hold numbers. At least one value is not a "
        "number, or too large for a float. For words, list them in `columns`."
    )
