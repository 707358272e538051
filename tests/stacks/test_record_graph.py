"""Networks that branch, normalise and look up, whose gradients are clipped."""

import keras
import numpy as np
import pytest
from gradient_nets import (
    MADE,
    NETWORKS,
    array,
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
from keras_fm.stacks.embedding_map import EmbeddingMap
from keras_fm.stacks.scale_map import RectifierMap, ScaleMap

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


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("case", GRAPHS)
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


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("case", GRAPHS)
def test_gradients_do_not_feel_the_policy(case, policy):
    plain = network(case)
    keras.config.set_dtype_policy(policy)
    try:
        model = network(case, unprotected=True)
    finally:
        keras.config.set_dtype_policy("float32")
    x, y = records(case, 6), np.arange(6) % 3
    for a, b in zip(
        sums(model, x, y, clipped=False), sums(plain, x, y, clipped=False)
    ):
        assert a.dtype == "float32"
        np.testing.assert_allclose(a, b, atol=1e-5)


# Refusals -----------------------------------------------------------------


def of(function, shape=(6,)):
    x = keras.Input(shape)
    return keras.Model(x, L.Dense(3)(function(x)))


def shared(x):
    layer = L.Dense(6)
    return layer(layer(x))


class Own(keras.Model):
    def call(self, x):
        return x - ops.mean(x, axis=0)


@pytest.mark.parametrize(
    "network, match",
    [
        (lambda: of(lambda x: x - ops.mean(x, axis=0)), "different axes|Mean"),
        (lambda: of(lambda x: ops.flip(x, axis=0)), "Flip"),
        (lambda: of(lambda x: x + np.ones((6,), "float32")), "constant array"),
        (lambda: of(lambda x: ops.reshape(x, (-1, 6))), "Reshape"),
        (lambda: of(shared), "twice"),
        (lambda: of(L.BatchNormalization()), "BatchNormalization"),
        (lambda: of(Own()), "Own"),
        (lambda: of(L.Dense(4), (7,)), "shape"),
        (lambda: of(L.Dense(4), (7, 6)), "shape"),
        (
            lambda: keras.Model(
                [a := keras.Input((6,)), b := keras.Input((6,))],
                L.Dense(3)(L.Add()([a, b])),
            ),
            "one input",
        ),
        (
            lambda: keras.Model(
                a := keras.Input((6,)), L.Activation("tanh")(L.Dense(3)(a))
            ),
            "must end with",
        ),
        (
            lambda: keras.Model(
                a := keras.Input((6,)), L.Add()([L.Dense(3)(a), L.Dense(3)(a)])
            ),
            "must end with",
        ),
    ],
)
def test_refusals(network, match):
    with pytest.raises(ValueError, match=match):
        fm.models.GradientNet((6,), network())


def attends(called=(), **kwargs):
    x = keras.Input((4, 3))
    y = L.MultiHeadAttention(2, 3, **kwargs)(x, x, **dict(called))
    y = L.Flatten()(y[0] if isinstance(y, tuple) else y)
    return keras.Model(x, L.Dense(3)(y))


def lora():
    network = attends()
    network.layers[1]._query_dense.enable_lora(2)
    return network


@pytest.mark.parametrize(
    "network, match",
    [
        (lambda: attends(dropout=0.1), "dropout=0"),
        (lambda: attends(attention_axes=(1, 2)), "attention_axes"),
        (lambda: attends(output_shape=(2, 3)), "one number"),
        (lambda: attends(activity_regularizer="l2"), "activity_regularizer"),
        (
            lambda: attends(called={"return_attention_scores": True}),
            "return_attention_scores|called without",
        ),
        (
            lambda: attends(
                called={"attention_mask": np.ones((1, 4, 4), "bool")}
            ),
            "attention_mask",
        ),
        (lora, "LoRA"),
    ],
)
def test_attention_that_is_not_known_is_refused(network, match):
    with pytest.raises(ValueError, match=match):
        fm.models.GradientNet((4, 3), network())


def test_records_of_no_known_shape_are_refused():
    layers = [L.Conv1D(2, 3), L.GlobalAveragePooling1D(), L.Dense(2)]
    with pytest.raises(ValueError, match="of a known shape"):
        fm.models.GradientNet((None, 4), layers)


def test_tensors_that_are_given_by_name():
    x = keras.Input((6,))
    h = L.Dense(4)(inputs=x)
    h = ops.add(x1=h, x2=L.Dense(4, activation="tanh")(x, training=True))
    model = fm.models.GradientNet((6,), keras.Model(x, L.Dense(2)(h)), clip=0.1)
    made = sums(model, np.ones((3, 6), "float32"), np.zeros(3))
    assert np.linalg.norm(np.concatenate(made)) > 0.2
