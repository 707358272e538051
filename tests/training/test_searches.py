"""PrivateModel in tools that copy callbacks and keep errors to themselves."""

import copy

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
