"""Reading goes on while sums are made, and nobody can tell from the result."""

import io
import threading

import numpy as np
import pytest

from keras_fm.kernel import records, release
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.queries import CrossEntropyQuery, RelevanceQuery

# Far above what anything here takes; only a failure waits for it.
PATIENCE = 30


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def test_the_next_batch_is_read_into_the_same_array_meanwhile():
    refilled = [threading.Event() for _ in range(5)]
    taken, buffer, reader = [], np.zeros(3), set()

    def batches():
        for i in range(4):
            reader.add(threading.get_ident())
            buffer.fill(i)
            refilled[i].set()
            yield buffer, i
        refilled[4].set()

    def take(h, y):
        # A plain loop would wait for ever: the next batch is after this one.
        assert refilled[y + 1].wait(PATIENCE)
        assert threading.get_ident() not in reader
        taken.append((h.copy(), y))

    records.take_while_reading(batches(), take)
    for i, (h, y) in enumerate(taken):
        np.testing.assert_array_equal(h, np.full(3, i))
        assert y == i
    assert len(taken) == 4
    # What readers have of their own (Keras' settings, scopes) holds.
    assert reader == {threading.get_ident()}


def test_at_most_two_batches_are_read_ahead():
    read, ahead, third = [], [], threading.Event()

    def batches():
        for i in range(20):
            read.append(i)
            if i == 2:
                third.set()
            yield (i,)

    def take(i):
        assert third.wait(PATIENCE)
        ahead.append(len(read) - 1 - i)

    records.take_while_reading(batches(), take)
    assert max(ahead) == 2
    assert len(ahead) == 20


@pytest.mark.parametrize("where", [0, 1, 7, 19])
def test_an_error_of_a_sum_arrives_and_ends_the_reading(where):
    read, taken = [], []

    def batches():
        for i in range(20):
            read.append(i)
            yield (i,)

    def take(i):
        if i == where:
            raise ValueError(f"record {i}")
        taken.append(i)

    with pytest.raises(ValueError, match=f"^record {where}$") as caught:
        records.take_while_reading(batches(), take)
    assert taken == list(range(where))
    assert len(read) <= where + 4
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_an_error_of_the_reader_arrives_after_what_it_had_read(kind):
    taken, wrong = [], kind("disk")

    def batches():
        yield (0,)
        yield (1,)
        raise wrong

    with pytest.raises(kind) as caught:
        records.take_while_reading(batches(), taken.append)
    assert caught.value is wrong
    assert taken == [0, 1]


def test_of_two_errors_the_one_of_a_plain_loop_arrives():
    reached = threading.Event()

    def batches():
        yield (0,)
        reached.set()
        raise OSError("never read by a plain loop")

    def take(i):
        assert reached.wait(PATIENCE)
        raise ValueError("of the first batch")

    with pytest.raises(ValueError, match="of the first batch"):
        records.take_while_reading(batches(), take)


def test_no_batch_is_no_thread(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a thread was started")

    monkeypatch.setattr(threading, "Thread", refuse)
    records.take_while_reading([], lambda: None)


def bits(partial):
    """Of what was summed, without the ids of its parts."""
    with np.load(io.BytesIO(partial.to_bytes())) as held:
        return {k: held[k].tobytes() for k in held.files if k != "public"}


def rows(n, m, seed):
    h = np.random.default_rng(seed).standard_normal((n, m))
    return h / np.linalg.norm(h, axis=1, keepdims=True)


@pytest.mark.parametrize("grouped", [False, True])
def test_statistics_have_the_bits_of_a_plain_loop(grouped):
    objective = CrossEntropyQuery(
        num_features=7, num_outputs=3, grouped=grouped
    )
    h, y = rows(5000, 7, 0), np.arange(5000) % 3
    owners = (np.arange(5000) // 100,) if grouped else ()

    def batches():
        for start in range(0, 5000, 500):
            part = slice(start, start + 500)
            yield h[part], y[part], *(o[part] for o in owners)

    plain = PartialStatistics(objective)
    for one, two, *three in batches():
        plain.add(one, two, *three)
    found = release._summed(objective, batches(), clip=False)
    assert bits(found) == bits(plain) != {}


def test_sums_that_depend_on_batches_have_the_same_bits_too():
    objective = RelevanceQuery(num_features=6, ball="l2")
    found, plain = (
        release._summed(
            objective, ((rows(40, 6, i),) for i in range(9)), clip=True
        ),
        PartialStatistics(objective, clip=True),
    )
    for i in range(9):
        plain.add(rows(40, 6, i))
    assert bits(found) == bits(plain) != {}


def test_an_invalid_record_is_an_error_as_before():
    objective = CrossEntropyQuery(num_features=4, num_outputs=3)
    h = rows(30, 4, 0)
    h[17] *= np.nan

    def batches():
        for start in range(0, 30, 10):
            yield h[start : start + 10], np.zeros(10, int)

    plain = PartialStatistics(objective)
    with pytest.raises(ValueError) as expected:
        for batch in batches():
            plain.add(*batch)
    with pytest.raises(ValueError) as caught:
        release._summed(objective, batches(), clip=False)
    assert str(caught.value) == str(expected.value)
