"""A view is a function of one record and of a generator of its own."""

import numpy as np
import pytest

from keras_fm.lab.baselines.record_views import Views

SHAPE = (4, 4, 1)
IMAGES = np.full((6, *SHAPE), 7.0, "float32")


def flipped(record, rng):
    return record[::-1] + rng.normal(size=SHAPE).astype("float32")


def views(function):
    return Views(function, 2, SHAPE, np.random.SeedSequence(3))


@pytest.mark.once
def test_other_records_move_no_view():
    rest = IMAGES.copy()
    rest[1:] = -3
    found, other = (views(flipped)(x, 8) for x in (IMAGES, rest))
    np.testing.assert_array_equal(found[0], other[0])
    assert len(np.unique(found[:6, :, 0, 0, 0])) == 12
    assert found.shape == (8, 2, *SHAPE) and not found[6:].any()


@pytest.mark.once
def test_what_fails_on_a_record_shows_nothing_of_it():
    def fails(record, rng):
        return record if record[0, 0, 0] < 1 else record[None, 0]

    with pytest.raises(ValueError, match="`augment` failed") as e:
        views(fails)(IMAGES, 6)
    assert "7.0" not in str(e.value) and e.value.__cause__ is None
    with pytest.raises(ValueError, match="must return a record of the shape"):
        views(lambda record, rng: record[0])
