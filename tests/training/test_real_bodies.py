"""Networks as others publish them, as bodies under a private head.

Of each family: a head on top is released, whose records stay apart; the model
is saved, loaded, and exported to what runs without Keras.
"""

import keras
import numpy as np
import pytest
from alone import assert_alone
from exported import assert_same_when_exported
from keras import layers
from keras.src.applications import (
    convnext,
    densenet,
    efficientnet_v2,
    resnet,
)

import keras_fm as fm
from keras_fm.parts.record_alone import FeatureMap
from keras_fm.training import proven_plan

ROWS = 8
RANDOM = np.random.default_rng(0)


def stack(x):
    return resnet.stack_residual_blocks_v1(x, 8, 2, name="conv2")


def stack_v2(x):
    return resnet.stack_residual_blocks_v2(x, 8, 2, name="conv2")


BLOCKS = efficientnet_v2.DEFAULT_BLOCKS_ARGS["efficientnetv2-b0"]
# What the functions of `keras.applications` call, with fewer blocks and
# filters than any of them has.
FAMILIES = {
    "convnext": lambda **kw: convnext.ConvNeXt((1,) * 4, (8,) * 4, **kw),
    "densenet": lambda **kw: densenet.DenseNet([1, 1, 1, 1], **kw),
    "efficientnet": lambda **kw: efficientnet_v2.EfficientNetV2(
        0.25,
        1.0,
        32,
        blocks_args=[{**block, "num_repeat": 1} for block in BLOCKS],
        include_preprocessing=False,
        **kw,
    ),
    "mobilenet": lambda **kw: keras.applications.MobileNetV2(alpha=0.35, **kw),
    "resnet": lambda **kw: resnet.ResNet(stack, False, True, **kw),
    "resnet v2": lambda **kw: resnet.ResNet(stack_v2, True, True, **kw),
}


def body_of(name):
    body = FAMILIES[name](
        weights=None, include_top=False, pooling="avg", input_shape=(32, 32, 3)
    )
    # As if it had been trained: statistics that are not 0 and 1.
    for layer in body._flatten_layers():
        if isinstance(layer, layers.BatchNormalization):
            shape = layer.moving_mean.shape
            layer.moving_mean.assign(RANDOM.normal(0, 0.1, shape))
            layer.moving_variance.assign(RANDOM.uniform(0.5, 2, shape))
    body.trainable = False
    return body


@pytest.fixture(scope="module", params=FAMILIES)
def released(request):
    """A model with its callback and records."""
    body = body_of(request.param)
    model = keras.Sequential(
        [
            keras.Input(body.input_shape[1:]),
            body,
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(2),
        ]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    x = RANDOM.uniform(0, 255, (ROWS, *body.input_shape[1:]))
    x, y = x.astype("float32"), np.arange(ROWS) % 2
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(1.0, 1e-5), data=(x, y)
    )
    before = body.get_weights()
    with pytest.MonkeyPatch.context() as patch:
        # Fewer rows cost less, and mean the same.
        patch.setattr(proven_plan, "PLACES", ROWS)
        model.fit(x, y, batch_size=ROWS, callbacks=[private], verbose=0)
    for old, new in zip(before, body.get_weights()):
        np.testing.assert_array_equal(old, new)
    return model, private, x, request.param_index


def test_records_stay_apart(released):
    model, private, x, turn = released
    extractor = keras.Model(model.inputs, model.layers[-1].input)
    features = FeatureMap(extractor)
    # That one has layers that Keras does not export.
    convnext = list(FAMILIES)[turn] == "convnext"
    assert (features.unlisted is not None) == convnext
    assert_alone(features, x)
    assert "frozen weights of" in private.report()
    assert model.layers[-1].is_released


def test_it_is_saved_and_loaded(released, tmp_path):
    model, _, x, _ = released
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded.layers[-1].is_released
    assert loaded.layers[-1].ledger_json == model.layers[-1].ledger_json
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0)
    )


@pytest.mark.filterwarnings("ignore")
def test_it_is_exported(released, tmp_path):
    model, _, x, turn = released
    assert_same_when_exported(model, x, turn, tmp_path)


def test_the_graph_of_a_body_is_the_models_own():
    """Not nested: its layers are layers of the model."""
    body = body_of("mobilenet")
    head = fm.layers.PrivateDense(2, clip=True)
    model = keras.Model(body.input, head(body.output))
    private = fm.callbacks.PrivateModel(1.0, 1e-5, data=(np.zeros(1), None))
    assert "record by record" not in private.plan(model)
    body.get_layer("bn_Conv1").trainable = True
    with pytest.raises(ValueError, match="'bn_Conv1'.*moving statistics"):
        private.plan(model)
