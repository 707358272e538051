"""PrivateModel in tools that copy callbacks and keep errors to themselves."""

import copy
import sys
import types
import warnings

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


def model_of():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(1, name="head"),
        ]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    return model


def fit(private):
    return model_of().fit(X, Y, verbose=0, callbacks=[private])


def made(releases=1, **kwargs):
    return PrivateModel(
        fm.PrivacyBudget(2.0, 1e-5),
        data=(X, Y),
        guarantee=fm.Proven(releases=releases),
        **kwargs,
    )


@pytest.mark.once
def test_copies_charge_one_ledger_and_draw_noise_of_their_own():
    private = made(2, notes=("a fact",))
    copies = [copy.deepcopy([private])[0] for _ in range(3)]
    for one in copies:
        assert one.ledger is private.ledger and one.data is private.data
        assert one.guarantee == private.guarantee and one.notes == ("a fact",)
    for one in copies[:2]:
        fit(one)
    first, second = (one.release.linear for one in copies[:2])
    assert not np.allclose(first, second)
    with pytest.raises(fm.BudgetExceededError):
        fit(copies[2])
    assert len(private.ledger.entries) == 2
    assert private.ledger.epsilon() <= 2.0
    seeded = copy.deepcopy(made(reproducible_noise=1))
    fit(seeded)
    assert "NOT PRIVATE" in seeded.report()


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.once
def test_a_refusal_is_a_warning_where_errors_are_silent(silent, monkeypatch):
    private = made()
    fit(private)
    if silent:
        tuner = types.ModuleType("keras_tuner")
        monkeypatch.setitem(sys.modules, "keras_tuner", tuner)
    else:
        monkeypatch.delitem(sys.modules, "keras_tuner", raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(fm.BudgetExceededError):
            fit(copy.deepcopy(private))
    told = [w for w in caught if "PrivateModel refused" in str(w.message)]
    assert len(told) == silent


def test_a_search_of_keras_tuner_is_charged_and_told(tmp_path):
    tuner = pytest.importorskip("keras_tuner")

    def build(hp):
        hp.Choice("scale", [1, 2, 3])
        return model_of()

    search = tuner.RandomSearch(
        build, "val_loss", 3, directory=tmp_path, project_name="search"
    )
    private = made(2)
    held = np.random.default_rng(1).normal(size=(9, 4)).astype("float32")
    with pytest.warns(UserWarning, match="would exceed the privacy budget"):
        search.search(
            X,
            Y,
            validation_data=(held, np.arange(9) % 2),
            callbacks=[private],
            verbose=0,
        )
    assert len(private.ledger.entries) == 2
