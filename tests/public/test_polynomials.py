"""Approximation errors are bounds, and attained."""

import fractions
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize

from keras_fm.public import polynomials

SMOOTH = ("sigmoid", "tanh", "softplus")
NAMES = tuple(polynomials.ACTIVATIONS)
DEGREES = range(9)

a_degree = st.integers(0, polynomials.MAX_DEGREE)
a_radius = st.floats(-3, 2).map(lambda e: 10.0**e)


def rounding(made):
    """What float64 may add to an evaluation of `made`, generously."""
    powers = made.radius ** np.arange(len(made.coefficients))
    terms = np.abs(made.coefficients) * powers
    return 1e-15 * (len(terms) + 1) * (terms.max() + made.radius + 1)


# --- activations ---


def test_activations_are_stable_and_float64():
    z = np.array([-1e4, 0.0, 1e4], dtype=np.float32)
    expected = {
        "sigmoid": [0.0, 0.5, 1.0],
        "tanh": [-1.0, 0.0, 1.0],
        "softplus": [0.0, math.log(2), 1e4],
        "relu": [0.0, 0.0, 1e4],
    }
    assert set(expected) == set(polynomials.ACTIVATIONS)
    with np.errstate(over="raise", invalid="raise"):
        for name, values in expected.items():
            made = polynomials.ACTIVATIONS[name](z)
            assert made.dtype == np.float64
            np.testing.assert_array_equal(made, values)
    # Not 1 - sigmoid(40), which is 0 in float64.
    small = polynomials.ACTIVATIONS["sigmoid"](-40.0)
    assert small == pytest.approx(math.exp(-40), rel=1e-12)


# --- Taylor ---


def test_degree_two_is_the_polynomial_of_the_papers():
    made = polynomials.taylor("softplus", 2, 1.0)
    assert made.coefficients == (math.log(2), 1 / 2, 1 / 8)
    assert made.degree == 2
    # 0.004886 when rounded up, as a bound must be.
    assert round(made.error, 7) == 0.0048855
    # The papers' constant bounds it, about 64 times too large.
    assert 0.31466 / made.error == pytest.approx(64.4, abs=0.1)


@pytest.mark.parametrize("activation", SMOOTH)
@pytest.mark.parametrize("radius", [0.1, 1.0, math.pi, 10.0])
def test_taylor_error_bounds_a_dense_grid_and_is_attained(activation, radius):
    z = np.linspace(-radius, radius, 20001)
    exact = polynomials.ACTIVATIONS[activation](z)
    for degree in DEGREES:
        made = polynomials.taylor(activation, degree, radius)
        misses = np.abs(made(z) - exact)
        assert misses.max() <= made.error + rounding(made), degree
        assert misses.max() >= 0.999 * made.error - rounding(made), degree


def test_taylor_coefficients_are_bernoulli_numbers():
    """tanh has 2^2k (2^2k - 1) B_2k / (2k)! at z^(2k-1)."""
    made = polynomials.taylor("tanh", polynomials.MAX_DEGREE).coefficients
    # The recursion of the Bernoulli numbers, in rationals.
    bernoulli = [fractions.Fraction(1)]
    for n in range(1, polynomials.MAX_DEGREE + 2):
        bernoulli.append(
            -sum(math.comb(n + 1, k) * b for k, b in enumerate(bernoulli))
            / (n + 1)
        )
    for k in range(1, polynomials.MAX_DEGREE // 2 + 1):
        power = 2 ** (2 * k)
        exact = power * (power - 1) * bernoulli[2 * k] / math.factorial(2 * k)
        assert made[2 * k - 1] == float(exact)
    assert all(c == 0.0 for c in made[0::2])


# --- Chebyshev ---


def test_chebyshev_errors_of_the_logistic_function():
    made = polynomials.chebyshev("sigmoid", 7, 1.0)
    assert made.error < 1.3e-7
    assert made.error == pytest.approx(6.53e-8, rel=1e-3)
    third = polynomials.chebyshev("sigmoid", 3, 1.0).error
    assert third == pytest.approx(1.12e-4, rel=1e-3)
    # The interpolant, nearly twice as far.
    z = np.linspace(-1, 1, 20001)
    sigmoid = polynomials.ACTIVATIONS["sigmoid"]
    for degree, expected in ((3, 2.1e-4), (7, 1.2e-7)):
        series = np.polynomial.chebyshev.chebinterpolate(sigmoid, degree)
        miss = np.polynomial.chebyshev.chebval(z, series) - sigmoid(z)
        assert np.abs(miss).max() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("activation", SMOOTH)
@pytest.mark.parametrize("radius", [0.5, 1.0, 5.0])
def test_chebyshev_has_the_coefficients_of_equation_10(activation, radius):
    """alpha_l = 2/pi int f(r t) T_l(t) / sqrt(1 - t^2) dt, by t = cos a."""
    function = polynomials.ACTIVATIONS[activation]
    made = polynomials.chebyshev(activation, 7, radius)
    scaled = np.array(made.coefficients) * radius ** np.arange(8.0)
    series = np.polynomial.chebyshev.poly2cheb(scaled)
    for l, alpha in enumerate(np.r_[series, np.zeros(8 - len(series))]):
        integral, _ = integrate.quad(
            lambda a, l=l: function(radius * math.cos(a)) * math.cos(l * a),
            0,
            math.pi,
            epsabs=1e-13,
        )
        expected = integral * (2 if l else 1) / math.pi
        assert alpha == pytest.approx(expected, abs=1e-12)


@given(st.sampled_from(NAMES), a_degree, a_radius)
@settings(max_examples=60, deadline=None)
def test_symmetry_is_exact(activation, degree, radius):
    made = polynomials.chebyshev(activation, degree, radius)
    assert made.degree == degree and made.radius == radius
    coefficients = np.array(made.coefficients)
    assert not np.signbit(coefficients[coefficients == 0]).any()
    if activation in ("sigmoid", "tanh"):
        assert coefficients[0] == {"sigmoid": 0.5, "tanh": 0.0}[activation]
        assert np.all(coefficients[2::2] == 0)
        if radius >= 1:  # Below, they may be rounding, and are dropped.
            assert np.all(coefficients[1:8:2] != 0)
    else:
        assert np.all(coefficients[3::2] == 0)
        assert coefficients[1:2] == pytest.approx(0.5, rel=1e-15)
        if radius >= 1:
            assert np.all(coefficients[0:8:2] != 0)


@given(
    st.sampled_from(NAMES),
    a_degree,
    a_radius,
    st.lists(st.floats(-1, 1), min_size=1),
)
@settings(max_examples=60, deadline=None)
def test_the_error_of_the_series_bounds_every_point(
    activation, degree, radius, places
):
    made = polynomials.chebyshev(activation, degree, radius)
    grid = radius * np.r_[places, np.linspace(-1, 1, 4999)]
    misses = np.abs(made(grid) - polynomials.ACTIVATIONS[activation](grid))
    slack = made.error * 1e-12 + rounding(made)
    assert misses.max() <= made.error + slack
    assert misses.max() >= 0.99 * made.error - slack


def test_a_polynomial_is_its_own_series():
    def cubic(z):
        return 1 - 2 * z + z**3 / 2

    made = polynomials.chebyshev(cubic, 4, 3.0)
    np.testing.assert_allclose(
        made.coefficients, [1, -2, 0, 1 / 2, 0], atol=1e-13
    )
    assert made.error < 1e-13
    assert made.name == "chebyshev4 of cubic"
    # Without the cubic term: z^3 = (3 T_1 + T_3) / 4 on [-1, 1].
    less = polynomials.chebyshev(cubic, 2, 1.0)
    np.testing.assert_allclose(less.coefficients, [1, -13 / 8, 0], atol=1e-13)
    assert less.error == pytest.approx(1 / 8, rel=1e-12)


@pytest.mark.parametrize("degree", [7, 21, 29])
def test_the_error_is_found_to_within_1e_12(degree):
    made = polynomials.chebyshev("tanh", degree, 50.0)

    def miss(z):
        return -abs(float(made(z)) - math.tanh(z))

    z = np.linspace(0, 50, 3001)
    values = np.array([miss(point) for point in z])
    inside = (values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])
    minima = np.flatnonzero(inside) + 1
    assert len(minima) >= degree // 2
    largest = -min(
        optimize.minimize_scalar(
            miss,
            bounds=(z[i - 1], z[i + 1]),
            method="bounded",
            options={"xatol": 1e-9},
        ).fun
        for i in minima
    )
    assert made.error == pytest.approx(largest, rel=1e-12)


# --- the published polynomial ---


def test_the_published_polynomial_is_the_printed_one():
    made = polynomials.published()
    z = np.linspace(-1, 1, 20001)
    printed = (-5 * z**7 + 21 * z**5 - 35 * z**3 + 35 * z + 16) / 32
    np.testing.assert_allclose(made(z), printed, atol=1e-15)
    assert (made.degree, made.radius) == (7, 1.0)
    assert (made(-1.0), made(1.0)) == (0.0, 1.0)


def test_the_published_polynomial_is_not_the_chebyshev_series():
    made = polynomials.published(7)
    z = np.linspace(-1, 1, 20001)
    sigmoid = polynomials.ACTIVATIONS["sigmoid"]
    misses = np.abs(made(z) - sigmoid(z))
    assert misses.max() == pytest.approx(0.322, abs=5e-4)
    assert made.error == pytest.approx(misses.max(), rel=1e-7)
    assert made.error >= misses.max()
    # What it is near to.
    near = np.abs(made(z) - sigmoid(5 * z)).max()
    assert near == pytest.approx(0.021, abs=5e-4)
    # More than a million times the error of the series it is said to be.
    assert made.error > 1e6 * polynomials.chebyshev("sigmoid", 7).error


@pytest.mark.parametrize("degree", [1, 3, 5, 7, 29])
def test_the_family_of_the_published_polynomial_is_flat_at_its_ends(degree):
    """Its derivative is (1 - z^2)^k, scaled, and it rises from 0 to 1."""
    made = polynomials.published(degree)
    slope = np.polynomial.polynomial.polyder(made.coefficients)
    flat = np.polynomial.polynomial.polypow([1, 0, -1], degree // 2)
    np.testing.assert_allclose(slope, slope[0] * flat, atol=1e-10)
    assert made(-1.0) == pytest.approx(0, abs=1e-12)
    assert made(1.0) == pytest.approx(1, abs=1e-12)


# --- piecewise linear ---


@given(
    st.sampled_from(NAMES),
    st.integers(1, 200),
    a_radius,
    st.lists(st.floats(-1, 1), min_size=1),
)
@settings(max_examples=60, deadline=None)
def test_piecewise_interpolates_and_bounds_every_point(
    activation, pieces, radius, places
):
    function = polynomials.ACTIVATIONS[activation]
    made = polynomials.piecewise(activation, pieces, radius)
    knots = np.array(made.knots)
    assert len(knots) == pieces + 1
    assert (knots[0], knots[-1]) == (-radius, radius)
    np.testing.assert_allclose(np.diff(knots), 2 * radius / pieces, rtol=1e-11)
    np.testing.assert_array_equal(made(knots), function(knots))
    grid = radius * np.r_[places, np.linspace(-1, 1, 4999)]
    misses = np.abs(made(grid) - function(grid))
    slack = 1e-14 * (1 + radius)
    assert misses.max() <= made.error * (1 + 1e-12) + slack
    assert misses.max() >= 0.98 * made.error - slack
    if activation != "relu":
        # w^2 / 8 max|f''|, and the largest second derivatives.
        bend = {"sigmoid": 3**-0.5 / 6, "tanh": 4 / 27**0.5, "softplus": 0.25}
        width = 2 * radius / pieces
        assert made.error <= width**2 / 8 * bend[activation] + slack
    elif pieces % 2 == 0:
        assert made.error <= slack
    else:
        # The piece around the kink, at its middle.
        assert made.error == pytest.approx(radius / pieces / 2)


def test_piecewise_error_is_the_exact_maximum():
    """On a piece the miss is largest where sigmoid' is the slope."""
    made = polynomials.piecewise("sigmoid", 4, 2.0)
    largest = 0.0
    for a, b, f, g in zip(
        made.knots, made.knots[1:], made.values, made.values[1:]
    ):
        slope = (g - f) / (b - a)
        root = math.sqrt(1 - 4 * slope)
        for s in ((1 - root) / 2, (1 + root) / 2):  # s (1 - s) = slope
            z = math.log(s / (1 - s))
            if a <= z <= b:
                largest = max(largest, abs(f + slope * (z - a) - s))
    assert made.error == pytest.approx(largest, rel=1e-12)


# --- arguments ---
