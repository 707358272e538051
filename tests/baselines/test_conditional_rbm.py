"""Conditional RBM: closed forms against sums over all states, and learning.

Small models are enumerated in NumPy float64 from their weights; the model
computes in float32, hence tolerances of 1e-5. The sampled chain is compared
with its exact transition probabilities by a chi-squared test (a right chain
with a fresh seed would fail once in 10,000 runs).
"""

import itertools

import keras
import numpy as np
import pytest
from scipy import stats

from keras_fm.baselines import ConditionalRBM, SocialRBM

# Fits of a few steps, which take less time than tracing them.
SHORT = pytest.mark.usefixtures("untraced")
BACKEND = keras.backend.backend()
COLUMNS = {
    "present": (0, 3),
    "history": slice(3, 7),
    "social": (7, 9),
    "events": [9, 11],
}
FEATURES, CLASSES, HIDDEN = 11, 3, 4


def make(cls=ConditionalRBM, scale=0.8, seed=0, **kwargs):
    """A small model with every weight random and of order 1."""
    model = cls(HIDDEN, CLASSES, COLUMNS, seed=seed, **kwargs)
    model.build((None, FEATURES))
    rng = np.random.default_rng(seed)
    for w in sorted(model.weights, key=lambda w: w.name):
        w.assign(rng.normal(0, scale, w.shape))
    return model


def records(n, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.random((n, FEATURES)).astype("float32")
    return x, rng.integers(0, CLASSES, n).astype("int32")


def states(units):
    return np.array(list(itertools.product((0.0, 1.0), repeat=units)))


def array(tensor):
    return keras.ops.convert_to_numpy(tensor).astype("float64")


def weights(model):
    return {w.name: array(w.value) for w in model.weights}


def biases(model, x):
    """a(u), b(u), c(u) of one record, written out."""
    w, x = weights(model), x.astype("float64")
    u = np.concatenate([x[3:7], x[9:11]])
    visible = w["visible_bias"] + u @ w["autoregressive_kernel"]
    hidden = w["hidden_bias"] + u @ w["condition_kernel"]
    label = w["label_bias"] + u @ w["condition_label_kernel"]
    if "social_kernel" in w:
        hidden = hidden + x[7:9] @ w["social_kernel"]
    return visible, hidden, label


def energy(model, v, y, h, given):
    """E(v, y, h | u) of single states, from the definition."""
    w, (a, b, c) = weights(model), given
    if model.visible == "gaussian":
        s = model.stddev
        alone, v = np.sum((v - a) ** 2) / (2 * s**2), v / s
    else:
        alone = -a @ v
    return alone - c[y] - b @ h - w["label_kernel"][y] @ h - v @ w["kernel"] @ h


MODELS = {
    "binary": (ConditionalRBM, {}),
    "gaussian": (ConditionalRBM, {"visible": "gaussian", "stddev": 0.7}),
    "social": (SocialRBM, {}),
    "social shared": (SocialRBM, {"influence": "shared"}),
}


@pytest.fixture(params=MODELS)
def model(request):
    cls, kwargs = MODELS[request.param]
    return make(cls, **kwargs)


# Closed forms ---------------------------------------------------------------


def brute_free_energy(model, v, y, given):
    parts = [-energy(model, v, y, h, given) for h in states(HIDDEN)]
    return -np.logaddexp.reduce(parts)


def test_free_energy_sums_over_all_hidden_states(model):
    x, y = records(4)
    expected = [
        brute_free_energy(model, row[:3].astype("float64"), k, biases(model, r))
        for row, r, k in zip(x, x, y)
    ]
    np.testing.assert_allclose(array(model.free_energy(x, y)), expected, 1e-5)


def test_class_probabilities_are_normalised_over_all_states(model):
    x, _ = records(4)
    expected = []
    for row in x:
        given, v = biases(model, row), row[:3].astype("float64")
        free = [brute_free_energy(model, v, k, given) for k in range(CLASSES)]
        expected.append(np.exp(-np.logaddexp.reduce([-f for f in free]) - free))
    made = array(keras.ops.softmax(model(x)))
    np.testing.assert_allclose(made, expected, atol=1e-5)


def test_conditionals_are_those_of_the_energy():
    for name in ("binary", "social"):
        cls, kwargs = MODELS[name]
        model = make(cls, **kwargs)
        x, y = records(2)
        x[:, :3] = np.round(x[:, :3])
        hidden = states(HIDDEN)[[5, 12]]
        of_hidden = array(model.hidden_probabilities(x, y))
        of_visible = array(model.visible_mean(hidden, x))
        of_label = array(model.label_probabilities(hidden, x))
        for i in range(2):
            given, v = biases(model, x[i]), x[i, :3].astype("float64")

            def mean(points, energies):
                p = np.exp(-np.array(energies))
                return p @ points / p.sum()

            np.testing.assert_allclose(
                of_hidden[i],
                mean(
                    states(HIDDEN),
                    [energy(model, v, y[i], h, given) for h in states(HIDDEN)],
                ),
                atol=1e-5,
            )
            np.testing.assert_allclose(
                of_visible[i],
                mean(
                    states(3),
                    [
                        energy(model, s, y[i], hidden[i], given)
                        for s in states(3)
                    ],
                ),
                atol=1e-5,
            )
            np.testing.assert_allclose(
                of_label[i],
                mean(
                    np.eye(CLASSES),
                    [
                        energy(model, v, k, hidden[i], given)
                        for k in range(CLASSES)
                    ],
                ),
                atol=1e-5,
            )


def test_gaussian_mean_is_where_the_energy_is_least():
    model = make(visible="gaussian", stddev=0.7)
    x, y = records(1)
    hidden = states(HIDDEN)[[11]]
    mean = array(model.visible_mean(hidden, x))[0]
    given = biases(model, x[0])
    for step in 1e-3 * np.vstack([np.eye(3), -np.eye(3)]):
        # A parabola of curvature 1 / s^2 around its minimum.
        rise = energy(model, mean + step, y[0], hidden[0], given)
        rise -= energy(model, mean, y[0], hidden[0], given)
        assert rise == pytest.approx(1e-6 / (2 * 0.49), rel=0.01)


def test_labels_as_numbers_column_and_one_hot_agree():
    model = make()
    x, y = records(5)
    one = array(model.free_energy(x, y))
    np.testing.assert_array_equal(one, array(model.free_energy(x, y[:, None])))
    hot = np.eye(CLASSES, dtype="float32")[y]
    np.testing.assert_array_equal(one, array(model.free_energy(x, hot)))


# The chain and its gradient -------------------------------------------------


@pytest.mark.parametrize("steps", (1, 2))
def test_chain_has_the_exact_transition_probabilities(steps):
    model = make(sample_visible=True, gibbs_steps=steps, seed=3)
    x, _ = records(1)
    x[:, :3] = np.round(x[:, :3])
    given, hidden, w = biases(model, x[0]), states(HIDDEN), weights(model)
    cells = [(v, k) for v in states(3) for k in range(CLASSES)]

    def bernoulli(p, points):
        return np.prod(np.where(points == 1, p, 1 - p), axis=-1)

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    # Rows: from (v, y); columns: to hidden states, and back.
    up = np.array(
        [
            bernoulli(
                sigmoid(given[1] + w["label_kernel"][k] + v @ w["kernel"]),
                hidden,
            )
            for v, k in cells
        ]
    )
    down = np.empty((len(hidden), len(cells)))
    for i, h in enumerate(hidden):
        p = sigmoid(given[0] + w["kernel"] @ h)
        label = np.exp(given[2] + w["label_kernel"] @ h)
        label /= label.sum()
        down[i] = [bernoulli(p, v) * label[k] for v, k in cells]
    start = next(
        i for i, (v, k) in enumerate(cells) if k == 1 and (v == x[0, :3]).all()
    )
    expected = np.linalg.matrix_power(up @ down, steps)[start]

    n = 40_000
    v, y = model.gibbs_chain(np.repeat(x, n, 0), np.ones(n, "int32"))
    cell = (array(v) @ [4, 2, 1]) * CLASSES + array(y).argmax(axis=1)
    counts = np.bincount(cell.astype(int), minlength=len(cells))
    assert counts.sum() == n
    assert stats.chisquare(counts, n * expected).pvalue > 1e-4
    # A chain that stays one step too short or too long is told apart.
    other = np.linalg.matrix_power(up @ down, 3 - steps)[start]
    assert stats.chisquare(counts, n * other).pvalue < 1e-6


def test_gaussian_chain_has_the_stated_spread():
    model = make(visible="gaussian", stddev=0.7, sample_visible=True)
    model.kernel.assign(np.zeros((3, HIDDEN)))
    n = 20_000
    x, y = records(1)
    v, _ = model.gibbs_chain(np.repeat(x, n, 0), np.repeat(y, n))
    error = array(v) - biases(model, x[0])[0]
    # Five standard errors: false alarm below 1e-5 for all six numbers.
    assert np.all(np.abs(error.mean(axis=0)) < 5 * 0.7 / np.sqrt(n))
    spread = error.std(axis=0)
    assert np.all(np.abs(spread / 0.7 - 1) < 5 / np.sqrt(2 * n))


class FixedChain(ConditionalRBM):
    end = None

    def gibbs_chain(self, inputs, labels):
        return self.end


def gradients(model, x, y, **kwargs):
    """By weight, read off one step of rate 1."""
    before = weights(model)
    model.compile(keras.optimizers.SGD(1.0))
    model.train_on_batch(x, y, **kwargs)
    after = weights(model)
    return {name: before[name] - after[name] for name in before}


@pytest.mark.parametrize("visible", ("binary", "gaussian"))
@pytest.mark.parametrize("weighted", (False, True))
def test_gradient_is_contrastive_divergence(visible, weighted):
    n, s = 5, 0.7 if visible == "gaussian" else 1.0
    model = make(FixedChain, visible=visible, objective="generative", stddev=s)
    x, y = records(n)
    rng = np.random.default_rng(9)
    v2 = rng.random((n, 3)).astype("float32")
    y2 = np.eye(CLASSES, dtype="float32")[rng.integers(0, CLASSES, n)]
    model.end = (
        keras.ops.convert_to_tensor(v2),
        keras.ops.convert_to_tensor(y2),
    )
    share = np.full(n, 1.0)
    if weighted:
        share = np.array([0.0, 1.0, 2.0, 0.5, 3.0])
    w = weights(model)
    a, b, _ = (np.array(t) for t in zip(*(biases(model, row) for row in x)))
    u = np.concatenate([x[:, 3:7], x[:, 9:11]], axis=1).astype("float64")

    def statistics(v, y):
        v = v.astype("float64")
        h = 1 / (1 + np.exp(-(b + v / s @ w["kernel"] + y @ w["label_kernel"])))
        field = (v - a) / s**2 if visible == "gaussian" else v
        rows = share[:, None] / n
        return {
            "kernel": (rows * v / s).T @ h,
            "label_kernel": (rows * y).T @ h,
            "visible_bias": (rows * field).sum(axis=0),
            "hidden_bias": (rows * h).sum(axis=0),
            "label_bias": (rows * y).sum(axis=0),
            "autoregressive_kernel": (rows * u).T @ field,
            "condition_kernel": (rows * u).T @ h,
            "condition_label_kernel": (rows * u).T @ y,
        }

    data = statistics(x[:, :3], np.eye(CLASSES)[y])
    chain = statistics(v2, y2)
    kwargs = {"sample_weight": share} if weighted else {}
    made = gradients(model, x, y, **kwargs)
    assert set(made) == set(data)
    for name in data:
        np.testing.assert_allclose(
            made[name], chain[name] - data[name], atol=2e-6, err_msg=name
        )


@SHORT
def test_hybrid_adds_the_weighted_generative_gradient():
    x, y = records(6)
    end = records(6, seed=5)
    end = (
        keras.ops.convert_to_tensor(end[0][:, :3]),
        keras.ops.one_hot(end[1], CLASSES),
    )
    made = {}
    for objective in ("hybrid", "generative", "discriminative"):
        model = make(FixedChain, objective=objective, generative_weight=0.3)
        model.end = end
        made[objective] = gradients(model, x, y)
    for name, value in made["hybrid"].items():
        alone = made["discriminative"][name]
        if name in ("visible_bias", "autoregressive_kernel"):
            assert not alone.any()
        np.testing.assert_allclose(
            value, alone + 0.3 * made["generative"][name], atol=2e-6
        )


def test_shared_influence_moves_all_hidden_units_alike():
    x, _ = records(3)
    more = x.copy()
    more[:, 7] += 0.5
    for influence in ("per_unit", "shared"):
        model = make(SocialRBM, influence=influence)
        eta = weights(model)["social_kernel"]
        assert eta.shape == (2, 1 if influence == "shared" else HIDDEN)
        one, two = (model.dynamic_biases(rows) for rows in (x, more))
        np.testing.assert_array_equal(array(one[0]), array(two[0]))
        np.testing.assert_array_equal(array(one[2]), array(two[2]))
        expected = np.broadcast_to(0.5 * eta[0], (3, HIDDEN))
        np.testing.assert_allclose(
            array(two[1]) - array(one[1]), expected, atol=1e-6
        )
    # The conditional RBM does not read that group.
    model = make()
    np.testing.assert_array_equal(array(model(x)), array(model(more)))


# Learning -------------------------------------------------------------------


def bars_and_stripes():
    """The 12 patterns of 3 x 3 with whole rows or whole columns on."""
    x, y = [], []
    for line in states(3)[1:-1]:
        x += [np.repeat(line, 3), np.tile(line, 3)]
        y += [0, 1]
    return np.array(x, "float32"), np.array(y, "int32")


def negative_log_likelihood(model, x, y):
    """Exact, of p(v, y): both classes of all 512 patterns."""
    everything = states(9).astype("float32")
    free = [
        array(model.free_energy(everything, np.full(512, k, "int32")))
        for k in range(2)
    ]
    log_partition = np.logaddexp.reduce(-np.concatenate(free))
    return np.mean(array(model.free_energy(x, y))) + log_partition


@pytest.mark.once
def test_contrastive_divergence_lowers_the_exact_likelihood_loss():
    x, y = bars_and_stripes()
    model = ConditionalRBM(
        24,
        2,
        {"present": (0, 9)},
        objective="generative",
        gibbs_steps=5,
        sample_visible=True,
        seed=1,
    )
    model.build((None, 9))
    before = negative_log_likelihood(model, x, y)
    model.compile(keras.optimizers.Adam(0.01), metrics=["accuracy"])
    many = np.tile(np.arange(12), 100)
    history = model.fit(x[many], y[many], batch_size=20, epochs=24, verbose=0)
    after = negative_log_likelihood(model, x, y)
    # Uniform over all states: log 1024 = 6.93; the data's entropy: 2.48.
    assert before > 6.5
    assert after < 3.4
    assert set(history.history) == {
        "loss",
        "accuracy",
        "label_loss",
        "reconstruction_error",
    }
    errors = history.history["reconstruction_error"]
    assert errors[-1] < errors[0] / 2


def moving_dots(n, seed):
    """A dot steps left or right on a ring of 6; the label is the direction.

    Present and past are uniform and independent of the label one by one.
    """
    rng = np.random.default_rng(seed)
    past, y = rng.integers(0, 6, n), rng.integers(0, 2, n)
    eye = np.eye(6, dtype="float32")
    present = eye[(past + 2 * y - 1) % 6]
    social = rng.random((n, 1)).astype("float32")
    return np.hstack([present, eye[past], social]), y.astype("int32")


def fitted(model, x, y, epochs=12, **kwargs):
    model.compile(keras.optimizers.Adam(0.02), metrics=["accuracy"])
    model.fit(x, y, batch_size=50, epochs=epochs, verbose=0, **kwargs)
    return model


def accuracy(model, x, y):
    return np.mean(array(model(x)).argmax(axis=1) == y)


@pytest.mark.parametrize("objective", ("hybrid", "discriminative"))
@pytest.mark.once
def test_history_decides_where_the_present_alone_says_nothing(objective):
    x, y = moving_dots(1000, seed=0)
    test = moving_dots(1000, seed=1)
    columns = {"present": (0, 6), "history": (6, 12)}
    model = ConditionalRBM(20, 2, columns, objective=objective, seed=0)
    assert accuracy(fitted(model, x, y), *test) > 0.95
    if objective == "hybrid":
        model = ConditionalRBM(20, 2, {"present": (0, 6)}, seed=0)
        # Chance, by at most 4.4 standard errors.
        assert accuracy(fitted(model, x, y, 4), *test) < 0.57


def test_generative_training_alone_classifies():
    x, y = bars_and_stripes()
    many = np.tile(np.arange(12), 50)
    model = ConditionalRBM(
        24, 2, {"present": (0, 9)}, objective="generative", seed=0
    )
    fitted(model, x[many], y[many], epochs=20)
    # At least 10 of the 12; both classes have the same mean pattern.
    assert accuracy(model, x, y) > 0.8


@pytest.mark.parametrize("influence", ("per_unit", "shared"))
@pytest.mark.once
def test_friends_decide_for_the_social_model_only(influence):
    x, y = moving_dots(1000, seed=2)
    x[:, 12] = 0.25 + 0.5 * y
    test = moving_dots(1000, seed=3)
    test[0][:, 12] = 0.25 + 0.5 * test[1]
    columns = {"present": (0, 6), "social": (12, 13)}
    model = SocialRBM(20, 2, columns, influence=influence, seed=0)
    assert accuracy(fitted(model, x, y), *test) > 0.95
    if influence == "shared":
        model = ConditionalRBM(20, 2, columns, seed=0)
        assert accuracy(fitted(model, x, y, 4), *test) < 0.57


# As a Keras model -----------------------------------------------------------


@SHORT
@pytest.mark.parametrize("cls", (ConditionalRBM, SocialRBM))
def test_saved_model_predicts_and_trains_on(cls, tmp_path):
    x, y = records(40)
    model = cls(HIDDEN, CLASSES, COLUMNS, seed=4)
    model.compile("adam", metrics=["accuracy"])
    model.train_on_batch(x, y)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is cls
    np.testing.assert_array_equal(array(model(x)), array(loaded(x)))
    # Training goes on where it was: compiled, with the optimizer's state.
    for one, other in zip(
        model.optimizer.variables, loaded.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(array(one.value), array(other.value))
    assert "accuracy" in loaded.train_on_batch(x, y, return_dict=True)
    model.save_weights(tmp_path / "model.weights.h5")
    other = cls(HIDDEN, CLASSES, COLUMNS)
    other.build((None, FEATURES))
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(array(model(x)), array(other(x)))


def test_config_round_trip():
    given = {
        "columns": {
            "present": [0, 3],
            "history": [3, 7],
            "social": [7, 9],
            "events": [9, 11],
        },
        "hidden": 7,
        "classes": 3,
        "visible": "gaussian",
        "stddev": 0.5,
        "objective": "generative",
        "generative_weight": 0.2,
        "gibbs_steps": 3,
        "sample_visible": True,
        "seed": 5,
        "influence": "shared",
        "name": "rival",
    }
    config = SocialRBM(**{**given, "columns": COLUMNS}).get_config()
    assert {key: config[key] for key in given} == given
    assert SocialRBM.from_config(config).get_config() == config


@SHORT
def test_equal_seeds_give_equal_models():
    x, y = records(30)

    def trained(seed):
        model = ConditionalRBM(HIDDEN, CLASSES, COLUMNS, seed=seed)
        model.compile("sgd")
        model.train_on_batch(x, y)
        return array(model(x))

    once = trained(1)
    np.testing.assert_array_equal(once, trained(1))
    assert np.abs(once - trained(2)).max() > 1e-3


def test_output_shape_and_empty_groups():
    model = ConditionalRBM(5, 4, {"present": (0, 3), "events": slice(3, 3)})
    assert model.columns == {"present": (0, 3)}
    assert model.compute_output_shape((None, 6)) == (None, 4)
    assert tuple(model(np.zeros((2, 6), "float32")).shape) == (2, 4)
    names = {w.name for w in model.weights}
    assert not any("condition" in name for name in names)
    assert tuple(model(keras.Input((6,))).shape) == (None, 4)


@SHORT
@pytest.mark.parametrize("policy", ("mixed_float16", "mixed_bfloat16"))
def test_mixed_precision_keeps_energies_in_float32(policy):
    x, y = records(20)
    half, full = make(dtype=policy), make()
    for one, other in (
        (half(x), full(x)),
        (half.free_energy(x, y), full.free_energy(x, y)),
    ):
        assert keras.backend.standardize_dtype(one.dtype) == "float32"
        np.testing.assert_array_equal(array(one), array(other))
    half.compile("adam", metrics=["accuracy"])
    logs = half.fit(x, y, epochs=2, verbose=0).history
    assert np.isfinite(logs["loss"]).all()
    assert not np.array_equal(array(half(x)), array(full(x)))


@SHORT
def test_evaluate_logs_what_the_outputs_say():
    model = make()
    x, y = records(64)
    model.compile("sgd", metrics=["accuracy"])
    logs = model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
    logits = array(model(x))
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    assert logs["accuracy"] == pytest.approx(accuracy(model, x, y))
    assert logs["label_loss"] == pytest.approx(
        -log_p[np.arange(64), y].mean(), rel=1e-5
    )
    hidden = model.hidden_probabilities(x, y)
    error = array(model.visible_mean(hidden, x)) - x[:, :3]
    assert logs["reconstruction_error"] == pytest.approx(
        np.mean(error**2), rel=1e-5
    )
    np.testing.assert_allclose(model.predict(x, verbose=0), logits, 1e-5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="needs TensorFlow")
def test_tf_data():
    tf = pytest.importorskip("tensorflow")
    x, y = records(50)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    model = SocialRBM(HIDDEN, CLASSES, COLUMNS, seed=0)
    model.compile("adam", metrics=["accuracy"])
    stop = keras.callbacks.EarlyStopping("val_label_loss", mode="min")
    logs = model.fit(
        data, validation_data=data, epochs=2, callbacks=[stop], verbose=0
    )
    assert len(logs.history["val_label_loss"]) == 2
    assert model.predict(data, verbose=0).shape == (50, CLASSES)


# Errors ---------------------------------------------------------------------

PRESENT = {"present": (0, 3)}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hidden": 0}, "`hidden` must be a positive integer"),
        ({"hidden": 2.5}, "`hidden` must be a positive integer"),
        ({"hidden": True}, "`hidden` must be a positive integer"),
        ({"classes": 1}, "`classes` must be an integer >= 2"),
        ({"gibbs_steps": 0}, "`gibbs_steps` must be a positive integer"),
        ({"visible": "real"}, "`visible` must be one of"),
        ({"objective": "joint"}, "`objective` must be one of"),
        ({"stddev": 0.0, "visible": "gaussian"}, "`stddev` must be finite"),
        ({"stddev": np.nan, "visible": "gaussian"}, "`stddev` must be finite"),
        ({"stddev": 2.0}, "`stddev` belongs to"),
        ({"generative_weight": -1.0}, "`generative_weight` must be finite"),
        ({"generative_weight": np.inf}, "`generative_weight` must be finite"),
        ({"seed": 0.5}, "`seed` must be an integer or None"),
        ({"columns": [(0, 3)]}, "`columns` must be a dict"),
        ({"columns": {**PRESENT, "past": (3, 4)}}, "must be among"),
        ({"columns": {"history": (0, 3)}}, "at least one column"),
        ({"columns": {"present": (3, 3)}}, "at least one column"),
        ({"columns": {"present": (3, 1)}}, "0 <= start <= stop"),
        ({"columns": {"present": (-1, 3)}}, "0 <= start <= stop"),
        ({"columns": {"present": slice(0, None)}}, "0 <= start <= stop"),
        ({"columns": {"present": slice(0, 4, 2)}}, "0 <= start <= stop"),
        ({"columns": {"present": 3}}, "0 <= start <= stop"),
        ({"columns": {**PRESENT, "history": (2, 5)}}, "must not overlap"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    given = {"hidden": 4, "classes": 2, "columns": PRESENT, **change}
    with pytest.raises(ValueError, match=message):
        ConditionalRBM(**given)


def test_social_model_needs_its_group_and_a_known_influence():
    with pytest.raises(ValueError, match='"social" at least one column'):
        SocialRBM(4, 2, PRESENT)
    columns = {**PRESENT, "social": (3, 4)}
    with pytest.raises(ValueError, match="`influence` must be one of"):
        SocialRBM(4, 2, columns, influence="each")


@SHORT
@pytest.mark.once
def test_wrong_data_are_named():
    x, y = records(8)

    def compiled(**kwargs):
        model = ConditionalRBM(4, CLASSES, COLUMNS)
        model.compile("sgd", **kwargs)
        return model

    with pytest.raises(ValueError, match="must lie within the input"):
        compiled().build((None, 10))
    with pytest.raises(ValueError, match=r"shape \(batch, features\)"):
        compiled().build((None, 3, 11))
    with pytest.raises(ValueError, match="needs labels"):
        compiled().fit(x, verbose=0)
    with pytest.raises(ValueError, match="Labels must have shape"):
        compiled().fit(x, np.zeros((8, 2), "float32"), verbose=0)
    with pytest.raises(ValueError, match="has its own loss"):
        compiled(loss="sparse_categorical_crossentropy").fit(x, y, verbose=0)
