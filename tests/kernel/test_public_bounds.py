"""No record leaves the ball, and no message shows a record."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.lab.baselines.functional_regression import box_to_ball

# The bound holds up to the rounding of a norm of so few entries.
SLACK = 1 + 1e-14
REPEATABLE = settings(derandomize=True, deadline=None, max_examples=150)

shapes = st.tuples(st.integers(1, 4), st.integers(1, 12))


def rows_of(dtype, largest):
    width = np.dtype(dtype).itemsize * 8
    return hnp.arrays(
        dtype,
        shapes,
        elements=st.floats(
            -largest,
            largest,
            width=width,
            allow_subnormal=True,
            allow_nan=False,
        ),
    )


def exact_squares(row):
    return sum(Fraction(float(v)) ** 2 for v in row)


@REPEATABLE
@given(
    rows=st.one_of(
        rows_of(np.float64, 1e150),
        rows_of(np.float64, 1e-300),
        rows_of(np.float64, 2.0),
        rows_of(np.float32, 2.0**100),
        rows_of(np.float16, 60000.0),
    ),
    bound=st.sampled_from([1e-30, 0.1, 1.0, 3.0, 1e30]),
)
def test_clipped_rows_never_exceed_the_bound(rows, bound):
    made = bounds_lib.project_to_ball(rows, bound, clip=True)
    assert made.dtype == np.float64 and made.shape == rows.shape
    limit = (Fraction(bound) * Fraction(SLACK)) ** 2
    for before, after in zip(rows, made):
        # Exact arithmetic: the check must not share the code's rounding.
        assert exact_squares(after) <= limit
        if exact_squares(before) <= Fraction(bound * (1 - 1e-14)) ** 2:
            np.testing.assert_array_equal(after, before.astype(np.float64))


@REPEATABLE
@given(rows=rows_of(np.float64, 100.0), l1_bound=st.sampled_from([0.5, 1.0]))
def test_clipped_rows_obey_a_second_bound(rows, l1_bound):
    made = bounds_lib.project_to_ball(rows, 1.0, clip=True, l1_bound=l1_bound)
    for row in made:
        assert exact_squares(row) <= Fraction(SLACK) ** 2
        total = sum(abs(Fraction(float(v))) for v in row)
        assert total <= Fraction(l1_bound) * Fraction(SLACK)


@pytest.mark.parametrize(
    "dtype, excess, refused",
    [
        (np.float64, 1e-10, False),
        (np.float64, 1e-8, True),
        (np.float32, 5e-5, False),
        (np.float32, 5e-4, True),
        (np.float16, 1e-2, False),
        (np.float16, 5e-2, True),
    ],
)
def test_rounding_is_scaled_back_and_more_is_refused(dtype, excess, refused):
    row = np.full((1, 4), 0.5 * (1 + excess), dtype)
    if refused:
        with pytest.raises(ValueError, match="outside the public L2 bound"):
            bounds_lib.project_to_ball(row, 1.0)
    else:
        made = bounds_lib.project_to_ball(row, 1.0)
        assert exact_squares(made[0]) <= Fraction(SLACK) ** 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
@pytest.mark.parametrize("clip", [False, True])
def test_not_finite_is_refused_even_when_clipping(bad, clip):
    with pytest.raises(ValueError, match="finite"):
        bounds_lib.project_to_ball([[0.1, bad], [0.1, 0.2]], 1.0, clip=clip)


def test_no_message_shows_a_record():
    for row in ([0.7234511, 9.0], [0.7234511, math.nan]):
        with pytest.raises(ValueError) as caught:
            bounds_lib.project_to_ball([row], 1.0)
        assert "7234511" not in str(caught.value)


@REPEATABLE
@given(
    x=hnp.arrays(np.float64, shapes, elements=st.floats(-2.0, 5.0)),
    norm=st.sampled_from(["l1", "l2"]),
)
def test_the_box_maps_into_the_unit_ball(x, norm):
    made = box_to_ball(x, -2.0, 5.0, norm=norm)
    order = {"l1": 1, "l2": 2}[norm]
    assert np.linalg.norm(made, order, axis=-1).max() <= SLACK
    assert made.min() >= 0


@pytest.mark.parametrize("norm, order", [("l1", 1), ("l2", 2)])
def test_the_farthest_corner_has_norm_one(norm, order):
    low, high = np.array([-1.0, 0.0, 2.0]), np.array([1.0, 0.5, 9.0])
    made = box_to_ball(high[None], low, high, norm=norm)
    assert np.linalg.norm(made[0], order) == pytest.approx(1.0, abs=1e-15)
    np.testing.assert_array_equal(
        box_to_ball(low[None], low, high, norm=norm),
        np.zeros((1, 3)),
    )


@pytest.mark.parametrize("pair", [3, None, (1,), {"a": (0, 1)}])
def test_refuses_what_is_no_pair_of_bounds(pair):
    with pytest.raises(ValueError, match="`box` must be `.low, high.`"):
        bounds_lib.checked_pair("box", pair)


@pytest.mark.parametrize("rows", [np.zeros(3), np.zeros((2, 3, 4))])
def test_rows_must_form_a_matrix(rows):
    with pytest.raises(ValueError, match="shape"):
        bounds_lib.project_to_ball(rows, 1.0)
    with pytest.raises(ValueError, match="L1 bound"):
        bounds_lib.project_to_ball(np.full((1, 4), 0.5), 1.0, l1_bound=1.0)
