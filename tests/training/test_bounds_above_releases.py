"""A released layer whose outputs may be too long for the head above it: that
was found out after it was paid for."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.training.private_model import PrivateModel

RNG = np.random.default_rng(0)
X = RNG.random((60, 4)).astype("float32")
Y = RNG.integers(0, 3, 60)
# Four units between 0 and 1, no longer than 2; what has no bound at all.
BELOW = {
    "sigmoid": {"input_bound": 2.0},
    "random": {"input_bound": 2.0, "source": "random", "rounds": 1},
    "linear": {"input_bound": 2.0, "activation": "linear"},
}


def encoder(name):
    return fm.layers.PrivateEncoder(4, name="lower", **BELOW[name])


def head(**arguments):
    return fm.layers.PrivateDense(3, name="upper", **arguments)


def built(*layers):
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    return model, PrivateModel(fm.PrivacyBudget(1.0, 1e-5), data=(X, Y))


@pytest.mark.parametrize("below", BELOW)
def test_a_bound_above_a_release_is_looked_at_before_it(below):
    model, private = built(encoder(below), head())
    words = "'lower' gives features .*'upper', which might .*clip=True"
    with pytest.raises(ValueError, match=words):
        private.plan(model)
    with pytest.raises(ValueError, match=words):
        model.fit(X, Y, verbose=0, callbacks=[private])
    assert not private.ledger.entries


@pytest.mark.parametrize("below", ["sigmoid", "linear"])
def test_ways_out(below):
    ways = [
        [head(clip=True)],
        [fm.layers.NormalizationLayer(), head()],
    ]
    if below == "sigmoid":
        ways.append([head(feature_bound=2.0)])
    for above in ways:
        model, private = built(encoder(below), *above)
        model.fit(X, Y, verbose=0, callbacks=[private])
        assert len(private.ledger.entries) == 2


def test_what_is_paid_for_already_is_not_refused():
    """Nothing would be lost of it, and its length may be known by then."""
    lower, guarantee = encoder("linear"), fm.Proven(releases=2)
    model, private = built(lower, head(clip=True))
    private.guarantee = guarantee
    model.fit(X, Y, verbose=0, callbacks=[private])
    model, _ = built(lower, head(feature_bound=50.0))
    again = PrivateModel(private.ledger, data=(X, Y), guarantee=guarantee)
    model.fit(X, Y, verbose=0, callbacks=[again])
    assert len(private.ledger.entries) == 3
