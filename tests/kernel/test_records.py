"""Every form of data is read once, in order, or refused clearly."""

import keras
import numpy as np
import pytest

from keras_fm.kernel import records

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


def tf_refused(data, message):
    """Before anything is read."""
    for check in (records.check, lambda d: next(records.batches(d))):
        with pytest.raises(ValueError, match=message):
            check(data)


def test_tf_data_that_gives_rows_in_any_order_and_of_any_parts():
    """Nothing looks into what a data set is made of: a row is a record."""
    tf = pytest.importorskip("tensorflow")
    of = tf.data.Dataset
    dataset = of.from_tensor_slices((X, Y))
    halves = [of.from_tensor_slices((X[i::2], Y[i::2])) for i in (0, 1)]
    for whole in (
        dataset.shuffle(9),
        halves[0].concatenate(halves[1]),
        of.sample_from_datasets(halves),
        dataset.interleave(lambda x, y: of.from_tensors((x, y))),
    ):
        taken = joined(records.batches(whole.batch(3).prefetch(1)))
        assert sorted(taken[1]) == list(Y)
    xs, ys = dataset.map(lambda x, y: x), dataset.map(lambda x, y: y)
    assert_all_once(of.zip((xs, ys)).batch(3))
    assert_all_once(of.from_tensors((X, Y)))
    assert len(list(records.batches(dataset.repeat(2).batch(20)))[0][1]) == 20


def test_what_does_not_fill_a_batch_is_not_left_out():
    """One record more brought in 63 others."""
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    full = "leaves out the last batch if it is not full.*always 3 rows"
    tf_refused(dataset.batch(3, drop_remainder=True), full)
    tf_refused(dataset.padded_batch(3, drop_remainder=True).prefetch(1), full)
    tf_refused(dataset.batch(2).rebatch(3, drop_remainder=True), full)
    assert_all_once(dataset.batch(1, drop_remainder=True))


def test_records_that_are_padded_to_the_longest_of_a_batch():
    """One long record lengthened all others of its batch: with means over
    places, A of 100 records moved by 53 where one record may move it by 1."""
    tf = pytest.importorskip("tensorflow")

    def read():
        yield from (([1] * n, n) for n in (1, 2, 3))

    spec = (tf.TensorSpec((None,), "int64"), tf.TensorSpec((), "int64"))
    dataset = tf.data.Dataset.from_generator(read, output_signature=spec)
    padded = dataset.padded_batch(3)
    for data in (
        padded,
        padded.map(lambda x, y: (x, y)).prefetch(1),
        dataset.padded_batch(3, ([None], [])),
        dataset.ragged_batch(3).map(lambda x, y: (x.to_tensor(), y)),
    ):
        with pytest.raises(ValueError, match="the longest of their batch"):
            list(records.batches(data))

    def grouped(bounds, to_bound):
        return dataset.bucket_by_sequence_length(
            lambda x, y: tf.size(x),
            bounds,
            [3] * (1 + len(bounds)),
            pad_to_bucket_boundary=to_bound,
            padding_values=(np.int64(-1), np.int64(-1)),
        )

    for data in (grouped([9], False), grouped([3, 9], True)):
        with pytest.raises(ValueError, match="have one known length"):
            list(records.batches(data))
    of_one_length = (
        dataset.padded_batch(2, ([4], [])),
        dataset.ragged_batch(2).map(
            lambda x, y: (x.to_tensor(shape=(None, 4)), y)
        ),
        dataset.batch(1),
    )
    for known in of_one_length:
        assert sum(len(y) for _, y in records.batches(known)) == 3


def test_batches_of_records_of_different_lengths():
    """Whoever pads, a function or a `collate_fn`: lengths that differ from
    batch to batch are the longest of each."""

    def batches(*shapes):
        return lambda: ((np.ones(s), np.ones(s[0])) for s in shapes)

    for several in (((1, 3), (2, 4)), ((2, 3), (1, 4)), ((2, 3), (2, 2))):
        with pytest.raises(ValueError, match="have one known length"):
            list(records.batches(batches(*several)))
    for alone in (((1, 3), (1, 4)), ((2, 3), (0, 4)), ((2, 3), (1, 3))):
        assert list(records.batches(batches(*alone)))


@pytest.mark.parametrize("end", [None, float("inf")])
def test_a_dataset_without_end_is_refused(end):
    with pytest.raises(ValueError, match="no end"):
        next(records.batches(Endless(end)))


def test_records_without_labels():
    pairs = [(X[:4], Y[:4]), (X[4:], Y[4:])]
    for data in (
        X,
        (X, Y),
        (X,),
        keras.ops.convert_to_tensor(X),
        Batches(),
        lambda: iter(pairs),
        lambda: (x for x, _ in pairs),
    ):
        found = list(records.batches(data, 4, labelled=False))
        assert all(y is None for _, y in found)
        x = np.concatenate([x for x, _ in found])
        np.testing.assert_array_equal(x, X)
    for data, message in (
        (X[:0], "no records"),
        (lambda: [(X, Y, Y)], "sample weights"),
        (lambda: [3.0], "first axis"),
        (None, "must be"),
    ):
        with pytest.raises(ValueError, match=message):
            list(records.batches(data, labelled=False))
