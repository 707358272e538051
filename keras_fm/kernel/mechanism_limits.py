"""Which numbers may be parameters of a mechanism.

The limits are far beyond every use, and such that floats hold what is made of
them: squares, quotients, and sums over thousands of mechanisms.
"""

import numbers

_LIMITS = {
    "sensitivity": (1e-100, 1e100),
    "noise_multiplier": (1e-50, 1e50),
    "epsilon": (1e-50, 1e50),
    "sampling_rate": (1e-18, 1.0),
    "steps": (1, 10**12),
}


def checked(name, value):
    """A parameter as a float, or as an int where it counts.

    Raises:
        ValueError: if it is no number, or outside its limits.

    Example:

    >>> checked("steps", 3.0)
    3
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise ValueError(
            f"`{name}` must be a number. Received: {name}={value!r}"
        )
    if name == "overflow_probability":
        if not 0 <= value < 1:
            raise ValueError(
                f"`{name}` must be in [0, 1). Received: {name}={value}"
            )
        return float(value)
    low, high = _LIMITS[name]
    # Compared before it is converted: an int may exceed every float.
    if not low <= value <= high:
        kind = (
            "in (0, 1]"
            if name == "sampling_rate"
            else "a finite number greater than 0"
        )
        raise ValueError(
            f"`{name}` must be {kind}, from {low:g} to {high:g}. Received: "
            f"{name}={value}"
        )
    if name != "steps":
        return float(value)
    if value != int(value):
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value}"
        )
    return int(value)
