"""Parts of records: a record has its part whoever else is there."""

import numpy as np
import pytest
from scipy import stats

from keras_fm.asking.parts_by_hash import part_by_hash

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
        (np.array(["a"]), Y[:1], "arrays of numbers"),
    ],
)
def test_what_are_no_records_is_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        part_by_hash(x, y)
    with pytest.raises(ValueError, match="`held_out` must be"):
        part_by_hash(X, Y, 1.0)
