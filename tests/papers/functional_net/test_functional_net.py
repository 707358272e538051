"""FunctionalNet as a Keras model: the twin, the release, saving, errors."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.papers.functional_net.expansion_state import ExpansionState

pytestmark = pytest.mark.full

INPUTS, CLASSES = 6, 3


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, 300)
    x = rng.normal(size=(300, INPUTS)) + 3 * np.eye(CLASSES, INPUTS)[y]
    return x.astype("float32"), y


def twin(*args, **arguments):
    return build(*args, unprotected=True, **arguments)


def build(units=(5,), optimizer=None, **arguments):
    last = "sigmoid" if arguments.get("loss") == "squared_error" else None
    layers = [keras.layers.Dense(u, activation="tanh") for u in units]
    layers.append(keras.layers.Dense(CLASSES, activation=last))
    arguments.setdefault("below", [fm.layers.NormalizationLayer()])
    model = fm.models.FunctionalNet((INPUTS,), layers, **arguments)
    model.compile(optimizer or keras.optimizers.SGD(0.3), metrics=["accuracy"])
    return model


def release(model, seed=0):
    """A released quadratic, made up."""
    rng = np.random.default_rng(seed)
    shapes = [w.shape for w in model.augmented_weights()]
    minimiser = [rng.standard_normal(shape) for shape in shapes]
    curvatures = [rng.uniform(0.5, 4.0, shape) for shape in shapes]
    model.set_release(curvatures, minimiser, "{}")
    return minimiser, curvatures


# The non-private twin ------------------------------------------------------


@pytest.mark.parametrize("curvature", ["majorized", "diagonal"])
@pytest.mark.parametrize("loss", ["binary_crossentropy", "squared_error"])
def test_the_twin_learns(data, loss, curvature):
    x, y = data
    keras.utils.set_random_seed(0)
    # Where the minimum of a diagonal quadratic is too far away.
    far = (loss, curvature) == ("binary_crossentropy", "diagonal")
    rate = 0.03 if far else 0.3
    model = twin(
        optimizer=keras.optimizers.SGD(rate), loss=loss, curvature=curvature
    )
    if loss == "squared_error":
        y = np.eye(CLASSES, dtype="float32")[y]
    before = model.evaluate(x, y, verbose=0)[0]
    for _ in range(8):
        model.fit(x, y, epochs=4, verbose=0)
        model.expand()
    loss, accuracy = model.evaluate(x, y, verbose=0)
    assert loss < before
    assert accuracy > 0.9


def test_the_gradient_at_the_point_is_the_mean_gradient(data):
    x, y = (v[:32] for v in data)
    model = twin(optimizer=keras.optimizers.SGD(1.0))
    before = model.get_weights()
    factors = model.factors(x, y)
    model.train_on_batch(x, y)
    after = model.get_weights()
    for index, (z, delta, _) in enumerate(factors):
        mean = z.T @ delta / len(x)
        moved = np.concatenate(
            [
                before[2 * index] - after[2 * index],
                (before[2 * index + 1] - after[2 * index + 1])[None],
            ]
        )
        np.testing.assert_allclose(moved, mean, rtol=1e-3, atol=1e-6)


# Released ------------------------------------------------------------------


def test_training_minimises_the_release_and_nothing_else(data):
    x, y = data
    model = build(optimizer=keras.optimizers.SGD(1.0))
    minimiser, curvatures = release(model)
    model.make_train_function(force=True)
    start = model.augmented_weights()
    model.train_on_batch(x[:32], y[:32])
    largest = max(h.max() for h in curvatures)
    for w, s, lowest, h in zip(
        model.augmented_weights(), start, minimiser, curvatures
    ):
        expected = s - h / largest * (s - lowest)
        np.testing.assert_allclose(w, expected, rtol=1e-4, atol=1e-5)
    logs = model.fit(x, y, batch_size=10, epochs=10, verbose=0).history
    assert logs["loss"][-1] < 1e-6 * logs["loss"][0]
    for w, lowest in zip(model.augmented_weights(), minimiser):
        np.testing.assert_allclose(w, lowest, atol=1e-3)
    model.set_augmented_weights(start)
    model.set_weights_from_minimiser()
    for w, lowest in zip(model.augmented_weights(), minimiser):
        np.testing.assert_allclose(w, lowest, rtol=1e-6)


# Saving --------------------------------------------------------------------


def test_the_point_is_saved_too(tmp_path, data):
    model = twin()
    model.fit(*data, verbose=0)
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    other = twin()
    other.load_weights(path)
    for a, b in zip(model.expansion_point, other.expansion_point):
        np.testing.assert_array_equal(a, b)


def state_with_release():
    layer = ExpansionState()
    layer.set_point([np.zeros((2, 3)), np.zeros(3)])
    layer.set_release(
        [np.ones((2, 3)), np.ones(3)],
        [np.zeros((2, 3)), np.zeros(3)],
        False,
        "{}",
    )
    store = {}
    layer.save_own_variables(store)
    return store


@pytest.mark.parametrize("missing", ["minimiser_1", "curvature_0", "point_0"])
def test_a_part_of_a_release_is_refused(missing):
    store = state_with_release()
    del store[missing]
    other = ExpansionState()
    other.set_point([np.ones((2, 3)), np.ones(3)])
    with pytest.raises(ValueError, match="file"):
        other.load_own_variables(store)
    assert not other.is_released
    assert all(np.all(np.array(v) == 1) for v in other.point())


def test_a_release_of_another_shape_is_refused():
    layer, other = ExpansionState(), ExpansionState()
    layer.set_point([np.zeros((2, 3))])
    store = {}
    layer.save_own_variables(store)
    other.set_point([np.zeros((2, 2))])
    with pytest.raises(ValueError, match="shape"):
        other.load_own_variables(store)


def test_everything_is_in_the_config(data):
    arguments = {
        "loss": "squared_error",
        "rounds": 4,
        "clip": 0.25,
        "curvature": "diagonal",
        "curvature_weight": 0.5,
        "step_size": 0.7,
        "momentum": 0.25,
        "damping": 0.0,
    }
    model = build(**arguments)
    config = model.get_config()
    for name, value in arguments.items():
        assert config[name] == value
    assert config["unprotected"] is False
    other = fm.models.FunctionalNet.from_config(config)
    again = other.get_config()
    assert {k: again[k] for k in arguments} == arguments
    other.set_weights(model.get_weights())
    x = data[0]
    np.testing.assert_array_equal(
        other.predict(x, verbose=0), model.predict(x, verbose=0)
    )


# A Keras model -------------------------------------------------------------


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy, data):
    x, y = data
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy(policy)
        twin().fit(x, y, verbose=0)
        model = build()
        assert all(z.dtype == np.float32 for z, *_ in model.factors(x, y))
        release(model)
        history = model.fit(x, y, epochs=2, verbose=0).history
    finally:
        keras.config.set_dtype_policy(before)
    assert np.all(np.isfinite(history["loss"]))
    assert history["loss"][1] < history["loss"][0]


@pytest.mark.parametrize("use_bias", [True, False])
def test_layers_with_and_without_bias(use_bias, data):
    x, y = data
    layers = [
        keras.layers.Dense(4, activation="sigmoid", use_bias=use_bias),
        keras.layers.Dense(CLASSES, use_bias=not use_bias),
    ]
    model = fm.models.FunctionalNet((INPUTS,), layers)
    shapes = model.objective().shapes_of_layers
    assert shapes == ((INPUTS + use_bias, 4), (4 + (not use_bias), CLASSES))
    weights = model.augmented_weights()
    assert [w.shape for w in weights] == [tuple(s) for s in shapes]
    model.set_augmented_weights([w + 1 for w in weights])
    for a, b in zip(model.augmented_weights(), weights):
        np.testing.assert_allclose(a, b + 1, rtol=1e-5, atol=1e-6)
