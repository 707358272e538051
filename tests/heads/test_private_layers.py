"""PrivateDense, PerturbedAffine, NormalizationLayer as Keras layers."""

import keras
import numpy as np
import pytest
from layer_checks import (
    came_to_be,
    check_layer,
    check_promise,
    check_refuses,
    check_saved,
)
from scipy import stats

from keras_fm import Published
from keras_fm.callbacks import PrivateModel
from keras_fm.heads.private_dense import PrivateDense
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.release import calibrate, release
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.papers.adlm import claims
from keras_fm.papers.adlm.perturbed_layers import PerturbedAffine
from keras_fm.public.normalization_layer import NormalizationLayer

X = np.random.default_rng(0).normal(size=(5, 7)).astype("float32")
IMAGES = np.random.default_rng(1).normal(size=(3, 4, 4, 2)).astype("float32")


def array(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: PrivateDense(3, **k),
        lambda **k: PrivateDense(
            1, use_bias=False, feature_bound=2.0, feature_l1_bound=3.0, **k
        ),
        lambda **k: PerturbedAffine(4, activation="relu", **k),
        lambda **k: PerturbedAffine(4, use_bias=False, **k),
    ],
)
def test_private_layers_are_keras_citizens(make, tmp_path):
    check_layer(make, X, private=True)
    check_saved(make(), X, tmp_path / "m.keras")


@pytest.mark.full
@pytest.mark.parametrize("kind", [PrivateDense, PerturbedAffine])
def test_nothing_trains_unprotected(kind, tmp_path):
    check_promise(lambda **k: kind(3, **k), X, tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: NormalizationLayer(**k),
        lambda **k: NormalizationLayer(mode="ball", norm="l1", **k),
        lambda **k: NormalizationLayer(bounds=(-9, 9), norm="linf", **k),
        lambda **k: NormalizationLayer(bounds=([-9] * 7, [9] * 7), **k),
        lambda **k: NormalizationLayer(mode="batch", **k),
    ],
)
def test_layers_are_keras_citizens(make, tmp_path):
    check_layer(make, X)
    check_saved(make(), X, tmp_path / "m.keras")


# PrivateDense --------------------


@pytest.mark.parametrize("unprotected", [False, True])
def test_private_dense_is_dense_until_something_is_released(unprotected):
    layer = PrivateDense(3, unprotected=unprotected)
    dense = keras.layers.Dense(3)
    layer.build((None, 7))
    dense.build((None, 7))
    dense.set_weights(layer.get_weights())
    # Trained it is `Dense` as the non-private twin alone.
    for training in (False, True)[: 1 + unprotected]:
        np.testing.assert_allclose(
            array(layer(X, training=training)), array(dense(X)), atol=1e-6
        )
    assert not layer.losses


def test_private_dense_objective_view():
    layer = PrivateDense(3, bias_feature=0.5, feature_bound=2.0)
    layer.build((None, 7))
    assert layer.num_features == 8
    assert layer.objective_bound == pytest.approx(np.hypot(2.0, 0.5))
    augmented = layer.augment(X)
    assert augmented.dtype == X.dtype and np.all(augmented[:, -1] == 0.5)
    # A row at the bound stays within the objective's bound.
    row = layer.augment(np.array([[2.0] + [0.0] * 6]))
    assert np.linalg.norm(row) <= layer.objective_bound * (1 + 1e-12)
    assert layer.objective().feature_l1_bound is None
    # Sparse rows at both bounds stay within both of the objective.
    for use_bias, most in ((True, 3.5), (False, 3.0)):
        layer = PrivateDense(
            3,
            use_bias=use_bias,
            bias_feature=0.5,
            feature_bound=2.0,
            feature_l1_bound=3.0,
        )
        layer.build((None, 7))
        objective = layer.objective()
        assert objective.feature_l1_bound == most
        x, y = np.array([[1.0, -1.0, 1.0] + [0.0] * 4]), [1]
        rows = layer.augment(x)
        inside = objective.accumulate(objective.zero(), rows, y)
        np.testing.assert_allclose(np.triu(inside[0]), np.triu(rows.T @ rows))
        with pytest.raises(ValueError, match="public L1 bound"):
            objective.accumulate(objective.zero(), layer.augment(1.1 * x), y)


def test_a_released_layer_gives_zero_logits_and_a_loss_while_training():
    layer = PrivateDense(2)
    layer.build((None, 7))
    minimiser = np.random.default_rng(0).normal(size=(8, 2))
    layer.set_release(np.eye(8), minimiser, 1.5, "{}")
    assert np.all(array(layer(X, training=True)) == 0)
    w = np.concatenate([layer.get_weights()[0],
                        layer.get_weights()[1][None] / 0.1])  # fmt: skip
    expected = 1.5 + np.sum((w - minimiser) ** 2) / 8
    assert float(array(layer.losses[0])) == pytest.approx(expected, rel=1e-5)
    assert np.abs(array(layer(X, training=False))).max() > 0


def released(name="output", ledger='{"entries": []}', seed=0):
    """A model of one released layer, and the layer."""
    layer = PrivateDense(2, name=name)
    model = keras.Sequential([keras.Input((7,)), layer])
    minimiser = np.random.default_rng(seed).normal(size=(8, 2))
    layer.set_release(2 * np.eye(8), minimiser, 1.5, ledger)
    layer.set_weights_from_minimiser()
    return model, layer


def test_copies_and_files_carry_a_release_with_its_weights_only(tmp_path):
    model, layer = released()
    layer(X, training=True)
    (wanted,) = (float(array(v)) for v in layer.losses)
    for other in came_to_be(model, tmp_path / "m.keras"):
        found = other.layers[0]
        same = np.array_equal(array(found.kernel), array(layer.kernel))
        assert found.is_released == same
        if not same:
            # Of a config there are new weights, and nothing is known of them.
            check_refuses(other, X)
            continue
        assert found.ledger_json == layer.ledger_json
        assert np.all(array(found(X, training=True)) == 0)
        assert float(array(found.losses[0])) == pytest.approx(wanted)


def test_files_loaded_over_a_release(tmp_path):
    path = tmp_path / "m.weights.h5"
    model, layer = released()
    other, _ = released(seed=1, ledger='{"other": 1}')
    other.save_weights(path)
    model.load_weights(path)
    # The release of the file, in the place of its own.
    assert layer.ledger_json == '{"other": 1}'
    np.testing.assert_array_equal(
        array(layer._get_hidden("minimiser")),
        array(other.layers[0]._get_hidden("minimiser")),
    )
    free = keras.Sequential([keras.Input((7,)), PrivateDense(2, name="output")])
    free.save_weights(path)
    model.load_weights(path)
    check_refuses(model, X, words=["It was released, but its weights are no"])


def test_a_twin_and_a_release_exclude_each_other(tmp_path):
    path = tmp_path / "m.weights.h5"
    model, layer = released()
    twin = PrivateDense(2, name="output", unprotected=True)
    unprotected = keras.Sequential([keras.Input((7,)), twin])
    before = twin.get_weights()
    model.save_weights(path)
    with pytest.raises(ValueError, match="file holds a release"):
        unprotected.load_weights(path)
    with pytest.raises(ValueError, match="twin is never released"):
        twin.set_release(np.eye(8), np.ones((8, 2)), 0.0, "{}")
    for weight, kept in zip(twin.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, kept)
    assert np.abs(array(twin(X, training=True))).max() > 0 and not twin.losses
    # What a twin learned are no released weights.
    unprotected.save_weights(path)
    model.load_weights(path)
    check_refuses(model, X)


def test_a_layer_learns_a_release_that_its_ledger_paid_for():
    budget = PrivacyBudget(1.0, 1e-5)
    layer = PrivateDense(3)
    layer.build((None, 4))
    ledger = Ledger(budget, neighbours="add_remove")
    objective = layer.objective()
    h = layer.augment(np.eye(4)[np.arange(40) % 4])
    made = release(
        objective,
        [(h, np.arange(40) % 3)],
        mechanism=calibrate(objective, budget, neighbours="add_remove"),
        ledger=ledger,
        name="output",
        noise=NoiseSource(0),
    )
    other = PrivateDense(3, feature_bound=2.0)
    other.build((None, 4))
    for wrong, refused in ((layer, "no entry"), (other, "is not one of layer")):
        with pytest.raises(ValueError, match=refused):
            wrong.learn(made, Ledger(budget, neighbours="add_remove"))
        assert not wrong.is_released and wrong.ledger_json is None
    with pytest.raises(ValueError, match='"minimiser" or "current"'):
        layer.learn(made, ledger, start="zeros")
    layer.learn(made, Ledger.from_json(ledger.to_json()))
    assert layer.is_released and "output" in layer.ledger_json


def test_the_released_loss_keeps_full_precision_under_a_half_policy():
    layer = PrivateDense(2, dtype="mixed_bfloat16")
    layer.build((None, 7))
    minimiser = np.random.default_rng(0).normal(size=(8, 2))
    layer.set_release(1e3 * np.eye(8), minimiser, 0.0, "{}")
    layer.set_weights_from_minimiser()
    layer(X, training=True)
    # bfloat16 weights would miss the minimiser by about 4e-3 each.
    assert float(array(layer.losses[0])) < 1e-6


# PerturbedAffine --------------------


def test_affine_noise_acts_only_while_training():
    layer = PerturbedAffine(4, activation="tanh")
    layer.build((None, 7))
    kernel, bias = layer.get_weights()
    plain = np.tanh(X @ kernel + bias)
    twin = PerturbedAffine(4, activation="tanh", unprotected=True)
    twin.build((None, 7))
    twin.set_weights([kernel, bias])
    np.testing.assert_allclose(array(twin(X, training=True)), plain, atol=1e-5)
    with pytest.raises(ValueError, match="use the records unprotected"):
        layer(X, training=True)
    rng = np.random.default_rng(0)
    nx, nb = rng.normal(size=7), rng.normal(size=4)
    layer.fix_noise(input_noise=nx, bias_noise=nb)
    shifted = np.tanh((X + nx) @ kernel + bias + nb)
    np.testing.assert_allclose(
        array(layer(X, training=True)), shifted, atol=1e-5
    )
    np.testing.assert_allclose(
        array(layer(X, training=False)), plain, atol=1e-5
    )


def test_published_noise_has_the_papers_scale():
    # Fixed seed. False alarm 1e-3; 2/3 and 3/2 of the scale are rejected.
    inputs, units, batch, epsilon = 2000, 4, 10, 3.0
    model = keras.Sequential(
        [
            keras.Input((inputs,)),
            NormalizationLayer((0, 1), "linf"),
            PerturbedAffine(units, activation="sigmoid", name="first"),
            PrivateDense(2),
        ]
    )
    model.compile("sgd", TaylorCrossEntropy())
    private = PrivateModel(
        epsilon, 0.0, guarantee=Published(lot=batch), reproducible_noise=5
    )
    x = np.zeros((10, inputs), "float32")
    model.fit(x, np.zeros(10), batch_size=batch, callbacks=[private], verbose=0)
    # Two perturbed objectives share epsilon equally.
    scale = claims.affine_sensitivity(
        units, inputs, neighbours="replace_one"
    ) / (epsilon / 2)
    first = model.get_layer("first")
    noise = array(first._get_hidden("input_noise")) * batch
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        cdf = stats.laplace(scale=wrong * scale).cdf
        assert stats.kstest(noise, cdf).pvalue < 1e-6


# NormalizationLayer --------------------


@pytest.mark.parametrize("norm, order", [("l2", 2), ("l1", 1)])
@pytest.mark.parametrize("inputs", [X, IMAGES, 1e4 * X])
def test_unit_norm(norm, order, inputs):
    y = array(NormalizationLayer(norm=norm)(inputs)).reshape(len(inputs), -1)
    np.testing.assert_allclose(np.linalg.norm(y, order, axis=1), 1, rtol=1e-5)
    flat = inputs.reshape(len(inputs), -1)
    cosine = np.sum(flat * y, 1) / np.linalg.norm(flat, axis=1)
    np.testing.assert_allclose(cosine, np.linalg.norm(y, axis=1), rtol=1e-5)


def test_ball_scales_only_what_is_outside():
    y = array(NormalizationLayer(mode="ball")(np.array([[0.3, 0.4], [3, 4.0]],
                                                       "float32")))  # fmt: skip
    np.testing.assert_allclose(y, [[0.3, 0.4], [0.6, 0.8]], rtol=1e-6)


def test_box_maps_corners_to_the_sphere_and_clips():
    layer = NormalizationLayer(bounds=(-1.0, 3.0))
    y = array(layer(np.array([[-1, -1], [3, 3], [9, -9], [1, 1]], "float32")))
    root = np.sqrt(0.5)
    np.testing.assert_allclose(
        y, [[0, 0], [root, root], [root, 0], [root / 2, root / 2]], atol=1e-6
    )
    l1 = array(NormalizationLayer(bounds=(0, 1), norm="l1")(
        np.ones((1, 5), "float32")))  # fmt: skip
    assert np.abs(l1).sum() == pytest.approx(1)


def test_half_precision_does_not_overflow():
    layer = NormalizationLayer(dtype="mixed_float16")
    y = array(layer(np.full((1, 4), 6e4, "float32"))).astype("float64")
    assert np.linalg.norm(y) == pytest.approx(1, abs=2e-3)


def test_batch_mode_is_the_published_form():
    y = array(NormalizationLayer(mode="batch")(X))
    low, high = X.min(0), X.max(0)
    np.testing.assert_allclose(
        y, (X - low) / (high - low) / np.sqrt(7), atol=1e-5
    )


def test_batch_mode_takes_the_extremes_of_every_batch():
    layer = NormalizationLayer(norm="linf", mode="batch")
    x = np.array([[0.0, 5.0], [1.0, 7.0], [4.0, 6.0]])
    wanted = [[0, 0], [0.25, 1], [1, 0.5]]
    for training in (True, False):
        np.testing.assert_allclose(array(layer(x, training=training)), wanted)
    assert layer.depends_on_data and not layer.weights
