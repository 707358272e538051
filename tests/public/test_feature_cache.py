"""Features on disk: the same numbers, for nobody else, and never stale."""

import functools
import os
import stat

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.public import feature_cache, features
from keras_fm.public.feature_cache import FeatureCache

pytestmark = pytest.mark.full

N = 40


def records(seed=0, n=N):
    return np.random.default_rng(seed).random((n, 6), np.float32)


def map_of(units=3, seed=0, **kwargs):
    return keras.Sequential(
        [
            keras.Input((6,)),
            fm.layers.RandomFeatures(units, kind="fourier", seed=seed),
            keras.layers.Dense(units, kernel_initializer="ones", **kwargs),
        ]
    )


@functools.cache
def plain_map():
    """Compiled once."""
    return map_of()


# Of records that are compared with a file.
SOME = feature_cache._COMPARED


def assert_features(h, map_, x):
    # Other batches than in the cache may round otherwise.
    np.testing.assert_allclose(h, map_.predict(x, verbose=0), atol=1e-6)


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "below" / "features")


@pytest.fixture
def extracted(monkeypatch):
    """Sizes of the parts that a map was applied to."""
    sizes, extract = [], features.extract

    def counting(map_, x):
        sizes.append(len(x))
        return extract(map_, x)

    monkeypatch.setattr(features, "extract", counting)
    return sizes


def files(folder, ending=""):
    return sorted(n for n in os.listdir(folder) if n.endswith(ending))


def test_features_are_those_of_the_map_and_extracted_once(folder, extracted):
    x = records()
    h = FeatureCache(folder).extract(plain_map(), x)
    assert_features(h, plain_map(), x)
    assert h.dtype == np.float32 and not h.flags.writeable
    assert isinstance(h, np.memmap)
    assert extracted == [N]
    # Another process: another cache, and a map whose layers Keras has given
    # other names.
    again = FeatureCache(folder).extract(map_of(), records())
    np.testing.assert_array_equal(again, h)
    assert extracted == [N, SOME]
    assert len(files(folder)) == 1


def test_records_are_streamed(folder, extracted, monkeypatch, tmp_path):
    monkeypatch.setattr(feature_cache, "_ROWS", 7)
    stored = np.memmap(tmp_path / "x", np.float32, "w+", shape=(N, 6))
    stored[:] = records()
    h = FeatureCache(folder).extract(plain_map(), stored)
    assert extracted == [7] * 5 + [5]
    assert_features(h, plain_map(), records())


def changed_record():
    x = records()
    x[17, 3] = np.nextafter(x[17, 3], np.float32(2))
    return x


@pytest.mark.parametrize(
    "change",
    [
        lambda: (plain_map(), changed_record()),
        lambda: (plain_map(), records()[: N - 1]),
        lambda: (plain_map(), records().astype("float64")),
        lambda: (map_of(seed=1), records()),
        lambda: (map_of(units=4), records()),
        lambda: (map_of(bias_initializer="ones"), records()),
    ],
)
def test_whatever_changes_is_extracted_again(folder, extracted, change):
    cache = FeatureCache(folder)
    cache.extract(plain_map(), records())
    map_, x = change()
    assert_features(cache.extract(map_, x), map_, x)
    assert extracted == [N, len(x)]
    assert len(files(folder, ".npy")) == 2


def test_trained_weights_are_other_features(folder, extracted):
    cache, map_, x = FeatureCache(folder), map_of(), records()
    cache.extract(map_, x)
    map_.layers[-1].bias.assign([0.0, 0.0, 1e-3])
    assert_features(cache.extract(map_, x), map_, x)
    assert len(extracted) == 2


def subtracted(turned, name):
    inputs = keras.Input((6,))
    dense = keras.layers.Dense(6, kernel_initializer="ones", name=name)
    both = [dense(inputs), inputs]
    return keras.Model(
        inputs, keras.layers.Subtract()(both[::-1] if turned else both)
    )


@pytest.mark.parametrize(
    "one, other",
    [
        (plain_map, lambda: map_of(activation="sigmoid")),
        (plain_map, lambda: map_of(dtype="mixed_float16")),
        (lambda: subtracted(False, "a"), lambda: subtracted(True, "a")),
        (
            lambda: of_layers(keras.layers.Lambda(lambda x: x)),
            lambda: of_layers(keras.layers.Lambda(lambda x: 1.001 * x)),
        ),
    ],
)
def test_what_no_name_tells_is_seen_in_features(folder, extracted, one, other):
    """Of the same classes and weights: the file is made again."""
    cache, x = FeatureCache(folder), records()
    cache.extract(one(), x)
    map_ = other()
    h = cache.extract(map_, x)
    expected = map_.predict(x, verbose=0).astype("float32")
    tolerance = 2e-3 if map_.compute_dtype == "float16" else 1e-6
    np.testing.assert_allclose(h, expected, atol=tolerance)
    cache.extract(map_, x)
    assert extracted == [N, SOME, N, SOME]
    assert len(files(folder)) == 1


def test_names_of_layers_do_not_matter(folder, extracted):
    for name in "ab":
        FeatureCache(folder).extract(subtracted(False, name), records())
    assert extracted == [N, SOME]


def test_a_file_that_is_none_is_made_again(folder, extracted):
    cache = FeatureCache(folder)
    h = np.array(cache.extract(plain_map(), records()))
    (name,) = files(folder, ".npy")
    path = os.path.join(folder, name)
    objects = np.array([{}], object)
    for other in (h[:-1], h.astype("float64"), objects):
        np.save(path, other, allow_pickle=True)
        np.testing.assert_array_equal(cache.extract(plain_map(), records()), h)
    assert extracted == [N] * 4


def test_an_error_midway_leaves_nothing(folder, monkeypatch):
    monkeypatch.setattr(feature_cache, "_ROWS", 7)
    calls, extract = [], features.extract

    def failing(map_, x):
        calls.append(len(x))
        if len(calls) == 3:
            raise RuntimeError("power")
        return extract(map_, x)

    monkeypatch.setattr(features, "extract", failing)
    cache = FeatureCache(folder)
    with pytest.raises(RuntimeError, match="power"):
        cache.extract(plain_map(), records())
    assert files(folder) == []


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_only_the_owner_may_read(folder):
    before = os.umask(0)
    try:
        FeatureCache(folder).extract(plain_map(), records())
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    for name in files(folder):
        mode = os.stat(os.path.join(folder, name)).st_mode
        assert stat.S_IMODE(mode) == 0o600
    os.chmod(folder, 0o750)
    with pytest.raises(ValueError, match="closed to others"):
        FeatureCache(folder)


def test_a_frozen_body_is_kept_as_it_is_in_inference(folder):
    body = of_layers(
        keras.layers.Dense(3),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
    )
    body(records() + 3, training=True)
    body.trainable = False
    found = FeatureCache(folder).extract(body, records())
    np.testing.assert_allclose(
        found, body.predict(records(), verbose=0), rtol=1e-5, atol=1e-6
    )


def private_head():
    return fm.layers.PrivateDense(2)


def of_layers(*layers):
    return keras.Sequential([keras.Input((6,)), *layers])


def nested(layer):
    return of_layers(keras.Sequential([keras.Input((6,)), layer]))


@pytest.mark.parametrize(
    "map_, message",
    [
        (lambda: of_layers(private_head()), "was not released"),
        (lambda: of_layers(fm.layers.DPPCA(2)), "was not released"),
        (lambda: of_layers(fm.layers.PerturbedAffine(2)), "was not released"),
        (lambda: nested(keras.layers.BatchNormalization()), "statistics"),
        (lambda: keras.Sequential([keras.layers.Dense(2)]), "built"),
        (lambda: abs, "`name` must be a text"),
        (lambda: keras.layers.Dense(2), "built Keras model"),
    ],
)
def test_maps_that_are_not_public_are_refused(folder, extracted, map_, message):
    with pytest.raises(ValueError, match=message):
        FeatureCache(folder).extract(map_(), records())
    assert files(folder) == [] and extracted == []


def test_a_released_layer_is_public(folder):
    layer = fm.layers.DPPCA(2)
    map_ = of_layers(layer)
    layer.mark_released("{}")
    h = FeatureCache(folder).extract(map_, records())
    assert h.shape[0] == N


# Functions of one record ------------------------------------------------------


def length_and_vowels(seen):
    def function(text):
        seen.append(text)
        return np.array([len(text), sum(text.count(v) for v in "aeiou")])

    return function


def test_a_function_sees_one_record_at_a_time(folder):
    texts, seen = ["one", "seven", "", "ü\ud800"], []
    cache = FeatureCache(folder)
    h = cache.extract(length_and_vowels(seen), texts, name="counts 1")
    np.testing.assert_array_equal(h, [[3, 2], [5, 2], [0, 0], [2, 0]])
    assert h.dtype == np.float32 and seen == ["one", *texts]
    # From the disk; the first tells the shape.
    again = cache.extract(
        length_and_vowels(seen), tuple(texts), name="counts 1"
    )
    np.testing.assert_array_equal(again, h)
    assert seen == ["one", *texts, "one", *texts]
    for x, name in ((texts, "counts 2"), (["onesev", "en"], "counts 1")):
        cache.extract(length_and_vowels(seen), x, name=name)
    assert len([f for f in files(folder) if f.endswith(".npy")]) == 3


def test_a_function_of_arrays(folder):
    x = records()
    h = FeatureCache(folder).extract(lambda row: row[:2] * 2, x, name="twice")
    np.testing.assert_array_equal(h, x[:, :2] * 2)
