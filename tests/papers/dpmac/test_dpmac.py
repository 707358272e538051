"""DPMAC as a Keras model: training, noise, counting, saving, refusals."""

import contextlib
import json

import keras
import numpy as np
import pytest
from keras import layers as L
from sklearn import datasets

from keras_fm.kernel.noise_mechanisms import GaussianMechanism
from keras_fm.papers.dpmac.dpmac import DPMAC
from keras_fm.public.normalization_layer import NormalizationLayer
from keras_fm.stacks import sum_noise

X = np.random.default_rng(0).normal(size=(24, 7)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 24)


def array(x):
    return keras.ops.convert_to_numpy(x)


def small(loss="binary_crossentropy", seed=0, optimizer=None, **kwargs):
    """A twin that takes its steps by itself: of private models the callback
    takes them."""
    kwargs.setdefault("unprotected", True)
    keras.utils.set_random_seed(seed)
    last = "tanh" if loss == "squared_error" else None
    units = 7 if loss == "squared_error" else 3
    stack = [L.Dense(5, activation="relu"), L.Dense(units, activation=last)]
    model = DPMAC((7,), stack, loss=loss, z_steps=kwargs.pop("z_steps", 4),
                  **kwargs)  # fmt: skip
    model.compile(optimizer or keras.optimizers.SGD(1.0))
    return model


def descent(model, *data, **kwargs):
    """What one step of SGD(1) takes off the weights, and the logs."""
    before = model.get_weights()
    logs = model.train_on_batch(*data, return_dict=True, **kwargs)
    after = model.get_weights()
    return [a - b for a, b in zip(before, after)], logs


def mean_loss(model, x, y, weights=None):
    a = model.predict(x, verbose=0).astype(float)
    losses = np.sum(np.logaddexp(a, 0) - np.eye(3)[y] * a, axis=1)
    return np.average(losses, weights=weights)


# The non-private twin --------------------


def test_the_gradient_is_the_mean_coefficient_and_the_loss_the_mean_loss():
    model = small(penalty=0.5)
    mask = np.array([1.0] * 20 + [0.0] * 4)
    sums = sum(model.coefficient_sums(X, Y, mask, clipped=False), [])
    wanted = mean_loss(model, X, Y, mask)
    taken, logs = descent(model, X, Y, sample_weight=mask)
    assert float(logs["loss"]) == pytest.approx(wanted, rel=1e-4)
    for change, value in zip(taken, sums):
        np.testing.assert_allclose(change, value / 20, atol=1e-5)
    wanted = mean_loss(model, X, Y, mask)
    found = model.evaluate(X, Y, sample_weight=mask, verbose=0)
    assert found == pytest.approx(wanted, rel=1e-4)


def test_a_newton_step_solves_the_damped_system():
    model = small(order=2, curvature_clip=1.0, damping=0.3)
    sums = model.coefficient_sums(X, Y, clipped=False)
    taken, _ = descent(model, X, Y)
    for layer in range(2):
        kernel, bias = sums[2 * layer]
        first = np.vstack([kernel, bias]).astype(float) / 24
        for unit, second in enumerate(sums[2 * layer + 1][0].astype(float)):
            # All curvatures of ReLU and cross-entropy are at least 0.
            ridge = second / 24 + 0.3 * np.eye(len(second))
            wanted = np.linalg.solve(ridge, first[:, unit])
            kernel, bias = taken[2 * layer : 2 * layer + 2]
            found = np.append(kernel[:, unit], bias[unit])
            np.testing.assert_allclose(found, wanted, atol=1e-4)


def digits(count=800):
    x, y = datasets.load_digits(return_X_y=True)
    return (x[:count] / 16).astype("float32"), y[:count]


@pytest.mark.parametrize(
    "loss, kwargs, optimizer",
    [
        ("binary_crossentropy", {}, keras.optimizers.Adam(0.01)),
        ("categorical_crossentropy", {}, keras.optimizers.Adam(0.01)),
        (
            "binary_crossentropy",
            {"order": 2, "curvature_clip": 1.0, "damping": 0.03},
            keras.optimizers.SGD(1.0),
        ),
    ],
)
def test_the_twin_learns_digits(loss, kwargs, optimizer):
    keras.utils.set_random_seed(0)
    x, y = digits()
    stack = [L.Dense(30, activation="relu"), L.Dense(10)]
    model = DPMAC((64,), stack, loss=loss, z_steps=10, unprotected=True,
                  **kwargs)  # fmt: skip
    model.compile(optimizer, metrics=["accuracy"])
    epochs = 5 if kwargs else 15
    model.fit(x, y, batch_size=100, epochs=epochs, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] > 0.9


# Noise --------------------


def test_a_noisy_step_is_the_clipped_sums_and_noise_of_the_stated_size():
    # Fixed seed. 3 x 1500 draws: false alarm 1e-4 (variance off by 12 %).
    keras.utils.set_random_seed(0)
    stack = [L.Dense(50, activation="tanh"), L.Dense(30)]
    model = DPMAC((29,), stack, clip=[0.2, 0.05], z_steps=2, unprotected=True)
    model.compile(keras.optimizers.SGD(1.0))
    x = np.random.default_rng(0).normal(size=(8, 29)).astype("float32")
    y = np.arange(8)
    start, noise = model.get_weights(), []
    model.perturb(3.0, expected_batch_size=6.0, steps=3, seed=11)
    for _ in range(3):
        model.set_weights(start)
        sums = sum(model.coefficient_sums(x, y), [])
        taken, _ = descent(model, x, y)
        noise.append([6.0 * t - s for t, s in zip(taken, sums)])
    for index, threshold in enumerate([0.2, 0.05]):
        drawn = np.stack([n[2 * index].ravel() for n in noise])
        drawn /= 3.0 * np.sqrt(2) * threshold
        assert abs(drawn.mean()) < 4 / np.sqrt(drawn.size)
        assert abs(drawn.std() - 1) < 0.06
        assert np.abs(np.corrcoef(drawn)[~np.eye(3, dtype=bool)]).max() < 0.12
        # Biases too.
        assert all(np.std(n[2 * index + 1]) > 0 for n in noise)


def first_noise(layer, shapes):
    """What the first step of a layer draws for sums of these shapes."""
    zeros = [keras.ops.zeros(shape) for shape in shapes]
    symmetric = [len(shape) == 3 for shape in shapes]
    one = GaussianMechanism(sensitivity=1.0, noise_multiplier=1.0)
    batch = contextlib.nullcontext()
    if keras.backend.backend() == "jax":
        batch = layer.on_batch(layer.key_of_batch())
    with batch:
        return sum_noise.noisy(one, zeros, layer.keys(), symmetric)


def test_second_order_noise_is_released_and_solved():
    model = small(order=2, clip=1e-4, curvature_clip=0.5, damping=0.2)
    model.perturb(1.0, 10.0, 5, seed=2)
    taken, _ = descent(model, X, Y)
    other = small(order=2, clip=1e-4, curvature_clip=0.5, damping=0.2)
    other.perturb(1.0, 10.0, 5, seed=2)
    shapes = [(7, 5), (5,), (5, 8, 8), (5, 3), (3,), (3, 6, 6)]
    noise = [array(v).astype(float) for v in first_noise(other._noise, shapes)]
    sums = sum(other.coefficient_sums(X, Y), [])
    for layer in range(2):
        kernel, bias, second = (
            (s + 2.0 * t * n) / 10
            for s, n, t in zip(
                sums[3 * layer : 3 * layer + 3],
                noise[3 * layer : 3 * layer + 3],
                (1e-4, 1e-4, 0.5),
            )
        )
        first, size = np.vstack([kernel, bias]), len(kernel) + 1
        # Half the spectral edge of the noise.
        ridge = 0.2 + 2.0 * 0.5 / 10 * np.sqrt(2 * size) / 2
        for unit, matrix in enumerate(second):
            values, vectors = np.linalg.eigh(matrix)
            inverse = 1 / (np.maximum(values, 0) + ridge)
            wanted = vectors @ (inverse * (vectors.T @ first[:, unit]))
            found = np.append(taken[2 * layer][:, unit],
                              taken[2 * layer + 1][unit])  # fmt: skip
            np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_the_same_weights_follow_whatever_masked_rows_hold():
    weights = []
    for padding in (0.0, np.nan):
        x = X.copy()
        x[16:] = padding
        model = small(clip=0.1, optimizer=keras.optimizers.Adam(0.1))
        model.perturb(0.1, 16.0, 3, seed=5)
        mask = np.array([1.0] * 16 + [0.0] * 8)
        for _ in range(3):
            model.train_on_batch(x, Y, sample_weight=mask)
        weights.append(model.get_weights())
    for a, b in zip(*weights):
        assert np.all(np.isfinite(a))
        np.testing.assert_allclose(a, b, atol=1e-4)


# Without a ledger --------------------


def test_it_begins_with_the_weights_it_was_built_with():
    """Weights that were trained without noise once were kept under it."""
    model, trained = small(unprotected=False), small()
    trained.fit(X, Y, verbose=0)
    model.check_start()
    assert model.start_fact.endswith("public by declaration")
    weights = model.get_weights()
    model.set_weights(trained.get_weights())
    with pytest.raises(ValueError, match="other weights than it was built"):
        model.check_start()
    model.set_weights(weights)
    model.check_start()


def test_thresholds_are_learned_before_the_noise_is_fixed():
    model = small(clip="histogram", order=2)
    assert model.learns_thresholds and not model.has_thresholds
    with pytest.raises(ValueError, match="learned first"):
        model.perturb(1.0, 8.0, 3)
    names = [layer.name for layer in model.private_layers]
    model.learn_thresholds([0.1, 0.2, 0.3, 0.4])
    assert model.partitions == [
        (names[0], 1, 0.1),
        (names[0], 2, 0.2),
        (names[1], 1, 0.3),
        (names[1], 2, 0.4),
    ]
    again = DPMAC.from_config(model.get_config())
    assert [t for *_, t in again.partitions] == [0.1, 0.2, 0.3, 0.4]
    model.perturb(1.0, 8.0, 3)
    with pytest.raises(ValueError, match="fixed for the thresholds"):
        model.learn_thresholds([1.0] * 4)
    with pytest.raises(ValueError, match="4 partitions"):
        again.learn_thresholds([1.0])


# Saving --------------------


def test_a_saved_run_goes_on_where_it_stopped(tmp_path):
    model = small(optimizer=keras.optimizers.Adam(0.01))
    model.perturb(2.0, 8.0, 10)
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), model.predict(X, verbose=0)
    )
    for name in (
        "steps_taken",
        "steps_allowed",
        "noise_multiplier",
        "expected_batch_size",
        "partitions",
    ):
        assert getattr(loaded, name) == getattr(model, name)
    assert loaded.steps_taken == 6 and loaded.is_perturbed
    assert int(array(loaded.optimizer.iterations)) == 6
    # Not without noise.
    before = loaded.get_weights()
    for train in (loaded.fit, loaded.train_on_batch):
        with pytest.raises(ValueError, match="has no noise now. Call `pert"):
            train(X, Y)
    loaded.evaluate(X, Y, verbose=0)
    for a, b in zip(before, loaded.get_weights()):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="4 of its steps"):
        loaded.perturb(1.0, 8.0, 10)
    loaded.perturb(2.0, 8.0, 10)
    loaded.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert (loaded.steps_taken, loaded.steps_refused) == (10, 2)


def text_of(model):
    """Its config, where tuples are lists."""
    return json.dumps(model.get_config())


def test_everything_is_in_the_config(tmp_path):
    stack = [
        L.Reshape((8, 8, 1)),
        L.Conv2D(2, 3, activation="tanh"),
        L.Flatten(),
        L.Dense(4, activation="silu", use_bias=False),
        L.Dense(3),
    ]
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
    model = DPMAC(
        (64,),
        stack,
        loss="categorical_crossentropy",
        clip=[0.1, 0.2, 0.3],
        penalty=0.5,
        z_steps=3,
        z_optimizer=keras.optimizers.RMSprop(schedule, rho=0.8),
        below=[L.Rescaling(0.5), NormalizationLayer()],
        input_bound=0.7,
        planned_steps=12,
        noise_multiplier=1.5,
        unprotected=True,
        name="named",
    )
    model.compile(keras.optimizers.Adam(0.02), metrics=["accuracy"])
    x, y = digits(40)
    y = y % 3
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert text_of(loaded) == text_of(model)
    assert loaded.name == "named" and loaded.partitions == model.partitions
    assert (loaded.planned_steps, loaded.planned_noise) == (12, 1.5)
    assert loaded.noise_multiplier is None
    np.testing.assert_allclose(
        loaded.coefficient_norms(x, y), model.coefficient_norms(x, y), rtol=1e-5
    )
    # Compiled and able to go on.
    assert loaded.evaluate(x, y, verbose=0) == model.evaluate(x, y, verbose=0)
    loaded.fit(x, y, verbose=0)


# As Keras has it --------------------


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    plain = small()
    keras.config.set_dtype_policy(policy)
    try:
        model = small(clip=0.1)
    finally:
        keras.config.set_dtype_policy("float32")
    # Coefficients do not feel the policy.
    for part, right in zip(
        model.coefficient_sums(X, Y, clipped=False),
        plain.coefficient_sums(X, Y, clipped=False),
    ):
        assert part[0].dtype == "float32"
        np.testing.assert_allclose(part[0], right[0], atol=1e-5)
    model.perturb(0.5, 8.0, 3)
    before = model.get_weights()
    assert np.isfinite(
        model.fit(X, Y, batch_size=8, verbose=0).history["loss"][0]
    )
    assert model.steps_taken == 3
    assert any(np.any(a != b) for a, b in zip(before, model.get_weights()))


def test_one_layer_is_plain_gradient_descent():
    keras.utils.set_random_seed(0)
    head = L.Dense(3)
    model = DPMAC(
        (7,), [head], loss="categorical_crossentropy", unprotected=True
    )
    model.compile(keras.optimizers.SGD(1.0))
    taken, _ = descent(model, X, Y)
    keras.utils.set_random_seed(0)
    plain = keras.Sequential([keras.Input((7,)), L.Dense(3)])
    plain.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    wanted, _ = descent(plain, X, Y)
    for a, b in zip(taken, wanted):
        np.testing.assert_allclose(a, b, atol=1e-5)


# Refusals --------------------


def stack(*first, last=None):
    return [*first, last or L.Dense(3)]


SHARED = L.Dense(7)
FROZEN = L.Dense(999, trainable=False)


@pytest.mark.parametrize(
    "layers, kwargs, match",
    [
        ([], {}, "must end with"),
        (stack(last=L.Flatten()), {}, "must end with"),
        (stack(L.Dropout(0.5)), {}, "Dense, Conv2D.*`below`"),
        (stack(L.BatchNormalization()), {}, "Dense, Conv2D"),
        (stack(L.DepthwiseConv2D(2)), {}, "Dense, Conv2D"),
        (stack(L.SeparableConv2D(2, 2)), {}, "Dense, Conv2D"),
        (stack(L.Conv2D(2, 1, dilation_rate=2)), {}, "dilation_rate=1"),
        (stack(L.Activation("relu")), {}, "Dense, Conv2D"),
        (stack(keras.Sequential([L.Dense(2)])), {}, "Dense, Conv2D"),
        (stack(L.Dense(2, activation="selu")), {}, "activation='selu'"),
        (stack(L.Dense(2, activity_regularizer="l2")), {}, "activity"),
        (stack(SHARED, SHARED), {}, "twice"),
        (stack(L.Reshape((7, 1))), {}, "Flatten"),
        (stack(last=L.Dense(3, activation="relu")), {}, "loss of logits"),
        (stack(last=L.Dense(1)), {"loss": "categorical_crossentropy"}, "two"),
        (stack(), {"loss": "mse"}, "`loss` must be one of"),
        (stack(), {"clip": 0.0}, "`clip`"),
        (stack(), {"clip": [0.1, 0.2]}, "1 trained layers"),
        (stack(), {"clip": "median"}, "`clip`.*'median'"),
        (stack(), {"clip": None}, "`clip`"),
        (stack(), {"clip": float("nan")}, "`clip`"),
        (stack(), {"clip_quantile": 1.0}, "`clip_quantile`"),
        (stack(), {"order": 3}, "`order`"),
        (stack(), {"order": 2}, "`curvature_clip` is needed"),
        (stack(), {"curvature_clip": 1.0}, "`curvature_clip` is needed"),
        (stack(), {"penalty": 0.0}, "`penalty`"),
        (stack(), {"damping": -1.0}, "`damping`"),
        (stack(), {"z_steps": 0}, "`z_steps`"),
        (stack(), {"z_optimizer": keras.optimizers.Lamb()}, "`z_optimizer`"),
        (stack(), {"input_bound": -1.0}, "`input_bound`"),
        (stack(), {"planned_steps": 0}, "`planned_steps`"),
        (stack(), {"noise_multiplier": 0.0}, "`noise_multiplier`"),
        (stack(), {"unprotected": 1}, "`unprotected` must be True or False"),
        (stack(), {"below": [L.Dense(4)]}, "trainable weights"),
        (
            stack(L.Dense(3000)),
            {"order": 2, "curvature_clip": 1.0, "below": [FROZEN]},
            "3e\\+09 numbers",
        ),
        (
            [L.Reshape((7, 1, 1)), L.Conv2D(2, 1), L.Flatten(), L.Dense(3)],
            {"order": 2, "curvature_clip": 1.0},
            "Dense layers only",
        ),
    ],
)  # fmt: skip
def test_bad_arguments(layers, kwargs, match):
    with pytest.raises(ValueError, match=match):
        DPMAC((7,), layers, **kwargs)
