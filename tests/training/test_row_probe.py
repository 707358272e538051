"""Maps that let records of a batch meet are found by running them.

Most of them were accepted by a check of four records within one per cent.
"""

import numpy as np
import pytest

from keras_fm.training.row_independence import probe

ROWS = 256
NUMBERS = [((4,), "float32", None)]


def tried(function, inputs=NUMBERS, **kwargs):
    probe(lambda x: [function(*x)], inputs, rows=ROWS, **kwargs)


class Remembers:
    """Gives back something of the batch before."""

    def __init__(self):
        self.last = np.float32(0)

    def __call__(self, x):
        found, self.last = x + self.last, x.max()
        return found


class Counts:
    def __init__(self):
        self.count = 0

    def __call__(self, x):
        self.count += 1
        return x + np.float32(self.count)


def every(k):
    def function(x):
        y = x.copy()
        y[::k] += np.roll(x, 1, axis=0)[::k]
        return y

    return function


def when_equal(x):
    same = np.all(x == np.roll(x, 1, axis=0), axis=1)
    return x + same[:, None].astype(x.dtype)


def when_far(x):
    return x + np.float32(np.abs(x).max() > 5000)


def one_pair(x):
    y = x.copy()
    y[77] += x[200] * np.float32(1e-3)
    return y


def ranks(x):
    return np.argsort(np.argsort(x, axis=0), axis=0).astype("float32")


MIXES = {
    "largest": lambda x: x / max(x.max(), 1e-6),
    "half a per cent": lambda x: x + np.float32(0.005) * x.mean(axis=0),
    "a millionth": lambda x: x + np.float32(1e-6) * x.mean(axis=0),
    "neighbour": lambda x: x + np.float32(0.01) * np.roll(x, 1, axis=0),
    "other neighbour": lambda x: x * np.sign(np.roll(x, -1, axis=0)),
    "a neighbour far away": lambda x: x + np.roll(x, 128, axis=0),
    "every second row": every(2),
    "every 64th row": every(64),
    "only row 0": every(256),
    "one pair of rows": one_pair,
    "sorted": lambda x: np.sort(x, axis=0),
    "ranks": ranks,
    "cumulative": lambda x: np.cumsum(x, axis=0),
    "cumulative from the end": lambda x: np.cumsum(x[::-1], axis=0)[::-1],
    "quantile": lambda x: x - np.quantile(x, 0.9, axis=0).astype("float32"),
    "median": lambda x: x - np.median(x, axis=0),
    "argmax": lambda x: x + np.float32(x.sum(axis=1).argmax()),
    "an equal neighbour": when_equal,
    "equal rows": lambda x: x + np.float32(len(np.unique(x, axis=0)) < ROWS),
    "an outlier": when_far,
    "large batches": lambda x: x - x.mean(axis=0) * (len(x) > 128),
    "half precision": lambda x: (
        x.astype("float16") + x.mean(axis=0).astype("float16")
    ),
    "zeros": lambda x: x + np.float32((x == 0).all(axis=1).sum()),
    "the batch before": Remembers(),
    "calls": Counts(),
    "any sign": lambda x: x * np.float32(-1 if (x < -1000).any() else 1),
    "gram": lambda x: x @ x.T,
    "infinities": lambda x: x + 0 * (x.sum() * np.float32(1e30)),
    "the last bit": lambda x: np.nextafter(x, x.max(axis=0)),
    "signs of zeros": lambda x: np.copysign(0 * x, x.sum(axis=0)),
}


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_maps_that_mix_are_found(name):
    with pytest.raises(ValueError, match="mix the records|same batch"):
        tried(MIXES[name])


def test_what_changes_from_batch_to_batch_is_found():
    """All that are compared agree but the first one, read once more."""
    read = []

    def function(x):
        read.append(x)
        again = len(read) > 3 and np.array_equal(x, read[0])
        return x + np.float32(again)

    with pytest.raises(ValueError, match="draw random numbers or remember"):
        tried(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: x / 255,
        lambda x: np.sort(x, axis=1),
        lambda x: x / np.maximum(np.linalg.norm(x, axis=1)[:, None], 1e-12),
        lambda x: np.where(x > 100, np.nan, x).astype("float32"),
        lambda x: np.log(np.maximum(x, 0)),
        lambda x: x[:, :0].sum(axis=1),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_maps_that_keep_records_apart_pass(function):
    tried(function)
    tried(function, thorough=False)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_whole_numbers():
    """Whole numbers over their largest were all one: 0 and 1 have 1."""

    def over_largest(x):
        return x / max(x.max(), 1)

    for dtype in ("int32", "uint8", "int64", "float32"):
        inputs = [((3,), dtype, None)]
        tried(lambda x: x % 7, inputs)
        with pytest.raises(ValueError, match="mix the records"):
            tried(over_largest, inputs)
    with pytest.raises(ValueError, match="mix the records"):
        tried(lambda x: x ^ x.any(), [((3,), "bool", None)])


def table(size):
    values = np.random.default_rng(0).random((size, 2), np.float32)

    def look_up(x):
        if not ((x >= 0) & (x < size)).all():
            raise IndexError("out of range")
        return values[x.astype(int)]

    return look_up


@pytest.mark.parametrize("size", [2, 5, 300])
@pytest.mark.parametrize("known", [True, False])
def test_indices_out_of_range_are_skipped(size, known):
    look_up = table(size)
    inputs = [((3,), "int32", size if known else None)]
    tried(look_up, inputs)
    with pytest.raises(ValueError, match="mix the records"):
        tried(lambda x: look_up(x) - look_up(x).mean(axis=0), inputs)


def test_a_map_that_fails_by_company_is_refused():
    def function(x):
        if 1 < len(np.unique(x, axis=0)) < 200:
            raise RuntimeError("few different records")
        return x

    with pytest.raises(ValueError, match="in other company"):
        tried(function)


def test_lengths_that_are_not_known():
    """Batch means were accepted under an axis of unknown length."""
    inputs = [((None, 2), "float32", None)]
    tried(lambda x: x / 2, inputs)
    with pytest.raises(ValueError, match="mix the records"):
        tried(lambda x: x - x.mean(axis=0), inputs)

    def needs_a_hundred(x):
        assert x.shape[1] >= 100
        return x

    tried(needs_a_hundred, inputs)

    def never(x):
        raise RuntimeError("no")

    with pytest.raises(ValueError, match="keras.Input") as e:
        tried(never, inputs)
    assert "no" in str(e.value.__cause__)


def test_what_is_not_a_number_for_every_record_shows_nothing():
    with pytest.raises(ValueError, match="could not be run"):
        tried(lambda x: x * np.float32(np.nan))


def test_rows_of_features():
    for function in (lambda x: x[:-1], lambda x: x.ravel(), lambda x: x.T):
        with pytest.raises(ValueError, match="a row of features"):
            tried(function)


def test_several_inputs_are_changed_together():
    inputs = [((2,), "float32", None), ((), "int32", 5)]
    tried(lambda x, i: x + i[:, None], inputs)
    with pytest.raises(ValueError, match="mix the records"):
        tried(lambda x, i: x + i.max(), inputs)


def test_few_rows():
    probe(lambda x: x, NUMBERS, rows=1)
    probe(lambda x: x, NUMBERS, rows=3)
    with pytest.raises(ValueError, match="mix the records"):
        probe(lambda x: [x[0] - x[0].mean(axis=0)], NUMBERS, rows=3)
