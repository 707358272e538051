"""No accepted record moves a sum by more than its sensitivity.

Records are made of the floats that arithmetic treats worst, in every
precision that features come in. The moved distance is computed in rational
numbers from what the objective itself summed.
"""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_fm import queries
from keras_fm.per_example import learned_clips
from keras_fm.preprocessing.column_histogram import ColumnHistogramQuery

pytestmark = pytest.mark.full

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
TINY = 5e-324
NASTY = [0.0, -0.0, TINY, -TINY, 2.3e-308, 1e-200, 1e-160, 1e-30, 6e-8]
NASTY += [1 / 3, 0.5, 1 - 2**-53, 1.0, 1 + 2**-52, -1.0, 2.0, 1e10]
NASTY += [1e154, 1.3e154, 1e200, 1.7e308, -1.7e308]
INVALID = [math.nan, math.inf, -math.inf]
# Roundings of norms are inside the error that a release adds.
ROUNDING = 1 + Fraction(1, 2**44)


def length(vector, norm):
    """Squared L2 or L1 norm in rational numbers."""
    exact = [Fraction(float(v)) for v in np.ravel(vector)]
    if norm == "l1":
        return sum(abs(v) for v in exact)
    return sum(v * v for v in exact)


def assert_within(objective, vector, norm):
    bound = Fraction(objective.sensitivity(norm, neighbours="add_remove"))
    bound *= ROUNDING
    assert length(vector, norm) <= (bound if norm == "l1" else bound**2)


def cast(rows, dtype):
    with np.errstate(over="ignore", under="ignore"):
        return np.array(rows, np.float64).astype(dtype)


def value(nasty=NASTY):
    usual = st.floats(-1.1, 1.1, allow_subnormal=True)
    # Most records are to be accepted by somebody.
    small = st.sampled_from([v for v in NASTY if abs(v) <= 2])
    return st.one_of(small, usual, small, st.sampled_from(nasty))


def added(objective, batch, **kwargs):
    """What a batch adds to the sums, or `None` if it is refused."""
    try:
        with np.errstate(all="ignore"):
            return objective.accumulate(objective.zero(), *batch, **kwargs)
    except ValueError:
        return None


def quadratic_vector(statistics):
    """A whole and S: the L2 norm of `pack`, without its roots of 2."""
    a, s = statistics
    a = np.triu(a) + np.triu(a, 1).T
    return np.concatenate([a.ravel(), s.ravel()])


QUADRATIC = [
    queries.CrossEntropyQuery(num_features=3, num_outputs=2),
    queries.CrossEntropyQuery(
        num_features=3, num_outputs=1, feature_bound=1e-3
    ),
    queries.SecondMomentQuery(num_features=3, feature_bound=7.0),
    queries.ReconstructionQuery(
        num_features=3, num_visible=2, visible_bound=0.7
    ),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("objective", QUADRATIC, ids=lambda o: type(o).__name__)
@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_no_record_of_a_quadratic_objective_exceeds_the_bound(
    objective, dtype, data
):
    h = data.draw(st.lists(value(NASTY + INVALID), min_size=3, max_size=3))
    v = data.draw(st.lists(value(), min_size=2, max_size=2))
    clip = data.draw(st.booleans())
    scale = objective.feature_bound if data.draw(st.booleans()) else 1.0
    with np.errstate(over="ignore"):
        rows = cast([np.multiply(h, scale)], dtype)
    targets = np.zeros(1)
    if isinstance(objective, queries.ReconstructionQuery):
        targets = cast([v], dtype)
    made = added(objective, (rows, targets), clip=clip)
    finite = np.all(np.isfinite(rows.astype(np.float64)))
    assert finite or made is None
    if made is None:
        return
    assert_within(objective, quadratic_vector(made), "l2")
    assert_within(objective, objective.pack(made, "l1"), "l1")


def longest(dtype, bound, m):
    """A row of this precision just above the bound before it is checked."""
    row = np.full((1, m), bound / math.sqrt(m)).astype(dtype)
    return (
        np.nextafter(row, dtype(4))
        if dtype
        in (
            np.float64,
            np.float32,
            np.float16,
        )
        else row
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("m", [1, 3, 100, 1000])
def test_what_rounding_adds_is_scaled_back_after_the_cast(dtype, m):
    """Rows that exceed the bound by the rounding of their precision are
    accepted, and shortened in float64."""
    objective = queries.SecondMomentQuery(num_features=m)
    rows = longest(dtype, 1.0, m)
    before = length(rows.astype(np.float64), "l2")
    made = objective.accumulate(objective.zero(), rows)
    trace = sum(Fraction(float(v)) for v in np.diag(made[0]))
    # ||h||^2 = trace(h h^T), summed without error.
    assert trace <= ROUNDING
    if dtype is np.float32 and m > 1:
        assert before > 1, "the test must start outside"


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("bad", INVALID + [1e200, 1.7e308])
def test_what_has_no_norm_is_refused(bad, clip):
    for objective in QUADRATIC:
        h = np.array([[0.0, bad, 0.0]])
        y = np.full((1, 2), 0.5) if objective.num_targets == 2 else np.zeros(1)
        y = np.zeros(1) if hasattr(objective, "num_outputs") else y
        with pytest.raises(ValueError, match="finite"):
            objective.accumulate(objective.zero(), h, y, clip=clip)


def test_minus_zero_is_not_negative_and_denormals_are_numbers():
    objective = queries.CrossEntropyQuery(
        num_features=2, num_outputs=2, nonnegative=True
    )
    h = np.array([[-0.0, TINY], [TINY, 1.0]])
    a, s = objective.accumulate(objective.zero(), h, np.array([0, 1]))
    assert a[1, 1] == 1 and np.all(s >= 0)
    with pytest.raises(ValueError, match="negative"):
        objective.accumulate(objective.zero(), -h, np.array([0, 1]))


@pytest.mark.parametrize("order", [2, 3, 4])
@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_no_patch_exceeds_the_bound(order, data):
    objective = queries.PatchMomentQuery(
        num_features=3, order=order, feature_bound=2.0, constant=1.0
    )
    dtype = data.draw(st.sampled_from(DTYPES))
    entries = st.lists(value(NASTY + INVALID), min_size=4, max_size=4)
    rows = np.reshape(data.draw(entries), (1, 2, 2))
    patches = cast(np.concatenate([rows, np.ones((1, 2, 1))], axis=2), dtype)
    made = added(objective, (patches,), clip=data.draw(st.booleans()))
    if made is None:
        return
    assert_within(objective, objective.pack(made, "l1"), "l1")
    assert_within(objective, objective.pack(made, "l2"), "l2")


@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_no_sum_of_patches_exceeds_the_bound(data):
    objective = queries.PatchClustersQuery(directions=2, components=2, clip=0.1)
    dtype = data.draw(st.sampled_from(DTYPES))
    entries = st.lists(value(NASTY + INVALID), min_size=4, max_size=4)
    rows = cast(np.reshape(data.draw(entries), (1, 2, 2)), dtype)
    made = added(objective, (rows,))
    if made is not None:
        assert_within(objective, objective.pack(made, "l1"), "l1")
        assert_within(objective, objective.pack(made, "l2"), "l2")


@pytest.mark.parametrize("ball", ["l1", "l2"])
@settings(derandomize=True, max_examples=100, deadline=None)
@given(data=st.data())
def test_no_relevance_exceeds_the_ball(ball, data):
    objective = queries.RelevanceQuery(num_features=4, ball=ball)
    dtype = data.draw(st.sampled_from(DTYPES))
    row = data.draw(st.lists(value(NASTY + INVALID), min_size=4, max_size=4))
    row = cast([row], dtype)
    made = added(objective, (row,))
    finite = np.all(np.isfinite(row.astype(np.float64)))
    assert (made is not None) == bool(finite)
    if not finite:
        return
    assert_within(objective, made[0], ball)


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_hinge"])
@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data())
def test_no_gradient_exceeds_its_clip(loss, data):
    """At weights of any size: an overflow counts for nothing."""
    objective = queries.GradientQuery(
        num_features=3, num_outputs=2, clip=0.3, loss=loss
    )
    dtype = data.draw(st.sampled_from(DTYPES))
    h = data.draw(st.lists(value(), min_size=3, max_size=3))
    w = data.draw(st.lists(value(), min_size=6, max_size=6))
    try:
        checked = objective.check_records(cast([h], dtype), [1], clip=True)
    except ValueError:
        return
    made = objective.total(*checked, np.reshape(w, (3, 2)))
    assert np.all(np.isfinite(made))
    assert_within(objective, made, "l2")


@pytest.mark.parametrize("norm", ["l1", "l2"])
@settings(derandomize=True, max_examples=100, deadline=None)
@given(data=st.data())
def test_no_expansion_exceeds_its_clip(norm, data):
    objective = queries.NetworkExpansionQuery(
        shapes_of_layers=((2, 2), (3, 1)), clip=0.3, norm=norm
    )
    factors = []
    for sizes in ((2, 2, 2), (3, 1, 1)):
        factors.append(
            tuple(
                np.array([data.draw(st.lists(value(), min_size=k, max_size=k))])
                for k in sizes
            )
        )
    made = added(objective, (factors,))
    if made is None:
        return
    assert np.all(np.isfinite(objective.pack(made, norm)))
    assert_within(objective, objective.pack(made, norm), norm)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_no_owner_exceeds_the_bound_of_one_record(data):
    objective = queries.CrossEntropyQuery(
        num_features=2, num_outputs=2, grouped=True
    )
    count = data.draw(st.integers(1, 30))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    h = rng.normal(size=(count, 2)) * 10.0 ** rng.uniform(-9, 9, (count, 1))
    made = added(
        objective,
        (h, rng.integers(0, 2, count), np.zeros(count)),
        clip=True,
    )
    assert_within(objective, quadratic_vector(made), "l2")
    assert_within(objective, objective.pack(made, "l1"), "l1")


@settings(derandomize=True, max_examples=60, deadline=None)
@given(norms=st.lists(value([*NASTY, math.inf]), min_size=2, max_size=2))
def test_every_norm_is_one_count(norms):
    objective = ColumnHistogramQuery(num_columns=2, num_bins=5)
    made = added(objective, (learned_clips.places(np.abs([norms])),))
    np.testing.assert_array_equal(made[0].sum(axis=1), 1)
