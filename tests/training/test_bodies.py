"""Networks as others publish them, as bodies under a private head: those of
Keras, and backbones of KerasHub, whose layers are code of their own.

Of each: a head on top is released, whose records stay apart; the model is
saved, loaded, and exported to what runs without Keras.
"""

import importlib.util

import keras
import numpy as np
import pytest
from alone import assert_alone
from exported import assert_same_when_exported
from keras import layers, ops
from keras.src.applications import (
    convnext,
    densenet,
    efficientnet_v2,
    resnet,
)

import keras_fm as fm
from keras_fm.core.record_alone import FeatureMap
from keras_fm.training import proven_plan

pytestmark = [pytest.mark.full, pytest.mark.tensorflow]

# Imported by the worker that runs its tests: it holds 140 MB.
needs_hub = pytest.mark.skipif(
    importlib.util.find_spec("keras_hub") is None, reason="needs KerasHub"
)
ROWS, LENGTH = 8, 6
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


TEXT = {
    "vocabulary_size": 50,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "max_sequence_length": LENGTH,
}


def backbone_of(name, *args, **kwargs):
    import keras_hub

    return getattr(keras_hub.models, name)(*args, **kwargs)


def of_tokens(backbone, pooled=False):
    """A body that reads tokens, 0 where there is none."""
    backbone.trainable = False
    tokens = keras.Input((LENGTH,), dtype="int32")
    given = {
        "token_ids": tokens,
        "padding_mask": ops.cast(ops.not_equal(tokens, 0), "int32"),
        "segment_ids": ops.zeros_like(tokens),
    }
    given = {name: given[name] for name in backbone.input}
    found = backbone(given)
    return keras.Model(tokens, found["pooled_output"] if pooled else found)


def of_images(backbone):
    backbone.trainable = False
    images = keras.Input((16, 16, 3))
    return keras.Model(images, backbone(images))


def vit():
    return backbone_of(
        "ViTBackbone",
        image_shape=(16, 16, 3),
        patch_size=(8, 8),
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=16,
    )


def residual():
    return backbone_of(
        "ResNetBackbone",
        [64],
        [3],
        [64],
        [1],
        [1],
        "basic_block",
        image_shape=(16, 16, 3),
    )


# Text models of one kind: few heads of keys for several of queries.
DECODER = {
    "vocabulary_size": 50,
    "num_layers": 1,
    "num_query_heads": 2,
    "num_key_value_heads": 1,
    "hidden_dim": 8,
    "intermediate_dim": 16,
}


BODIES = {
    "BERT": lambda: of_tokens(backbone_of("BertBackbone", **TEXT), pooled=True),
    "GPT-2": lambda: of_tokens(backbone_of("GPT2Backbone", **TEXT)),
    "Llama": lambda: of_tokens(backbone_of("LlamaBackbone", **DECODER)),
    "ViT": lambda: of_images(vit()),
    "ResNet": lambda: of_images(residual()),
}


# Those of Keras in which a layer is not on the list, and the only one of
# KerasHub in which all are.
ALONE = {"convnext", *BODIES} - {"ResNet"}
EVERY = [*FAMILIES, *(pytest.param(name, marks=needs_hub) for name in BODIES)]


@pytest.fixture(scope="module", params=EVERY)
def released(request):
    """A model with its callback, records, and the name of its body."""
    name = request.param
    body = body_of(name) if name in FAMILIES else BODIES[name]()
    h = body.output
    if len(h.shape) > 2:
        h = layers.Flatten()(h)
    h = fm.layers.NormalizationLayer()(h)
    model = keras.Model(body.input, fm.layers.PrivateDense(2)(h))
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    if model.input.dtype == "int32":
        x = RANDOM.integers(1, 50, (ROWS, LENGTH)).astype("int32")
        x[:, -2:] *= RANDOM.integers(0, 2, (ROWS, 1), "int32")
    else:
        x = RANDOM.uniform(0, 255, (ROWS, *body.input_shape[1:]))
        x = x.astype("float32")
    y = np.arange(ROWS) % 2
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
    return model, private, x, name


def test_records_stay_apart(released):
    model, private, x, name = released
    features = FeatureMap(keras.Model(model.inputs, model.layers[-1].input))
    assert (features.unlisted is not None) == (name in ALONE)
    assert_alone(features, x)
    text = private.report()
    assert ("record by record" in text) == (name in ALONE)
    assert "frozen weights of" in text and model.layers[-1].is_released


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
    model, _, x, name = released
    turn = [*FAMILIES, *BODIES].index(name)
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
