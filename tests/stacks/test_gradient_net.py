"""GradientNet: whole gradients of records, clipped without being formed."""

import math

import keras
import numpy as np
import pytest
from gradient_nets import (
    NETWORKS,
    array,
    by_layer,
    gradients,
    network,
    opposite,
    private,
    records,
    searched,
    sums,
)
from keras import layers as L
from keras import ops
from neighbours import check_sensitivity, distances

import keras_fm as fm
from keras_fm.stacks import affine_maps
from keras_fm.stacks.layer_coefficients import LayerCoefficientsQuery

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 7)).astype("float32")
Y = np.arange(24) % 3


@pytest.mark.parametrize("case", NETWORKS)
def test_gradients_are_those_of_the_backend(case):
    # Of one kind of clip in each of most networks.
    joint_too = case in ("dense", "residual")
    each = [0.1 * (k + 1) for k in range(len(network(case).private_layers))]
    other = network(case, clip=each)
    model = network(case, clip=0.5) if joint_too else other
    x, y = records(case, 6), np.arange(6) % 3
    exact = [by_layer(model, found) for found in gradients(model, x, y)]
    layers = np.array([[np.linalg.norm(v) for v in r] for r in exact])
    whole = np.linalg.norm(layers, axis=1)
    assert whole.min() < 0.95 * whole.max()
    if joint_too:
        np.testing.assert_allclose(
            model.coefficient_norms(x, y)[:, 0], whole, rtol=1e-3
        )
    np.testing.assert_allclose(
        other.coefficient_norms(x, y), layers, rtol=1e-3, atol=1e-6
    )
    joint = np.minimum(1, 0.5 / whole)[:, None]
    alone = np.minimum(1, np.array(each) / np.maximum(layers, 1e-9))
    for made, scale in (
        (sums(model, x, y, clipped=False), np.ones_like(layers)),
        (sums(model, x, y), joint + 0 * layers if joint_too else alone),
        (sums(other, x, y), alone),
    ):
        for k, found in enumerate(made):
            right = sum(s[k] * r[k] for s, r in zip(scale, exact))
            np.testing.assert_allclose(found, right, atol=2e-3, rtol=1e-3)
    # Padding and records that are no numbers count for nothing.
    rows = np.array([1, 1, 0, 1, 0.0, 1], "float32")
    held = x.copy()
    held[2], held[4], held[5] = 1e30, np.nan, np.inf
    if case == "tokens":
        # Whatever it is, it is taken for one in the table.
        rows[5] = 0
    for found, right in zip(
        sums(model, held, y, sample_weight=rows), sums(model, x[:5], y[:5],
        sample_weight=rows[:5]),
    ):  # fmt: skip
        np.testing.assert_allclose(found, right, atol=1e-5)


# Sensitivity --------------------------------------------------------------


@pytest.mark.parametrize(
    "clip, views", [(0.1, 1), ([0.1, 0.3], 1), (0.1, 3), ([0.1, 0.3], 2)]
)
def test_no_pair_moves_a_step_by_more_than_is_stated(clip, views):
    """A record of several views is all of them, each of its own."""
    layers = [L.Dense(2, activation="tanh"), L.Dense(2)]
    model = fm.models.GradientNet((3,), layers, clip=clip, views=views)
    check_sensitivity(searched(model), [opposite(model)], tries=10)


@pytest.mark.parametrize("views", [1, 4])
def test_the_stated_sensitivity_is_attained(views):
    keras.utils.set_random_seed(0)
    layers = [
        L.Conv2D(2, 3, activation="relu"),
        L.MaxPooling2D(2),
        L.Flatten(),
        L.Dense(2, kernel_initializer="zeros"),
    ]
    model = fm.models.GradientNet((6, 6, 1), layers, clip=0.1, views=views)
    domain = searched(model)
    found = distances(
        domain.query, *(domain.arguments(v) for v in opposite(model))
    )
    for relation, stated in (("add_remove", 1.0), ("replace_one", 2.0)):
        query = model.step_query()
        assert query.sensitivity("l2", neighbours=relation) == stated
        reached = found["joint", "l2", relation]
        assert stated * (1 - 2e-4) < reached <= stated


@pytest.mark.parametrize("filters", [2, 40])
def test_positions_that_cancel_hide_no_length(filters):
    """By blocks and by products: what float32 loses is in the norm."""
    keras.utils.set_random_seed(1)
    # A kernel that reads one entry has patches that are all alike.
    layers = [L.Conv2D(filters, 1), L.Flatten(), L.Dense(2)]
    fm.models.GradientNet((4, 4, 40), layers, clip=1.0)
    made = affine_maps.of_layer(layers[0], (4, 4, 40))
    rng = np.random.default_rng(0)
    for size in (1e2, 1e4, 1e6):
        u = rng.normal(size=(8, 1, 1, 40)) * np.ones((1, 4, 4, 1))
        u = (size * u + rng.normal(size=u.shape)).astype("float32")
        delta = rng.normal(size=(8, 4, 4, filters))
        delta -= delta.mean(axis=(1, 2), keepdims=True)
        delta = delta.astype("float32")
        exact = np.einsum("nabi,nabj->nij", u.astype("float64"), delta)
        length = np.linalg.norm(exact, axis=(1, 2))
        squared = array(made.squared_norm(*map(ops.array, (u, delta))))
        assert np.all(np.sqrt(squared) > length * (1 - 1e-5))
        # What is summed of a record alone is no longer either.
        for k in range(8):
            one = [ops.array(v[k : k + 1]) for v in (u, delta)]
            counted = ops.ones(1), ops.ones(1, "bool")
            kernel = made.sums(*one, *counted)[0]
            kernel = array(kernel).astype("float64")
            assert np.linalg.norm(kernel) < np.sqrt(squared[k]) * (1 + 1e-4)


# Training -----------------------------------------------------------------


def test_the_twin_trains_like_the_network_itself():
    model = network("strides, same, no bias", unprotected=True)
    plain = keras.Sequential([keras.Input((8, 8, 2)), *NETWORKS[
        "strides, same, no bias"][1]()])  # fmt: skip
    plain.set_weights(model.get_weights())
    x = np.random.default_rng(4).normal(size=(24, 8, 8, 2)).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    histories = []
    for made, given in ((model, {}), (plain, {"loss": loss})):
        made.compile(keras.optimizers.SGD(0.1), metrics=["accuracy"], **given)
        fit = made.fit(
            x, Y, batch_size=8, epochs=2, shuffle=False, verbose=0
        ).history
        histories.append(fit)
    for a, b in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(a, b, atol=1e-5)
    np.testing.assert_allclose(
        histories[0]["loss"], histories[1]["loss"], rtol=1e-4
    )


def batches():
    return fm.datasets.PoissonBatches(X, Y, batch_size=8)


@pytest.mark.parametrize(
    "clip, told, sensitivity",
    [
        (0.5, "of all layers clipped to the norm 0.5", 1.0),
        ([0.5, 0.2, 1], "clipped to the norms 0.5, 0.2, 1", 3**0.5),
    ],
)
@pytest.mark.once
def test_what_is_charged(clip, told, sensitivity):
    model, callback = network(clip=clip), private()
    model.compile("sgd")
    with pytest.raises(ValueError, match="start_from"):
        model.fit(batches(), callbacks=[callback], verbose=0)
    model = network(clip=clip)
    model.start_from(
        [w for v in model.private_layers for w in v.get_weights()], "a test"
    )
    model.compile("sgd", metrics=["accuracy"])
    logs = model.fit(batches(), epochs=2, callbacks=[callback], verbose=0)
    (entry,) = callback.ledger.entries
    assert told in entry.reads
    assert entry.mechanism["steps"] == model.steps_taken == 6
    assert entry.mechanism["sensitivity"] == pytest.approx(sensitivity)
    assert 7.9 < callback.ledger.epsilon() <= 8.0
    assert set(logs.history) == {"loss"}


@pytest.mark.once
def test_shuffled_batches_are_claimed():
    keras.utils.set_random_seed(3)
    model = fm.models.GradientNet((7,), NETWORKS["dense"][1](), clip=0.5)
    model.compile("sgd")
    with pytest.raises(ValueError, match="proven GradientNet"):
        model.fit(X, Y, batch_size=8, callbacks=[private(data=(X, Y))])
    shuffled = fm.Published(lot=8, neighbours="add_remove")
    callback = private(data=(X, Y), guarantee=shuffled)
    model.fit(X, Y, batch_size=8, callbacks=[callback], verbose=0)
    (entry,) = callback.ledger.entries
    assert entry.guarantee == "claimed" and math.isinf(
        callback.ledger.epsilon()
    )


def test_averaged_weights_are_released_as_they_are(tmp_path):
    keras.utils.set_random_seed(3)
    model = fm.models.GradientNet((7,), NETWORKS["dense"][1](), clip=0.5)
    optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5)
    model.compile(optimizer)
    model.fit(batches(), callbacks=[private()], verbose=0)
    assert model.is_released
    for weight, average in zip(
        model.trainable_variables, optimizer._model_variables_moving_average
    ):
        np.testing.assert_allclose(array(weight), array(average), rtol=1e-6)
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").is_released


def test_one_learned_threshold_for_all_layers():
    keras.utils.set_random_seed(3)
    model = fm.models.GradientNet(
        (7,), NETWORKS["dense"][1](), clip="histogram", name="net"
    )
    model.compile("sgd")
    x, y = np.tile(X, (30, 1)), np.tile(Y, 30)
    sampled = fm.datasets.PoissonBatches(x, y, batch_size=90)
    callback = private()
    model.fit(sampled, callbacks=[callback], verbose=0)
    names = [entry.name for entry in callback.ledger.entries]
    assert names == ["net (thresholds)", "net (steps)"]
    ((name, order, threshold),) = model.partitions
    assert (name, order) == ("net", 1) and 1e-4 < threshold < 10
    assert callback.ledger.epsilon() <= 8.0


def test_a_sequential_is_its_layers_and_a_file_holds_all(tmp_path):
    below = [L.Rescaling(0.5)]
    shape, layers = NETWORKS["pools that overlap"]
    model = fm.models.GradientNet(
        shape,
        keras.Sequential(layers()),
        loss="binary_crossentropy",
        clip=[0.1, 0.2, 0.3],
        clip_quantile=0.4,
        below=below,
        input_bound=3.0,
        views=3,
        planned_steps=7,
        noise_multiplier=2.0,
        unprotected=True,
        name="net",
    )
    model.compile("adam")
    x = np.random.default_rng(0).normal(size=(9, *shape)).astype("float32")
    model.fit(x, Y[:9], verbose=0)
    model.save(tmp_path / "model.keras")
    made = keras.saving.load_model(tmp_path / "model.keras")
    config, right = made.get_config(), model.get_config()
    assert [v["config"]["name"] for v in config.pop("layers")] == [
        v["config"]["name"] for v in right.pop("layers")
    ]
    assert len(config.pop("below")) == len(right.pop("below"))
    assert config == right
    assert made.partitions == model.partitions
    np.testing.assert_array_equal(
        made.predict(x, verbose=0), model.predict(x, verbose=0)
    )


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    plain = network()
    keras.config.set_dtype_policy(policy)
    try:
        model = network(clip=0.1, unprotected=True)
    finally:
        keras.config.set_dtype_policy("float32")
    for a, b in zip(
        sums(model, X, Y, clipped=False), sums(plain, X, Y, clipped=False)
    ):
        assert a.dtype == "float32"
        np.testing.assert_allclose(a, b, atol=0.02)
    model.compile("sgd")
    model.perturb(0.5, 8.0, 3)
    logs = model.fit(X, Y, batch_size=8, verbose=0).history
    assert np.isfinite(logs["loss"][0]) and model.steps_taken == 3


# Refusals -----------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, layers, kwargs, match",
    [
        (
            (6, 6, 1),
            [L.BatchNormalization(), L.Flatten(), L.Dense(3)],
            {},
            "mixes the records",
        ),
        ((7, 2), [L.Dense(3)], {}, "one output of shape"),
        ((7,), [L.Dense(3, activation="softmax")], {}, "loss of logits"),
        ((7,), [L.Dense(3), L.Activation("tanh")], {}, "loss of logits"),
        ((7,), [L.Dense(3), L.Softmax()], {}, "loss of logits"),
        ((7,), [L.Flatten()], {}, "weights that are trainable"),
        ((7,), [], {}, "must be Keras layers"),
        ((7,), ["dense"], {}, "must be Keras layers"),
        ((7,), [L.Dense(3)], {"clip": None}, "clip=None"),
        ((7,), [L.Dense(3)], {"clip": "analytic"}, "clip='analytic'"),
        ((7,), [L.Dense(3)], {"clip": 0.0}, "clip"),
        ((7,), [L.Dense(3)], {"clip": [1.0, 1.0]}, "1 trained layers"),
        ((7,), L.Dense(3), {}, "must be a list of layers"),
        ((7,), [L.Dense(3)], {"views": 0}, "views"),
        ((7,), [L.Dense(3)], {"views": 2, "clip": "histogram"}, "views=2"),
    ],
)
def test_refusals(shape, layers, kwargs, match):
    with pytest.raises(ValueError, match=match):
        fm.models.GradientNet(shape, layers, **kwargs)


def test_joint_coefficients_have_one_threshold():
    with pytest.raises(ValueError, match="one threshold"):
        LayerCoefficientsQuery(thresholds=(1.0, 2.0), joint=True)
