"""Bernoulli draws and uniform integers of exactly the stated law.

The law is exact given uniform random bits: no float decides a draw.
"""

from fractions import Fraction

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel.discrete_noise import positive_fraction


def bernoulli(probability, size, source):
    """Independent coins that fall on `True` with exactly `probability`.

    Args:
        probability: a number in [0, 1] (a float stands for the rational
            number that it is), or a function from an int `bits` to integers
            `(low, high)` with `low <= 2**bits * p <= high`, as close to each
            other as the bits allow.
        size: int >= 0.
        source: `OSWords`, or `SeededWords` for tests.

    Returns:
        `(size,)` bool.

    Raises:
        ValueError: if a number is not in [0, 1].

    Example:

    >>> bernoulli(1.0, 3, SeededWords(1))
    array([ True,  True,  True])
    """
    enclose = probability
    if not callable(probability):
        exact = Fraction(0)
        if probability != 0:
            exact = positive_fraction("probability", probability)
        if exact > 1:
            raise ValueError(
                "`probability` must be in [0, 1]. Received: "
                f"probability={probability}"
            )

        def enclose(bits):
            low, rest = divmod(exact.numerator << bits, exact.denominator)
            return low, low + (rest > 0)

    words = source.words(size)
    low, high = enclose(64)
    # A uniform number that starts with the word w is in [w, w + 1] / 2^64.
    # Bounds may be 2^64, which no word holds, so words are compared with less.
    drawn = words <= np.uint64(low - 1) if low else np.zeros(size, bool)
    if high > low:
        open_ = ~drawn & (words <= np.uint64(high - 1))
        for i in np.flatnonzero(open_):
            drawn[i] = _is_below(int(words[i]), enclose, source)
    return drawn


def _is_below(number, enclose, source):
    """Whether a uniform number that starts with the 64 bits of `number` is
    below an enclosed probability."""
    bits = 64
    while True:
        number, bits = number << 64 | int(source.words(1)[0]), bits + 64
        low, high = enclose(bits)
        if number < low:
            return True
        if number >= high:
            return False


def uniform_integers(bound, size, source):
    """Independent uniform integers in `[0, bound)`, by rejection.

    Args:
        bound: int from 1 to 2^32.
        size: int >= 0.
        source: `OSWords`, or `SeededWords` for tests.

    Returns:
        `(size,)` int64.

    Example:

    >>> uniform_integers(1, 2, SeededWords(1))
    array([0, 0])
    """
    if checks.count("bound", bound) > 2**32:
        checks.refuse("bound", bound, "at most 2**32")
    # Below the largest multiple of the bound, every residue is as frequent.
    fair = 2**32 // bound * bound
    out, filled = np.empty(size, np.int64), 0
    while filled < size:
        halves = source.words((size - filled + 1) // 2).view(np.uint32)
        halves = halves[: size - filled].astype(np.int64)
        halves = halves[halves < fair]
        out[filled : filled + len(halves)] = halves % bound
        filled += len(halves)
    return out
