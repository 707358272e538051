"""DP-SGD by tensorflow-privacy beside what test_dp_sgd_libraries.py has."""

import math
import sys

import keras
import numpy as np
import pytest
from clipped_sgd import (
    CLASSES,
    N,
    augment,
    by_hand,
    clipped_sum,
    config,
    convolutional_model,
    data,
    hidden_layer_model,
    linear_model,
    there_and_back,
)

from keras_fm.lab.baselines import dp_sgd

pytestmark = pytest.mark.full

FORMS = ("fast_clipping", "vectorized")


def needs_tensorflow_privacy():
    pytest.importorskip("tensorflow")
    pytest.importorskip("tf_keras")
    sys.skip_tf_privacy_import = True
    try:
        pytest.importorskip("tensorflow_privacy")
    finally:
        del sys.skip_tf_privacy_import


@pytest.fixture
def tfp():
    needs_tensorflow_privacy()


def fitted_weights(classifier):
    return np.vstack(classifier.to_keras().get_weights())


# Clipping and updates ------------------------------------------------------


def test_views_of_a_record_are_clipped_as_one(tfp):
    x, y = data()
    cfg = config(form="vectorized", views=2, physical_batch_size=8)
    expected = by_hand(hidden_layer_model(), x, y, cfg, 5, there_and_back)
    fit = dp_sgd.DPSGDClassifier(
        hidden_layer_model(), cfg, math.inf, 1e-5, seed=5, augment=augment
    )
    found = fit.fit(x, y).to_keras().get_weights()
    plain = by_hand(hidden_layer_model(), x, y, cfg, 5)
    for a, b, other in zip(found, expected, plain, strict=True):
        assert np.abs(b - other).max() > 1e-2
        np.testing.assert_allclose(a, b, atol=3e-5)


def test_poisson_batches_are_divided_by_the_expected_size(tfp):
    # A batch of another size than 20 must not be divided by its own size.
    x, y = data()
    cfg = config(steps=1, momentum=0.0)
    plan = cfg.plan(N, math.inf, 1e-5)
    (rows,) = plan.batches(np.random.default_rng(5))
    assert len(rows) not in (20, plan.capacity)
    model = linear_model()
    before = np.vstack(model.get_weights())
    g = np.vstack(clipped_sum(model.get_weights(), x[rows], y[rows], 0.3))
    fit = dp_sgd.DPSGDClassifier(model, cfg, math.inf, 1e-5, seed=5)
    after = fitted_weights(fit.fit(x, y))
    np.testing.assert_allclose(after, before - 0.5 * g / 20, atol=2e-6)


@pytest.mark.parametrize(
    "build, clipping",
    [(hidden_layer_model, "norms"), (convolutional_model, "gradients")],
)
def test_both_forms_agree(tfp, build, clipping):
    x, y = data(features=36)
    shape = build().input_shape[1:]
    x = x[:, : math.prod(shape)].reshape(-1, *shape)
    weights = []
    for form in FORMS:
        # A small clip, so that nearly every record is clipped.
        cfg = config(form=form, l2_norm_clip=0.05, physical_batch_size=16)
        fit = dp_sgd.DPSGDClassifier(build(), cfg, math.inf, 1e-5, seed=2)
        fit.fit(x, y)
        weights.append(fit.to_keras().get_weights())
        fast = form == "fast_clipping"
        assert fit.report()["clipping"] == (clipping if fast else "gradients")
    for a, b, start in zip(*weights, build().get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
        assert np.abs(a - start).max() > 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_the_twin_starts_from_and_returns_the_same_function(tfp, form):
    x, y = data(features=36)
    x = x.reshape(-1, 6, 6, 1)
    start = convolutional_model()
    p = keras.ops.convert_to_numpy(keras.ops.softmax(start(x)))
    cfg = config(form=form, steps=1, learning_rate=1e-12)
    fit = dp_sgd.DPSGDClassifier(
        convolutional_model(), cfg, math.inf, 1e-5, seed=0
    ).fit(x, y)
    np.testing.assert_allclose(fit.predict(x), p, atol=1e-5)
    cfg = config(form=form, steps=3, learning_rate=2.0)
    fit = dp_sgd.DPSGDClassifier(
        convolutional_model(), cfg, math.inf, 1e-5, seed=0
    ).fit(x, y)
    back = keras.ops.softmax(fit.to_keras()(x))
    back = keras.ops.convert_to_numpy(back)
    assert np.abs(back - p).max() > 1e-3
    np.testing.assert_allclose(fit.predict(x), back, atol=1e-5)


# Accounting ----------------------------------------------------------------


def test_replace_one_doubles_the_noise_of_full_batches():
    cfg = config(sampling="full")
    one = cfg.plan(100, 1.0, 1e-5, "add_remove").noise_multiplier
    two = cfg.plan(100, 1.0, 1e-5, "replace_one").noise_multiplier
    assert two == pytest.approx(2 * one, rel=1e-12)


@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_replace_one_refuses_amplification(sampling):
    with pytest.raises(ValueError, match='use sampling="full"'):
        config(sampling=sampling).plan(100, 1.0, 1e-5, "replace_one")


def test_overflow_is_charged(tfp):
    cfg = config()
    plan = cfg.plan(N, 1.0, 1e-5)
    # At most a thousandth of delta.
    assert 0 < plan.overflow_probability * (1 + math.e) <= 1e-8
    fit = dp_sgd.DPSGDClassifier(None, cfg, 1.0, 1e-5)
    fit.fit(*data(), num_classes=CLASSES)
    (entry,) = fit.ledger.entries
    charged = entry.build_mechanism().overflow_probability
    assert charged == plan.overflow_probability
    assert fit.report()["overflow_probability"] == charged


# Report and errors ---------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_traced_step_keeps_no_records(tfp, monkeypatch, form):
    # TensorFlow keeps graphs, and with them what they captured, for good.
    x, y = data()
    graphs, call = [], dp_sgd._Step.__call__

    def seen(self, batch):
        graphs.append(self._accumulate.graph)
        call(self, batch)

    monkeypatch.setattr(dp_sgd._Step, "__call__", seen)
    model, cfg = hidden_layer_model(), config(form=form)
    made = dp_sgd.DPSGDClassifier(model, cfg, 1.0, 1e-5)
    made.fit(x, y)
    shapes = {tuple(t.shape) for t, _ in graphs[0].captures}
    shapes |= {
        tuple(output.shape)
        for op in graphs[0].get_operations()
        for output in op.outputs
        if op.type == "Const"
    }
    assert shapes and not shapes & {x.shape, y.shape}


def test_no_view_is_beyond_what_has_a_gradient(tfp):
    x, y = data()
    fit = dp_sgd.DPSGDClassifier(
        linear_model(),
        config(form="vectorized", views=2),
        1.0,
        1e-5,
        augment=lambda record, rng: record * np.float32(np.inf),
    )
    fit.fit(x, y, 4)
    for weight in fit.to_keras().get_weights():
        assert np.all(np.isfinite(weight))


def test_the_number_of_classes_is_never_read_from_the_labels(tfp):
    fit = dp_sgd.DPSGDClassifier(None, config(), 1.0, 1e-5)
    with pytest.raises(ValueError, match="`num_classes` must be"):
        fit.fit(*data())
