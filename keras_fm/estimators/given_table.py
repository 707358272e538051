"""A table as it is given: names and types of its columns."""

import datetime

import numpy as np

_GAPS = ("NAType", "NaTType")
_DATES = (np.datetime64, np.timedelta64, datetime.date, datetime.timedelta)


def names(table):
    """Of the columns of a data frame; of anything else `None`."""
    if hasattr(table, "columns") and hasattr(table, "dtypes"):
        return list(table.columns)
    return None


def dtypes(table):
    """Of the columns of a data frame; of anything else `None`."""
    return None if names(table) is None else list(table.dtypes)


def plain(dtype):
    """What the values are, of a categorical type too."""
    return getattr(getattr(dtype, "categories", None), "dtype", dtype)


def select(table, wanted):
    """Columns of a data frame by name, in this order.

    Raises:
        ValueError: if it is no data frame, or has one of them not once.
    """
    found = names(table)
    missing = [n for n in wanted if n not in (found or ())]
    if found is None or missing:
        raise ValueError(
            "`X` must be a data frame with the columns of `columns`; for "
            "an array `columns` is a list. "
            + (f"Missing: {missing}" if found is not None else "")
        )
    several = [n for n in wanted if found.count(n) > 1]
    if several:
        raise ValueError(
            "`X` must have every column of `columns` once. "
            f"More than once: {several}"
        )
    places = [found.index(n) for n in wanted]
    return table.iloc[:, places] if hasattr(table, "iloc") else table[wanted]


def unnamed(table):
    """The table, its columns numbered where names are not all text, which
    scikit-learn refuses or overlooks."""
    found = names(table)
    if found is None or all(isinstance(n, str) for n in found):
        return table
    return table.set_axis(range(len(found)), axis=1)


def with_nan(given):
    """A table or column in which a gap of pandas (`pd.NA`, `pd.NaT`), which is
    neither true nor false, is NaN among values of any type."""
    if names(given) is not None:
        if all(getattr(plain(t), "kind", None) != "O" for t in dtypes(given)):
            return given
        return given.astype(object).where(given.notna(), np.nan)
    try:
        found = np.array(given)
    except (TypeError, ValueError):
        return given  # scikit-learn refuses it, too.
    if found.dtype.kind in "SU" and not hasattr(given, "dtype"):
        # Of NaN in a list of text NumPy makes the text "nan".
        found = np.array(given, object)
    if found.dtype.kind != "O":
        return given
    gaps = [type(v).__name__ in _GAPS for v in found.flat]
    found[np.reshape(gaps, found.shape)] = np.nan
    return found


def refuse_sparse(name, given):
    """Refuses what encoders of scikit-learn give unless they are asked.

    Raises:
        ValueError: saying what to ask for.
    """
    if hasattr(given, "toarray"):
        raise ValueError(
            f"`{name}` must be dense, since records are read dense. Ask an "
            "encoder for arrays, `OneHotEncoder(..., sparse_output=False)`, or "
            f"pass `{name}.toarray()`. Received: {name}, a sparse "
            f"{type(given).__name__}"
        )


def refuse_dates(name, given):
    """Refuses dates and spans of time, which NumPy counts in a unit of its
    own, a gap as the smallest number.

    Args:
        name: of the argument, for the error, which shows no value.
        given: a table, or one column.

    Raises:
        ValueError: if a column's type is one of dates, or a value is one.
    """
    columns = names(given)
    if columns is None:
        _refuse_dates(f"`{name}`", given)
        return
    for i, column in enumerate(columns):
        part = given.iloc[:, i] if hasattr(given, "iloc") else given[column]
        _refuse_dates(f"Column {column!r} of `{name}`", part)


def _refuse_dates(what, values):
    dtype = plain(getattr(values, "dtype", None))
    kind = getattr(dtype, "kind", None)
    if kind is None:
        try:
            values = np.asarray(values)
        except (TypeError, ValueError):
            return  # scikit-learn refuses it, too.
        dtype, kind = values.dtype, values.dtype.kind
    plain_object = kind == "O" and isinstance(dtype, np.dtype)
    if kind in ("M", "m") or (plain_object and _has_dates(values)):
        raise ValueError(
            f"{what} must hold numbers. Received: dates or spans of time. "
            "Pass days as a number, `(column - day) / "
            'np.timedelta64(1, "D")` with a public `day`.'
        )


def _has_dates(values):
    return any(
        isinstance(v, _DATES) and type(v).__name__ != "NaTType"
        for v in np.asarray(values, object).flat
    )
