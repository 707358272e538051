"""Validation data that are the private records are refused."""

import keras
import numpy as np
import pytest

from keras_fm.parts.held_out import check_held_out

RANDOM = np.random.default_rng(0)
X = RANDOM.random((40, 3, 2), np.float32)
Y = RANDOM.integers(0, 3, 40)
OTHER = RANDOM.random((12, 3, 2), np.float32)


def refused(validation_data, data=(X, Y), match="holds private records"):
    with pytest.raises(ValueError, match=match) as e:
        check_held_out(validation_data, data)
    assert "Pass held-out or public records" in str(e.value)


@pytest.mark.parametrize(
    "validation_data",
    [
        None,
        (OTHER, Y[:12].copy()),
        (OTHER, Y[:12].copy(), np.ones(12)),
        OTHER,
        [OTHER, Y[:12].copy()],
        (OTHER[:0], Y[:0].copy()),
        # Other records of another shape.
        (RANDOM.random((40, 5)), Y.copy()),
        # One record of many is one of these.
        (np.concatenate([OTHER, X[:1]]), Y[:13].copy()),
        lambda: [(OTHER, Y[:12])],
    ],
)
def test_other_records_pass(validation_data):
    check_held_out(validation_data, (X, Y))
    check_held_out(validation_data, X)
    check_held_out(validation_data, None)


def test_parts_of_one_array_pass():
    """The usual split: views of one array that do not overlap."""
    check_held_out((X[:10], Y[:10]), (X[10:], Y[10:]))
    check_held_out((X[::2], Y[::2]), (X[1::2], Y[1::2]))


@pytest.mark.parametrize(
    "validation_data",
    [
        (X, Y),
        [X, Y],
        (X, Y, np.ones(40)),
        X,
        (X[:5], Y[:5]),
        (X[::-1], Y[::-1].copy()),
        (X.copy(), Y.copy()),
        (X.astype("float64"), Y.copy()),
        (X.reshape(40, 6).copy(), Y.copy()),
        (X[RANDOM.permutation(40)[:15]], Y[:15].copy()),
        (np.concatenate([X[:8], OTHER[:4]]), Y[:12].copy()),
        # Labels of private records, whatever they are compared with.
        (np.resize(OTHER, X.shape), Y),
        (X.tolist(), Y.tolist()),
    ],
)
def test_private_records_are_refused(validation_data):
    refused(validation_data)


def test_the_same_object_is_refused():
    data = (X, Y)
    refused(data, data, "it is `data`")

    def read():
        yield X, Y

    refused(read, read, "it is `data`")


def test_x_alone():
    refused(X.copy(), X)
    refused((X.copy(), None), X)
    refused(X, (X,))
    check_held_out(OTHER, X)


def test_tables_of_few_different_rows_are_no_false_alarm():
    table = RANDOM.integers(0, 2, (500, 3))
    others = RANDOM.integers(0, 2, (100, 3))
    check_held_out((others, others[:, 0].copy()), (table, table[:, 0].copy()))
    # All of them in the same order are.
    refused((table.copy(), None), (table, None), "its records are those")


def test_whole_numbers_against_fractions():
    pixels = RANDOM.integers(0, 256, (30, 8)).astype("uint8")
    refused((pixels.astype("float32"), None), (pixels, None))
    other = RANDOM.integers(0, 256, (30, 8)).astype("float32")
    check_held_out((other, None), (pixels, None))


def test_texts():
    texts = np.array([f"text {i}" for i in range(20)])
    refused((texts[5:].copy(), None), (texts, None))
    refused((texts.astype(object), None), (texts.astype(object), None))
    check_held_out((np.array(["a", "b"]), None), (texts, None))


def test_tensors():
    tensor = keras.ops.convert_to_tensor(X)
    refused((tensor, Y.copy()))
    refused((X.copy(), Y.copy()), (tensor, Y))
    check_held_out((keras.ops.convert_to_tensor(OTHER), None), (X, Y))


class Batches(keras.utils.PyDataset):
    def __init__(self, *arrays):
        super().__init__()
        self.arrays = arrays

    def __len__(self):
        return 5

    def __getitem__(self, index):
        some = tuple(a[8 * index : 8 * index + 8] for a in self.arrays)
        return some if len(some) > 1 else some[0]


def test_data_sets():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    refused(dataset, dataset, "it is `data`")
    refused(dataset)
    refused(dataset.shuffle(5).map(lambda x, y: (x, y, y)).repeat())
    refused(dataset.map(lambda x, y: x), X)
    other = tf.data.Dataset.from_tensor_slices((OTHER, Y[:12])).batch(8)
    check_held_out(other, (X, Y))
    check_held_out(dataset.take(0), (X, Y))
    check_held_out((OTHER, Y[:12]), dataset)


def test_private_data_sets():
    """Of private records in a data set nothing but the object itself was
    compared: a piece of it, or the arrays it is made of, were shown."""
    tf = pytest.importorskip("tensorflow")
    source = tf.data.Dataset.from_tensor_slices((X, Y))
    dataset = source.shuffle(40).batch(8)
    made = "made of what `data` is made of"
    refused(dataset.take(1), dataset, made)
    refused(dataset.map(lambda x, y: (x / 2, y)), dataset, made)
    refused(source.skip(9).batch(4), dataset, made)
    refused(source.batch(4).cache(), dataset.prefetch(2), made)
    # Splits of one source, and files or numbers that records are made by.
    check_held_out(source.take(9).batch(4), source.skip(9).batch(4))
    numbers = tf.data.Dataset.range(5)
    check_held_out(
        numbers.map(lambda i: (i + 90, i)).batch(5),
        numbers.map(lambda i: (i, i)).batch(5),
    )
    many = np.concatenate([X, *[RANDOM.random(X.shape, np.float32)] * 3])
    for data in (dataset, Batches(X, Y), (X, Y)):
        refused((X.copy(), Y.copy()), data)
        refused((many, None), data, "100% of the records of `data`")
        check_held_out((OTHER, Y[:12].copy()), data)
    longer = tf.data.Dataset.from_generator(
        lambda: iter([X, np.concatenate([X, X], 1)]),
        output_signature=tf.TensorSpec((None, None, 2)),
    )
    refused((X.copy(), None), longer)


def test_batches():
    refused(Batches(X, Y))
    refused(Batches(X), X)
    refused(Batches(X, Y, np.ones(40)))
    check_held_out(Batches(RANDOM.random((40, 3, 2), np.float32), Y), (X, Y))


def test_data_sets_of_several_inputs():
    tf = pytest.importorskip("tensorflow")
    a, b = keras.Input((3, 2), name="a"), keras.Input((1,), name="b")
    model = keras.Model({"a": a, "b": b}, keras.layers.Flatten()(a))
    x = {"a": X, "b": np.arange(40.0)[:, None]}
    dataset = tf.data.Dataset.from_tensor_slices((x, Y)).batch(8)
    with pytest.raises(ValueError, match="holds private records"):
        check_held_out(dataset, (x, Y), model)
    check_held_out(dataset, ({**x, "a": X + 1}, Y), model)


def test_loaders_of_torch():
    torch = pytest.importorskip("torch")
    pairs = list(zip(torch.tensor(X), torch.tensor(Y)))
    loader = torch.utils.data.DataLoader(pairs, batch_size=8, shuffle=True)
    refused(loader)
    refused(torch.utils.data.DataLoader(pairs, batch_size=9), loader)
    refused((X, Y), loader)
    pairs = list(zip(torch.tensor(OTHER), torch.tensor(Y)))
    check_held_out(torch.utils.data.DataLoader(pairs, batch_size=8), (X, Y))
