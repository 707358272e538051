"""Parts of records: a record has its part whoever else is there."""

import numpy as np
import pytest
from scipy import stats

from keras_fm.evaluation.parts_by_hash import part_by_hash

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(3000, 3)), RNG.integers(0, 4, 3000)


def rows(part):
    return {(*x, y) for x, y in zip(part[0].tolist(), part[1].tolist())}


def test_a_record_keeps_its_part_if_others_come_and_go():
    train, held = part_by_hash(X, Y, 0.3)
    assert not rows(train) & rows(held)
    assert rows(train) | rows(held) == rows((X, Y))
    # 1e-6 either way.
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], len(X), 0.3)
    assert low <= len(held[0]) <= high
    for chosen in (np.arange(1, 3000), np.arange(3000)[::-2], [7]):
        fewer = part_by_hash(X[chosen], Y[chosen], 0.3)
        assert rows(fewer[0]) <= rows(train)
        assert rows(fewer[1]) <= rows(held)


def test_one_fraction_moves_no_other_record():
    """Lists and tables of whole numbers become floats by one record that is
    none: 309 of 1000 others changed their part, which was by their bytes."""
    x, y = [[i, i + 1] for i in range(1000)], [0] * 1000
    before = part_by_hash(x, y)
    after = part_by_hash([*x, [0.5, 1]], [*y, 0.5])
    own = {(0.5, 1, 0.5)}
    assert [rows(part) - own for part in after] == [*map(rows, before)]
    narrow = part_by_hash(np.array(x, "float32"), np.array(y, "uint8"))
    assert [*map(rows, narrow)] == [*map(rows, before)]


def test_one_record_more_changes_one_part():
    train, held = part_by_hash(X[:-1], Y[:-1])
    more, more_held = part_by_hash(X, Y)
    moved = len(more[0]) - len(train[0]), len(more_held[0]) - len(held[0])
    assert sorted(moved) == [0, 1]


@pytest.mark.parametrize(
    "x, y, message",
    [
        (X, Y[1:], "same number of records"),
        (X[:0], Y[:0], "same number of records"),
        (X + 0j, Y, "numbers, text or gaps"),
        (X, np.full(3000, {}), "numbers, text or gaps"),
        (X, np.full(3000, np.datetime64("2020")), "write dates as text"),
    ],
)
def test_what_are_no_records_is_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        part_by_hash(x, y)
    with pytest.raises(ValueError, match="`held_out` must be"):
        part_by_hash(X, Y, 1.0)


# Owners ----------------------------------------------------------------------

OWNERS = RNG.integers(0, 400, 3000)


@pytest.mark.parametrize("as_ids", [np.array, lambda v: [f"u{i}" for i in v]])
def test_an_owner_is_in_one_part(as_ids):
    """By the records alone nearly every owner was in both, and the larger
    epsilon of the two ledgers was that of half of what it gave."""
    by_record = part_by_hash(X, Y, 0.3)
    at = {tuple(row): owner for row, owner in zip(X.tolist(), OWNERS)}
    both = [{at[tuple(row)] for row in part[0].tolist()} for part in by_record]
    assert len(both[0] & both[1]) > 300
    train, held = part_by_hash(X, Y, 0.3, owners=as_ids(OWNERS))
    assert not {*train[2].tolist()} & {*held[2].tolist()}
    assert rows(train) | rows(held) == rows((X, Y))
    assert 60 < len({*held[2].tolist()}) < 180
    # Whoever else is there.
    fewer = part_by_hash(X[::2], Y[::2], 0.3, owners=as_ids(OWNERS[::2]))
    assert rows(fewer[0]) <= rows(train) and rows(fewer[1]) <= rows(held)


def test_no_id_moves_the_owners_of_others():
    """One of many digits makes objects of a list of ids."""
    ids = list(range(1, 200))
    before = part_by_hash(X[:199], Y[:199], owners=ids)
    after = part_by_hash(X[:200], Y[:200], owners=[*ids, 2**70])
    floats = part_by_hash(X[:199], Y[:199], owners=np.array(ids, float))
    own = {2**70}
    for one, more, other in zip(before, after, floats):
        assert {*one[2].tolist()} == {*more[2].tolist()} - own
        assert {*one[2].tolist()} == {*other[2].tolist()}
    for wrong in (ids[1:], [*ids[1:], None], [*ids[1:], "a"]):
        with pytest.raises(ValueError, match="`owners` must hold one id"):
            part_by_hash(X[:199], Y[:199], owners=wrong)


# Text and gaps ---------------------------------------------------------


def frame(pd, count=400):
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "age": np.arange(count),
            "work": rng.choice(["farm", " office", ""], count),
            "member": rng.random(count) < 0.5,
            "kind": pd.Categorical(rng.choice(["a", "b"], count)),
        },
        index=rng.permutation(count),
    )


def names(part):
    return {*part[0]["age"].astype(float)}


SPOILT = {
    "age": [0.5, None, "?"],
    "work": [None, 3],
    "member": [None, "x", 2],
}


def test_a_frame_of_text_and_gaps_is_parted():
    """Frames with text, and text labels, were refused: the way that the pages
    show for a held-out part was closed to tables."""
    pd = pytest.importorskip("pandas")
    x = frame(pd)
    y = pd.Series(np.where(x["age"] % 3, "yes", "no"), index=x.index)
    train, held = part_by_hash(x, y, 0.3)
    assert names(train) | names(held) == {*map(float, range(400))}
    assert not names(train) & names(held)
    assert 60 < len(held[0]) < 180
    for part in (train, held):
        assert list(part[0].columns) == list(x.columns)
        assert part[0].index.equals(part[1].index)
        assert (part[1] == y.loc[part[0].index]).all()
    # Without an index, and as arrays.
    for labels in (y.to_numpy(), y.astype("category"), list(y)):
        assert names(part_by_hash(x, labels, 0.3)[1]) == names(held)
    labels = np.asarray(y, "U")
    found = part_by_hash(x.astype(object).to_numpy(), labels, 0.3)
    assert {*found[1][0][:, 0]} == names(held)
    assert found[1][1].dtype == labels.dtype


@pytest.mark.parametrize(
    "column, value", [(c, v) for c, values in SPOILT.items() for v in values]
)
def test_no_value_of_a_table_moves_another_record(column, value):
    """pandas holds a column in another type for one gap, fraction or text."""
    pd = pytest.importorskip("pandas")
    x = frame(pd)
    y = np.where(np.arange(400) % 3, "yes", "no")
    _, (held, _) = part_by_hash(x, y, 0.3)
    spoilt = x.astype({column: object})
    spoilt.iloc[7, list(x.columns).index(column)] = value
    for given in (spoilt, spoilt.infer_objects(), spoilt.convert_dtypes()):
        (one, _), (other, _) = part_by_hash(given, y, 0.3)
        assert len(one) + len(other) == 400
        assert {*other.index} ^ {*held.index} <= {x.index[7]}
    # As text, in the way of a file whose column has one word.
    if column == "age":
        _, (other, _) = part_by_hash(spoilt.astype({column: str}), y, 0.3)
        assert {*other.index} ^ {*held.index} <= {x.index[7]}


@pytest.mark.parametrize("other", ["a", None, 0.5, np.nan, 10**400])
def test_one_label_moves_no_other_record(other):
    _, (held, _) = part_by_hash(X, Y)
    _, (found, _) = part_by_hash(X, [*Y[:-1].tolist(), other])
    moved = {*map(tuple, held.tolist())} ^ {*map(tuple, found.tolist())}
    assert moved <= {tuple(X[-1].tolist())}
