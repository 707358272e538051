"""FunctionalNet as a Keras model: the twin, the release, saving, errors."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.papers.functional_net.expansion_state import ExpansionState

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


def test_an_expansion_stays_where_it_is_until_it_is_moved(data):
    x, y = data
    model = twin()
    start = [w.copy() for w in model.expansion_point]
    model.fit(x, y, verbose=0)
    for held, first in zip(model.expansion_point, start):
        np.testing.assert_array_equal(held, first)
    model.expand()
    for held, current in zip(model.expansion_point, model.trainable_weights):
        np.testing.assert_array_equal(held, np.array(current))
    model.expand(start)
    np.testing.assert_array_equal(model.expansion_point[0], start[0])
    with pytest.raises(ValueError, match="shapes"):
        model.expand(start[:-1])


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


def test_weights_of_records_count(data):
    x, y = (v[:20] for v in data)
    weights = np.r_[np.ones(12), np.zeros(8)].astype("float32")
    one, other = twin(), twin()
    other.set_weights(one.get_weights())
    other.expand()
    a = one.train_on_batch(x, y, sample_weight=weights)
    b = other.train_on_batch(x[:12], y[:12])
    np.testing.assert_allclose(np.ravel(a)[0], np.ravel(b)[0], rtol=1e-4)
    for u, v in zip(one.get_weights(), other.get_weights()):
        np.testing.assert_allclose(u, v, rtol=1e-3, atol=1e-5)


# Unprotected ---------------------------------------------------------------


def check_refuses(model, data, *words):
    """Training in every way is refused, and changes nothing."""
    x, y = (v[:32] for v in data)
    before, point = model.get_weights(), model.expansion_point
    wanted = model.predict(x, verbose=0)
    for train in (
        lambda: model(x, training=True),
        lambda: model.train_on_batch(x, y),
        lambda: model.fit(x, y, verbose=0),
    ):
        with pytest.raises(ValueError) as e:
            train()
        for part in (
            f"FunctionalNet '{model.name}' has no release",
            "keras_fm.callbacks.PrivateModel(epsilon=",
            "FunctionalNet(..., unprotected=True)",
            *words,
        ):
            assert part in str(e.value)
    np.testing.assert_array_equal(model.predict(x, verbose=0), wanted)
    held = [*model.get_weights(), *model.expansion_point]
    for a, b in zip(held, [*before, *point], strict=True):
        np.testing.assert_array_equal(a, b)


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


def test_evaluation_is_of_the_network(data):
    x, y = data
    model = build()
    before = model.predict(x[:5], verbose=0)
    release(model)
    np.testing.assert_array_equal(model.predict(x[:5], verbose=0), before)
    assert np.abs(before).max() > 0
    loss, accuracy = model.evaluate(x, y, verbose=0)
    outputs = model.predict(x, verbose=0)
    t = np.eye(CLASSES)[y]
    exact = (np.logaddexp(0, outputs) - t * outputs).sum(axis=1).mean()
    assert loss == pytest.approx(exact, rel=1e-4)
    assert accuracy == pytest.approx(np.mean(outputs.argmax(axis=1) == y))


@pytest.mark.parametrize("published", [False, True])
def test_training_on_a_release_keeps_it(data, published):
    """Steps of a published one were not counted, so that the weights they
    led to were taken for others."""
    x, y = (v[:32] for v in data)
    model = build()
    shapes = [w.shape for w in model.augmented_weights()]
    made = [np.ones(shape) for shape in shapes]
    model.set_release(made, made, "{}", published)
    for _ in range(2):
        before = model.get_weights()[0]
        model.fit(x, y, verbose=0)
        assert np.abs(model.get_weights()[0] - before).max() > 0
        assert model.is_released and model.published == published
    model.train_on_batch(x, y)
    assert model.is_released
    model.set_weights([w + 1 for w in model.get_weights()])
    with pytest.raises(ValueError, match="It was released, but its weights"):
        model.fit(x, y, verbose=0)


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


def test_a_release_that_loading_takes_away_ends_training(tmp_path, data):
    free, released = build(), build()
    release(released)
    path = str(tmp_path / "model.weights.h5")
    free.save_weights(path)
    released.load_weights(path)
    assert not released.is_released and released.was_lost
    check_refuses(released, data, "It was released, but its weights are no")


def test_other_weights_take_a_release_away(data):
    model = build()
    release(model)
    weights = model.get_weights()
    model.set_weights(weights)
    assert model.is_released
    model.set_weights([w + 1e-6 for w in weights])
    assert not model.is_released and model.ledger_json is None
    check_refuses(model, data, "It was released, but its weights are no")


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


def test_a_release_without_its_ledger_is_none():
    store = state_with_release()
    del store["ledger"]
    other = ExpansionState()
    other.set_point([np.zeros((2, 3)), np.zeros(3)])
    other.load_own_variables(store)
    assert not other.is_released
    with pytest.raises(ValueError, match="use the records unprotected"):
        other(np.ones((2, 3)), training=True)


def test_a_state_by_itself_refuses():
    layer = ExpansionState()
    x = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(np.array(layer(x)), x)
    with pytest.raises(ValueError, match="ExpansionState 'expansion_state"):
        layer(x, training=True)
    assert layer.get_config()["unprotected"] is False
    other = ExpansionState.from_config(
        ExpansionState(unprotected=True).get_config()
    )
    np.testing.assert_array_equal(np.array(other(x, training=True)), x)
    store = state_with_release()
    other.set_point([np.zeros((2, 3)), np.zeros(3)])
    with pytest.raises(ValueError, match="file holds a release"):
        other.load_own_variables(store)
    with pytest.raises(ValueError, match="twin is never released"):
        other.set_release([np.ones(3)], [np.ones(3)], False, "{}")
    assert not other.is_released and other.minimiser() == []


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
        "sum_clip": 3.0,
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


def test_the_step_is_a_rule_from_the_number_of_layers():
    for units, step in (((), 1.0), ((4,), 0.5), ((4, 4), 0.25)):
        assert build(units).step_size == step
    assert build(step_size=0.7).step_size == 0.7


# A Keras model -------------------------------------------------------------


def test_it_is_a_functional_model(data):
    x, _ = data
    model = build()
    assert model.compute_output_shape((None, INPUTS)) == (None, CLASSES)
    inner = keras.Model(model.inputs, model.outputs)
    np.testing.assert_allclose(
        inner.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6
    )


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


def test_float64(data):
    x, y = data
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("float64")
        twin(below=[]).fit(x, y, verbose=0)
        model = build(below=[])
        release(model)
        history = model.fit(x, y, epochs=2, verbose=0).history
    finally:
        keras.config.set_dtype_policy(before)
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


def test_accuracy_of_one_logit(data):
    x, y = data
    y = (y == 0).astype("int32")
    model = fm.models.FunctionalNet((INPUTS,), [keras.layers.Dense(1)])
    model.compile("sgd", metrics=["accuracy"])
    _, accuracy = model.evaluate(x, y, verbose=0)
    outputs = model.predict(x, verbose=0)[:, 0]
    assert accuracy == pytest.approx(np.mean((outputs > 0) == y), abs=1e-6)


# Errors --------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"loss": "categorical_crossentropy"}, "loss"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 1.5}, "rounds"),
        ({"clip": 0}, "clip"),
        ({"clip": float("nan")}, "clip"),
        ({"curvature": "full"}, "curvature"),
        ({"curvature_weight": -1}, "curvature_weight"),
        ({"step_size": 0.0}, "step_size"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": float("nan")}, "momentum"),
        ({"damping": -0.1}, "damping"),
        ({"sum_clip": 0.0}, "sum_clip"),
        ({"unprotected": "yes"}, "`unprotected` must be True or False"),
        ({"sensitivity": "theorem5"}, "theorem6"),
        ({"sensitivity": "lemma1"}, "private itself"),
        ({"below": [keras.layers.Dense(3)]}, "trainable weights"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        build(**arguments)


@pytest.mark.parametrize(
    "layers, match",
    [
        ([], "end with"),
        (keras.layers.Dense(2), "must be a list of layers"),
        ([keras.layers.Conv2D(2, 3)], "no per-record coefficients"),
        ([30, 1], "must be Keras layers"),
        ([keras.layers.Flatten(), keras.layers.Dense(2)], "takes Dense;"),
        ([keras.layers.Dense(2, activation="softmax")], "activation"),
        ([keras.layers.Dense(2, lora_rank=1)], "LoRA"),
        (
            [keras.layers.Dense(2, activity_regularizer="l2")],
            "activity_regularizer",
        ),
    ],
)
def test_layers_without_known_coefficients(layers, match):
    with pytest.raises(ValueError, match=match):
        fm.models.FunctionalNet((INPUTS,), layers)


def test_a_loss_in_compile_is_refused():
    with pytest.raises(ValueError, match="its own loss"):
        build().compile("sgd", loss="mse")


def test_missing_labels_are_refused(data):
    with pytest.raises(ValueError, match="needs labels"):
        twin().fit(data[0], verbose=0)
