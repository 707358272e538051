"""What every layer holds to that is fitted to public data."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fm.datasets import drawn_scenes
from keras_fm.public.discriminant_projection import DiscriminantProjection
from keras_fm.public.patch_dictionary import PatchDictionary
from keras_fm.public.principal_projection import PrincipalProjection

X = np.random.default_rng(0).normal(2.0, 1.0, (80, 12)).astype("float32")
SCENES = drawn_scenes.load(40, image_size=12, seed=5)
DICTIONARY = {"patch_size": 4, "components": 12, "rounds": 2, "cells": 3}
# A layer, and what it is adapted to.
KINDS = {
    "dictionary": (
        lambda: PatchDictionary(
            5, threshold=0.25, data_format="channels_last", **DICTIONARY
        ),
        (SCENES,),
    ),
    "discriminant": (
        lambda: DiscriminantProjection(3, shrinkage=0.2),
        (X, np.arange(80) // 5),
    ),
    "principal": (lambda: PrincipalProjection(4, power=-0.5), (X,)),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def in_model(layer, x):
    return keras.Sequential([keras.Input(x.shape[1:]), layer])


@pytest.mark.full
@every_kind
def test_a_file_holds_the_map_and_what_it_was_made_from(kind, tmp_path):
    make, data = KINDS[kind]
    layer = make()
    layer.adapt(*data, description="made up")
    assert layer.public_data["records"] == len(data[0])
    assert not layer.trainable_weights
    model = in_model(layer, data[0])
    wanted = model.predict(data[0], verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    close = {"rtol": 1e-5, "atol": 1e-6}
    found = loaded.predict(data[0], verbose=0)
    np.testing.assert_allclose(found, wanted, **close)
    assert loaded.layers[0].get_config() == layer.get_config()
    assert loaded.layers[0].public_data == layer.public_data
    # Weights alone do not tell what they were fitted to.
    model.save_weights(tmp_path / "m.weights.h5")
    fresh = in_model(make(), data[0])
    fresh.load_weights(tmp_path / "m.weights.h5")
    found = fresh.predict(data[0], verbose=0)
    np.testing.assert_allclose(found, wanted, **close)
    assert fresh.layers[0].public_data == {
        **dict.fromkeys(layer.public_data),
        "description": "not stated (weights loaded from a file)",
    }


@every_kind
def test_nothing_passes_for_a_map_that_is_none(kind):
    make, data = KINDS[kind]
    layer = make()
    model = in_model(layer, data[0])
    for call in (layer, lambda x: model.predict(x, verbose=0)):
        with pytest.raises(ValueError, match=r"`layer.adapt\(public_"):
            call(data[0])
    with pytest.raises(ValueError, match="`description` must be"):
        layer.adapt(*data, description="")
    spoiled = np.where(data[0] > data[0].mean(), np.nan, data[0])
    with pytest.raises(ValueError, match="must be finite"):
        layer.adapt(spoiled, *data[1:])
    assert layer.public_data is None
    # A built model may be adapted later.
    layer.adapt(*data)
    assert np.all(np.isfinite(model.predict(data[0], verbose=0)))
    # A copy without weights says what it was made from, and gives nothing.
    copy = type(layer).from_config(layer.get_config())
    assert np.all(np.isnan(ops.convert_to_numpy(copy(data[0][:2]))))
