"""The allowed range of each parameter of a mechanism.

The limits are far beyond every use. Within them floats hold all that is
computed: squares, quotients, and sums over thousands of mechanisms.
"""

from keras_fm.kernel import checks

_LIMITS = {
    "sensitivity": (1e-100, 1e100),
    "noise_multiplier": (1e-50, 1e50),
    "epsilon": (1e-50, 1e50),
    "sampling_rate": (1e-18, 1.0),
    "steps": (1, 10**12),
}


def checked(name, value):
    """A parameter as a float, or as an int if it is a count.

    Raises:
        ValueError: if it is not a number, or outside its limits.

    Example:

    >>> checked("steps", 3.0)
    3
    """
    if not checks.is_number(value):
        checks.refuse(name, value, "a number")
    if name == "overflow_probability":
        return checks.number(name, value, at_least=0, below=1)
    low, high = _LIMITS[name]
    kind = "a finite number greater than 0"
    if name == "sampling_rate":
        kind = "in (0, 1]"
    wanted = f"{kind}, from {low:g} to {high:g}"
    kept = checks.number(name, value, at_least=low, at_most=high, wanted=wanted)
    if name != "steps":
        return kept
    if kept != int(kept):
        checks.refuse(name, value, "a positive integer")
    return int(kept)
