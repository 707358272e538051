"""Reading goes on while sums are made, and nobody can tell from the result."""

import io
import threading

import numpy as np
import pytest

from keras_fm.kernel import records
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.queries import CrossEntropyQuery, RelevanceQuery

# Far above what anything here takes; only a failure waits for it.
PATIENCE = 30


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

    records.prefetch(batches(), take)
    assert [(h.tolist(), y) for h, y in taken] == [
        ([i] * 3, i) for i in range(4)
    ]
    # What readers have of their own (Keras' settings, scopes) holds.
    assert reader == {threading.get_ident()}


@pytest.mark.parametrize("where", [0, 7, 19])
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

    with pytest.raises(ValueError, match=f"^record {where}$"):
        records.prefetch(batches(), take)
    assert taken == list(range(where)) and len(read) <= where + 3


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_an_error_of_the_reader_arrives_after_what_it_had_read(kind, fails):
    """And after that of a sum, which a plain loop would have raised."""
    taken = []

    def batches():
        yield (0,)
        yield (1,)
        raise kind("disk")

    def take(i):
        taken.append(i)
        if fails and i == 1:
            raise ValueError("of the second batch")

    with pytest.raises(ValueError if fails else kind):
        records.prefetch(batches(), take)
    assert taken == [0, 1]


def bits(partial):
    """Of what was summed, without the ids of its parts."""
    with np.load(io.BytesIO(partial.to_bytes())) as held:
        return {k: held[k].tobytes() for k in held.files if k != "public"}


QUERIES = {
    "quadratic": CrossEntropyQuery(num_features=6, num_outputs=3),
    "owners": CrossEntropyQuery(num_features=6, num_outputs=3, grouped=True),
    "that depend on batches": RelevanceQuery(num_features=6, ball="l2"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_statistics_have_the_bits_of_a_plain_loop(name):
    query = QUERIES[name]
    h = np.random.default_rng(0).standard_normal((5000, 6))
    data = [h / np.linalg.norm(h, axis=1, keepdims=True)]
    if name != "that depend on batches":
        data.append(np.arange(5000) % 3)
    if name == "owners":
        data.append(np.arange(5000) // 100)
    batches = [[v[i : i + 500] for v in data] for i in range(0, 5000, 500)]
    plain = PartialStatistics(query, clip=True)
    for batch in batches:
        plain.add(*batch)
    found = PartialStatistics(query, clip=True)
    records.prefetch(batches, found.add)
    assert bits(found) == bits(plain) != {}
