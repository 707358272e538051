"""Unlabelled data in every form, owners kept whole, the unit of a ledger."""

import math

import numpy as np
import pytest

from keras_fm.core.guarantee import Unit
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import ONE_RECORD, Ledger
from keras_fm.queries import SecondMomentQuery
from keras_fm.training.read_records import batches_by_owner

X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10)


# Without labels -----------------------------------------------------------


# By owner -----------------------------------------------------------------


def by_owner(owners, batch_size, labelled=True, data=None):
    if data is None:
        n = len(owners)
        data = (np.arange(2.0 * n).reshape(n, 2), np.arange(n))
    found = list(batches_by_owner(data, owners, batch_size, labelled))
    return data, found


def owner_lists():
    rng = np.random.default_rng(0)
    yield "alike", np.zeros(12, int)
    yield "apart", np.arange(12)
    yield "sorted", np.repeat(np.arange(4), 3)
    yield "interleaved", np.arange(12) % 4
    yield "one large", np.where(np.arange(40) % 5, 7, np.arange(40))
    yield "large first", np.r_[np.zeros(30, int), np.arange(1, 9)]
    yield "large last", np.r_[np.arange(8), np.full(30, 9)]
    yield "negative", rng.integers(-3, 3, size=25)
    yield "names", np.array(list("bacbacca"))
    yield "random", rng.integers(0, 30, size=300)
    yield "single", np.array([5])


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("batch_size", [1, 5, 12])
@pytest.mark.parametrize("name, owners", list(owner_lists()))
def test_owners_are_whole_and_records_come_once(
    name, owners, batch_size, labelled
):
    (x, y), found = by_owner(owners, batch_size, labelled)
    if not labelled:
        assert all(labels is None for _, labels, _ in found)
        alone = by_owner(owners, batch_size, False, data=x)[1]
        for one, two in zip(found, alone):
            np.testing.assert_array_equal(one[0], two[0])
        assert len(alone) == len(found)
    seen, indices = set(), []
    for rows, labels, ids in found:
        assert len(rows) == len(ids) > 0
        # x holds the record's index, so pairs can be checked.
        index = (rows[:, 0] / 2).astype(int)
        np.testing.assert_array_equal(rows, x[index])
        np.testing.assert_array_equal(ids, owners[index])
        if labelled:
            np.testing.assert_array_equal(labels, y[index])
        # No owner in two batches, and each in one run.
        assert not seen & set(ids.tolist())
        seen |= set(ids.tolist())
        runs = 1 + np.sum(ids[1:] != ids[:-1])
        assert runs == len(set(ids.tolist()))
        # A batch is larger than asked for only for one owner alone.
        assert len(rows) <= batch_size or runs == 1
        indices += index.tolist()
    assert sorted(indices) == list(range(len(owners)))


def test_labels_that_a_table_holds_as_objects_are_numbers():
    [(_, y, _)] = batches_by_owner((X, Y.astype(object)), Y)
    assert y.dtype.kind == "i"


@pytest.mark.parametrize(
    "data, owners, message",
    [
        ((X, Y), Y[:9], "one id for each record"),
        ((X, Y), Y[:, None], "one id for each record"),
        ((X, Y), 3, "one id for each record"),
        ((X, Y[:9]), Y, "the same number of records"),
        ((X, {"a": Y, "b": Y}), Y, "one array of labels"),
        ((X[:0], Y[:0]), Y[:0], "one id for each record"),
        ((X, Y), np.r_[Y[:8], math.nan, math.nan], "none missing"),
        ((X, Y), ["u"] * 9 + [math.nan], "none missing"),
        ((X, Y), ["u"] * 9 + [None], "none missing"),
        ((X, Y), [1] * 9 + ["1"], "none missing"),
        ((X, Y, Y), Y, r"arrays \(x, y\)"),
        (lambda: [(X, Y)], Y, r"arrays \(x, y\)"),
        (None, Y, r"arrays \(x, y\)"),
    ],
)
def test_bad_owners_are_refused(data, owners, message):
    with pytest.raises(ValueError, match=message):
        list(batches_by_owner(data, owners))


@pytest.mark.parametrize(
    "owners",
    [
        # One float64.
        [2**60, 2**60 + 1, 0.5],
        np.array([2.0**53, 2.0**53, 0.0]),
        # One text.
        [1, "1", "2"],
        ["a", math.nan, math.nan],
        # Missing.
        [None, None, "a"],
        np.array(["a", None, "b"], object),
        np.array(["2020-01-01", "NaT", "NaT"], "M8[D]"),
        # Without an order: the first came back after the second.
        [frozenset({1}), frozenset({2}), frozenset({1})],
        [1j, 2j, 1j],
    ],
)
def test_ids_by_which_two_owners_are_one_or_one_is_two(owners):
    """Two people whose ids are one float counted as one owner, whose sum
    moves by twice the bound without one of them; an owner whose ids sort
    apart counted twice."""
    message = "whole numbers or all text, none missing"
    data = np.ones((3, 2)), np.zeros(3)
    objective = SecondMomentQuery(num_features=2, grouped=True)
    for call in (
        lambda: Unit(owners=owners),
        lambda: list(batches_by_owner(data, owners)),
        lambda: objective.accumulate(
            objective.zero(), data[0], owners=owners, clip=True
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    "owners",
    [
        ["b", "a", "b"],
        [2**63, -1, 2**63],
        [2**70, -1, 2**70],
        np.array(["b", "a", "b"], object),
        (True, False, True),
    ],
)
def test_ids_that_tell_owners_apart(owners):
    data = np.arange(3.0)[:, None], np.zeros(3)
    owners = Unit(owners=owners).owners
    ((x, _, found),) = batches_by_owner(data, owners)
    assert x.ravel().tolist() == [1, 0, 2]
    assert found[1] == found[2] != found[0]


# The unit in the ledger ---------------------------------------------------


def new(**kwargs):
    return Ledger(PrivacyBudget(1.0, 1e-5), neighbours="replace_one", **kwargs)


def test_the_statement_names_the_unit():
    text = "one user with all its windows"
    ledger = new(unit=text)
    assert ledger.unit == text
    # Nobody proved the words of a ledger.
    assert f"unit:       {text} (by declaration)\n" in ledger.statement()
    assert ONE_RECORD not in ledger.statement()
    assert f"unit:       {ONE_RECORD}\n" in new().statement()
    with pytest.raises(AttributeError):
        ledger.unit = "another"
