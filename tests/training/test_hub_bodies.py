"""Backbones of KerasHub, whose layers are code of their own, as bodies."""

import importlib.util

import keras
import numpy as np
import pytest
from alone import assert_alone
from exported import assert_same_when_exported
from keras import ops

import keras_fm as fm
from keras_fm.parts.record_alone import FeatureMap
from keras_fm.training import proven_plan

# Imported by the worker that runs these: it holds 140 MB.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("keras_hub") is None, reason="needs KerasHub"
)
ROWS, LENGTH = 8, 6
RANDOM = np.random.default_rng(0)
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


def headed(body):
    x = body.output
    if len(x.shape) > 2:
        x = keras.layers.Flatten()(x)
    x = fm.layers.NormalizationLayer()(x)
    return keras.Model(body.input, fm.layers.PrivateDense(2)(x))


@pytest.fixture(scope="module", params=BODIES)
def released(request):
    """A model with its callback and records."""
    model = headed(BODIES[request.param]())
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    if model.input.dtype == "int32":
        x = RANDOM.integers(1, 50, (ROWS, LENGTH)).astype("int32")
        x[:, -2:] *= RANDOM.integers(0, 2, (ROWS, 1), "int32")
    else:
        x = RANDOM.normal(size=(ROWS, 16, 16, 3)).astype("float32")
    y = np.arange(ROWS) % 2
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(1.0, 1e-5), data=(x, y)
    )
    with pytest.MonkeyPatch.context() as patch:
        # Fewer rows cost less, and mean the same.
        patch.setattr(proven_plan, "PLACES", ROWS)
        model.fit(x, y, batch_size=ROWS, callbacks=[private], verbose=0)
    return model, private, x, request


def test_records_stay_apart(released):
    model, private, x, request = released
    features = FeatureMap(keras.Model(model.inputs, model.layers[-1].input))
    assert_alone(features, x)
    assert ("record by record" in private.report()) == (
        request.param != "ResNet"
    )
    assert model.layers[-1].is_released


def test_it_is_saved_and_loaded(released, tmp_path):
    model, _, x, _ = released
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded.layers[-1].ledger_json == model.layers[-1].ledger_json
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0)
    )


@pytest.mark.filterwarnings("ignore")
def test_it_is_exported(released, tmp_path):
    model, _, x, request = released
    assert_same_when_exported(model, x, request.param_index, tmp_path)


def swin():
    """It takes every window for a record, and back."""
    return backbone_of(
        "SwinTransformerBackbone",
        image_shape=(16, 16, 3),
        patch_size=4,
        embed_dim=8,
        depths=(1,),
        num_heads=(1,),
        window_size=2,
    )


def test_windows_that_are_folded_into_records():
    features = FeatureMap(of_images(swin()))
    assert features.unlisted is not None
    assert_alone(features, RANDOM.random((ROWS, 16, 16, 3), np.float32))
