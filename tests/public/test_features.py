"""Named feature maps: norms, independence of records, errors."""

import keras
import numpy as np
import pytest

from keras_fm.public import features
from keras_fm.public.patch_dictionary import PatchDictionary

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).random((6, 8, 8, 1), np.float32)


@pytest.mark.parametrize("name", features.FEATURES)
def test_features_have_unit_norm_and_are_per_record(name, images):
    body = features.build(name, (8, 8, 1), units=40, filters=10, scenes=60)
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


@pytest.mark.parametrize(
    ("name", "channels"), [("scattering_strokes", 1), ("patches", 3)]
)
def test_a_map_survives_saving(name, channels, images, tmp_path):
    images = np.repeat(images, channels, axis=3)
    body = features.build(
        name, (8, 8, channels), units=20, filters=12, scenes=45
    )
    body.save(tmp_path / "map.keras")
    loaded = keras.saving.load_model(tmp_path / "map.keras")
    np.testing.assert_allclose(
        features.extract(loaded, images),
        features.extract(body, images),
        atol=1e-6,
    )


def test_a_loaded_map_of_strokes_tells_what_it_saw(tmp_path):
    body = features.build("scattering_strokes", (8, 8, 1), units=20, scenes=45)
    body.save(tmp_path / "map.keras")
    loaded = keras.saving.load_model(tmp_path / "map.keras")
    seen = loaded.get_layer("variants_map").public_data
    assert seen["description"] == "drawn pen strokes"
    assert (seen["records"], seen["groups"]) == (180, 30)


@pytest.mark.parametrize(
    ("shape", "sizes", "flip"),
    [((8, 8, 1), [4], False), ((14, 12, 3), [6, 4], True)],
)
def test_patches_tell_what_they_saw(shape, sizes, flip):
    body = features.build("patches", shape, units=50, filters=12, scenes=40)
    found = [
        v for v in body._flatten_layers() if isinstance(v, PatchDictionary)
    ]
    # Of photographs, others see windows, of one side at a time.
    wanted = [(v, True) for v in sizes] + [(v, False) for v in sizes]
    wanted = wanted if flip else [(v, False) for v in sizes]
    assert sorted((v.patch_size, v.flip) for v in found) == sorted(wanted)
    told = {"description": "drawn scenes", "records": 40}
    maps = [v for v in body._flatten_layers() if v.name == "scene_map"]
    for layer in [*found, *maps]:
        assert layer.public_data == told
    # No more directions than scenes, or products, to find them in.
    assert body.output_shape == (None, 25 + 2 * 12 if flip else 39)
    x = np.random.default_rng(1).random((3, *shape), np.float32)
    h, mirrored = (features.extract(body, x[:, :, ::s]) for s in (1, -1))
    assert flip == np.allclose(h, mirrored, atol=1e-3)


def test_products_are_those_of_all_windows():
    """Of 3 x 3 regions at all places of the image and of its mirror image."""
    map_ = features._window_products((16, 12, 3), 4, 6, scenes=60)
    windows = map_.get_layer("windows")
    regions, directions = windows.layers[1], windows.get_layer("window_map")
    x = np.random.default_rng(2).random((5, 16, 12, 3), np.float32)

    def seen(x):
        found = np.array(regions(x))
        k = found.shape[1] - 2
        places = [(i, j) for i in range(k) for j in range(k)]
        each = [found[:, i : i + 3, j : j + 3] for i, j in places]
        u = np.array(directions(np.stack(each, 1).reshape(5, k * k, -1)))
        return u / np.linalg.norm(u, axis=2, keepdims=True)

    u = np.concatenate([seen(x[:, :, ::s]) for s in (1, -1)], axis=1)
    assert u.shape == (5, 2 * 7 * 7, 12)
    products = np.einsum("npi,npj->nij", u, u)
    first, second = np.triu_indices(12)
    found = features.extract(map_, x)
    np.testing.assert_allclose(found[:, :12], u.mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(
        found[:, 12:], products[:, first, second], atol=1e-4
    )


def test_a_map_of_grey_images_tells_what_it_saw():
    shape, small = (16, 16, 1), {"filters": 6, "scenes": 40}
    body = features.build("scattering_patches", shape, units=32, **small)
    told = [
        v.public_data
        for v in body._flatten_layers()
        if getattr(v, "public_data", None)
    ]
    # Four blocks, of which three have dictionaries: of two sizes of patches, of
    # patches of the image at half its size, and of windows.
    assert len(told) == 2 * 4 + 4 + 1
    names = [v["description"] for v in told]
    assert names.count("windows of drawn scenes") == 1
    assert names.count("drawn scenes") == len(told) - 1
    seen = [v for v in told if "groups" in v]
    assert [(v["records"], v["groups"]) for v in seen] == 4 * [(40, 10)]
    assert body.output_shape == (None, 32)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((16, 20, 3), "patches"),
        ((28, 28, 1), "scattering_patches"),
        ((16, 16, 2), "scattering"),
        ((15, 32, 3), "pixels"),
        ((40,), "pixels"),
    ],
)
def test_auto_follows_from_the_shape_of_a_record(shape, name):
    small = dict(units=6, filters=4, scenes=20)
    auto, named = (features.build(n, shape, **small) for n in ("auto", name))
    assert auto.name == name
    x = np.random.default_rng(0).random((2, *shape), np.float32)
    np.testing.assert_array_equal(
        features.extract(auto, x), features.extract(named, x)
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
