"""Layers that were trained before they are handed to a model."""

import keras
import numpy as np
import pytest
from gradient_nets import NETWORKS
from keras import layers as L

import keras_fm as fm
from keras_fm.stacks.first_weights import are_first

pytestmark = pytest.mark.usefixtures("untraced")


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_those_that_initializers_draw_again(name):
    shape, make = NETWORKS[name][:2]
    layers = make()
    assert are_first(layers)
    # Whatever is built while the model is, is as it was built.
    model = fm.models.GradientNet(shape, layers)
    assert are_first(layers)
    for variable in model.trainable_variables:
        kept = np.array(keras.ops.convert_to_numpy(variable))
        variable.assign_add(np.full(variable.shape, 1e-3, "float32"))
        assert not are_first(layers), variable.path
        variable.assign(kept)
    assert are_first(layers)


@pytest.mark.parametrize(
    "make",
    [fm.models.GradientNet, fm.models.DPMAC, fm.models.FunctionalNet],
)
@pytest.mark.parametrize("form", [list, keras.Sequential])
def test_layers_that_were_trained_before_have_a_past(make, form):
    """A network that was trained on the records without noise was gone on
    with, and the statement called its weights public by declaration."""
    layers = [L.Dense(4, activation="sigmoid"), L.Dense(1)]
    plain = keras.Sequential([keras.Input((3,)), *layers])
    make((3,), form(layers), "binary_crossentropy").check_start()
    plain.compile("sgd", "mse")
    plain.fit(np.ones((8, 3)), np.ones(8), verbose=0)
    model = make((3,), form(layers), "binary_crossentropy")
    with pytest.raises(ValueError, match="layers that were trained before"):
        model.check_start()
    model.start_from(model.get_weights(), public="of a test")
    model.check_start()
    assert model.start_fact.endswith("of a test")


@keras.saving.register_keras_serializable("test_first_weights")
class Scaled(L.Layer):
    """Has a weight beside those of a layer in it."""

    def build(self, shape):
        self.inner = L.Dense(3)
        self.inner.build(shape)
        self.scale = self.add_weight(shape=(), initializer="ones")
        super().build(shape)

    def call(self, x):
        return self.scale * self.inner(x)


def test_a_layer_around_others_has_weights_of_its_own():
    layer = Scaled()
    layer.build((None, 2))
    assert are_first([layer])
    layer.scale.assign(2.0)
    assert not are_first([layer])
