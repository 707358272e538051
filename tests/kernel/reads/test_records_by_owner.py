"""Unlabelled data in every form, owners kept whole, the unit of a ledger."""

import json
import math
import tracemalloc

import keras
import numpy as np
import pytest

from keras_fm.kernel import records
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import ONE_RECORD, Ledger
from keras_fm.kernel.records import batches_by_owner
from keras_fm.parts.guarantee import Unit
from keras_fm.queries import SecondMomentQuery

X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10)


# Without labels -----------------------------------------------------------


def assert_all_once(data, **kwargs):
    parts = list(records.batches(data, labelled=False, **kwargs))
    assert all(len(part) == 2 and part[1] is None for part in parts)
    assert all(isinstance(x, np.ndarray) for x, _ in parts)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in parts]), X)


class Batches(keras.utils.PyDataset):
    def __init__(self, paired, **kwargs):
        super().__init__(**kwargs)
        self.paired = paired

    def __len__(self):
        return 3

    def __getitem__(self, index):
        x, y = np.array_split(X, 3)[index], np.array_split(Y, 3)[index]
        return (x, y) if self.paired else x


@pytest.mark.parametrize("batch_size", [1, 3, 10, 4096])
def test_arrays_with_and_without_labels(batch_size):
    assert_all_once(X, batch_size=batch_size)
    assert_all_once((X, Y), batch_size=batch_size)
    assert_all_once([X.tolist(), Y.tolist()], batch_size=batch_size)
    found = records.batches(X, batch_size, labelled=False)
    assert max(len(x) for x, _ in found) == min(batch_size, 10)


def test_a_tensor_is_read_by_records_not_by_rows():
    assert_all_once(keras.ops.convert_to_tensor(X), batch_size=4)
    # One record is not a batch of numbers.
    shapes = {
        x.shape
        for x, _ in records.batches(
            keras.ops.convert_to_tensor(X), 5, labelled=False
        )
    }
    assert shapes == {(5, 2)}


@pytest.mark.parametrize("paired", [True, False])
def test_py_dataset(paired):
    assert_all_once(Batches(paired))


@pytest.mark.parametrize("paired", [True, False])
def test_a_function_that_returns_an_iterator(paired):
    def read():
        for i in range(0, 10, 4):
            x, y = X[i : i + 4], Y[i : i + 4]
            yield (x, y) if paired else x

    assert_all_once(read)


def test_tf_data():
    tf = pytest.importorskip("tensorflow")
    alone = tf.data.Dataset.from_tensor_slices(X)
    assert_all_once(alone.batch(3))
    assert_all_once(tf.data.Dataset.from_tensor_slices((X, Y)).batch(3))
    with pytest.raises(ValueError, match="repeat"):
        next(records.batches(alone.batch(3).repeat(), labelled=False))
    numbers = tf.data.Dataset.from_tensor_slices(X[:, 0])
    with pytest.raises(ValueError, match="batch"):
        next(records.batches(numbers, labelled=False))


@pytest.mark.parametrize(
    "data, message",
    [
        (X[:0], "no records"),
        ((X, Y[:9]), "same number"),
        ((X, Y, Y), "[Ss]ample weights"),
        (lambda: [(X, Y, Y)], "sample weights"),
        (lambda: [(X, Y[:2])], "same number"),
        (lambda: [3.0], "first axis"),
        (None, "must be"),
        (5, "must be"),
    ],
)
def test_other_forms_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        list(records.batches(data, labelled=False))


def test_x_alone_is_refused_where_labels_are_needed():
    for data in (X, lambda: [X]):
        with pytest.raises(ValueError, match="pair"):
            list(records.batches(data))
    with pytest.raises(ValueError, match=r"arrays \(x, y\)"):
        list(batches_by_owner(X, Y))


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
    yield "numbers", np.array([0.5, -1.0, 0.5, 2.0])
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


def test_batches_are_filled():
    owners = np.repeat(np.arange(100), 3)
    _, found = by_owner(owners, 10)
    assert [len(x) for x, _, _ in found] == [9] * 33 + [3]


def test_labels_that_a_table_holds_as_objects_are_numbers():
    [(_, y, _)] = batches_by_owner((X, Y.astype(object)), Y)
    assert y.dtype.kind == "i"


def test_an_owners_records_keep_their_order():
    owners = np.random.default_rng(1).integers(0, 5, size=60)
    _, found = by_owner(owners, 20)
    for rows, _, ids in found:
        for owner in set(ids.tolist()):
            assert np.all(np.diff(rows[ids == owner, 0]) > 0)


def test_memory_holds_one_batch_not_the_data():
    x, n = np.zeros((40_000, 64)), 40_000
    owners = np.random.default_rng(2).integers(0, 4000, size=n)
    tracemalloc.start()
    for rows, _, _ in batches_by_owner((x, owners), owners, 500):
        assert len(rows) <= 500
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A few arrays of n ids, and a few batches of 500 rows (0.26 MB each).
    assert peak < x.nbytes / 6


@pytest.mark.parametrize(
    "data, owners, message",
    [
        ((X, Y), Y[:9], "one id for each record"),
        ((X, Y), Y[:, None], "one id for each record"),
        ((X, Y), 3, "one id for each record"),
        ((X, Y[:9]), Y, "the same number of records"),
        ((X, {"a": Y, "b": Y}), Y, "one array of labels"),
        ((X[:0], Y[:0]), Y[:0], "one id for each record"),
        ((X, Y), np.r_[Y[:8], math.nan, math.nan], "one id for each record"),
        ((X, Y), ["u"] * 9 + [math.nan], "none missing"),
        ((X, Y), ["u"] * 9 + [None], "none missing"),
        ((X, Y), [1] * 9 + ["1"], "none missing"),
        ((X, Y), np.ma.array(Y), "`owners` is a masked array"),
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
        np.array([7.0, 1.0, 7.0], "float32"),
        np.array(["2020-01-02", "2020-01-01", "2020-01-02"], "M8[D]"),
        (True, False, True),
    ],
)
def test_ids_that_tell_owners_apart(owners):
    data = np.arange(3.0)[:, None], np.zeros(3)
    owners = Unit(owners=owners).owners
    ((x, _, found),) = batches_by_owner(data, owners)
    assert x.ravel().tolist() == [1, 0, 2]
    assert found[1] == found[2] != found[0]


def test_ids_on_either_side_of_an_int64():
    ids = [2**63, -1, 2**63 + 1]
    data = np.arange(3.0)[:, None], np.zeros(3)
    owners = Unit(owners=ids).owners
    ((x, _, found),) = batches_by_owner(data, owners)
    assert x.ravel().tolist() == [1, 0, 2]
    assert found.tolist() == sorted(ids)


def test_what_a_mask_hides_is_no_id():
    hidden = np.ma.masked_array(["a", "b", "b"], [False, True, False])
    with pytest.raises(ValueError, match="masked array"):
        Unit(owners=hidden)


def test_a_data_set_cannot_be_brought_together():
    with pytest.raises(ValueError, match=r"arrays \(x, y\)"):
        list(batches_by_owner(Batches(True), Y))


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


def test_a_ledger_written_before_there_were_units_still_loads():
    old = json.loads(new(unit="one user").to_json())
    del old["unit"]
    loaded = Ledger.from_json(json.dumps(old))
    assert loaded.unit == ONE_RECORD


@pytest.mark.parametrize("unit", ["", None, 3, ["one user"]])
def test_the_unit_is_words(unit):
    with pytest.raises(ValueError, match="`unit`"):
        new(unit=unit)
    text = json.dumps({**json.loads(new().to_json()), "unit": unit})
    with pytest.raises(ValueError, match="not a keras_fm ledger"):
        Ledger.from_json(text)
