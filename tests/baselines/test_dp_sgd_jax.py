"""DP-SGD by jax-privacy, which lives in an environment of its own."""

import dataclasses
import math
import sys

import keras
import numpy as np
import pytest
from clipped_sgd import (
    CLASSES,
    GOLDEN,
    N,
    augment,
    by_hand,
    config,
    convolutional_model,
    data,
    golden_run,
    hidden_layer_model,
    linear_model,
    there_and_back,
)

from keras_fm.baselines import JaxDPSGDClassifier, dp_sgd_jax


@pytest.fixture
def jax_privacy():
    if keras.backend.backend() != "jax":
        pytest.skip("jax-privacy needs the JAX backend of Keras")
    return pytest.importorskip("jax_privacy")


def build_and_fit(model, cfg, x, y, epsilon=math.inf, seed=5, **kwargs):
    fit = JaxDPSGDClassifier(model, cfg, epsilon, 1e-5, seed=seed, **kwargs)
    return fit.fit(x, y)


# Clipping and updates ------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"l2_norm_clip": 1e6},
        {},
        {"sampling": "full"},
        {"sampling": "full", "physical_batch_size": 17},
        {"physical_batch_size": 8},
        {"sampling": "shuffled", "steps": 5},
        {"optimizer": "adam", "learning_rate": 0.01},
        {"decay": 0.1, "average": 0.6, "steps": 8},
        {"optimizer": "adam", "learning_rate": 0.01, "decay": 0.1},
    ],
    ids=lambda v: "-".join(map(str, v)) or "poisson",
)
def test_without_noise_it_is_clipped_sgd_by_hand(jax_privacy, changes):
    x, y = data()
    model = hidden_layer_model()
    starts = model.get_weights()
    cfg = config(**changes)
    expected = by_hand(model, x, y, cfg, seed=5)
    found = build_and_fit(model, cfg, x, y).to_keras().get_weights()
    for a, b, start in zip(found, expected, starts, strict=True):
        assert np.abs(b - start).max() > 1e-2
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("rows", [None, 8])
def test_views_of_a_record_are_clipped_as_one(jax_privacy, rows):
    x, y = data()
    cfg = config(views=2, physical_batch_size=rows)
    expected = by_hand(hidden_layer_model(), x, y, cfg, 5, there_and_back)
    plain = by_hand(hidden_layer_model(), x, y, cfg, 5)
    fit = build_and_fit(
        hidden_layer_model(), cfg, x, y, augment=augment()
    ).to_keras()
    for a, b, other in zip(fit.get_weights(), expected, plain, strict=True):
        assert np.abs(b - other).max() > 1e-2
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("optimizer, rows", [("sgd", None), ("adam", 8)])
def test_the_golden_run_of_the_other_library(jax_privacy, optimizer, rows):
    found = golden_run(JaxDPSGDClassifier, optimizer, physical_batch_size=rows)
    np.testing.assert_allclose(found, GOLDEN[optimizer], atol=5e-6)


def test_it_trains_the_model_itself_and_keeps_its_softmax(jax_privacy):
    x, y = data()
    model = hidden_layer_model()
    before = model.get_weights()
    fit = build_and_fit(model, config(), x, y)
    assert fit.to_keras() is model
    assert model.layers[-1].activation is keras.activations.softmax
    assert np.abs(model.get_weights()[0] - before[0]).max() > 1e-2
    p = keras.ops.convert_to_numpy(model(x))
    np.testing.assert_allclose(fit.predict(x), p, atol=1e-6)


def test_frozen_layers_stay(jax_privacy):
    x, y = data()
    model = hidden_layer_model()
    model.layers[0].trainable = False
    before = model.get_weights()
    build_and_fit(model, config(), x, y)
    after = model.get_weights()
    np.testing.assert_array_equal(before[0], after[0])
    assert np.abs(before[2] - after[2]).max() > 1e-2


def test_an_empty_batch_changes_nothing(jax_privacy):
    # A model at rest: without noise and momentum only records move it.
    x, y = data()
    model = linear_model()
    before = model.get_weights()
    cfg = config(batch_size=1, steps=1, momentum=0.0)
    rows = cfg.plan(N, math.inf, 1e-5).batches(np.random.default_rng(2))
    assert len(next(rows)) == 0
    build_and_fit(model, cfg, x, y, seed=2)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


# Noise ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling, neighbours, rows",
    [
        ("poisson", "add_remove", 16),
        ("full", "add_remove", None),
        ("full", "replace_one", 16),
    ],
)
def test_noise_has_the_calibrated_scale(
    jax_privacy, sampling, neighbours, rows
):
    # With features of zero and no bias every gradient is zero: what moves
    # the weights is the noise alone, a fresh draw in every step.
    d, steps = 400, 4
    x, y = np.zeros((N, d), "float32"), data()[1]
    layer = keras.layers.Dense(10, use_bias=False, kernel_initializer="zeros")
    cfg = config(
        sampling=sampling,
        steps=steps,
        momentum=0.0,
        physical_batch_size=rows,
    )
    fit = build_and_fit([layer], cfg, x, y, 2.0, 11, neighbours=neighbours)
    noise = fit.to_keras().get_weights()[0].ravel()
    size = N if sampling == "full" else 20
    z = fit.report()["noise_multiplier"]
    scale = 0.5 * z * 0.3 * math.sqrt(steps) / size
    # 4,000 normals: the empirical scale is within 5.3 of its standard
    # deviations, 6%, but for one seed in 10^7.
    assert 0.94 < noise.std() / scale < 1.06
    assert abs(noise.mean()) < 5.3 * scale / math.sqrt(noise.size)


@pytest.mark.parametrize(
    "sampling, epsilon",
    [("full", 1.0), ("poisson", math.inf)],
    ids=["noise", "batches"],
)
def test_a_global_seed_decides_neither_noise_nor_batches(
    jax_privacy, sampling, epsilon
):
    # jax-privacy alone would take both from NumPy's global generator.
    results = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        fit = build_and_fit(
            linear_model(), config(sampling=sampling), *data(), epsilon, None
        )
        results.append(fit.to_keras().get_weights()[0])
    assert np.abs(results[0] - results[1]).max() > 1e-3


def test_a_seed_repeats_the_fit_and_voids_the_guarantee(jax_privacy):
    results = []
    for global_seed in (1, 2):
        keras.utils.set_random_seed(global_seed)
        fit = build_and_fit(linear_model(), config(), *data(), 1.0, 3)
        results.append(fit.to_keras().get_weights()[0])
    np.testing.assert_array_equal(*results)
    assert fit.report()["private"] is False
    assert fit.report()["epsilon_proven"] == math.inf


# Accounting ----------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_its_own_accountant_agrees_within_a_percent(jax_privacy, epsilon):
    from jax_privacy.accounting import accountants, analysis

    plan = config(batch_size=256, steps=100).plan(1437, epsilon, 1e-5)
    spent = analysis.DpsgdTrainingAccountant(
        dp_accountant_config=accountants.PldAccountantConfig()
    ).compute_epsilon(
        plan.steps,
        analysis.DpParams(
            noise_multipliers=plan.noise_multiplier,
            num_samples=plan.n,
            delta=1e-5,
            batch_size=plan.expected_batch_size,
        ),
    )
    assert 0.99 * epsilon < spent <= epsilon * (1 + 1e-6)


@pytest.mark.parametrize(
    "sampling, proven",
    [("poisson", 2.0), ("full", 2.0), ("shuffled", math.inf)],
)
def test_report_tells_proven_from_claimed(jax_privacy, sampling, proven):
    cfg = config(sampling=sampling, steps=2)
    fit = JaxDPSGDClassifier(None, cfg, 2.0, 1e-5)
    report = fit.fit(*data(), num_classes=CLASSES).report()
    assert 1.99 < report["epsilon_claimed"] <= 2.0
    if proven == 2.0:
        assert report["epsilon_proven"] == report["epsilon_claimed"]
    else:
        assert report["epsilon_proven"] == proven
    assert report["mechanism"] == "DP-SGD (jax-privacy)"
    assert (report["form"], report["clipping"]) == ("vmap", "gradients")
    assert "noise: float32, JAX's generator" in report["notes"]
    assert report["noise_multiplier"] == fit.plan.noise_multiplier
    assert report["seconds"] > report["step_seconds"] > 0


def test_evaluate_and_softmax_regression_from_zero(jax_privacy):
    # Separable, noiseless: a linear model must get it right.
    x, _ = data()
    y = (x[:, 0] > 0).astype(int)
    cfg = config(sampling="full", steps=60, learning_rate=2.0)
    fit = JaxDPSGDClassifier(None, cfg, math.inf, 1e-5)
    fit.fit(x, y, num_classes=2)
    result = fit.evaluate(x, y)
    assert result["accuracy"] > 0.95
    assert result["loss"] < 0.4


def test_overflow_stops_the_fit_and_leaves_the_model(jax_privacy, monkeypatch):
    tight = dataclasses.replace(config().plan(N, 1.0, 1e-5), capacity=1)
    cls = type(config())
    monkeypatch.setattr(cls, "plan", lambda *_: tight)
    model = linear_model()
    before = model.get_weights()
    with pytest.raises(RuntimeError, match="exceeded its capacity of 1"):
        build_and_fit(model, config(), *data(), 1.0, 0)
    np.testing.assert_array_equal(before[0], model.get_weights()[0])


# Errors --------------------------------------------------------------------


def test_a_second_fit_is_refused(jax_privacy):
    fit = build_and_fit(linear_model(), config(steps=1), *data(), 1.0)
    with pytest.raises(RuntimeError, match="spends epsilon again"):
        fit.fit(*data())


@pytest.mark.parametrize(
    "layers, message",
    [
        ([keras.layers.Dropout(0.5), keras.layers.Dense(4)], "holds state"),
        ([keras.layers.Dense(4, dtype="bfloat16")], "trains float32 weights"),
        ([keras.layers.Dense(4, trainable=False)], "no trainable weights"),
    ],
)
def test_models_it_cannot_train(jax_privacy, layers, message):
    fit = JaxDPSGDClassifier(layers, config(), 1.0, 1e-5)
    with pytest.raises(ValueError, match=message):
        fit.fit(*data())


def test_without_jax_privacy_the_error_names_the_extra(monkeypatch):
    fit = JaxDPSGDClassifier(None, config(), 1.0, 1e-5)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setitem(sys.modules, "jax_privacy.clipping", None)
    with pytest.raises(ImportError, match=r"keras-fm\[jax-privacy\]"):
        fit.fit(*data(), num_classes=CLASSES)


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_another_backend_is_refused_by_name(monkeypatch, backend):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    fit = JaxDPSGDClassifier(None, config(), 1.0, 1e-5)
    with pytest.raises(ImportError, match=f"'{backend}'.*KERAS_BACKEND=jax"):
        fit.fit(*data(), num_classes=CLASSES)


@pytest.mark.parametrize(
    "layers, message",
    [
        (
            [keras.layers.BatchNormalization(), keras.layers.Dense(2)],
            "mixes the records of a batch",
        ),
        (
            [
                keras.Input((4,)),
                keras.layers.UnitNormalization(axis=0),
                keras.layers.Dense(2),
            ],
            "mixes the records of a batch",
        ),
        (
            [keras.layers.Dense(2, kernel_regularizer="l2")],
            "does not support `kernel_regularizer`",
        ),
        (
            [keras.layers.Dense(2, activation="relu")],
            "must end in logits or a softmax activation",
        ),
        (
            [keras.layers.Dense(2), keras.layers.Softmax()],
            "must end in logits or a softmax activation",
        ),
    ],
)
def test_layer_errors(layers, message):
    with pytest.raises(ValueError, match=message):
        JaxDPSGDClassifier(layers, config(), 1.0, 1e-5)


def test_a_form_of_the_other_library_is_refused():
    cfg = config(form="fast_clipping")
    with pytest.raises(ValueError, match="Leave it None"):
        JaxDPSGDClassifier(None, cfg, 1.0, 1e-5)


def test_larger_models_hold_fewer_gradients_at_a_time(jax_privacy):
    import jax

    small = dp_sgd_jax._microbatch_rows(jax, convolutional_model())
    large = keras.Sequential([keras.Input((784,)), keras.layers.Dense(300)])
    assert 8 <= dp_sgd_jax._microbatch_rows(jax, large) < small
