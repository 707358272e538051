"""Checks of arguments, in one place, with errors in Keras' words.

A rule takes the name of an argument and its value. It returns the value as it
is kept: for a number, a plain Python number. It refuses NaN, infinity, text,
and a boolean in the place of a number.
"""

import math
import numbers

import numpy as np


def refuse(name, value, wanted):
    """Raises the error that `value` must be `wanted`, in words."""
    # An array may hold records.
    shown = type(value) if getattr(value, "shape", ()) else repr(value)
    raise ValueError(f"`{name}` must be {wanted}. Received: {name}={shown}")


def is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_integer(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_finite(value):
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def number(
    name,
    value,
    *,
    above=None,
    at_least=None,
    below=None,
    at_most=None,
    finite=True,
    wanted=None,
):
    """`value` as a float within its limits.

    Args:
        above, at_least, below, at_most: limits. The first two exclude one
            another, and so do the last two.
        finite: whether infinity is refused. NaN always is.
        wanted: words for the error in the place of the limits.

    Raises:
        ValueError: if it is not a number, or outside its limits.

    Example:

    >>> number("momentum", 0, at_least=0, below=1)
    0.0
    """
    kept = _as_float(value)
    if (
        kept is not None
        and not math.isnan(kept)
        and (not finite or math.isfinite(kept))
        and (above is None or kept > above)
        and (at_least is None or kept >= at_least)
        and (below is None or kept < below)
        and (at_most is None or kept <= at_most)
    ):
        return kept
    low = above if at_least is None else at_least
    high = below if at_most is None else at_most
    kind = "a finite number" if finite else "a number"
    if wanted is not None:
        pass
    elif low is None and high is None:
        wanted = kind
    elif high is None:
        wanted = f"{kind} {'of at least' if above is None else 'greater than'}"
        wanted += f" {low:g}"
    elif above is None and below is None:
        wanted = f"a number between {low:g} and {high:g}"
    else:
        begin, end = "[" if above is None else "(", "])"[below is not None]
        wanted = f"in {begin}{low:g}, {high:g}{end}"
    refuse(name, value, wanted)


def positive(name, value):
    """A finite number greater than 0."""
    return number(name, value, above=0)


def nonnegative(name, value):
    """A finite number of at least 0."""
    return number(name, value, at_least=0)


def norm_bound(name, value):
    """A number whose fourth power, which enters sensitivities, neither
    underflows nor overflows. Else a sensitivity would silently be wrong."""
    return number(
        name,
        value,
        at_least=1e-30,
        at_most=1e30,
        wanted="a finite number greater than 0 (between 1e-30 and 1e30)",
    )


def gaussian_delta(value):
    return number(
        "delta",
        value,
        above=0,
        below=1,
        wanted="in (0, 1): no Gaussian noise meets delta = 0",
    )


def integer(name, value, *, at_least=None, at_most=None, wanted=None):
    """`value` as an int within its limits.

    Example:

    >>> integer("runs", 3, at_least=2)
    3
    """
    if (
        is_integer(value)
        and (at_least is None or value >= at_least)
        and (at_most is None or value <= at_most)
    ):
        return int(value)
    if wanted is not None:
        pass
    elif at_most is not None:
        wanted = f"an integer between {at_least} and {at_most}"
    elif at_least == 1:
        wanted = "a positive integer"
    elif at_least is not None:
        wanted = f"an integer of at least {at_least}"
    else:
        wanted = "an integer"
    refuse(name, value, wanted)


def count(name, value):
    """A positive integer."""
    return integer(name, value, at_least=1)


def natural(name, value):
    """`count`, or 0."""
    return integer(name, value, at_least=0, wanted="a positive integer or 0")


def boolean(name, value):
    if not isinstance(value, bool):
        refuse(name, value, "True or False")
    return value


def flag(name, value):
    """The truth value of any value."""
    return bool(value)


def one_of(name, value, choices, wanted=None):
    """The one of `choices` that equals `value`."""
    choices = tuple(choices)
    for choice in choices:
        # 1.0 and True equal 1.
        if value == choice and is_integer(value) == is_integer(choice):
            return choice
    if wanted is None:
        names = all(isinstance(choice, str) for choice in choices)
        listed = ", ".join(map(repr, choices)) if names else choices
        wanted = f"one of {listed}"
    refuse(name, value, wanted)


def either(name, value, choices):
    """`one_of` for few choices, with another wording."""
    quoted = (f'"{c}"' if isinstance(c, str) else str(c) for c in choices)
    return one_of(name, value, choices, wanted=" or ".join(quoted))


def text(name, value, wanted):
    """A text that is not empty; `wanted` describes it."""
    if not isinstance(value, str) or not value:
        refuse(name, value, wanted)
    return value


def instance(name, value, kind, wanted):
    """A value of a class; `wanted` describes it."""
    if not isinstance(value, kind):
        refuse(name, value, wanted)
    return value


def finite(name, values, more="."):
    """An array without NaN and infinity. The error ends in `more` and shows
    none of the numbers."""
    if not np.all(np.isfinite(values)):
        raise ValueError(f"`{name}` must be finite{more}")
    return values


def all_finite(**arrays):
    """`finite` of arrays by name."""
    for name, values in arrays.items():
        finite(name, values, ". At least one is not.")


def shape(what, found, *axes):
    """Refuses an array by its shape.

    Args:
        what: what the array holds; the error begins with it.
        found: its shape.
        axes: for each axis its length, or a word if any length will do.

    Example:

    >>> shape("Features", (5, 3), "records", 3)
    """
    if len(found) != len(axes) or any(
        is_integer(axis) and axis != length for axis, length in zip(axes, found)
    ):
        listed = ", ".join(map(str, axes))
        raise ValueError(
            f"{what} must have shape ({listed}). Received: shape={found}"
        )


def optional(rule, name, value, **limits):
    """`rule` for an argument that may be `None`."""
    return None if value is None else rule(name, value, **limits)


def fields(settings, **rules):
    """Applies a rule to each field of a frozen dataclass, and keeps the
    results.

    Example: `fields(self, bins=count, rate=partial(number, above=0))`.
    """
    for name, rule in rules.items():
        kept = rule(name, getattr(settings, name))
        object.__setattr__(settings, name, kept)


def _as_float(value):
    """`None` if it is not a number, or beyond what floats hold."""
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    # A number may come as an array: a result of NumPy or JAX.
    if is_number(value) or (kind in tuple("fiu") and np.ndim(value) == 0):
        try:
            return float(value)
        except OverflowError:
            return None
    return None
