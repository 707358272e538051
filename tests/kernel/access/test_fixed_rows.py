"""Where a record stands depends on that record alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_fm.kernel.access import fixed_rows
from keras_fm.kernel.access.fixed_rows import _WAITING, placed

SIZE = 8


def records(n, seed=0, kinds=1000):
    """Images and labels, some of them equal."""
    rng = np.random.default_rng(seed)
    few = rng.normal(size=(kinds, 3, 2)).astype("float32")
    which = rng.integers(kinds, size=n)
    return few[which], which % 4


def cut(x, y, sizes):
    ends = np.cumsum(sizes)
    return list(zip(np.split(x, ends), np.split(y, ends)))


def places(batches, size=SIZE):
    """Sorted `(record, row)` of all records, as bytes."""
    found = []
    for x, y, rows in placed(batches, size):
        assert len(x) == len(y) == size and len(rows)
        free = np.setdiff1d(np.arange(size), rows)
        assert not x[free].any() and not y[free].any()
        found += [(x[r].tobytes() + y[r].tobytes(), r) for r in rows]
    return sorted(found)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 120),
    kinds=st.sampled_from([1, 3, 1000]),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_a_record_more_moves_no_other(n, kinds, seed, data):
    x, y = records(n, seed, kinds)
    one = places([(x, y)])
    assert [r for r, _ in one] == sorted(
        a.tobytes() + b.tobytes() for a, b in zip(x, y)
    )
    # Another record, anywhere, in another order and in other batches.
    new = data.draw(st.sampled_from([x[:1], x[:1] + 1, x[:1] * 0]))
    order = np.random.default_rng(seed).permutation(n + 1)
    x, y = np.concatenate([x, new])[order], np.append(y, y[0])[order]
    sizes = data.draw(st.lists(st.integers(1, 40), max_size=4))
    other = places(cut(x, y, sizes))
    for place in one:
        other.remove(place)
    ((record, _),) = other
    assert record == new[0].tobytes() + y[order == n][0].tobytes()


@pytest.mark.parametrize("kind", ["bool", "int8", "int64", "float32"])
def test_one_number_of_another_type_moves_no_other(kind):
    """A list of whole numbers with one fraction is an array of floats."""
    rng = np.random.default_rng(7)
    x = rng.integers(0, 2, (90, 5)).astype(kind)
    y = rng.integers(0, 2, 90)

    def rows_of(x, y):
        found = set()
        for images, labels, rows in placed([(x, y)], 64):
            found |= {
                (*images[r].astype(float), float(labels[r]), r) for r in rows
            }
        return found

    one = rows_of(x, y)
    wider = np.concatenate([x.astype(np.float64), np.full((1, 5), 0.1)])
    other = rows_of(wider, np.append(y, 0.0))
    assert one < other and len(other) == len(one) + 1


def test_rows_of_long_records_are_those_of_short_batches(monkeypatch):
    x, y = records(50)
    one = places([(x, y)])
    monkeypatch.setattr(fixed_rows, "_HASHED", 8)
    assert places([(x, y)]) == one


def test_labels_decide_about_no_row_where_they_alone_are_secret():
    x, y = records(100, kinds=60)
    found = []
    for labels in (y, y[::-1], 0 * y):
        given = []
        for images, kept, rows in placed([(x, labels)], SIZE, by_labels=False):
            assert len(images) == len(kept) == SIZE
            given += [(images[r].tobytes(), kept[r], r) for r in rows]
        own = zip(map(np.ndarray.tobytes, x), labels.tolist())
        assert sorted(own) == sorted(pair[:2] for pair in given)
        found.append(sorted((image, row) for image, _, row in given))
    assert found[0] == found[1] == found[2]


def test_batches_are_nearly_full_and_few_records_wait():
    x, y = records(6400, kinds=10**6)
    read, filled = 0, []

    def reader():
        nonlocal read
        for start in range(0, len(x), 50):
            read += 50
            yield x[start : start + 50], y[start : start + 50]

    given_ = 0
    for _, _, rows in placed(reader(), 64):
        given_ += len(rows)
        filled.append(len(rows))
        assert read - given_ <= _WAITING * 64 + 50
    assert given_ == 6400
    # Rows are queues: with sixteen that wait for each, few are idle. At the end
    # some are longer: sqrt(2 ln(64) 64 / 6400) of all batches, 29 %, expected.
    assert np.mean(filled[:80]) > 0.96 * 64
    assert len(filled) < 1.4 * 6400 / 64


def test_equal_records_share_a_row():
    x, y = records(10_000, kinds=5)
    found = list(placed([(x, y)], 64))
    assert len(found) < 10_000 / (64 * _WAITING) * 4
    assert sum(len(rows) for *_, rows in found) == 10_000
    assert max(len(rows) for *_, rows in found) > 64


def test_rows_are_used_evenly():
    """Chi-square with 63 degrees of freedom, false alarms below 1e-6."""
    rng = np.random.default_rng(5)
    for x in (
        rng.normal(size=(6400, 5)).astype("float32"),
        np.arange(6400)[:, None],
        np.eye(6400, dtype="uint8")[:, :6400],
        np.arange(6400)[:, None] / 4,
    ):
        rows = np.concatenate([r for *_, r in placed([(x, None)], 64)])
        counts = np.bincount(rows, minlength=64)
        assert ((counts - 100) ** 2 / 100).sum() < 130


def several(n, seed=0):
    """Text, numbers and truth values beside each other."""
    x, y = records(n, seed)
    text = np.array([f"word {v:.2f}" for v in x[:, 0, 0]], object)
    return [text, x, x[:, 0] > 0], y


def places_of_several(batches, size=SIZE):
    found = []
    for x, y, rows in placed(batches, size):
        text, numbers, truths = x
        free = np.setdiff1d(np.arange(size), rows)
        assert not numbers[free].any() and set(text[free]) <= {""}
        found += [
            (text[r], numbers[r].tobytes(), truths[r].tobytes(), y[r], r)
            for r in rows
        ]
    return sorted(found)


@pytest.mark.parametrize("seed", range(3))
def test_a_record_more_moves_no_other_of_several_inputs(seed):
    x, y = several(60, seed)
    one = places_of_several([(x, y)])
    # The text is longer than all others, which must not matter.
    new = [np.array(["a long word" * 9], object), x[1][:1], x[2][:1]]
    order = np.random.default_rng(seed).permutation(61)
    x = [np.concatenate(pair)[order] for pair in zip(x, new)]
    y = np.append(y, 1)[order]
    parts = [([v[i : i + 7] for v in x], y[i : i + 7]) for i in range(0, 61, 7)]
    other = places_of_several(parts)
    for place in one:
        other.remove(place)
    ((text, *_),) = other
    assert text == new[0][0]


def test_every_input_decides_on_the_row():
    """Records that differ in one input alone have rows of their own."""
    x, y = several(1)
    for i in range(3):
        rows = set()
        for n in range(8 if i < 2 else 2):
            other = [v.copy() for v in x]
            changed = [f"{n}", x[1][0] + n, np.array([n > 0, True])][i]
            other[i][0] = changed
            rows |= {*next(placed([(other, y)], 2**16))[2]}
        assert len(rows) > 1


@pytest.mark.parametrize("kind", ["text", "uses features only", "mixed"])
def test_other_data(kind):
    x, y = records(20)
    if kind == "text":
        x = np.array([str(v) for v in range(20)])
        found = list(placed([(x, y)], SIZE))
        pairs = [(v[r], t[r]) for v, t, rows in found for r in rows]
        assert sorted(pairs) == sorted(zip(x, y))
        # Of wider text the rows are the same.
        wider = list(placed([(x.astype("U90"), y)], SIZE))
        for (_, _, a), (_, _, b) in zip(found, wider):
            np.testing.assert_array_equal(a, b)
    elif kind == "uses features only":
        found = list(placed([(x, None)], SIZE))
        assert all(labels is None for _, labels, _ in found)
        seen = np.concatenate([v[rows] for v, _, rows in found])
        assert sorted(map(bytes, seen)) == sorted(map(bytes, x))
    else:
        parts = [(x, y), (x.astype("float64"), y), (x[:, :2], y)]
        found = list(placed(parts, SIZE))
        assert sum(len(rows) for *_, rows in found) == 60
        assert {v.dtype.name for v, *_ in found} == {"float32", "float64"}
    assert list(placed([], SIZE)) == []
    assert list(placed([(x[:0], y[:0])], SIZE)) == []
