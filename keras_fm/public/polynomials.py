"""Polynomials (and piecewise lines) that stand in for an activation.

The functional mechanism perturbs the coefficients of a polynomial objective,
so the polynomial decides what is released and how much the approximation loses.
There are four ways to make one; each result carries its largest error:

    chebyshev   the truncated Chebyshev series (pCDBN Eq. 10), any function;
    taylor      about 0, with exact coefficients (dPA, AdLM, pCDBN_TE);
    published   the polynomial printed in the pCDBN paper, neither of the two;
    piecewise   linear interpolation (pCDBN_PW).

From an activation to an energy: with c = x / Z, |c| <= radius, a feature map
has the energy -sum_positions x sigma(c). Replacing sigma by an approximation
changes it, for one record, by at most

    positions * max|x| * error,    max|x| = radius * Z.
"""

import dataclasses
import fractions
import math

import numpy as np
from numpy.polynomial import chebyshev as C
from numpy.polynomial import polynomial as P
from scipy import special

from keras_fm.kernel import checks

__all__ = ["Polynomial", "chebyshev", "piecewise", "published", "taylor"]

# In powers of z, the rounding of a Chebyshev sum grows like 2.4^degree.
MAX_DEGREE = 30
MAX_PIECES = 1000
# Quadrature nodes: full precision for the smooth activations (radius 100), 1e-8
# for relu.
_NODES = 2**14
_GRID = 10_000


@dataclasses.dataclass(frozen=True)
class Polynomial:
    """A polynomial approximation on [-radius, radius].

    Attributes:
        coefficients: tuple of floats, constant term first.
        radius: the approximation's interval is [-radius, radius].
        error: the largest absolute error on that interval, up to float64
            rounding (about 1e-15 times the largest of the summed terms).
        name: str, how it was made.
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


@dataclasses.dataclass(frozen=True)
class PiecewiseLinear:
    """Linear interpolation between knots; constant beyond the outermost.

    Attributes:
        knots: tuple of increasing floats, from -radius to radius.
        values: tuple of floats, the function at the knots.
        radius, error, name: as in `Polynomial`.
    """

    knots: tuple
    values: tuple
    radius: float
    error: float
    name: str

    def __call__(self, z):
        """Evaluates the interpolant at `z`, any array shape."""
        z = np.asarray(z, dtype=np.float64)
        return np.interp(z, self.knots, self.values)


def softplus(z):
    """log(1 + exp(z)), computed without overflow."""
    return np.logaddexp(0.0, np.asarray(z, dtype=np.float64))


# In float64 for every precision of z.
ACTIVATIONS = {
    "sigmoid": lambda z: special.expit(np.asarray(z, dtype=np.float64)),
    "tanh": lambda z: np.tanh(np.asarray(z, dtype=np.float64)),
    "softplus": softplus,
    "relu": lambda z: np.maximum(0.0, np.asarray(z, dtype=np.float64)),
}
_SMOOTH = ("sigmoid", "tanh", "softplus")
# f - f(0) is odd; of the others, f - z/2 is even.
_ODD = ("sigmoid", "tanh")


def chebyshev(activation="sigmoid", degree=7, radius=1.0):
    """Truncated Chebyshev series on [-radius, radius] (pCDBN Eq. 10).

    The coefficients are the integrals of Eq. 10, by Gauss-Chebyshev
    quadrature at 2^14 nodes; `degree` cuts the series. This is not the
    interpolant at degree + 1 Chebyshev points, whose error for an analytic
    function is up to twice as large: for the logistic function on [-1, 1],
    6.5e-8 against 1.2e-7 at degree 7, 1.1e-4 against 2.1e-4 at degree 3. For a
    named activation, terms that symmetry makes zero are exactly zero; so are
    those below 1e-15 of the largest value.

    Args:
        activation: a name in `ACTIVATIONS`, or a function of a float64 array
            that returns an array of its shape. If it has kinks, or details
            narrower than radius / 1000, `error` is only as exact as a grid of
            20,001 points.
        degree: int in 0..30, the highest power.
        radius: float in [1e-3, 100], the interval is [-radius, radius].

    Returns:
        A `Polynomial` in powers of z (not of z / radius).

    Raises:
        ValueError: if an argument is outside its range, or the function
            does not return one finite value for each.

    Example:

    >>> made = chebyshev("sigmoid", degree=7)
    >>> made.error < 6.6e-8, made.coefficients[2]
    (True, 0.0)
    """
    function, name = _function(activation)
    degree = checks.integer("degree", degree, at_least=0, at_most=MAX_DEGREE)
    radius = _check_radius(radius)
    nodes, weights = C.chebgauss(_NODES)
    values = function(radius * nodes)
    series = (2 / math.pi) * (
        C.chebvander(nodes, degree).T @ (weights * values)
    )
    series[0] /= 2
    # Rounding, which division by a power of a small radius would blow up.
    series[np.abs(series) < 1e-15 * np.abs(values).max()] = 0.0
    if activation in _ODD:
        series[0::2] = 0.0
        series[0] = function(np.zeros(1))[0]
    elif isinstance(activation, str):
        series[1::2] = 0.0
        series[1:2] = radius / 2
    powers = np.zeros(degree + 1)
    kept = C.cheb2poly(series)  # Drops zeros at the end.
    powers[: len(kept)] = kept / radius ** np.arange(float(len(kept)))
    coefficients = tuple(powers.tolist())
    name = f"chebyshev{degree} of {name}"
    error = _largest_error(
        lambda z: P.polyval(z, coefficients) - function(z), radius
    )
    return Polynomial(coefficients, radius, error, name)


def taylor(activation="sigmoid", degree=7, radius=1.0):
    """Taylor polynomial about 0, with exact coefficients.

    For `"softplus"` and degree 2 this is the polynomial of the papers: the
    cross-entropy of a sigmoid unit with logit z and label y is
    `softplus(z) - y z`, so its expansion is `log 2 + (1/2 - y) z + z^2 / 8`
    (dPA Eq. 11 and 14, AdLM Eq. 25). On |z| <= 1 its error is at most 0.004886;
    the papers' constant 0.31466 is valid but 64 times looser.

    For `"tanh"` and degree 5 it is z - z^3/3 + 2 z^5/15, which pCDBN_TE uses
    instead of a sigmoid.

    The error is exact: every term of tanh z = sum_k 2z / (z^2 + a_k^2),
    a_k = (k - 1/2) pi, is a geometric series in -z^2 / a_k^2, whose
    remainder has one sign for z > 0 and grows with z. The same follows for
    the sigmoid, and by integration for softplus, so the largest error is at
    an end of the interval. Beyond the radius of convergence (pi, and pi/2
    for tanh) a higher degree is worse, and `error` shows it.

    Args:
        activation: `"sigmoid"`, `"tanh"` or `"softplus"`.
        degree, radius: as in `chebyshev`.

    Returns:
        A `Polynomial`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> round(taylor("softplus", degree=2, radius=1.0).error, 7)
    0.0048855
    """
    wanted = f"one of {list(_SMOOTH)}; `chebyshev` needs no derivatives"
    checks.one_of("activation", activation, _SMOOTH, wanted)
    degree = checks.integer("degree", degree, at_least=0, at_most=MAX_DEGREE)
    radius = _check_radius(radius)
    coefficients = _taylor_coefficients(activation, degree)
    ends = np.array([-radius, radius])
    misses = ACTIVATIONS[activation](ends) - P.polyval(ends, coefficients)
    error = float(np.max(np.abs(misses)))
    name = f"taylor{degree} of {activation}"
    return Polynomial(coefficients, radius, error, name)


def published(degree=7):
    """The polynomial printed in the pCDBN paper, for any odd degree.

    At degree 7, (-5 z^7 + 21 z^5 - 35 z^3 + 35 z + 16) / 32: the paper's
    example of its Chebyshev expansion of the logistic function on [-1, 1].
    It is not that expansion, nor close to it: its error is 0.322, 5 million
    times that of `chebyshev`. It is the normalised integral of (1 - z^2)^3,
    which rises from 0 at -1 to 1 at 1 and is as flat as possible at both ends.
    It comes within 0.021 of sigmoid(5 z). Degree 2k + 1 integrates (1 - z^2)^k.

    Args:
        degree: odd int in 1..29; the paper printed 7.

    Returns:
        A `Polynomial` on [-1, 1]; its error is measured against sigmoid(z).

    Raises:
        ValueError: if `degree` is anything else.

    Example:

    >>> made = published()
    >>> float(made(-1.0)), float(made(1.0)), round(made.error, 3)
    (0.0, 1.0, 0.322)
    """
    degree = checks.integer("degree", degree, at_least=1, at_most=MAX_DEGREE)
    if degree % 2 == 0:
        checks.refuse("degree", degree, "odd")
    half = degree // 2
    coefficients = np.zeros(degree + 1)
    terms = [
        fractions.Fraction((-1) ** k * math.comb(half, k), 2 * k + 1)
        for k in range(half + 1)
    ]
    coefficients[0] = 0.5
    coefficients[1::2] = [term / (2 * sum(terms)) for term in terms]
    coefficients = tuple(coefficients.tolist())
    error = _largest_error(
        lambda z: P.polyval(z, coefficients) - special.expit(z), 1.0
    )
    return Polynomial(coefficients, 1.0, error, f"published{degree}")


def piecewise(activation="sigmoid", pieces=8, radius=1.0):
    """Linear interpolation at equally spaced knots on [-radius, radius].

    The error of a piece of width w is up to w^2 / 8 max|f''|. Chebyshev points
    would make the middle pieces wider by pi/2, with 1.1 to 2.4 times the error
    for every named activation (4 to 16 pieces, radius 1 and 5). An even number
    of pieces makes relu exact.

    Args:
        activation, radius: as in `chebyshev`.
        pieces: int in 1..1000.

    Returns:
        A `PiecewiseLinear`, constant beyond [-radius, radius].

    Raises:
        ValueError: as in `chebyshev`.

    Example:

    >>> made = piecewise("relu", pieces=2)
    >>> made.knots, made.values, made.error
    ((-1.0, 0.0, 1.0), (0.0, 0.0, 1.0), 0.0)
    """
    function, name = _function(activation)
    radius = _check_radius(radius)
    pieces = checks.integer("pieces", pieces, at_least=1, at_most=MAX_PIECES)
    z = radius * (np.arange(-pieces, pieces + 1, 2) / pieces)
    knots, values = tuple(z.tolist()), tuple(function(z).tolist())
    name = f"piecewise{pieces} of {name}"
    error = _largest_error(
        lambda z: np.interp(z, knots, values) - function(z), radius
    )
    return PiecewiseLinear(knots, values, radius, error, name)


def _taylor_coefficients(activation, degree):
    """Coefficients 0..degree about 0: rationals, rounded once (and log 2)."""
    # tanh' = 1 - tanh^2, term by term.
    series = [fractions.Fraction(0)]
    for k in range(degree):
        square = sum(series[i] * series[k - i] for i in range(k + 1))
        series.append(((k == 0) - square) / (k + 1))
    if activation != "tanh":
        # sigmoid(z) = (1 + tanh(z/2)) / 2
        series = [term / 2 ** (k + 1) for k, term in enumerate(series)]
        series[0] = fractions.Fraction(1, 2)
    if activation == "softplus":
        # Its derivative is the sigmoid.
        integral = [term / (k + 1) for k, term in enumerate(series[:-1])]
        series = [math.log(2.0), *integral]
    return tuple(float(term) for term in series)


def _largest_error(difference, radius):
    """The largest |difference| on [-radius, radius].

    It searches a grid of 20,001 points that contains 0, then two finer grids
    around every local maximum near the largest. For functions that are smooth,
    or have kinks only at 0 or at knots, the result is exact to 1e-12.
    """
    step = radius / _GRID
    grid = step * np.arange(-_GRID, _GRID + 1)
    grid[[0, -1]] = -radius, radius
    values = np.abs(difference(grid))
    rises = np.r_[True, values[1:] > values[:-1]]  # A plateau counts once.
    falls = np.r_[values[:-1] >= values[1:], True]
    centres = grid[rises & falls & (values >= 0.99 * values.max())]
    offsets = np.arange(-100, 101) / 100
    for _ in range(2):
        points = np.clip(centres[:, None] + step * offsets, -radius, radius)
        values = np.abs(difference(points.ravel())).reshape(points.shape)
        centres = points[np.arange(len(points)), values.argmax(axis=1)]
        step /= 100
    return float(values.max())


def _function(activation):
    """Returns `(function, name)` for a name or a callable."""
    if callable(activation):
        name = getattr(activation, "__name__", type(activation).__name__)

        def function(z):
            values = np.asarray(activation(z), dtype=np.float64)
            if values.shape != z.shape or not np.all(np.isfinite(values)):
                raise ValueError(
                    "`activation` must return one finite number for each "
                    f"entry of its argument. Received: activation={name}"
                )
            return values

        return function, name
    if not (isinstance(activation, str) and activation in ACTIVATIONS):
        checks.refuse(
            "activation",
            activation,
            f"one of {list(ACTIVATIONS)} or a function of an array",
        )
    return ACTIVATIONS[activation], activation


def _check_radius(radius):
    return checks.number("radius", radius, at_least=1e-3, at_most=100)
