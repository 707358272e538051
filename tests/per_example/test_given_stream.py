"""Rows that come once: generators and data sets that nobody keeps.

The habit that these guard: a loader over files that is larger than memory,
whose order is whatever it is.
"""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.per_example.given_stream import GivenStream, is_stream

pytestmark = [pytest.mark.full, pytest.mark.backend]

BACKEND = keras.backend.backend()
N, D = 50, 8
X = np.eye(D, dtype="float32")[np.arange(N) % D]
Y = np.arange(N) % 3


def batches(size=7):
    for start in range(0, N, size):
        yield X[start : start + size], Y[start : start + size]


class Batches(keras.utils.PyDataset):
    @property
    def num_batches(self):
        return 8

    def __getitem__(self, index):
        return list(batches())[index]


def loader():
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, TensorDataset

    tensors = TensorDataset(torch.tensor(X), torch.tensor(Y))
    return DataLoader(tensors, batch_size=7)


def data_set():
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(7)


STREAMS = {
    "function": (batches, 9),
    "generator": (batches(), 9),
    "PyDataset": (Batches(), None),
    "loader": (loader, None),
    "data set": (data_set, None),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_every_row_comes_once_in_its_order(kind):
    x, steps = STREAMS[kind]
    x = x() if kind in ("loader", "data set") else x
    assert is_stream(x) and not is_stream(X)
    stream = GivenStream(x, 6, steps)
    # Eight batches of seven rows, at most.
    assert stream.n == (54 if steps else 60)
    parts = [stream.part(step, step) for step in range(stream.n // 6)]
    np.testing.assert_array_equal(np.concatenate([p.x for p in parts]), X)
    np.testing.assert_array_equal(np.concatenate([p.y for p in parts]), Y)
    assert [len(p.x) for p in parts[:9]] == [6] * 8 + [2]


@pytest.mark.once
def test_rows_beyond_the_steps_are_not_read():
    read = []

    def watched():
        for batch in batches():
            read.append(batch)
            yield batch

    stream = GivenStream(watched, 6, 3)
    first = stream.part(0, 0)
    assert stream.part(0, 0) is first and len(read) == 1
    assert len(stream.part(2, 1).x) == 6 and len(read) == 3
    assert set(stream._held) == {1, 2}


@pytest.mark.once
def test_a_loader_that_leaves_rows_out():
    whole = loader()
    short = type(whole)(whole.dataset, batch_size=7, drop_last=True)
    with pytest.raises(ValueError, match="drop_last=False"):
        GivenStream(short, 6)


def compiled():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((D,)), keras.layers.Dense(3)])
    private = fm.make_private(model, clip=100.0)
    private.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return private


def fitted(x, y=None, private=None, **more):
    private = private or compiled()
    budget = fm.callbacks.PrivateModel(8.0, 1e-5)
    given = {"participation": fm.Participation(bands=2), "shuffle": False}
    private.fit(
        x, y, batch_size=6, verbose=0, callbacks=[budget], **{**given, **more}
    )
    return private.model.get_weights(), budget.ledger.entries


@pytest.mark.usefixtures("without_noise")
def test_a_fit_of_a_stream_is_that_of_its_rows():
    held, (entry,) = fitted(X, Y)
    came, (other,) = fitted(batches, steps_per_epoch=9)
    for one, two in zip(held, came):
        np.testing.assert_allclose(one, two, atol=1e-6)
    assert entry.mechanism == other.mechanism
    assert any("the place of each record" in note for note in other.notes)


@pytest.mark.once
def test_the_stream_is_read_as_the_steps_are_taken():
    """What is held does not grow with the stream."""
    private, ahead = compiled(), []

    def endless():
        while True:
            ahead.append(len(ahead) + 1 - private.step_numbers()[0])
            yield X[:6], Y[:6]

    _, (entry,) = fitted(endless, private=private, steps_per_epoch=300)
    # TensorFlow reads ahead as far as the steps are slower than the reading.
    assert len(ahead) >= 300 and max(ahead) <= 60
    assert "one step of 300" in entry.uses


@pytest.mark.once
@pytest.mark.parametrize(
    "x, more, words",
    [
        (batches, {}, "Pass the number of steps"),
        (batches, {"class_weight": {0: 1.0}}, "need arrays"),
        (batches, {"epochs": 2, "steps_per_epoch": 9}, "gives each row"),
        (iter([]), {"steps_per_epoch": 9}, "at least one row"),
        (batches, {"participation": None}, "For one epoch"),
    ],
)
def test_streams_that_are_refused(x, more, words):
    budget = fm.callbacks.PrivateModel(8.0, 1e-5)
    given = {"participation": fm.Participation(), **more}
    with pytest.raises(ValueError, match=words):
        compiled().fit(x, batch_size=6, verbose=0, callbacks=[budget], **given)
    assert not budget.ledger.entries


@pytest.mark.once
@pytest.mark.parametrize(
    "later",
    [(X[:6, :4], Y[:6]), (X[:6], Y[:6] + 3)],
    ids=["other shape", "other labels"],
)
def test_a_later_batch_that_is_wrong_ends_the_fit(later):
    """What was charged stays charged, and no row is in the message."""
    budget = fm.callbacks.PrivateModel(8.0, 1e-5)
    with pytest.raises(Exception, match="must hold") as caught:
        compiled().fit(
            iter([*[(X[:6], Y[:6])] * 20, later]),
            batch_size=6,
            steps_per_epoch=22,
            verbose=0,
            callbacks=[budget],
            participation=fm.Participation(),
        )
    assert len(budget.ledger.entries) == 1
    assert "Received" not in str(caught.value)
