"""A release as a pipeline: the same bits however the work is split."""

import keras
import numpy as np
import pytest

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.release import calibrate, release, release_statistics
from keras_fm.layers import PrivateDense
from keras_fm.queries import (
    CrossEntropyQuery,
    SecondMomentQuery,
)

pytestmark = [pytest.mark.once, pytest.mark.full, pytest.mark.tensorflow]

beam = pytest.importorskip("apache_beam")

DELTA = 1e-5
OBJECTIVE = CrossEntropyQuery(num_features=5, num_outputs=3)


def records(n=300, seed=0):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(n, 5))
    return h / np.linalg.norm(h, axis=1, keepdims=True), rng.integers(3, size=n)


def keyed(data, sizes=(50,)):
    """`(key, batch)` of records in batches of these sizes, in turn."""
    found, start = [], 0
    while start < len(data[0]):
        size = sizes[len(found) % len(sizes)]
        batch = tuple(a[start : start + size] for a in data)
        found.append((f"part {start}", batch))
        start += size
    return found


def summed(tmp_path, elements, objective=OBJECTIVE, clip=False, **options):
    """What a pipeline writes, read back."""
    from apache_beam.options.pipeline_options import PipelineOptions

    from keras_fm.beam import SumStatistics

    path = tmp_path / "statistics"

    def write(data):
        path.write_bytes(data)

    with beam.Pipeline(options=PipelineOptions([], **options)) as pipeline:
        _ = (
            pipeline
            | beam.Create(elements)
            # Takes a runner's bundles apart.
            | beam.Reshuffle()
            | SumStatistics(objective, clip)
            | beam.Map(write)
        )
    return PartialStatistics.from_bytes(path.read_bytes(), objective, clip)


def bits(partial):
    return [a.tobytes() for a in partial.statistics()]


def in_one_process(objective, *batches, owners=None):
    made = PartialStatistics(objective)
    for batch in batches:
        made.add(*batch, owners=owners)
    return made


@pytest.mark.parametrize("sizes", [(300,), (7, 100, 1)])
def test_the_split_makes_no_difference(tmp_path, sizes):
    data = records()
    elements = keyed(data, sizes)
    elements = elements[::-1]
    made = summed(tmp_path, elements)
    assert bits(made) == bits(in_one_process(OBJECTIVE, data))


def test_several_workers_make_no_difference(tmp_path):
    data = records()
    made = summed(
        tmp_path,
        keyed(data, (20,)),
        direct_num_workers=2,
        direct_running_mode="multi_threading",
    )
    assert bits(made) == bits(in_one_process(OBJECTIVE, data))


def test_what_is_there_twice_counts_once(tmp_path):
    data = records()
    elements = keyed(data)
    made = summed(tmp_path, elements + elements[:3] + elements[1:2])
    assert bits(made) == bits(in_one_process(OBJECTIVE, data))
    # As it would not if keys were different.
    other = summed(tmp_path, elements + [("new", elements[0][1])])
    assert bits(other) != bits(made)


def test_two_batches_under_one_key_are_an_error(tmp_path):
    (key, first), (_, second) = keyed(records())[:2]
    with pytest.raises(Exception, match="different batches have the same key"):
        summed(tmp_path, [(key, first), (key, second)])


def test_bad_records_are_an_error_that_shows_none(tmp_path):
    h, y = records()
    with pytest.raises(Exception, match="outside the public L2") as error:
        summed(tmp_path, keyed((h * 1.2345678, y)))
    assert "1.2345" not in str(error.value)
    made = summed(tmp_path, keyed((2 * h, y)), clip=True)
    expected = PartialStatistics(OBJECTIVE, clip=True)
    expected.add(2 * h, y)
    assert bits(made) == bits(expected)


def test_an_owner_has_one_key_whatever_its_type(tmp_path):
    """Two would be two owners; of what is missing two people were one."""
    objective = SecondMomentQuery(num_features=5, grouped=True)
    h, _ = records(10)
    for keys in ((1, "1"), (True, 1), (np.int64(7), "7")):
        elements = [(keys[0], (h[:5],)), (keys[1], (h[5:],))]
        with pytest.raises(Exception, match="have the same key"):
            summed(tmp_path, elements, objective)
        elements = [(keys[0], (h[:5],)), (keys[1], (h[:5],))]
        made = summed(tmp_path, elements, objective)
        expected = PartialStatistics(objective)
        expected.add(h[:5], owners=[0] * 5)
        assert bits(made) == bits(expected)
    for key in (None, float("nan"), 1.0, b"1", ("a", 1)):
        with pytest.raises(Exception, match="a whole number or text"):
            summed(tmp_path, [(key, (h,))], objective)


def test_from_records_to_a_trained_layer(tmp_path):
    """The noise is that of one process, too: same seed, same bits."""
    h, y = records()
    layer = PrivateDense(3, feature_bound=1.0, bias_feature=0.1)
    model = keras.Sequential([keras.Input((5,)), layer])
    objective = layer.objective()
    data = layer.augment(h), y
    budget = PrivacyBudget(1.0, DELTA)

    def arguments():
        return {
            "mechanism": calibrate(objective, budget, neighbours="replace_one"),
            "ledger": Ledger(budget, neighbours="replace_one"),
            "name": "output",
            "noise": NoiseSource(7),
        }

    partial = summed(tmp_path, keyed(data), objective)
    used = arguments()
    made = release_statistics(partial, **used)
    plain = release(objective, [data], **arguments())
    for name in objective.names:
        np.testing.assert_array_equal(
            made.statistics[name], plain.statistics[name]
        )
    layer.learn(made, used["ledger"])
    assert layer.is_released
    weights = plain.minimise()[1]
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer.kernel), weights[:5], rtol=1e-5
    )
    # Zeros do: what is learned from is the release.
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
    before = keras.ops.convert_to_numpy(layer.kernel)
    model.fit(np.zeros((8, 5)), np.zeros(8), verbose=0)
    after = keras.ops.convert_to_numpy(layer.kernel)
    np.testing.assert_allclose(after, before, atol=1e-5)
