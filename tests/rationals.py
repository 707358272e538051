"""Exact numbers beside floats."""

from fractions import Fraction


def agrees(made, exact):
    """Whether a float is an exact rational to 1e-15, relative."""
    assert isinstance(made, float)
    return abs(Fraction(made) - exact) <= exact * Fraction(1, 10**15)
