"""Images are (height, width, channels), whatever Keras' setting for layers of
one's own."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.lab.baselines import dp_sgd

pytestmark = pytest.mark.full

SHAPE = (12, 12, 3)
MAKERS = {
    "pixels": lambda: fm.features.build("pixels", SHAPE),
    "scattering": lambda: fm.features.build("scattering", SHAPE, units=20),
    "patches": lambda: fm.features.build(
        "patches", SHAPE, units=20, filters=8, scenes=60
    ),
    "pCDBN": lambda: fm.models.PrivateCDBN(
        SHAPE, 3, maps=((4, 3),), dense=8, unprotected=True
    ),
    "pCDBN, published": lambda: fm.models.PrivateCDBN(
        SHAPE,
        3,
        maps=((4, 3),),
        dense=8,
        guarantee="published",
        unprotected=True,
    ),
    "AdLM": lambda: fm.models.AdaptiveLaplace(
        SHAPE,
        3,
        guarantee=fm.models.PublishedAdLM(architecture="mnist", width=0.1),
        unprotected=True,
    ),
    "dPA": lambda: fm.models.DeepPrivateAutoencoder(
        SHAPE, (8,), 3, unprotected=True
    ),
    "small CNN": lambda: dp_sgd.small_cnn(SHAPE, 3),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_setting_of_keras_changes_nothing(name):
    x = np.random.default_rng(0).random((2, *SHAPE), "float32")
    found = []
    before = keras.config.image_data_format()
    try:
        for setting in ("channels_last", "channels_first"):
            keras.config.set_image_data_format(setting)
            keras.utils.set_random_seed(0)
            found.append(MAKERS[name]()(x))
    finally:
        keras.config.set_image_data_format(before)
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, found))
