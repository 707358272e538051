"""What every Keras layer must stand: our own small `run_layer_test`."""

import keras
import numpy as np

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def check_layer(make, inputs, atol=1e-5, trainable_fit=True):
    """Runs a layer through everything users do with one.

    Args:
        make: function of keyword arguments (`dtype`, `name`) to a new layer.
        inputs: NumPy array `(batch, ...)`.
        atol: tolerance between two ways to compute one output.
        trainable_fit: whether a fit step with the layer is tried.
    """
    layer = make()
    eager = keras.ops.convert_to_numpy(layer(inputs))
    assert layer.built
    assert tuple(eager.shape) == layer.compute_output_shape(inputs.shape)
    assert np.all(np.isfinite(eager))

    symbolic = layer(keras.KerasTensor((None, *inputs.shape[1:])))
    assert symbolic.shape == (None, *eager.shape[1:])

    config = layer.get_config()
    twin = type(layer).from_config(config)
    assert twin.get_config() == config
    twin.build((None, *inputs.shape[1:]))
    twin.set_weights(layer.get_weights())
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(twin(inputs)), eager, atol=atol
    )

    for policy in POLICIES:
        typed = make(dtype=policy)
        outputs = typed(keras.ops.convert_to_tensor(inputs, "float32"))
        wanted = keras.DTypePolicy(policy).compute_dtype
        assert keras.backend.standardize_dtype(outputs.dtype) == wanted

    for model in (_sequential(make, inputs), _functional(make, inputs)):
        before = model.predict(inputs, verbose=0)
        if trainable_fit:
            model.compile("sgd", "mse")
            model.fit(inputs, np.zeros_like(before), verbose=0)
        assert np.all(np.isfinite(model.predict(inputs, verbose=0)))


def check_saved(layer, inputs, path):
    """A model of one layer predicts the same after a `.keras` round trip."""
    model = keras.Sequential([keras.Input(inputs.shape[1:]), layer])
    model.save(path)
    loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(
        model.predict(inputs, verbose=0), loaded.predict(inputs, verbose=0)
    )


def _sequential(make, inputs):
    return keras.Sequential([keras.Input(inputs.shape[1:]), make()])


def _functional(make, inputs):
    tensor = keras.Input(inputs.shape[1:])
    return keras.Model(tensor, make()(tensor))
