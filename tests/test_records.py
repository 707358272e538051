"""Every form of data is read once, in order, or refused clearly."""

import itertools

import keras
import numpy as np
import pytest

from keras_fm import records

X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10)


def joined(batches):
    xs, ys = zip(*batches)
    assert all(isinstance(a, np.ndarray) for a in xs + ys)
    return np.concatenate(xs), np.concatenate(ys)


def assert_all_once(data, **kwargs):
    x, y = joined(records.batches(data, **kwargs))
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)


class Batches(keras.utils.PyDataset):
    def __init__(self, parts=3, **kwargs):
        super().__init__(**kwargs)
        self.parts = parts

    def __len__(self):
        return self.parts

    def __getitem__(self, index):
        return np.array_split(X, 3)[index], np.array_split(Y, 3)[index]


class Endless(keras.utils.PyDataset):
    def __init__(self, end, **kwargs):
        super().__init__(**kwargs)
        self.end = end

    @property
    def num_batches(self):
        return self.end

    def __getitem__(self, index):
        return X, Y


@pytest.mark.parametrize("batch_size", [1, 3, 10, 4096])
def test_arrays(batch_size):
    assert_all_once((X, Y), batch_size=batch_size)
    assert_all_once([X.tolist(), Y.tolist()], batch_size=batch_size)
    sizes = [len(x) for x, _ in records.batches((X, Y), batch_size)]
    assert max(sizes) <= batch_size


def test_py_dataset():
    assert_all_once(Batches())


def test_a_function_that_returns_an_iterator():
    def read():
        yield from ((X[i : i + 4], Y[i : i + 4]) for i in range(0, 10, 4))

    assert_all_once(read)
    assert_all_once(lambda: [[X, Y]])


def test_tf_data():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    assert_all_once(dataset.batch(3))
    # A cardinality that is not known in advance is not infinite.
    assert_all_once(dataset.filter(lambda x, y: True).batch(3))
    with pytest.raises(ValueError, match="repeat"):
        next(records.batches(dataset.batch(3).repeat()))
    with pytest.raises(ValueError, match="batch"):
        next(records.batches(dataset))


def test_nothing_is_read_before_it_is_asked_for():
    def read():
        pytest.fail("the data was read")
        yield X, Y

    records.batches(read)


def test_reading_is_lazy():
    taken = []

    def read():
        for index in itertools.count():
            taken.append(index)
            yield X, Y

    assert len(list(itertools.islice(records.batches(read), 3))) == 3
    assert taken == [0, 1, 2]


@pytest.mark.parametrize("end", [None, float("inf")])
def test_a_dataset_without_end_is_refused(end):
    with pytest.raises(ValueError, match="no end"):
        next(records.batches(Endless(end)))


@pytest.mark.parametrize(
    "data, message",
    [
        ((X, Y[:9]), "same number"),
        ((X, Y, np.ones(10)), "[Ss]ample weights"),
        ((X,), "must be"),
        ((X, 3), "same number"),
        ((X[:0], Y[:0]), "no records"),
        (lambda: [(X, Y, Y)], "sample weights"),
        (lambda: [X], "pair"),
        (lambda: [{"x": X, "y": Y}], "pair"),
        (lambda: [(X, Y[:2])], "same number"),
        (lambda: [(X, 1)], "same number"),
        (X, "pair"),
        (None, "must be"),
        (5, "must be"),
        ((pair for pair in [(X, Y)]), "must be"),
    ],
)
def test_other_forms_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        list(records.batches(data))
