"""Models that make their layers keep their dtype policy in files."""

import keras
import pytest

import keras_fm as fm

MODELS = {
    "dPA": lambda: fm.models.DeepPrivateAutoencoder((6,), (4,), units=3),
    "AdLM": lambda: fm.models.AdaptiveLaplace((6,), 3, bounds=(0.0, 1.0)),
    "pCDBN": lambda: fm.models.PrivateCDBN(
        (8, 8, 1), 3, maps=((2, 3),), dense=4
    ),
}


def policies(model):
    return {
        layer.name: layer.dtype_policy.name
        for layer in model.layers
        if not isinstance(layer, keras.layers.InputLayer)
    }


@pytest.mark.parametrize("kind", MODELS)
def test_a_loaded_model_has_the_policy_it_was_saved_with(kind, tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = MODELS[kind]()
    finally:
        keras.config.set_dtype_policy("float32")
    assert "mixed_bfloat16" in policies(model).values()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert policies(loaded) == policies(model)
    assert keras.config.dtype_policy().name == "float32"
    # Configs written before the policy was kept.
    config = model.get_config()
    del config["dtype"]
    plain = type(model).from_config(config)
    assert set(policies(plain).values()) == {"float32"}
