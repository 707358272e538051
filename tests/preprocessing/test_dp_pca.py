"""DPPCA by itself: a Keras layer, what its release reads, what it learns."""

import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_checks import (
    POLICIES,
    came_to_be,
    check_layer,
    check_promise,
    check_refuses,
    check_saved,
)

from keras_fm.core.second_moment import SecondMomentRelease
from keras_fm.kernel.mechanisms import GaussianMechanism, NoiseSource
from keras_fm.preprocessing.dp_pca import DPPCA
from keras_fm.queries import SecondMomentQuery

pytestmark = [pytest.mark.full, pytest.mark.backend]

X = np.random.default_rng(0).normal(size=(5, 7)).astype("float32") / 7


def array(x):
    return keras.ops.convert_to_numpy(x)


def built(units=3, inputs=7, **kwargs):
    layer = DPPCA(units, **kwargs)
    layer.build((None, inputs))
    return layer


def objective(layer):
    return SecondMomentQuery(
        num_features=layer.num_features, feature_bound=layer.moment_bound
    )


def records(n=400, d=7, bound=1.0, seed=0):
    """Directions of clearly different variance, a mean, and a bound."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * 0.6 ** np.arange(d)
    x = x @ np.linalg.qr(rng.normal(size=(d, d)))[0] + 0.3
    return x * bound / np.linalg.norm(x, axis=1).max()


def learned(layer, x, noise_multiplier=1e-9, seed=0):
    """The layer after a release with (almost) no noise."""
    made = objective(layer)
    mechanism = GaussianMechanism(
        sensitivity=made.sensitivity("l2", neighbours="add_remove"),
        noise_multiplier=noise_multiplier,
    )
    statistics = made.accumulate(
        made.zero(), layer.augment(x), None, clip=layer.clip
    )
    vector = mechanism.perturb(made.pack(statistics, "l2"), NoiseSource(seed))
    (quadratic,) = made.unpack(vector, "l2")
    found = SecondMomentRelease(
        statistics={"quadratic": quadratic},
        query=made,
        mechanism=mechanism,
        neighbours="add_remove",
        private=False,
    )
    layer.set_components(
        *found.principal(layer.units, layer.constant, layer.ridge_factor)
    )
    return found


# A Keras layer --------------------------------------------------------------


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"whitening": 0.5, "ridge_factor": 0.0},
        {"center": True, "input_bound": 2.0, "clip": True},
        {"noise_multiplier": 4.0},
    ],
)
def test_it_is_a_keras_citizen(kwargs, tmp_path):
    def make(**more):
        return DPPCA(3, **kwargs, **more)

    check_layer(make, X, trainable_fit=False)
    layer = make()
    assert layer.compute_output_shape((None, 7)) == (None, 3)
    loaded = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)
    )
    assert isinstance(loaded, DPPCA)
    config = loaded.get_config()
    assert config == layer.get_config()
    assert all(config[name] == value for name, value in kwargs.items())
    json.dumps(config)
    taught = built(**kwargs)
    learned(taught, records())
    check_saved(taught, X, tmp_path / "m.keras")


def test_until_its_release_it_keeps_the_first_inputs():
    for center in (False, True):
        layer = DPPCA(3, center=center, whitening=0.5)
        np.testing.assert_allclose(array(layer(X)), X[:, :3], rtol=1e-6)
        assert not layer.is_released and not layer.trainable
        assert not layer.trainable_weights
        assert len(layer.weights) == 1 + center


@pytest.mark.parametrize("policy", POLICIES)
def test_precision_of_its_weights_and_outputs(policy):
    layer = built(dtype=policy, center=True)
    found = learned(layer, records())
    mean, directions, _ = found.principal(3, layer.constant, 0.5)
    outputs = layer(keras.ops.convert_to_tensor(X))
    dtype = keras.DTypePolicy(policy).compute_dtype
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    # The weights stay in float32: three digits are lost in the product only.
    assert keras.backend.standardize_dtype(layer.kernel.dtype) == "float32"
    np.testing.assert_allclose(array(layer.kernel), directions, atol=1e-6)
    tolerance = 1e-5 if policy == "float32" else 2e-2
    np.testing.assert_allclose(
        array(keras.ops.cast(outputs, "float32")),
        (X - mean) @ directions,
        atol=tolerance,
    )


def test_a_model_that_is_frozen_and_thawed_does_not_train_it():
    layer = DPPCA(3, center=True)
    model = keras.Sequential([keras.Input((7,)), layer, keras.layers.Dense(1)])
    model.trainable = False
    model.trainable = True
    assert not layer.trainable_weights and not layer.is_published
    assert not any(w.trainable for w in layer.weights)
    assert len(model.trainable_weights) == 2
    layer.mark_released("{}")
    before = layer.get_weights()
    model.compile("sgd", "mse")
    model.fit(X, np.ones((5, 1)), verbose=0)
    for weight, kept in zip(layer.get_weights(), before):
        np.testing.assert_array_equal(weight, kept)


def with_head(**kwargs):
    return keras.Sequential(
        [keras.Input((7,)), DPPCA(3, **kwargs), keras.layers.Dense(1)]
    )


def test_nothing_is_trained_above_it_before_its_release(tmp_path):
    """Its inputs are records, which a layer above would learn from."""
    check_promise(lambda **k: DPPCA(3, **k), X, tmp_path, trainable_fit=False)
    for model in came_to_be(with_head(), tmp_path / "m.keras"):
        words = ["DPPCA(..., unprotected=True)", "PrivateModel(epsilon"]
        check_refuses(model, X, words=words)
    # In a twin it stays what it is before a release.
    twin = with_head(unprotected=True)
    twin.compile("sgd", "mse")
    twin.fit(X, np.ones((5, 1)), verbose=0)
    np.testing.assert_array_equal(array(twin.layers[0].kernel), np.eye(7, 3))


# What is read ---------------------------------------------------------------


@pytest.mark.parametrize("center", [False, True])
@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), bound=st.sampled_from([0.01, 1.0, 30.0]))
def test_no_pair_exceeds_what_the_release_is_charged_for(center, seed, bound):
    layer = built(2, 3, center=center, input_bound=bound)
    made, rng = objective(layer), np.random.default_rng(seed)

    def moment(v):
        v = v * bound * rng.choice([0.1, 1.0]) / np.linalg.norm(v)
        statistics = made.accumulate(made.zero(), layer.augment(v), None)
        return made.pack(statistics, "l2")

    first, second = (moment(rng.normal(size=(1, 3))) for _ in range(2))
    for relation, move in (
        ("add_remove", first),
        ("replace_one", first - second),
    ):
        limit = made.sensitivity("l2", neighbours=relation)
        assert np.linalg.norm(move) <= limit * (1 + 1e-12)


@pytest.mark.parametrize("center", [False, True])
def test_the_sensitivity_is_attained(center):
    layer = built(2, 3, center=center, input_bound=2.0)
    made = objective(layer)
    rows = layer.augment(np.array([[0.0, 2.0, 0.0]]))
    vector = made.pack(made.accumulate(made.zero(), rows, None), "l2")
    bound = made.sensitivity("l2", neighbours="add_remove")
    assert np.linalg.norm(vector) == pytest.approx(bound)
    assert bound == pytest.approx(4 + 4 / 9 if center else 4)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_the_constant_entry_in_every_precision(dtype):
    layer = built(center=True)
    rows = layer.augment(np.eye(7, dtype=dtype))
    assert rows.shape == (7, 8)
    np.testing.assert_allclose(rows[:, -1].astype("float64"), 1 / 3, rtol=1e-3)
    plain = np.eye(7, dtype=dtype)
    np.testing.assert_array_equal(built().augment(plain), plain)


# What is learned ------------------------------------------------------------


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("bound", [1.0, 5.0])
def test_components_are_those_of_numpy(center, bound):
    layer = built(center=center, input_bound=bound)
    x = records(bound=bound)
    learned(layer, x)
    mean = x.mean(axis=0) if center else np.zeros(7)
    _, vectors = np.linalg.eigh((x - mean).T @ (x - mean))
    wanted = vectors[:, ::-1][:, :3]
    kernel = array(layer.kernel)
    np.testing.assert_allclose(np.abs(kernel.T @ wanted), np.eye(3), atol=1e-3)
    np.testing.assert_allclose(kernel.T @ kernel, np.eye(3), atol=1e-5)
    made = array(layer(x.astype("float32")))
    np.testing.assert_allclose(made, (x - mean) @ kernel, atol=1e-4 * bound)
    if center:
        np.testing.assert_allclose(made.mean(axis=0), 0, atol=1e-4 * bound)


@pytest.mark.parametrize("center", [False, True])
def test_whitening_makes_components_equal_in_size(center):
    x = records()
    sizes = {}
    for whitening in (0.0, 0.25, 0.5):
        layer = built(4, center=center, whitening=whitening)
        learned(layer, x)
        outputs = array(layer(x.astype("float32")))
        sizes[whitening] = np.mean(outputs**2, axis=0)
    # The first component is never scaled.
    for found in sizes.values():
        assert found[0] == pytest.approx(sizes[0.0][0], rel=1e-3)
    np.testing.assert_allclose(sizes[0.5], sizes[0.5][0], rtol=2e-3)
    ratio = sizes[0.0] / sizes[0.0][0]
    assert ratio[-1] < 0.2
    np.testing.assert_allclose(
        sizes[0.25] / sizes[0.25][0], np.sqrt(ratio), rtol=2e-3
    )


def test_the_ridge_counts_spectral_edges_of_the_noise():
    """With noise, scales are those of eigenvalue plus ridge, exactly."""
    x = records()
    for ridge in (0.0, 0.5, 3.0):
        layer = built(4, whitening=0.5, ridge_factor=ridge)
        found = learned(layer, x, noise_multiplier=4.0)
        values = np.linalg.eigvalsh(found.quadratic)[::-1][:4]
        values = np.maximum(values, 0) + ridge * found.noise_edge()
        values = np.maximum(values, 1e-9 * values[0])
        lengths = np.linalg.norm(array(layer.kernel), axis=0)
        np.testing.assert_allclose(
            lengths, np.sqrt(values[0] / values), rtol=1e-4
        )


@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("center", [False, True])
def test_noise_alone_is_no_error(center, ridge):
    """Of records that are all zero; orthogonal up to scales, all finite."""
    layer = built(7, whitening=0.5, ridge_factor=ridge, center=center)
    learned(layer, np.zeros((3, 7)), noise_multiplier=10.0)
    kernel = array(layer.kernel)
    assert np.all(np.isfinite(kernel)) and np.all(np.isfinite(array(layer(X))))
    lengths = np.linalg.norm(kernel, axis=0)
    np.testing.assert_allclose(
        (kernel / lengths).T @ (kernel / lengths), np.eye(7), atol=1e-4
    )


def test_signs_do_not_depend_on_the_backend():
    """The largest entry of every direction is positive."""
    layer = built(7)
    learned(layer, records())
    kernel = array(layer.kernel)
    largest = kernel[np.abs(kernel).argmax(axis=0), np.arange(7)]
    assert np.all(largest > 0)


@pytest.mark.parametrize("whitening", [0.0, 0.25, 0.5])
def test_directions_of_no_variance_stay_finite(whitening):
    layer = built(3, whitening=whitening)
    directions = np.eye(7)[:, :3]
    layer.set_components(np.zeros(7), directions, np.array([4.0, 1.0, 0.0]))
    kernel = array(layer.kernel)
    last = float(whitening == 0)
    np.testing.assert_allclose(
        np.diag(kernel[:3]), [1.0, 4.0**whitening, last], rtol=1e-6
    )
    layer.set_components(np.zeros(7), directions, np.zeros(3))
    assert np.all(np.isfinite(array(layer.kernel)))
