"""Layers whose length a release decides, under layers with a public bound: the
refusal of the upper one came after the lower one was paid for."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.training.private_model import PrivateModel

RNG = np.random.default_rng(0)
X = RNG.random((60, 4, 4, 1)).astype("float32")
Y = RNG.integers(0, 3, 60)
BELOW = {
    "encoder": lambda: [
        keras.layers.Flatten(),
        fm.layers.PrivateEncoder(6, input_bound=4.0, name="lower"),
    ],
    "random encoder": lambda: [
        keras.layers.Flatten(),
        fm.layers.PrivateEncoder(
            6, input_bound=4.0, source="random", rounds=1, name="lower"
        ),
    ],
    "filters": lambda: [
        fm.layers.ChebyshevCRBM(4, 2, clip=True, name="lower"),
        keras.layers.Flatten(),
    ],
    "relevance": lambda: [
        keras.layers.Flatten(),
        fm.layers.NormalizationLayer(),
        fm.layers.RelevanceScaling(name="lower"),
    ],
}
ABOVE = {
    "head": lambda clip: [fm.layers.PrivateDense(3, clip=clip, name="upper")],
    "another": lambda clip: [
        fm.layers.PrivateEncoder(2, clip=clip, name="upper"),
        fm.layers.NormalizationLayer(),
        fm.layers.PrivateDense(3),
    ],
}


# A scaling by relevance is under a head alone.
PAIRS = [
    (below, above)
    for below in BELOW
    for above in ABOVE
    if (below, above) != ("relevance", "another")
]


def built(layers):
    model = keras.Sequential([keras.Input(X.shape[1:]), *layers])
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    return model, PrivateModel(fm.PrivacyBudget(1.0, 1e-5), data=(X, Y))


@pytest.mark.parametrize("below, above", PAIRS)
def test_a_bound_above_a_release_is_looked_at_before_it(below, above):
    layers = [*BELOW[below](), *ABOVE[above](False)]
    model, private = built(layers)
    words = "'lower' gives features .*'upper' would refuse.*clip=True"
    with pytest.raises(ValueError, match=words):
        private.plan(model)
    with pytest.raises(ValueError, match=words):
        model.fit(X, Y, verbose=0, callbacks=[private])
    assert not private.ledger.entries


@pytest.mark.parametrize("way", ["clip", "normalise"])
@pytest.mark.parametrize("below, above", PAIRS)
def test_both_ways_out_that_the_refusal_names(below, above, way):
    layers = BELOW[below]()
    if way == "normalise":
        layers.append(fm.layers.NormalizationLayer())
    layers += ABOVE[above](way == "clip")
    model, private = built(layers)
    model.fit(X, Y, verbose=0, callbacks=[private])
    assert len(private.ledger.entries) >= 2
