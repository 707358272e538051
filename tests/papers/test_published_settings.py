"""Settings of a paper's published form: one frozen object, wherever given."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.papers.adlm import claims as adlm

pytestmark = pytest.mark.full

RNG = np.random.default_rng(0)
X = RNG.random((40, 6)).astype("float32")
Y = np.arange(40) % 3
SETTINGS = [
    fm.models.PublishedAdLM(form="code", feature_map=3, width=0.5),
    fm.models.PublishedCDBN(noise="per_step", dropout=0.5, l1=0.1),
    fm.models.PublishedDPA(noise_on="hidden"),
    fm.models.PublishedFunctionalNet(sum_clip=3),
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_are_saved_as_keras_saves(settings):
    saved = keras.saving.serialize_keras_object(settings)
    loaded = keras.saving.deserialize_keras_object(saved)
    assert loaded == settings and hash(loaded) == hash(settings)
    with pytest.raises(AttributeError):
        settings.form = "paper"


def first_read(settings, guarantee):
    """What the ledger says of the first perturbation of a fit."""
    model = fm.models.AdaptiveLaplace(
        (6,), 3, guarantee=settings, hidden=4, adaptive=False
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(
        1.0, 0.0, data=(X, Y), guarantee=guarantee or model.guarantee(lot=20)
    )
    model.fit(X, Y, batch_size=20, callbacks=[private], verbose=0)
    return private.ledger.entries[0].uses


def test_those_of_the_model_hold_unless_the_callback_has_others():
    code = fm.models.PublishedAdLM(form="code")
    assert "(fixed)" in first_read("published", None)
    for guarantee in (None, fm.Published(lot=20)):
        assert "drawn again" in first_read(code, guarantee)
    other = fm.Published(lot=20, settings=fm.models.PublishedAdLM())
    assert "(fixed)" in first_read(code, other)


def test_those_of_another_paper_are_refused():
    other = fm.Published(lot=20, settings=fm.models.PublishedDPA())
    with pytest.raises(ValueError, match=r"one of \['PublishedAdLM'\]"):
        first_read("published", other)


def test_the_network_whose_relevance_is_followed_is_not_saved():
    network = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    settings = adlm.PublishedAdLM(relevance_of=network)
    assert settings.adaptive and "relevance_of" not in settings.get_config()
