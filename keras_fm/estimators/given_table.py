"""A table as the user passes it: names and types of its columns."""

import numpy as np

_GAPS = ("NAType", "NaTType")


def names(table):
    """Of the columns of a data frame; of anything else `None`."""
    if hasattr(table, "columns") and hasattr(table, "dtypes"):
        return list(table.columns)
    return None


def dtypes(table):
    """Of the columns of a data frame; of anything else `None`."""
    return None if names(table) is None else list(table.dtypes)


def plain(dtype):
    """The type of the values, also if the column is categorical."""
    return getattr(getattr(dtype, "categories", None), "dtype", dtype)


def select(table, wanted):
    """Columns of a data frame by name, in this order.

    Raises:
        ValueError: if it is not a data frame, or does not have each of them
            once.
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
    """The table, with numbered columns if some names are not text. Such names
    scikit-learn refuses or ignores."""
    found = names(table)
    if found is None or all(isinstance(n, str) for n in found):
        return table
    return table.set_axis(range(len(found)), axis=1)


def with_nan(given):
    """A table or column with NaN for the missing values of pandas (`pd.NA`,
    `pd.NaT`), which are neither true nor false."""
    if names(given) is not None:
        kinds = {getattr(plain(t), "kind", None) for t in dtypes(given)}
        if not kinds & {"O", "S", "U"}:
            return given
        return given.astype(object).where(given.notna(), np.nan)
    if hasattr(given, "toarray"):
        return given  # scikit-learn refuses what is sparse.
    try:
        found = np.array(given)
    except (TypeError, ValueError):
        return given  # scikit-learn refuses it, too.
    if found.dtype.kind in "SU" and not hasattr(given, "dtype"):
        # NumPy turns NaN in a list of text into the text "nan".
        found = np.array(given, object)
    if found.dtype.kind != "O":
        return given
    gaps = [type(v).__name__ in _GAPS for v in found.flat]
    found[np.reshape(gaps, found.shape)] = np.nan
    return found


def refuse_dates(name, given):
    """Refuses dates and time spans. NumPy counts them in a unit that all
    records share, so one record may change the others."""
    held = dtypes(given) or [getattr(given, "dtype", None)]
    if any(getattr(plain(t), "kind", None) in ("M", "m") for t in held):
        raise ValueError(
            f"`{name}` must hold numbers. Received: dates or spans of time. "
            'Convert them to days, `(column - day) / np.timedelta64(1, "D")` '
            "with a public `day`."
        )
