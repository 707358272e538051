"""That features of a record are the same bits whatever other records are."""

import keras
import numpy as np

from keras_fm.kernel.access.fixed_rows import placed

ROWS = 16


def read(features, x):
    """Features by record, as a release reads them."""
    found = {}
    for batch, _, rows in placed([(x, None)], ROWS):
        made = features(batch)
        for row in rows:
            found[repr(np.asarray(batch[row]).tolist())] = made[row].tobytes()
    return found


def assert_alone(features, x, others=None):
    """Neighbours leave, change places, and are others; the last batch is
    short of records or holds one.

    Args:
        features: a `FeatureMap`.
        x: array of records.
        others: records that may be in their place; `None`: zeros.
    """
    others = np.zeros_like(x[:3]) if others is None else others
    before = values(features.model)
    found = read(features, x)
    assert len(found) == len(x)
    changed = [
        x[1:],
        x[::-1],
        x[:1],
        np.concatenate([others, x[len(x) // 2 :]]),
    ]
    for one in changed:
        again = read(features, one)
        common = set(again) & set(found)
        assert common and all(again[key] == found[key] for key in common)
    for one, other in zip(before, values(features.model)):
        np.testing.assert_array_equal(one, other)


def values(model):
    return [
        np.array(keras.ops.convert_to_numpy(v.value)) for v in model.variables
    ]
