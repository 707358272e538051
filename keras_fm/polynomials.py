"""Low-degree polynomials that stand in for an activation or a loss.

The functional mechanism perturbs the coefficients of a polynomial objective,
so the polynomial decides both what is released and what is lost by the
approximation. Each one here carries its own error bound.
"""

import dataclasses
import math

import numpy as np
from numpy.polynomial import polynomial as P

# log(1 + e^z) = log 2 + z/2 + z^2/8 - z^4/192 + z^6/2880 - ...
_SOFTPLUS_TAYLOR = (
    math.log(2.0), 1 / 2, 1 / 8, 0.0, -1 / 192, 0.0, 1 / 2880, 0.0,
    -17 / 645120,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Polynomial:
    """A polynomial approximation on [-radius, radius].

    Attributes:
        coefficients: tuple of floats, constant term first.
        radius: the approximation's interval is [-radius, radius].
        error: a bound on the largest absolute error on that interval.
        name: how it was made.
    """

    coefficients: tuple
    radius: float
    error: float
    name: str

    @property
    def degree(self):
        return len(self.coefficients) - 1

    def __call__(self, z):
        """Evaluates the polynomial at `z`, any array shape."""
        return P.polyval(np.asarray(z, dtype=np.float64), self.coefficients)


def softplus(z):
    """log(1 + exp(z)), computed without overflow."""
    return np.logaddexp(0.0, z)


def taylor_softplus(degree=2, radius=1.0):
    """Taylor polynomial of softplus about 0.

    With `degree=2` this is the polynomial of the papers: the cross-entropy
    of a sigmoid unit with logit z and label y is `softplus(z) - y z`, so its
    expansion is `log 2 + (1/2 - y) z + z^2 / 8` (dPA Eq. 11 and 14, AdLM
    Eq. 25). On |z| <= 1 it misses by at most 0.004886; the papers' constant
    0.31466 is valid but 64 times looser.

    The error bound is exact: from degree 1 on the remainder is even and its
    derivative has one sign on [0, radius], because the series of tanh
    alternates; at degree 0 the remainder is increasing. Either way the
    largest error is at an end of the interval.

    Args:
        degree: int in 0..8, the highest power.
        radius: float in (0, pi], the interval is [-radius, radius].

    Returns:
        A `Polynomial`.

    Raises:
        ValueError: if `degree` or `radius` is outside its range.

    Example:

    >>> round(taylor_softplus(degree=2, radius=1.0).error, 7)
    0.0048855
    """
    if not (isinstance(degree, int) and 0 <= degree < len(_SOFTPLUS_TAYLOR)):
        raise ValueError(
            f"`degree` must be an integer between 0 and "
            f"{len(_SOFTPLUS_TAYLOR) - 1}. Received: degree={degree}"
        )
    if not 0 < radius <= math.pi:
        raise ValueError(
            "`radius` must be in (0, pi]: the Taylor series of softplus "
            f"about 0 diverges beyond. Received: radius={radius}"
        )
    coefficients = _SOFTPLUS_TAYLOR[: degree + 1]
    ends = np.array([-radius, radius])
    error = float(
        np.max(np.abs(softplus(ends) - P.polyval(ends, coefficients)))
    )
    return Polynomial(coefficients, float(radius), error, f"taylor{degree}")
