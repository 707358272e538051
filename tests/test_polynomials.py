"""Approximation errors are bounds, and nearly attained."""

import math

import numpy as np
import pytest

from keras_fm import polynomials

DEGREES = range(9)
RADII = (0.1, 0.5, 1.0, 2.0, math.pi)


def test_degree_two_is_the_polynomial_of_the_papers():
    made = polynomials.taylor_softplus(2, 1.0)
    assert made.coefficients == (math.log(2), 1 / 2, 1 / 8)
    assert made.degree == 2
    # 0.004886 when rounded up, as a bound must be.
    assert round(made.error, 7) == 0.0048855
    # The papers' constant bounds it, about 64 times too large.
    assert 0.31466 / made.error == pytest.approx(64.4, abs=0.1)


def test_equals_the_authors_form():
    z = np.linspace(-3, 3, 1001)
    ours = polynomials.taylor_softplus(2, 3.0)(z)
    for y in (0.0, 1.0):
        authors = (
            np.maximum(z, 0) - y * z + math.log(2) - np.abs(z) / 2 + z**2 / 8
        )
        np.testing.assert_allclose(ours - y * z, authors, atol=1e-14)


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("radius", RADII)
def test_error_bounds_a_dense_grid_and_is_attained(degree, radius):
    made = polynomials.taylor_softplus(degree, radius)
    z = np.linspace(-radius, radius, 20001)
    misses = np.abs(made(z) - polynomials.softplus(z))
    # 4e-15 is the rounding of both sides, which are below 4 here.
    assert misses.max() <= made.error + 4e-15
    assert misses.max() >= 0.999 * made.error - 4e-15


def test_coefficients_are_the_derivatives_at_zero():
    # The Cauchy integral on a circle inside the radius of convergence pi.
    points = np.exp(2j * np.pi * np.arange(64) / 64)
    values = np.fft.fft(np.log(1 + np.exp(points))) / 64
    made = polynomials.taylor_softplus(8, 1.0)
    np.testing.assert_allclose(made.coefficients, values.real[:9], atol=1e-15)


def test_a_higher_even_degree_is_closer():
    errors = [polynomials.taylor_softplus(d, 1.0).error for d in (0, 2, 4, 6)]
    assert all(a > 5 * b for a, b in zip(errors, errors[1:]))


def test_softplus_does_not_overflow():
    assert polynomials.softplus(1e4) == 1e4
    assert polynomials.softplus(-1e4) == 0.0


@pytest.mark.parametrize("degree", [-1, 9, 2.0, None, "2"])
def test_refuses_a_degree_outside_its_range(degree):
    with pytest.raises(ValueError, match="degree"):
        polynomials.taylor_softplus(degree)


@pytest.mark.parametrize("radius", [0, -1, 3.2, math.nan, math.inf])
def test_refuses_a_radius_outside_its_range(radius):
    with pytest.raises(ValueError, match="radius"):
        polynomials.taylor_softplus(2, radius)
