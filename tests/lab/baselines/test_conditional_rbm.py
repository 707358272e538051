"""Conditional RBM: closed forms against sums over all states, and learning.

Small models are enumerated in NumPy float64 from their weights; the model
computes in float32, hence tolerances of 1e-5. The sampled step is compared
with its exact probabilities by a chi-squared test at a fixed seed.
"""

import itertools

import keras
import numpy as np
import pytest
from scipy import stats

from keras_fm.lab.baselines.conditional_rbm import ConditionalRBM, SocialRBM

pytestmark = pytest.mark.full

# Fits of a few steps, which take less time than tracing them.
SHORT = pytest.mark.usefixtures("untraced")
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
    return (
        -a @ v - c[y] - b @ h - w["label_kernel"][y] @ h - v @ w["kernel"] @ h
    )


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


# Closed forms ---------------------------------------------------------------


def brute_free_energy(model, v, y, given):
    parts = [-energy(model, v, y, h, given) for h in states(HIDDEN)]
    return -np.logaddexp.reduce(parts)


@pytest.mark.parametrize("cls", [ConditionalRBM, SocialRBM])
def test_energies_and_probabilities_are_sums_over_all_states(cls):
    model, (x, y) = make(cls), records(4)
    free = np.array(
        [
            [
                brute_free_energy(
                    model, row[:3].astype("float64"), k, biases(model, row)
                )
                for k in range(CLASSES)
            ]
            for row in x
        ]
    )
    found = array(model.free_energy(x, y))
    np.testing.assert_allclose(found, free[np.arange(4), y], 1e-5)
    p = np.exp(-free - np.logaddexp.reduce(-free, axis=1)[:, None])
    found = array(keras.ops.softmax(model(x)))
    np.testing.assert_allclose(found, p, atol=1e-5)


def test_what_friends_say_is_read_by_the_social_model_alone():
    x, _ = records(3)
    more = x.copy()
    more[:, 7] += 0.5
    model = make(SocialRBM)
    eta = weights(model)["social_kernel"]
    one, two = (model.dynamic_biases(rows) for rows in (x, more))
    np.testing.assert_array_equal(array(one[0]), array(two[0]))
    moved = array(two[1]) - array(one[1])
    expected = np.broadcast_to(0.5 * eta[0], (3, HIDDEN))
    np.testing.assert_allclose(moved, expected, atol=1e-6)
    model = make()
    np.testing.assert_array_equal(array(model(x)), array(model(more)))


# The chain and its gradient -------------------------------------------------


def test_a_step_has_the_exact_probabilities():
    model = make(seed=3)
    x, _ = records(1)
    given, hidden, w = biases(model, x[0]), states(HIDDEN), weights(model)
    v = x[0, :3].astype("float64")
    p = sigmoid(given[1] + w["label_kernel"][1] + v @ w["kernel"])
    of_hidden = np.prod(np.where(hidden == 1, p, 1 - p), axis=1)
    label = np.exp(given[2] + hidden @ w["label_kernel"].T)
    label /= label.sum(axis=1, keepdims=True)
    means = sigmoid(given[0] + hidden @ w["kernel"].T)

    n = 40_000
    found_v, found_y = model.gibbs_step(np.repeat(x, n, 0), np.ones(n, "int32"))
    # Every hidden state has a mean of its own.
    distance = np.abs(array(found_v)[:, None] - means).sum(axis=2)
    assert distance.min(axis=1).max() < 1e-5
    cell = distance.argmin(axis=1) * CLASSES + array(found_y).argmax(axis=1)
    counts = np.bincount(cell, minlength=len(hidden) * CLASSES)
    expected = n * (of_hidden[:, None] * label).ravel()
    assert stats.chisquare(counts, expected).pvalue > 1e-4
    # The labels of the start are told apart.
    other = n * np.repeat(of_hidden, CLASSES) / CLASSES
    assert stats.chisquare(counts, other).pvalue < 1e-6


class FixedStep(ConditionalRBM):
    end = None

    def gibbs_step(self, inputs, labels):
        return self.end


@SHORT
@pytest.mark.parametrize("weighted", (False, True))
def test_the_gradient_adds_contrastive_divergence(weighted):
    n = 5
    x, y = records(n)
    rng = np.random.default_rng(9)
    end = rng.random((n, 3)), np.eye(CLASSES)[rng.integers(0, CLASSES, n)]
    share = np.array([0.0, 1.0, 2.0, 0.5, 3.0]) if weighted else np.ones(n)

    def gradients(generative_weight):
        """By weight, read off one step of rate 1."""
        model = make(FixedStep, generative_weight=generative_weight)
        model.end = tuple(
            keras.ops.convert_to_tensor(part.astype("float32")) for part in end
        )
        before = weights(model)
        model.compile(keras.optimizers.SGD(1.0))
        model.train_on_batch(x, y, sample_weight=share)
        after = weights(model)
        return {name: before[name] - after[name] for name in before}

    model = make()
    w = weights(model)
    _, b, _ = (np.array(t) for t in zip(*(biases(model, row) for row in x)))
    u = np.concatenate([x[:, 3:7], x[:, 9:11]], axis=1).astype("float64")

    def statistics(v, y):
        h = sigmoid(b + v @ w["kernel"] + y @ w["label_kernel"])
        rows = share[:, None] / n
        return {
            "kernel": (rows * v).T @ h,
            "label_kernel": (rows * y).T @ h,
            "visible_bias": (rows * v).sum(axis=0),
            "hidden_bias": (rows * h).sum(axis=0),
            "label_bias": (rows * y).sum(axis=0),
            "autoregressive_kernel": (rows * u).T @ v,
            "condition_kernel": (rows * u).T @ h,
            "condition_label_kernel": (rows * u).T @ y,
        }

    data = statistics(x[:, :3].astype("float64"), np.eye(CLASSES)[y])
    chain = statistics(*end)
    alone, both = gradients(0.0), gradients(0.3)
    assert set(both) == set(data)
    for name, value in both.items():
        expected = alone[name] + 0.3 * (chain[name] - data[name])
        np.testing.assert_allclose(value, expected, atol=2e-6, err_msg=name)


# Learning -------------------------------------------------------------------


def moving_dots(n, seed):
    """A dot steps left or right on a ring of 6; the label is the direction.

    Present and past are uniform and independent of the label one by one.
    """
    rng = np.random.default_rng(seed)
    past, y = rng.integers(0, 6, n), rng.integers(0, 2, n)
    eye = np.eye(6, dtype="float32")
    present = eye[(past + 2 * y - 1) % 6]
    social = (0.25 + 0.5 * y[:, None]).astype("float32")
    return np.hstack([present, eye[past], social]), y.astype("int32")


@pytest.mark.once
@pytest.mark.parametrize(
    "cls, columns, learns",
    [
        (ConditionalRBM, {"present": (0, 6), "history": (6, 12)}, True),
        (ConditionalRBM, {"present": (0, 6), "social": (12, 13)}, False),
        (SocialRBM, {"present": (0, 6), "social": (12, 13)}, True),
    ],
)
def test_history_or_friends_decide(cls, columns, learns):
    model = cls(20, 2, columns, seed=0)
    model.compile(keras.optimizers.Adam(0.02), metrics=["accuracy"])
    model.fit(*moving_dots(1000, seed=0), batch_size=50, epochs=12, verbose=0)
    x, y = moving_dots(1000, seed=1)
    accuracy = np.mean(array(model(x)).argmax(axis=1) == y)
    # Chance, by at most 4.4 standard errors.
    assert accuracy > 0.95 if learns else accuracy < 0.57


# As a Keras model -----------------------------------------------------------


@SHORT
@pytest.mark.parametrize("cls", (ConditionalRBM, SocialRBM))
def test_saved_model_predicts_and_trains_on(cls, tmp_path):
    x, y = records(40)
    model = cls(HIDDEN, CLASSES, COLUMNS, generative_weight=0.2, seed=4)
    model.compile("adam", metrics=["accuracy"])
    model.train_on_batch(x, y)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is cls
    assert loaded.get_config() == model.get_config()
    np.testing.assert_array_equal(array(model(x)), array(loaded(x)))
    assert "accuracy" in loaded.train_on_batch(x, y, return_dict=True)
    # Equal seeds give equal models.
    again = cls(HIDDEN, CLASSES, COLUMNS, generative_weight=0.2, seed=4)
    again.compile("adam")
    again.train_on_batch(x, y)
    np.testing.assert_array_equal(array(model(x)), array(again(x)))
