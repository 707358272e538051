"""A view is a function of one record and of a generator of its own."""

import pickle

import numpy as np
import pytest

from keras_fm.baselines.record_views import RecordViews

SHAPE = (4, 4, 1)
IMAGES = np.full((6, *SHAPE), 7.0, "float32")


def flipped(record, rng):
    return record[::-1] + rng.normal(size=SHAPE).astype("float32")


@pytest.mark.once
def test_views_travel_to_other_processes():
    """`use_multiprocessing=True` pickles them."""
    views = RecordViews(flipped, 2, SHAPE, "float32")
    again = pickle.loads(pickle.dumps(views))
    found = list(views.rows(IMAGES, 3))
    assert len(np.unique(np.stack(found)[:, 0, 0, 0])) == 12
    for a, b in zip(found, again.rows(IMAGES, 3)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.once
def test_other_records_move_no_view():
    views = RecordViews(flipped, 2, SHAPE, "float32")
    rest = IMAGES.copy()
    rest[1:] = -3
    for a, b in zip(list(views.rows(IMAGES, 3))[:2], views.rows(rest, 3)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.once
def test_what_fails_on_a_record_shows_nothing_of_it():
    def fails(record, rng):
        return record if record[0, 0, 0] < 1 else record[None, 0]

    views = RecordViews(fails, 2, SHAPE, "float32")
    with pytest.raises(ValueError, match="`augment` failed") as e:
        list(views.rows(IMAGES, 1))
    assert "7.0" not in str(e.value) and e.value.__cause__ is None
    with pytest.raises(ValueError, match="must return a record of the shape"):
        RecordViews(lambda record, rng: record[0], 2, SHAPE, "float32")
