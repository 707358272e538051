"""Arguments, checked in one place and refused in Keras' words."""

import numpy as np


def positive_integer(name, value):
    """`value` as an int, or an error worded as Keras words it."""
    whole = isinstance(value, (int, np.integer))
    if not whole or isinstance(value, bool) or value <= 0:
        raise ValueError(
            f"Received an invalid value for `{name}`, expected a positive "
            f"integer. Received: {name}={value}"
        )
    return int(value)


def pair(name, value):
    if not isinstance(value, (tuple, list)):
        value = (value, value)
    if len(value) != 2:
        raise ValueError(
            f"`{name}` must be an integer or a pair of them. Received: "
            f"{name}={value}"
        )
    return tuple(positive_integer(name, v) for v in value)
