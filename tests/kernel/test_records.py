"""Every form of data is read once, in order, or refused clearly."""

import itertools
from types import MappingProxyType

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


def tf_refused(dataset, message):
    """Before anything is read, on its own and under what comes after."""
    mapped = dataset.map(lambda x, y: (x, y)).batch(3).prefetch(1)
    for data in (dataset.batch(3), mapped, dataset.shuffle(4).batch(3)):
        for check in (records.check, lambda d: next(records.batches(d))):
            with pytest.raises(ValueError, match=message):
                check(data)


def test_tf_data_that_gives_records_more_than_once():
    """`ds.repeat(5)` counted each record five times."""
    tf = pytest.importorskip("tensorflow")
    of = tf.data.Dataset
    dataset = of.from_tensor_slices((X, Y))
    tf_refused(dataset.repeat(5), "repeats its records 5 times.*Remove")
    tf_refused(dataset.map(lambda x, y: (x, y)).repeat(2), "2 times")
    assert_all_once(dataset.repeat(1).batch(3))
    tf_refused(dataset.concatenate(dataset), "two parts of one source")
    tf_refused(
        dataset.concatenate(dataset.map(lambda x, y: (-x, y))),
        "two parts of one source",
    )
    halves = [of.from_tensor_slices((X[i::2], Y[i::2])) for i in (0, 1)]
    taken = halves[0].concatenate(halves[1]).batch(10)
    assert sorted(joined(records.batches(taken))[1]) == list(Y)
    for chosen in (
        of.sample_from_datasets([dataset, halves[0]]),
        of.choose_from_datasets([dataset, dataset], of.range(2).repeat(5)),
        dataset.rejection_resample(
            lambda x, y: tf.cast(y > 3, "int32"), [0.5, 0.5]
        ).map(lambda label, pair: pair),
    ):
        tf_refused(chosen, "chooses among others")
    for several in (
        dataset.flat_map(lambda x, y: of.from_tensors((x, y))),
        dataset.interleave(lambda x, y: of.from_tensors((x, y)).repeat(2)),
        dataset.interleave(
            lambda x, y: of.from_tensors((x, y)), num_parallel_calls=2
        ),
    ):
        tf_refused(several, "several elements of one")
    # x and y of one data set are one record.
    xs, ys = dataset.map(lambda x, y: x), dataset.map(lambda x, y: y)
    assert_all_once(of.zip((xs, ys)).batch(3))


@pytest.mark.parametrize("targets", [True, False])
@pytest.mark.parametrize(
    "more", [{}, {"shuffle": True}, {"sequence_stride": 5}]
)
def test_windows_of_one_series_are_refused_in_words(targets, more):
    """The user wrote no `.repeat()`: Keras does, inside."""
    pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    dataset = keras.utils.timeseries_dataset_from_array(
        np.ones((40, 3)), np.ones(36) if targets else None, 5, **more
    )
    for check in (records.check, lambda d: next(records.batches(d))):
        with pytest.raises(ValueError, match="windows out of one series") as e:
            check(dataset)
    assert "repeat" not in str(e.value) and "-1" not in str(e.value)


def test_a_part_without_end_is_not_repeated_minus_one_times():
    tf = pytest.importorskip("tensorflow")
    of = tf.data.Dataset.from_tensor_slices
    dataset = of((X, Y)).repeat().take(30).batch(3)
    with pytest.raises(ValueError, match="without end") as e:
        records.check(dataset)
    assert "-1" not in str(e.value)


def test_tf_data_in_which_a_record_decides_about_others():
    """Only kinds that are known pass: batches that are dropped unless they
    are full brought in 63 records for one, and `shuffle_and_repeat`, windows
    that overlap, what `tf.compat.v1` makes and a data set zipped with itself
    counted records twice."""
    tf = pytest.importorskip("tensorflow")
    of = tf.data.Dataset
    dataset = of.from_tensor_slices((X, Y))

    def stacked(a, b):
        return tuple(tf.stack(pair) for pair in zip(a, b))

    def opened(x, y):
        return x.batch(2).get_single_element(), y.batch(2).get_single_element()

    full = "leaves out what does not fill a batch"
    tf_refused(dataset.batch(3, drop_remainder=True), full)
    tf_refused(dataset.batch(3, True, num_parallel_calls=2), full)
    tf_refused(dataset.padded_batch(3, drop_remainder=True), full)
    tf_refused(dataset.batch(2).rebatch(3, drop_remainder=True), full)
    tf_refused(
        dataset.window(2, shift=1).map(opened), "windows that overlap.*shift"
    )
    tf_refused(
        of.zip((dataset, dataset.skip(1))).map(stacked), "zipped with itself"
    )
    shuffled = dataset.shuffle(9)
    tf_refused(
        of.zip((shuffled.map(lambda x, y: x), shuffled.map(lambda x, y: y))),
        "zipped with itself",
    )
    twice = tf.data.experimental.shuffle_and_repeat(9, 2)
    old = tf.compat.v1.data.Dataset.from_tensor_slices((X, Y))
    for other in (
        dataset.apply(twice),
        old.repeat(2),
        dataset.take_while(lambda x, y: y < 5),
        dataset.scan(np.int64(0), lambda s, e: (s + e[1], (e[0], s))),
        dataset.ignore_errors(),
    ):
        tf_refused(other, "not known that each record comes once")
    assert_all_once(dataset.batch(4).unbatch().batch(2).rebatch(3))
    assert_all_once(
        dataset.cache()
        .filter(lambda x, y: True)
        .batch(3, num_parallel_calls=2)
        .map(lambda x, y: (x, y), num_parallel_calls=2)
        .prefetch(2)
        .with_options(tf.data.Options())
    )
    grouped = dataset.bucket_by_sequence_length(
        lambda x, y: tf.cast(y, "int32"), [5], [3, 3]
    )
    assert sum(len(y) for _, y in records.batches(grouped)) == len(Y)
    pairs = dataset.window(2, shift=2).map(opened)
    assert sum(len(y) for _, y in records.batches(pairs)) == len(Y)


def test_records_that_are_chosen_by_their_places_after_a_shuffle():
    """Of `shuffle(seed=1).take(50)` one record more changed 42 of the 50, and
    without a seed every pass read others: a sum moved 40 times as far as the
    noise covered."""
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    shuffled = dataset.shuffle(9, seed=1, reshuffle_each_iteration=False)
    files = tf.data.Dataset.from_tensor_slices(["a", "b"])
    lines = tf.data.TextLineDataset

    def part(name):
        return lines(name).shuffle(9).take(2)

    def mixed(name):
        return lines(name).shuffle(9)

    def same(x, y):
        return x, y

    def labelled(line):
        return line, 0

    for chosen in (
        shuffled.take(3),
        shuffled.skip(3).batch(2),
        shuffled.batch(2).shard(2, 0),
        dataset.batch(2).shuffle(9).map(same).take(3),
        dataset.concatenate(tf.data.Dataset.from_tensor_slices((X, Y)))
        .shuffle(9)
        .take(3),
        files.interleave(part).map(labelled),
        files.interleave(mixed).map(labelled).take(3),
        files.shuffle(2).interleave(lines).map(labelled).skip(1),
    ):
        tf_refused(chosen, "after they were shuffled")
    for first in (dataset.take(5), dataset.skip(5), dataset.shard(2, 1)):
        found = list(records.batches(first.shuffle(9).batch(2)))
        assert sum(len(y) for _, y in found) == 5


def test_batches_that_are_left_out():
    """`filter` after `batch` took whole batches away, as one that drops what
    is not full does, and so did windows of a `group_by_window`."""
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))

    def full(x, y):
        return tf.equal(tf.shape(x)[0], 3)

    def key(x, y):
        return tf.cast(y, "int64") * 0

    def some(key, window):
        return window.take(1).batch(3)

    def whole(key, window):
        return window.batch(3).filter(full)

    def every(key, window):
        return window.batch(3)

    batched = dataset.batch(3)
    for chosen in (batched, batched.prefetch(1)):
        tf_refused(chosen.filter(full), "leaves out whole batches")
    for reduce in (some, whole):
        tf_refused(dataset.group_by_window(key, reduce, 3), "or chooses some")
    grouped = dataset.group_by_window(key, every, 3)
    tf_refused(grouped.filter(full), "leaves out whole batches")
    assert sum(len(y) for _, y in records.batches(grouped)) == len(Y)
    assert_all_once(batched.unbatch().filter(key_is_any).batch(3))


def key_is_any(x, y):
    return y >= 0


def test_saved_tf_data_are_read_once(tmp_path):
    """A `reader_func` of one's own repeated the pieces of a saved data set:
    each record counted twice."""
    tf = pytest.importorskip("tensorflow")
    of = tf.data.Dataset
    of.from_tensor_slices((X, Y)).save(str(tmp_path))

    def same(piece):
        return piece

    def mixed(pieces):
        return pieces.shuffle(4).interleave(same)

    def twice(pieces):
        return pieces.repeat(2).interleave(same)

    def some(pieces):
        return pieces.interleave(same).take(3)

    for reader in (None, mixed):
        assert_all_once(of.load(str(tmp_path), reader_func=reader).batch(3))
    for reader in (twice, some):
        loaded = of.load(str(tmp_path), reader_func=reader)
        tf_refused(loaded, "loaded by a `reader_func`")
    mixed = of.load(str(tmp_path), reader_func=mixed)
    tf_refused(mixed.take(3), "after they were shuffled")


def test_records_that_are_padded_to_the_longest_of_a_batch():
    """One long record lengthened all others of its batch: with means over
    places, A of 100 records moved by 53 where one record may move it by 1."""
    tf = pytest.importorskip("tensorflow")

    def read():
        yield from (([1] * n, n) for n in (1, 2, 3))

    spec = (tf.TensorSpec((None,), "int64"), tf.TensorSpec((), "int64"))
    dataset = tf.data.Dataset.from_generator(read, output_signature=spec)
    padded = dataset.padded_batch(3)
    longest = "pads to the longest record of a batch"
    tf_refused(padded, longest)
    tf_refused(padded.map(lambda x, y: (x, y)).prefetch(1), longest)
    tf_refused(dataset.padded_batch(3, ([None], [])), longest)
    tf_refused(
        dataset.ragged_batch(3).map(lambda x, y: (x.to_tensor(), y)), longest
    )

    def grouped(bounds, to_bound):
        return dataset.bucket_by_sequence_length(
            lambda x, y: tf.size(x),
            bounds,
            [3] * (1 + len(bounds)),
            pad_to_bucket_boundary=to_bound,
            padding_values=(np.int64(-1), np.int64(-1)),
        )

    tf_refused(grouped([9], False), longest)
    with pytest.raises(ValueError, match="have different lengths"):
        list(records.batches(grouped([3, 9], True)))
    of_one_length = (
        grouped([9], True),
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
        with pytest.raises(ValueError, match="have different lengths"):
            list(records.batches(batches(*several)))
    for alone in (((1, 3), (1, 4)), ((2, 3), (0, 4)), ((2, 3), (1, 3))):
        assert list(records.batches(batches(*alone)))


def test_tf_data_of_generators_and_files(tmp_path):
    tf = pytest.importorskip("tensorflow")
    of = tf.data.Dataset
    spec = (tf.TensorSpec((2,), "float64"), tf.TensorSpec((), "int64"))

    def read():
        yield from zip(X, Y)

    assert_all_once(of.from_generator(read, output_signature=spec).batch(3))
    np.savetxt(tmp_path / "0.csv", np.column_stack([X, Y]), delimiter=",")
    files = of.from_tensor_slices([str(tmp_path / "0.csv")])

    def parse(line):
        row = tf.io.decode_csv(line, [0.0, 0.0, 0.0])
        return tf.cast(tf.stack(row[:2]), "float64"), tf.cast(row[2], "int64")

    def one(window):
        return window

    lines = files.interleave(tf.data.TextLineDataset)
    assert_all_once(lines.map(parse).batch(3))
    batches = files.interleave(lambda f: tf.data.TextLineDataset(f).batch(3))
    assert_all_once(batches.unbatch().map(parse).batch(3))
    named = files.flat_map(
        lambda f: of.from_tensor_slices(
            tf.strings.split(tf.strings.strip(tf.io.read_file(f)), "\n")
        )
    )
    assert_all_once(named.map(parse).batch(3))
    tf_refused(
        files.flat_map(lambda f: of.from_tensor_slices((X, Y))),
        "several elements of one",
    )
    for twice in (
        lambda f: tf.data.TextLineDataset(f).repeat(2),
        lambda f: tf.data.TextLineDataset(f).take_while(lambda line: True),
        lambda f: tf.data.TextLineDataset(f).batch(3, drop_remainder=True),
        lambda f: tf.data.TextLineDataset(f).window(2, 1).flat_map(one),
    ):
        lines = files.interleave(twice)
        tf_refused(lines.map(parse), "several elements of one")


def test_weights_in_tf_data_are_refused_before_they_are_read():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y, np.ones(10)))
    for labelled in (True, False):
        with pytest.raises(ValueError, match="Sample weights"):
            next(records.batches(dataset.batch(3), labelled=labelled))


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
        ((X, 3), "`y` must hold records"),
        ((X[:0], Y[:0]), "no records"),
        (lambda: [(X, Y, Y)], "sample weights"),
        (lambda: [X], "pair"),
        (lambda: [{"x": X, "y": Y}], "pair"),
        (lambda: [(X, Y[:2])], "same number"),
        (lambda: [(X, 1)], "`y` must hold records"),
        (X, "pair"),
        (None, "must be"),
        (5, "must be"),
        ("data.npz", "must be a tuple"),
        (MappingProxyType({"x": X, "y": Y}), "must be a tuple"),
        ((pair for pair in [(X, Y)]), "must be"),
    ],
)
def test_other_forms_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        list(records.batches(data))
