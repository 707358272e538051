"""What float32 loses where places cancel, or squares vanish, is in the norms
that records are clipped by."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

from keras_fm.per_example import affine_maps
from keras_fm.per_example.embedding_map import EmbeddingMap
from keras_fm.per_example.scale_map import RectifierMap, ScaleMap

pytestmark = [pytest.mark.full, pytest.mark.backend]


def array(value):
    return ops.convert_to_numpy(value)


def cancelling(map_of, u, delta, formed):
    """That what float32 loses where places cancel is in the norm."""
    found = map_of.squared_norm(ops.array(u), ops.array(delta))
    length = np.linalg.norm(formed.reshape(len(u), -1), axis=1)
    assert np.all(np.sqrt(array(found)) > length * (1 - 1e-5))
    for k in range(len(u)):
        one = [ops.array(v[k : k + 1]) for v in (u, delta)]
        made = map_of.sums_of(map_of.measured(*one)[1], ops.ones(1))
        alone = np.concatenate([array(v).ravel() for v in made])
        alone = np.linalg.norm(alone.astype("float64"))
        assert alone < np.sqrt(array(found)[k]) * (1 + 1e-4)


def centred(rng, *shape):
    delta = rng.normal(size=shape)
    delta -= delta.mean(axis=1, keepdims=True)
    return delta.astype("float32")


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
def test_places_that_cancel_hide_no_length(size):
    rng = np.random.default_rng(0)
    delta = centred(rng, 8, 400, 3)
    layer = L.LayerNormalization()
    layer.build((None, 400, 3))
    u = size * np.ones((8, 400, 3)) + rng.normal(size=(8, 400, 3))
    u = u.astype("float32")
    both = [np.sum(u.astype("float64") * delta, 1), np.sum(delta, 1, "float64")]
    cancelling(ScaleMap(layer, (400, 3)), u, delta, np.hstack(both))
    layer = L.PReLU(shared_axes=[1])
    layer.build((None, 800, 3))
    made = RectifierMap(layer, (800, 3))
    # What is positive is not alpha's.
    ups = np.concatenate([-abs(u), abs(u)], axis=1)
    down = np.concatenate([delta, delta], axis=1)
    left = np.sum(-abs(u).astype("float64") * delta, 1)
    cancelling(made, ups, down, left)
    layer = L.Embedding(5, 3)
    layer.build((None, 400))
    # One token everywhere: its row is what is left of all places.
    delta = (size * delta).astype("float32")
    left = np.sum(delta, 1, "float64")
    cancelling(
        EmbeddingMap(layer, (400,)), np.ones((8, 400), "float32"), delta, left
    )


@pytest.mark.parametrize("size", [1e-25, 1e-21, 1e-19, 1.0])
def test_no_square_vanishes_in_a_table(size):
    """Squares that float32 takes for 0: a record was as long as it liked under
    a threshold as small, `clip=[1e-22, ...]`."""
    layer = L.Embedding(5, 3)
    layer.build((None, 4))
    made = EmbeddingMap(layer, (4,))
    delta = np.full((2, 4, 3), size, "float32")
    norms = made.squared_norm(ops.ones((2, 4)), ops.array(delta))
    # One token at four places.
    assert np.all(np.sqrt(array(norms)) >= 4 * np.sqrt(3) * size * (1 - 1e-6))


@pytest.mark.parametrize("filters", [2, 40])
def test_positions_that_cancel_hide_no_length(filters):
    """By blocks and by products: what float32 loses is in the norm."""
    keras.utils.set_random_seed(1)
    # A kernel that reads one entry has patches that are all alike.
    layer = L.Conv2D(filters, 1)
    layer.build((None, 4, 4, 40))
    made = affine_maps.of_layer(layer, (4, 4, 40))
    rng = np.random.default_rng(0)
    for size in (1e2, 1e4, 1e6):
        u = rng.normal(size=(8, 1, 1, 40)) * np.ones((1, 4, 4, 1))
        u = (size * u + rng.normal(size=u.shape)).astype("float32")
        delta = rng.normal(size=(8, 4, 4, filters))
        delta -= delta.mean(axis=(1, 2), keepdims=True)
        delta = delta.astype("float32")
        exact = np.einsum("nabi,nabj->nij", u.astype("float64"), delta)
        length = np.linalg.norm(exact, axis=(1, 2))
        squared = array(made.squared_norm(*map(ops.array, (u, delta))))
        assert np.all(np.sqrt(squared) > length * (1 - 1e-5))
        # What is summed of a record alone is no longer either.
        for k in range(8):
            one = [ops.array(v[k : k + 1]) for v in (u, delta)]
            kernel = made.sums_of(made.measured(*one)[1], ops.ones(1))[0]
            kernel = array(kernel).astype("float64")
            assert np.linalg.norm(kernel) < np.sqrt(squared[k]) * (1 + 1e-4)
