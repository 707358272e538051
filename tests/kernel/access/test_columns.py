"""Records that are several arrays, and what is no array."""

import traceback

import numpy as np
import pytest

from keras_fm.core.second_moment import SecondMomentQuery
from keras_fm.evaluation.parts_by_hash import part_by_hash
from keras_fm.kernel import records
from keras_fm.kernel.access import columns
from keras_fm.training import read_records

X = np.arange(12.0).reshape(6, 2)
NAMES = np.array(["a", "bb", "a", "c", "", "dd"])
Y = np.arange(6) % 2
NESTED = {"who": {"name": NAMES, "age": X[:, 0]}, "scores": X}


def joined(parts):
    parts = list(parts)
    return columns.transform(
        lambda _, name: np.concatenate(
            [dict(columns.flatten(part))[name] for part in parts]
        ),
        parts[0],
    )


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize(
    "x", [[X, NAMES], (X, NAMES), {"b": X, "a": NAMES}, NESTED]
)
def test_structures_are_read_as_they_are(x, size):
    batches = list(records.batches((x, Y), size))
    found = joined(x for x, _ in batches)
    for (name, a), (other, b) in zip(
        columns.flatten(found), columns.flatten(x)
    ):
        assert name == other
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), Y)
    # Batches of them, and x alone.
    again = list(records.batches(lambda: iter(batches)))
    assert len(again) == len(batches)
    if isinstance(x, dict):
        (alone, _) = next(records.batches(x, 100, labelled=False))
        assert columns.count(alone) == 6


def test_the_records_of_an_owner_stay_together_in_every_input():
    owners = np.array([1, 0, 1, 0, 1, 0])
    found = list(read_records.batches_by_owner((NESTED, Y), owners, 3))
    assert [set(who) for *_, who in found] == [{0}, {1}]
    order = [1, 3, 5, 0, 2, 4]
    x = dict(columns.flatten(joined(x for x, *_ in found)))
    for name, array in columns.flatten(NESTED):
        np.testing.assert_array_equal(x[name], array[order])


def test_sparse_matrices_are_refused_with_the_way_out():
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix(X)
    for data in ((matrix, Y), ({"a": matrix}, Y), lambda: [(matrix, Y)]):
        with pytest.raises(ValueError, match="is sparse.*x.toarray()"):
            list(records.batches(data))


@pytest.mark.parametrize("word", ["secret", b"secret", {"secret"}])
def test_what_is_no_number_is_not_shown(word):
    """NumPy's error for a word among numbers has the word in it."""
    query = SecondMomentQuery(num_features=3)
    with pytest.raises(ValueError) as caught:
        query.accumulate(query.zero(), [[0.5, word, 0.5]])
    shown = traceback.format_exception(caught.value)
    assert not any("secret" in line for line in shown[-3:])
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize("large", [2**53 + 1, -(2**53) - 1, 2**63])
def test_one_fraction_rounds_no_other_record(large):
    """With it or without, lists and tables say that they cannot hold ids."""
    pandas = pytest.importorskip("pandas")
    ids = [[1, 2], [large, 3]]
    for rows in (ids, [*ids, [0, 0.5]], pandas.DataFrame(ids)):
        for read in (
            lambda x: columns.one_array(x),
            lambda x: next(records.batches((x, [0] * len(x)))),
            lambda x: part_by_hash(x, [0] * len(x)),
        ):
            with pytest.raises(ValueError, match="2\\^53 or more"):
                read(rows)
    kind = "uint64" if large > 2**60 else "int64"
    assert columns.one_array(np.array(ids, kind))[1, 0] == large
    assert columns.one_array([[2**53 - 1, np.nan]])[0, 0] == 2**53 - 1


def test_an_error_of_numpy_is_not_behind_ours():
    """Bytes that are no ASCII among text: NumPy's error, which ours had as its
    cause, held the whole word."""
    with pytest.raises(ValueError, match="bytes among text") as e:
        columns.one_array(["a", b"\xffsecret"])
    assert e.value.__cause__ is None and e.value.__context__ is None
