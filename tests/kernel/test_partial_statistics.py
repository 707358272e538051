"""Sums do not depend on order, batches or processes, to the last bit."""

import itertools
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_fm.kernel import sums as summation
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import BudgetExceededError, Ledger
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.release import calibrate, release, release_statistics
from keras_fm.kernel.sums import FixedPointSum
from keras_fm.queries import (
    CrossEntropyQuery,
    EvaluationQuery,
    PatchClustersQuery,
    PatchMomentQuery,
    ReconstructionQuery,
    RelevanceQuery,
    SecondMomentQuery,
)

# FixedPointSum --------------------------------------------------------------

TERMS = st.lists(
    st.floats(-3.0, 3.0, allow_subnormal=True), min_size=1, max_size=30
)


def summed(values, bound=3.0):
    made = FixedPointSum(bound, (1,))
    for value in values:
        made.add(np.array([value]))
    return made


@settings(derandomize=True, max_examples=200, deadline=None)
@given(TERMS, st.randoms(use_true_random=False))
def test_a_sum_is_exact_and_has_no_order(values, random):
    made = summed(values)
    shuffled = list(values)
    random.shuffle(shuffled)
    cut = random.randrange(len(values) + 1)
    merged = summed(shuffled[:cut])
    merged.merge(summed(shuffled[cut:]))
    np.testing.assert_array_equal(merged.integers(), made.integers())
    # Terms are rounded at 2^-90 of the bound, and the result once or twice.
    exact = sum((Fraction(v) for v in values), Fraction(0))
    error = abs(Fraction(float(made.value()[0])) - exact)
    assert error <= abs(exact) / 2**52 + len(values) * Fraction(1, 2**88)


def test_a_fraction_is_never_negative():
    made = summed([1e-20, -2e-20])
    high, low = made.integers()
    assert high == -1 and 0 < low < 2**60
    np.testing.assert_allclose(made.value(), -1e-20, rtol=1e-6)
    made.add(np.array([1e-20]))
    np.testing.assert_array_equal(made.integers(), np.zeros((2, 1)))


def test_the_largest_sum_fits_and_no_larger_one():
    made = FixedPointSum(1.5, (1,))
    made.add(np.array([1.5 * 2**30]))
    np.testing.assert_array_equal(made.value(), 1.5 * 2**30)
    for wrong in (1e30, np.inf, np.nan, -np.inf):
        with pytest.raises(ValueError, match="overflowed; nothing was"):
            made.add(np.array([wrong]))
    with pytest.raises(ValueError, match="overflowed"):
        for _ in range(9):
            made.merge(made)


def test_sums_that_do_not_fit_together():
    with pytest.raises(ValueError, match="different bounds"):
        summed([1.0]).merge(summed([1.0], bound=64.0))
    with pytest.raises(ValueError, match="one shape"):
        summed([1.0]).add(np.ones(2))
    whole = summed([1.0]).integers()
    for wrong in (whole.astype(float), whole - 1, whole + 2**60, whole + 2**62):
        with pytest.raises(ValueError, match="not the integers"):
            FixedPointSum.of(3.0, (1,), wrong)


def test_rows_on_a_grid_have_exact_sums():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(summation.EXACT_ROWS, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    step = summation.grid_step(1.0)
    cut = summation.on_grid(rows.copy(), step)
    assert np.all(np.abs(cut) <= np.abs(rows))
    assert np.abs(cut - rows).max() < step
    np.testing.assert_array_equal(cut % step, 0)
    whole = [[int(v / step) for v in row] for row in cut.tolist()]
    exact = sum(a * b for a, b, _ in whole)
    orders = (np.arange(len(cut)), rng.permutation(len(cut)))
    for order in orders:
        assert (cut[order].T @ cut[order])[0, 1] == exact * step**2
    # Rows that are not on it have not: the test would see a difference.
    uncut = [(rows[order].T @ rows[order]) for order in orders]
    assert np.any(uncut[0] != uncut[1])


# PartialStatistics ----------------------------------------------------------


def some(objective, n=230, seed=0):
    rng = np.random.default_rng(seed)
    if isinstance(objective, PatchMomentQuery):
        v = rng.normal(size=(n, 3, objective.num_features - 1))
        v *= objective.patch_bound / np.linalg.norm(v, axis=2, keepdims=True)
        return (np.pad(v, ((0, 0), (0, 0), (0, 1)), constant_values=0.5),)
    if isinstance(objective, PatchClustersQuery):
        return (rng.normal(size=(n, *objective.shapes[0])),)
    h = rng.normal(size=(n, objective.num_features))
    h *= 0.7 / np.linalg.norm(h, axis=1, keepdims=True)
    if isinstance(objective, CrossEntropyQuery):
        return h, rng.integers(objective.num_outputs, size=n)
    if isinstance(objective, ReconstructionQuery):
        v = rng.normal(size=(n, objective.num_visible))
        return h, 0.5 + v / np.linalg.norm(v, axis=1, keepdims=True)
    return (h,)


QUADRATIC = [
    CrossEntropyQuery(num_features=5, num_outputs=3, feature_bound=0.7),
    CrossEntropyQuery(num_features=5, num_outputs=1),
    ReconstructionQuery(num_features=4, num_visible=3, visible_bound=1.1),
    SecondMomentQuery(num_features=6),
]
OTHERS = [
    PatchMomentQuery(num_features=3, order=3, feature_bound=1, constant=0.5),
    PatchClustersQuery(directions=2, components=3, clip=0.3),
    RelevanceQuery(num_features=4, ball="l2"),
]


def kind(objective):
    return type(objective).__name__


def read(objective, data, order, sizes):
    """Records in an order, in batches of sizes, each with its own sum."""
    parts, start = [], 0
    data = [a[order] for a in data]
    for size in itertools.cycle(sizes):
        if start >= len(order):
            return parts
        part = PartialStatistics(objective)
        part.add(*(a[start : start + size] for a in data))
        parts.append(part)
        start += size


def merged(parts):
    whole = PartialStatistics(parts[0].query)
    for part in parts:
        whole.merge(part)
    return whole


def bits(partial):
    return [a.tobytes() for a in partial.statistics()]


@pytest.mark.parametrize("objective", QUADRATIC, ids=kind)
def test_quadratic_sums_depend_on_the_records_alone(objective):
    data = some(objective)
    n = len(data[0])
    rng = np.random.default_rng(1)
    one = PartialStatistics(objective)
    one.add(*data)
    for sizes in ((n,), (1,), (7, 50, 1)):
        order = rng.permutation(n)
        assert bits(merged(read(objective, data, order, sizes))) == bits(one)
    streamed = PartialStatistics(objective)
    for i in range(0, n, 31):
        streamed.add(*(a[i : i + 31] for a in data))
    assert bits(streamed) == bits(one)
    # And of real numbers they are what they should be.
    exact = objective.accumulate(objective.zero(), *data)
    for found, expected in zip(one.statistics(), exact):
        np.testing.assert_allclose(found, expected, atol=n * 2.0**-18)


@pytest.mark.parametrize("objective", OTHERS, ids=kind)
def test_other_sums_depend_on_the_batches_but_not_their_order(objective):
    data = some(objective)
    parts = read(objective, data, np.arange(len(data[0])), (40, 3))
    one = bits(merged(parts))
    assert bits(merged(parts[::-1])) == one
    halves = [merged(parts[::2]), merged(parts[1::2])]
    assert bits(merged(halves)) == one
    assert bits(merged(parts[1:])) != one


def test_owners_have_exact_sums_too():
    objective = SecondMomentQuery(num_features=6, grouped=True)
    (h,) = some(objective, n=60)
    owners = np.arange(60) // 5
    one = PartialStatistics(objective)
    one.add(h, None, owners)
    rng = np.random.default_rng(2)
    other = PartialStatistics(objective)
    for owner in rng.permutation(12):
        rows = owners == owner
        other.add(h[rows], None, owners[rows])
    assert bits(other) == bits(one)


def test_a_batch_of_any_size_is_summed_without_rounding():
    """And as a whole: of one with an invalid record nothing is added."""
    objective = SecondMomentQuery(num_features=2)
    rng = np.random.default_rng(3)
    rows = rng.random((2 * summation.EXACT_ROWS + 5, 2)) / 2
    one, other = PartialStatistics(objective), PartialStatistics(objective)
    one.add(rows)
    for part in summation.chunks(len(rows), 1000):
        other.add(rows[part])
    assert bits(other) == bits(one)
    rows[-1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        one.add(rows)
    assert bits(other) == bits(one)


def test_a_batch_that_was_refused_is_not_in_the_sums():
    """Mended and added again, its records counted twice in a mean."""
    objective = EvaluationQuery(metrics="accuracy, confusion_matrix")
    shares, cells = np.ones((5, 1)), np.zeros((5, 1), int)
    one, other = PartialStatistics(objective), PartialStatistics(objective)
    with pytest.raises(ValueError, match="Cells"):
        one.add(shares, cells + 9)
    for partial in (one, other):
        partial.add(shares, cells)
    assert bits(one) == bits(other)


@pytest.mark.parametrize("objective", QUADRATIC + OTHERS, ids=kind)
def test_they_travel_as_bytes(objective):
    data = some(objective)
    sent = PartialStatistics(objective)
    sent.add(*data)
    text = sent.to_bytes()
    received = PartialStatistics.from_bytes(text, objective)
    assert bits(received) == bits(sent)
    again = PartialStatistics(objective)
    again.add(*data)
    received.merge(again)
    assert bits(received) == bits(merged([sent, again]))
    with pytest.raises(ValueError, match="not partial statistics"):
        PartialStatistics.from_bytes(text, objective, clip=True)
    with pytest.raises(ValueError, match="not partial statistics"):
        PartialStatistics.from_bytes(text[:-30], objective)
    with pytest.raises(ValueError, match="of another query"):
        PartialStatistics.from_bytes(text, SecondMomentQuery(num_features=9))


def test_a_share_that_comes_twice_is_refused():
    objective = SecondMomentQuery(num_features=6)
    share, other = PartialStatistics(objective), PartialStatistics(objective)
    share.add(*some(objective, n=9))
    other.add(*some(objective, n=5, seed=1))
    text = share.to_bytes()
    whole = merged([share, other])
    found = bits(whole)
    # As it is, as bytes, in others' sums, in its own, and with records more.
    share.add(*some(objective, n=2, seed=2))
    again = [
        share,
        PartialStatistics.from_bytes(text, objective),
        PartialStatistics.from_bytes(whole.to_bytes(), objective),
        merged([other]),
        whole,
    ]
    for part in again:
        with pytest.raises(ValueError, match="would count twice"):
            whole.merge(part)
    assert bits(whole) == found
    # Of no record nothing counts.
    empty = PartialStatistics(objective)
    merged([empty, empty, whole]).merge(empty)


def test_nothing_shows_them():
    objective = SecondMomentQuery(num_features=2)
    partial = PartialStatistics(objective)
    partial.add(np.array([[0.123456, 0.4]]))
    assert repr(partial) == "<PartialStatistics of SecondMomentQuery>"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(partial)
    with pytest.raises(ValueError, match="same query"):
        partial.merge(PartialStatistics(SecondMomentQuery(num_features=3)))


def test_records_are_counted_over_all_parts(monkeypatch):
    monkeypatch.setattr(summation, "MOST_RECORDS", 5)
    objective = SecondMomentQuery(num_features=2)
    one, other = PartialStatistics(objective), PartialStatistics(objective)
    one.add(np.zeros((3, 2)))
    other.add(np.zeros((2, 2)))
    one.merge(other)
    with pytest.raises(ValueError, match="at most 5 records"):
        one.add(np.zeros((1, 2)))
    more = PartialStatistics(objective)
    more.add(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="at most 5 records"):
        one.merge(more)


# release_statistics ---------------------------------------------------------

DELTA = 1e-5


def arguments(objective, **kwargs):
    budget = PrivacyBudget(1.0, DELTA)
    return {
        "mechanism": calibrate(objective, budget, neighbours="add_remove"),
        "ledger": Ledger(budget, neighbours="add_remove"),
        "name": "head",
        "noise": NoiseSource(3),
    } | kwargs


@pytest.mark.parametrize("objective", QUADRATIC + OTHERS, ids=kind)
def test_what_was_merged_is_released_as_what_was_read(objective):
    data = some(objective)
    parts = read(objective, data, np.arange(len(data[0])), (64,))
    batches = [[a[i : i + 64] for a in data] for i in range(0, 230, 64)]
    ledger = Ledger(PrivacyBudget(1.0, DELTA), neighbours="add_remove")
    made = release_statistics(
        merged(parts[::-1]), **arguments(objective, ledger=ledger)
    )
    plain = release(objective, batches, **arguments(objective))
    for name in objective.names:
        np.testing.assert_array_equal(
            made.statistics[name], plain.statistics[name]
        )
    (entry,) = ledger.entries
    assert entry.uses == objective.uses
    with pytest.raises(BudgetExceededError):
        release_statistics(parts[0], **arguments(objective, ledger=ledger))
    assert ledger.entries == (entry,)
