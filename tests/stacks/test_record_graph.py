"""Networks that branch, normalise and look up, whose gradients are clipped."""

import keras
import numpy as np
import pytest
from gradient_nets import (
    MADE,
    NETWORKS,
    array,
    gradients,
    longest,
    network,
    opposite,
    private,
    records,
    searched,
    sums,
)
from keras import layers as L
from keras import ops
from neighbours import check_sensitivity

import keras_fm as fm
from keras_fm.parts import replicas
from keras_fm.per_example.embedding_map import EmbeddingMap
from keras_fm.per_example.scale_map import RectifierMap, ScaleMap

GRAPHS = ["residual", "tokens", "mobile", "waves", "attention"]


def branches():
    x = keras.Input((2, 2))
    y = L.LayerNormalization()(L.Dense(2, activation="tanh")(x))
    z = L.Conv1D(2, 2, padding="same")(y)
    return keras.Model(x, L.Dense(2)(L.Flatten()(L.Add()([y, z]))))


def words():
    x = keras.Input((3,))
    y = L.GlobalAveragePooling1D()(L.Embedding(3, 2)(x))
    return keras.Model(x, L.Dense(2)(y))


# Sensitivity --------------------------------------------------------------


def separable():
    x = keras.Input((3, 2))
    y = L.SeparableConv1D(2, 2, depth_multiplier=2)(L.PReLU()(x))
    y = L.RMSNormalization()(y)
    return keras.Model(x, L.Dense(2)(L.Flatten()(y)))


def attending():
    x = keras.Input((2, 2))
    y = L.MultiHeadAttention(1, 2)(x, x)
    return keras.Model(x, L.Dense(2)(L.Flatten()(y)))


@pytest.mark.parametrize(
    "made, shape, views",
    [
        (branches, (2, 2), 1),
        (branches, (2, 2), 2),
        (words, (3,), 1),
        (words, (3,), 2),
        (separable, (3, 2), 2),
        (attending, (2, 2), 2),
    ],
)
def test_no_pair_moves_a_step_by_more_than_is_stated(made, shape, views):
    model = fm.models.GradientNet(shape, made(), clip=0.1, views=views)
    check_sensitivity(searched(model), [opposite(model)], tries=10)


@pytest.mark.parametrize(
    "case, views", [("residual", 1), ("tokens", 3), ("attention", 1)]
)
def test_no_record_adds_more_than_the_clip(case, views):
    model = network(case, clip=0.1, views=views)
    normal = records(case, views)
    alike = np.broadcast_to(normal[:1], normal.shape)
    made = longest(model, normal, alike, abs(normal), 0 * normal)
    assert 0.0999 < made <= 0.1


def cancelling(map_of, u, delta, formed):
    """That what float32 loses where places cancel is in the norm."""
    found = map_of.squared_norm(ops.array(u), ops.array(delta))
    length = np.linalg.norm(formed.reshape(len(u), -1), axis=1)
    assert np.all(np.sqrt(array(found)) > length * (1 - 1e-5))
    for k in range(len(u)):
        one = [ops.array(v[k : k + 1]) for v in (u, delta)]
        made = map_of.sums(*one, ops.ones(1), ops.ones(1, "bool"))
        alone = np.concatenate([array(v).ravel() for v in made])
        alone = np.linalg.norm(alone.astype("float64"))
        assert alone < np.sqrt(array(found)[k]) * (1 + 1e-4)


def centred(rng, *shape):
    delta = rng.normal(size=shape)
    delta -= delta.mean(axis=1, keepdims=True)
    return delta.astype("float32")


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
def test_places_that_cancel_hide_no_length(size):
    rng = np.random.default_rng(0)
    delta = centred(rng, 8, 400, 3)
    layer = L.LayerNormalization()
    layer.build((None, 400, 3))
    u = size * np.ones((8, 400, 3)) + rng.normal(size=(8, 400, 3))
    u = u.astype("float32")
    both = [np.sum(u.astype("float64") * delta, 1), np.sum(delta, 1, "float64")]
    cancelling(ScaleMap(layer, (400, 3)), u, delta, np.hstack(both))
    layer = L.PReLU(shared_axes=[1])
    layer.build((None, 800, 3))
    made = RectifierMap(layer, (800, 3))
    # What is positive is not alpha's.
    ups = np.concatenate([-abs(u), abs(u)], axis=1)
    down = np.concatenate([delta, delta], axis=1)
    left = np.sum(-abs(u).astype("float64") * delta, 1)
    cancelling(made, ups, down, left)
    layer = L.Embedding(5, 3)
    layer.build((None, 400))
    # One token everywhere: its row is what is left of all places.
    delta = (size * delta).astype("float32")
    left = np.sum(delta, 1, "float64")
    cancelling(
        EmbeddingMap(layer, (400,)), np.ones((8, 400), "float32"), delta, left
    )


@pytest.mark.parametrize("size", [1e-25, 1e-21, 1e-19, 1.0])
def test_no_square_vanishes_in_a_table(size):
    """Squares that float32 takes for 0: a record was as long as it liked under
    a threshold as small, `clip=[1e-22, ...]`."""
    layer = L.Embedding(5, 3)
    layer.build((None, 4))
    made = EmbeddingMap(layer, (4,))
    delta = np.full((2, 4, 3), size, "float32")
    norms = made.squared_norm(np.ones((2, 4), "float32"), ops.array(delta))
    # One token at four places.
    assert np.all(np.sqrt(array(norms)) >= 4 * np.sqrt(3) * size * (1 - 1e-6))


# Training -----------------------------------------------------------------


@pytest.mark.parametrize("case", GRAPHS)
def test_the_twin_trains_like_the_network_itself(case):
    model = network(case, unprotected=True)
    plain = NETWORKS[case][1]()
    held = {tuple(w.shape): [] for w in plain.trainable_variables}
    for w in plain.trainable_variables:
        held[tuple(w.shape)].append(w)
    for w in model.trainable_variables:
        held[tuple(w.shape)].pop(0).assign(array(w))
    x, y = records(case, 24), np.arange(24) % 3
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = []
    for made, given in ((model, {}), (plain, {"loss": loss})):
        made.compile(keras.optimizers.SGD(0.1), **given)
        fit = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        losses.append(made.fit(x, y, **fit).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-3)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), plain.predict(x, verbose=0), atol=1e-3
    )


@pytest.mark.parametrize("case", [*GRAPHS, "masks"])
def test_a_private_fit_is_charged_and_saved(case, tmp_path):
    keras.utils.set_random_seed(0)
    shape, layers = MADE[case]
    model = fm.models.GradientNet(shape, layers(), clip=0.5, name="net")
    model.compile("sgd")
    x, y = records(case, 24), np.arange(24) % 3
    batches = fm.datasets.PoissonBatches(x, y, batch_size=8)
    callback = private()
    model.fit(batches, callbacks=[callback], verbose=0)
    (entry,) = callback.ledger.entries
    assert entry.mechanism["sensitivity"] == 1.0 and model.steps_taken == 3
    model.save(tmp_path / "model.keras")
    made = keras.saving.load_model(tmp_path / "model.keras")
    assert made.is_released and len(made.private_layers) == len(
        model.private_layers
    )
    np.testing.assert_array_equal(
        made.predict(x, verbose=0), model.predict(x, verbose=0)
    )


# JAX multiplies no stacks of float16 on a CPU.
@pytest.mark.parametrize(
    "case, policy",
    [("residual", "mixed_float16"), ("attention", "mixed_bfloat16")],
)
def test_no_record_is_longer_than_the_clip_in_half_precision(case, policy):
    """bfloat16 reached 1.0037 of the clip, and float16 lost records."""
    keras.config.set_dtype_policy(policy)
    try:
        model = network(case, clip=0.1, unprotected=True)
    finally:
        keras.config.set_dtype_policy("float32")
    x, y = records(case, 6), np.arange(6) % 3
    for k in range(6):
        made = sums(model, x[k : k + 1], y[k : k + 1])
        length = np.linalg.norm(np.concatenate(made).astype("float64"))
        assert 0.099 < length <= 0.1


# Networks that no list names ------------------------------------------------


def of(function, shape=(6,)):
    x = keras.Input(shape)
    return keras.Model(x, L.Dense(3)(function(x)))


def shared(x):
    layer = L.Dense(6)
    return layer(layer(x))


class Own(keras.Model):
    """Would mix records in a batch, and does not where each is alone."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(3)

    def call(self, x):
        return self.dense(ops.tanh(x) - ops.mean(x, axis=0) / 2)


def lora():
    dense = L.Dense(5, activation="tanh")
    network = of(lambda x: dense(x))
    dense.enable_lora(2)
    return network


OPEN = {
    "a mean over the batch": lambda: of(lambda x: x - ops.mean(x, 0) / 2),
    "a layer twice": lambda: of(shared),
    "subclassed": Own,
    "recurrent": lambda: of(lambda x: L.LSTM(4)(L.Reshape((3, 2))(x))),
    "lora": lora,
}


@pytest.mark.parametrize("case", OPEN)
def test_any_network_has_the_gradients_of_its_records_alone(case):
    """Shared weights, code of one's own, weights that a list did not name."""
    keras.utils.set_random_seed(0)
    model = fm.models.GradientNet((6,), OPEN[case](), clip=0.5)
    rng = np.random.default_rng(1)
    for weight in model.trainable_variables:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    x = rng.normal(size=(4, 6)).astype("float32")
    y = np.arange(4) % 3
    exact = [np.concatenate(found) for found in gradients(model, x, y)]
    lengths = np.array([np.linalg.norm(v) for v in exact])
    found = model.coefficient_norms(x, y)[:, 0]
    np.testing.assert_allclose(found, lengths, rtol=1e-3)
    right = sum(v * min(1, 0.5 / length) for v, length in zip(exact, lengths))
    made = np.concatenate(sums(model, x, y))
    np.testing.assert_allclose(made, right, atol=2e-3, rtol=1e-3)


# Refusals -----------------------------------------------------------------


@pytest.mark.parametrize(
    "network, match",
    [
        (lambda: of(L.BatchNormalization()), "mixes the records"),
        (lambda: of(L.Dense(4), (7,)), "shape"),
        (lambda: of(L.Dense(4), (7, 6)), "shape"),
        (
            lambda: keras.Model(
                a := keras.Input((6,)), L.Activation("tanh")(L.Dense(3)(a))
            ),
            "loss of logits",
        ),
        (
            lambda: keras.Model(a := keras.Input((6,)), [L.Dense(3)(a)] * 2),
            "one output",
        ),
        (
            lambda: keras.Model(
                a := keras.Input((6,)), L.Activation("tanh")(a)
            ),
            "weights that are trainable",
        ),
    ],
)
def test_refusals(network, match):
    with pytest.raises(ValueError, match=match):
        fm.models.GradientNet((6,), network())


def test_records_of_no_known_shape_are_refused():
    layers = [L.Conv1D(2, 3), L.GlobalAveragePooling1D(), L.Dense(2)]
    with pytest.raises(ValueError, match="of a known shape"):
        fm.models.GradientNet((None, 4), layers)


# Masks -----------------------------------------------------------------------

# Four rows, each of its own block of inputs: gradients show their masks.
ROWS = np.kron(np.eye(4), np.ones(12)).astype("float32")


class Seen(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.last, self.masks = self.kernel(), []

    def on_train_batch_end(self, batch, logs=None):
        now = self.kernel()
        self.masks.append(abs(now - self.last).max(axis=1) > 1e-4)
        self.last = now

    def kernel(self):
        return array(self.model.private_layers[0].kernel)


def shown(noisy, seed=None):
    """Masks of eight compiled steps, `(8, 4, 12)`."""
    layers = [L.Dropout(0.5, seed=seed), L.Dense(2, kernel_initializer="zeros")]
    model = fm.models.GradientNet((48,), layers, clip=10.0, unprotected=True)
    model.compile(keras.optimizers.SGD(0.1))
    if noisy:
        model.perturb(1e-6, 4.0, 8)
    seen, y = Seen(), np.zeros(4)
    fit = {"batch_size": 4, "epochs": 8, "shuffle": False, "verbose": 0}
    model.fit(ROWS, y, callbacks=[seen], **fit)
    predicted = model.predict(ROWS, verbose=0)
    np.testing.assert_array_equal(predicted, model.predict(ROWS, verbose=0))
    return np.stack(seen.masks).reshape(8, 4, 12)


@pytest.mark.parametrize("noisy", [False, True])
def test_masks_are_new_at_every_step_and_of_every_row(noisy):
    masks = shown(noisy).reshape(32, 12)
    # On PyTorch a step has one mask, of which every row shows its block.
    assert len(np.unique(masks, axis=0)) >= 30
    assert 0.3 < masks.mean() < 0.7
    # Neither the next step's nor the next row's.
    for shift in (1, 4):
        alike = (masks[shift:] == masks[:-shift]).mean()
        assert 0.3 < alike < 0.7


def test_a_seed_of_masks_is_of_the_twin_alone():
    """Masks that somebody knows would not hide in which row a record is."""
    first, second = (shown(False, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    first, second = (shown(True, seed=5) for _ in range(2))
    assert 0.3 < (first == second).mean() < 0.7


def test_several_replicas_are_refused_masks(monkeypatch):
    model = fm.models.GradientNet(
        (6,), [L.Dropout(0.5), L.Dense(2)], unprotected=True
    )
    monkeypatch.setattr(replicas, "of_strategy", lambda model: (2, True))
    monkeypatch.setattr(type(model._noise), "is_mirrored", True)
    with pytest.raises(ValueError, match="same masks"):
        model.perturb(1.0, 8.0, 3)
