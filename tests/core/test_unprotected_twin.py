"""The non-private twin of any model: new, unprotected in every part."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.core.private_part import parts_of
from keras_fm.models import unprotected_twin

X = np.random.default_rng(0).random((6, 5)).astype("float32")


def sequential():
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(4, activation="relu", trainable=False),
            fm.layers.PerturbedAffine(4),
            fm.layers.PrivateDense(2, bias_feature=0.3, name="head"),
        ]
    )


def functional():
    inputs = keras.Input((5,))
    code = fm.layers.PrivateEncoder(3, guarantee="published")(inputs)
    both = keras.layers.Concatenate()([inputs, code])
    return keras.Model(inputs, fm.layers.PrivateDense(2, name="head")(both))


def nested():
    below = keras.Sequential(
        [keras.Input((5,)), fm.layers.PerturbedAffine(4, name="within")],
        name="below",
    )
    inputs = keras.Input((5,))
    head = fm.layers.PrivateDense(2, name="head")
    return keras.Model(inputs, head(below(inputs)))


@pytest.mark.parametrize(
    "make, parts", [(sequential, 2), (functional, 2), (nested, 2)]
)
def test_every_part_is_unprotected_and_nothing_else_changes(make, parts):
    model = make()
    before = model.get_weights()
    twin = unprotected_twin(model)
    found = parts_of(twin)
    assert len(found) == parts and all(part.unprotected for part in found)
    assert not any(part.unprotected for part in parts_of(model))
    for part, other in zip(parts_of(model), found):
        assert other.get_config() == {**part.get_config(), "unprotected": True}
    # New weights: none is shared.
    assert not {id(w) for w in model.weights} & {id(w) for w in twin.weights}
    assert [w.shape for w in twin.get_weights()] == [w.shape for w in before]
    twin.compile("sgd", fm.losses.TaylorCrossEntropy())
    twin.fit(X, np.zeros(6), verbose=0)
    for kept, weight in zip(before, model.get_weights()):
        np.testing.assert_array_equal(kept, weight)
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    with pytest.raises(ValueError, match="has no release"):
        model.fit(X, np.zeros(6), verbose=0)


def test_a_twin_keeps_the_map_that_a_layer_is_before_its_release():
    model = keras.Sequential(
        [
            keras.Input((5,)),
            fm.layers.DPPCA(3, name="pca"),
            fm.layers.PrivateDense(2),
        ]
    )
    nested = fm.models.FunctionalNet(
        (5,), [keras.layers.Dense(2)], below=[fm.layers.DPPCA(3)]
    )
    for made in (model, nested):
        twin = unprotected_twin(made)
        own = made is nested
        twin.compile("sgd", None if own else fm.losses.TaylorCrossEntropy())
        before = [np.array(w) for w in twin.get_weights()]
        twin.fit(X, np.zeros(6), verbose=0)
        moved = [
            not np.array_equal(a, b) for a, b in zip(before, twin.get_weights())
        ]
        assert not moved[0] and any(moved)
