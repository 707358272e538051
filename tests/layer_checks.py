"""What every Keras layer must stand: our own small `run_layer_test`."""

import copy
import zipfile

import keras
import numpy as np
import pytest

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def check_layer(
    make,
    inputs,
    atol=1e-5,
    trainable_fit=True,
    private=False,
    dtype="compute_dtype",
):
    """Runs a layer through everything users do with one.

    Args:
        make: function of keyword arguments (`dtype`, `name`) to a new layer.
        inputs: NumPy array `(batch, ...)`.
        atol: tolerance between two ways to compute one output.
        trainable_fit: whether a fit step with the layer is tried.
        private: whether the layer trains as its non-private twin only.
        dtype: of the outputs, as a policy calls it.
    """
    layer = make()
    eager = keras.ops.convert_to_numpy(layer(inputs))
    assert layer.built
    assert tuple(eager.shape) == layer.compute_output_shape(inputs.shape)
    assert np.all(np.isfinite(eager))
    config = layer.get_config()
    if "batch" not in (config.get("mode"), config.get("normalization")):
        # What `record_alone.unlisted` takes for granted of ours.
        alone = keras.ops.convert_to_numpy(layer(inputs[:1]))
        np.testing.assert_allclose(alone, eager[:1], atol=atol)

    symbolic = layer(keras.KerasTensor((None, *inputs.shape[1:])))
    assert symbolic.shape == (None, *eager.shape[1:])

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
        wanted = getattr(keras.DTypePolicy(policy), dtype)
        assert keras.backend.standardize_dtype(outputs.dtype) == wanted

    trained = _unprotected(make) if private and trainable_fit else make
    for model in (_sequential(trained, inputs), _functional(trained, inputs)):
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


def check_promise(make, inputs, path, trainable_fit=True):
    """A private layer that nothing protects refuses to train, however it came
    to be; its non-private twin trains, and can never be released.

    Args:
        make: function of keyword arguments to a new layer.
        inputs: NumPy array `(batch, ...)`.
        path: folder for files.
        trainable_fit: whether the twin has weights that a fit trains.
    """
    model = _sequential(make, inputs)
    assert not model.layers[0].unprotected
    assert model.layers[0].get_config()["unprotected"] is False
    for other in came_to_be(model, path / "private.keras"):
        assert not other.layers[0].unprotected
        check_refuses(other, inputs, eagerly=other is not model)

    twin = _sequential(_unprotected(make), inputs)
    assert twin.layers[0].get_config()["unprotected"] is True
    for other in came_to_be(twin, path / "twin.keras"):
        layer = other.layers[0]
        assert layer.unprotected and not layer.is_released
        other(inputs, training=True)
        if trainable_fit:
            targets = np.zeros_like(other.predict(inputs, verbose=0))
            other.compile("sgd", "mse", run_eagerly=other is not twin)
            other.fit(inputs, targets, verbose=0)
        with pytest.raises(ValueError, match="twin is never released"):
            layer.mark_released("{}")
        assert not layer.is_released and layer.ledger_json is None
    for wrong in ("yes", 1, None):
        with pytest.raises(ValueError, match="`unprotected` must be True or"):
            make(unprotected=wrong)


def check_pretrained(make, inputs, path):
    """A layer whose weights are a release: what takes it away, and that it
    is not trained.

    Args:
        make: function of keyword arguments to a new layer of that form.
        inputs: NumPy array `(batch, ...)`.
        path: folder for files.
    """
    model = _sequential(make, inputs)
    layer = model.layers[0]
    layer.mark_released('{"entries": []}')
    weights = layer.get_weights()
    for other in came_to_be(model, path / "released.keras"):
        found = other.layers[0]
        same = all(map(np.array_equal, found.get_weights(), weights))
        assert found.is_released == same
        if not same:
            check_refuses(other, inputs)
            continue
        assert found.ledger_json == '{"entries": []}'
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(found(inputs, training=True)),
            keras.ops.convert_to_numpy(layer(inputs)),
        )
    # Training them would use records.
    layer.trainable = True
    with pytest.raises(ValueError, match="Set `trainable = False`") as e:
        model(inputs, training=True)
    assert f"{type(layer).__name__} '{layer.name}'" in str(e.value)
    assert "unprotected=True" in str(e.value)
    model.compile("sgd", "mse", run_eagerly=True)
    targets = np.zeros_like(model.predict(inputs, verbose=0))
    with pytest.raises(ValueError, match="weights from a release"):
        model.fit(inputs, targets, verbose=0)
    layer.trainable = False
    model(inputs, training=True)
    assert layer.is_released
    # Other weights, of which this release says nothing.
    model.save_weights(path / "released.weights.h5")
    layer.set_weights([w + 1e-6 for w in weights])
    check_refuses(model, inputs, words=["It was released, but its weights"])
    model.load_weights(path / "released.weights.h5")
    assert layer.is_released
    free = _sequential(lambda: make(name=layer.name), inputs)
    free.save_weights(path / "free.weights.h5")
    model.load_weights(path / "free.weights.h5")
    check_refuses(model, inputs, words=["It was released, but its weights"])
    twin = _sequential(lambda: make(name=layer.name, unprotected=True), inputs)
    with pytest.raises(ValueError, match="file holds a release"):
        twin.load_weights(path / "released.weights.h5")


def came_to_be(model, path):
    """The model, its copies, and what its files give."""
    yield model
    yield copy.deepcopy(model)
    yield keras.models.clone_model(model)
    yield type(model).from_config(model.get_config())
    model.save(path)
    yield keras.saving.load_model(path)


def check_refuses(model, inputs, words=(), eagerly=True):
    """Training in every way is refused by words that help, and changes
    nothing: weights stay, and the model predicts as before."""
    layer = model.layers[0]
    assert not layer.is_released and layer.ledger_json is None
    before = model.get_weights()
    model.compile("sgd", "mse", run_eagerly=eagerly)
    wanted = model.predict(inputs, verbose=0)
    targets = np.zeros_like(wanted)
    for train in (
        lambda: model(inputs, training=True),
        lambda: model.train_on_batch(inputs, targets),
        lambda: model.fit(inputs, targets, verbose=0),
    ):
        with pytest.raises(ValueError) as e:
            train()
        for part in (
            f"{type(layer).__name__} '{layer.name}'",
            "use the records unprotected",
            *words,
        ):
            assert part in str(e.value)
    np.testing.assert_array_equal(model.predict(inputs, verbose=0), wanted)
    for weight, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, kept)


def stored(path, kinds="f"):
    """All numbers of a weights file, as float64."""
    import h5py

    found = []
    with h5py.File(path) as file:
        file.visititems(
            lambda _, v: (
                found.append(np.ravel(v).astype("float64"))
                if isinstance(v, h5py.Dataset) and v.dtype.kind in kinds
                else None
            )
        )
    return np.concatenate(found)


def everything_saved(model, folder):
    """All numbers and all bytes of the files a model can be saved to."""
    model.save(folder / "m.keras")
    model.save_weights(folder / "m.weights.h5")
    content = (folder / "m.weights.h5").read_bytes()
    with zipfile.ZipFile(folder / "m.keras") as archive:
        for name in archive.namelist():
            content += archive.read(name)
        archive.extractall(folder / "m")
    paths = (folder / "m.weights.h5", folder / "m" / "model.weights.h5")
    return np.concatenate([stored(path, "fiu") for path in paths]), content


def check_noise_is_nowhere(layer, noise, inputs, folder):
    """Noise that is fixed is in no weight, file, config, text or copy.

    Args:
        layer: of the published form, built.
        noise: dict, what `fix_noise` takes.
        inputs: NumPy array `(batch, ...)`.
        folder: for files.
    """
    model = keras.Sequential([keras.Input(inputs.shape[1:]), layer])
    before = model.count_params(), len(layer.weights)
    layer.fix_noise(**noise)
    assert (model.count_params(), len(layer.weights)) == before
    model(inputs, training=True)
    hidden = map(keras.ops.convert_to_numpy, layer._hidden.variables.values())
    secret = np.concatenate(
        [np.ravel(v).astype("float32") for v in (*hidden, *noise.values())]
    )
    shown = np.concatenate([w.ravel() for w in model.get_weights()])
    numbers, content = everything_saved(model, folder)
    assert secret.size > 5 and numbers.size >= 2 * shown.size
    assert not np.isin(secret, shown).any()
    assert not np.isin(secret, numbers).any()
    text = repr(layer) + repr(vars(layer)) + repr(layer.variables)
    text += repr(layer._hidden) + repr(layer._hidden.variables)
    text += str(layer.get_config()) + str(content)
    # Whole numbers, as a seed has them, are anywhere.
    assert not any(f"{abs(v):.6g}" in text for v in secret if v % 1)
    for other in (
        keras.saving.load_model(folder / "m.keras"),
        keras.models.clone_model(model),
    ):
        assert not other.layers[0].is_perturbed
        check_refuses(other, inputs)


def _unprotected(make):
    return lambda **kwargs: make(unprotected=True, **kwargs)


def _sequential(make, inputs):
    return keras.Sequential([keras.Input(inputs.shape[1:]), make()])


def _functional(make, inputs):
    tensor = keras.Input(inputs.shape[1:])
    return keras.Model(tensor, make()(tensor))
