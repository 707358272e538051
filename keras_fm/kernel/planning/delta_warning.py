"""What a delta is worth beside the number of records."""

import warnings


def is_too_large(delta, n):
    """Whether delta lets an algorithm publish one of n records as it is."""
    return delta * n >= 1


def warn_of_delta(delta, n):
    """The one warning of a delta that promises nothing.

    Args:
        delta: float in [0, 1).
        n: the public number of records, or of owners; `None` if unknown.

    Example:

    >>> warn_of_delta(1e-6, 1000)
    """
    if n and is_too_large(delta, n):
        warnings.warn(
            f"delta = {delta:g} is not below one over the number of records "
            f"({n}): it permits publishing a whole record. Take it far "
            f"smaller, such as delta={0.01 / n:.0e}.",
            stacklevel=3,
        )
