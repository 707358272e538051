"""Named feature maps: norms, independence of records, errors."""

import keras
import numpy as np
import pytest

from keras_fm.public import features
from keras_fm.public.patch_dictionary import PatchDictionary


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).random((6, 8, 8, 1), np.float32)


@pytest.mark.parametrize("name", features.FEATURES)
def test_features_have_unit_norm_and_are_per_record(name, images):
    body = features.build(
        name,
        (8, 8, 1),
        units=40,
        shapes=60,
        variants=3,
        filters=10,
        scenes=60,
    )
    h = features.extract(body, images)
    np.testing.assert_allclose(np.linalg.norm(h, axis=1), 1, atol=1e-5)
    assert not any(v.trainable for v in body.weights)
    other = images.copy()
    other[3:] = 1 - other[3:]
    np.testing.assert_allclose(
        features.extract(body, other)[:3], h[:3], atol=1e-5
    )
    # The map tells records apart at all.
    assert np.abs(h[0] - h[1]).max() > 1e-2


def test_a_map_is_the_same_when_built_again(images):
    first, second = (
        features.extract(features.build("scattering", (8, 8, 1)), images)
        for _ in range(2)
    )
    np.testing.assert_allclose(first, second, atol=1e-6)


def test_a_map_survives_saving(images, tmp_path):
    body = features.build(
        "scattering_strokes", (8, 8, 1), units=20, shapes=30, variants=3
    )
    body.save(tmp_path / "map.keras")
    loaded = keras.saving.load_model(tmp_path / "map.keras")
    np.testing.assert_allclose(
        features.extract(loaded, images),
        features.extract(body, images),
        atol=1e-6,
    )
    seen = loaded.get_layer("stroke_map").public_data
    assert seen["description"] == "30 drawn pen strokes, 3 variants each"
    assert (seen["records"], seen["groups"]) == (90, 30)


def test_colour_images(images):
    body = features.build("scattering", (8, 8, 3), units=50)
    assert body.output_shape == (None, 50)


@pytest.mark.parametrize(
    ("shape", "sizes", "flip"),
    [((8, 8, 1), [4], False), ((14, 12, 3), [6, 4], True)],
)
def test_patches_tell_what_they_saw(shape, sizes, flip):
    body = features.build("patches", shape, units=50, filters=12, scenes=40)
    layers = body.layers if len(sizes) == 1 else body.layers[0].layers
    found = [v for v in layers if isinstance(v, PatchDictionary)]
    assert sorted(v.patch_size for v in found) == sorted(sizes)
    told = {"description": "40 drawn scenes", "records": 40}
    for layer in [*found, body.get_layer("scene_map")]:
        assert layer.public_data == told
    assert all(v.flip == flip for v in found)
    # No more directions than scenes to find them in.
    assert body.output_shape == (None, 39)
    x = np.random.default_rng(1).random((3, *shape), np.float32)
    h, mirrored = (features.extract(body, x[:, :, ::s]) for s in (1, -1))
    assert flip == np.allclose(h, mirrored, atol=1e-3)


def test_patches_of_two_sizes(tmp_path):
    """Each size is the map of that size alone; one projection for both."""
    shape, kwargs = (12, 12, 3), {"units": 20, "filters": 8, "scenes": 60}
    body = features.build("patches", shape, patch_sizes=(6, 4), **kwargs)
    x = np.random.default_rng(1).random((3, *shape), np.float32)
    both = features.extract(body.layers[0], x)
    for found, size in zip(np.split(both, 2, axis=1), (6, 4)):
        one = features.build("patches", shape, patch_sizes=(size,), **kwargs)
        alone = features.extract(keras.Sequential(one.layers[:2]), x)
        np.testing.assert_allclose(found, alone, atol=1e-5)
    body.save(tmp_path / "map.keras")
    loaded = keras.saving.load_model(tmp_path / "map.keras")
    h = features.extract(body, x)
    np.testing.assert_allclose(features.extract(loaded, x), h, atol=1e-5)
    mixed = features.build("patches", shape, mixtures=30, **kwargs)
    assert mixed.get_layer("scene_map").mixtures == 30
    for wrong in ((4, 4), (), 6):
        with pytest.raises(ValueError, match="more different integers"):
            features.build("patches", shape, patch_sizes=wrong)


@pytest.mark.parametrize("name", ["scattering_patches", "strokes_patches"])
def test_maps_beside_each_other(images, tmp_path, name):
    """Each half is what it is alone, one as long as the other."""
    kwargs = {"units": 20, "filters": 8, "scenes": 60}
    kwargs |= {"shapes": 30, "variants": 3}
    body = features.build(name, (8, 8, 1), **kwargs)
    patches = features.build("patches", (8, 8, 1), **kwargs | {"units": 10})
    halves = np.split(features.extract(body, images), 2, axis=1)
    alone = features.extract(patches, images)
    np.testing.assert_allclose(halves[1] * 2**0.5, alone, atol=1e-5)
    norms = np.linalg.norm(halves[0], axis=1)
    np.testing.assert_allclose(norms, 0.5**0.5, atol=1e-5)
    if name == "strokes_patches":
        kwargs |= {"units": 10}
        first = features.build("scattering_strokes", (8, 8, 1), **kwargs)
        alone = features.extract(first, images)
        np.testing.assert_allclose(halves[0] * 2**0.5, alone, atol=1e-5)
    body.save(tmp_path / "map.keras")
    loaded = keras.saving.load_model(tmp_path / "map.keras")
    both = np.concatenate(halves, axis=1)
    np.testing.assert_allclose(
        features.extract(loaded, images), both, atol=1e-5
    )


def test_errors():
    with pytest.raises(ValueError, match="`features` must be one of"):
        features.build("wavelets", (8, 8, 1))
    with pytest.raises(ValueError, match="one or three channels"):
        features.build("patches", (8, 8, 2))


def test_all_batches_have_one_shape():
    """One that is short would be compiled anew, and its records' last bits
    would follow the number of all others."""

    class Doubling:
        shapes = set()

        def predict_on_batch(self, x):
            self.shapes.add(x.shape)
            return 2.0 * x[:, 0]

        def predict(self, x, batch_size, verbose):
            return self.predict_on_batch(x)

    x = np.arange(6000).reshape(-1, 3, 2)
    made = features.extract(Doubling(), x)
    np.testing.assert_array_equal(made, 2.0 * x[:, 0])
    assert len(Doubling.shapes) == 1
    assert features.extract(Doubling(), x[:7]).shape == (7, 2)
