"""PrivateNormalization: a Keras layer, what its release reads and learns."""

import json

import keras
import numpy as np
import pytest
from layer_checks import (
    POLICIES,
    check_layer,
    check_promise,
    check_saved,
)

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.core.column_moments import ColumnMomentsRelease
from keras_fm.layers import PrivateNormalization

RNG = np.random.default_rng(0)
BOUNDS = ([0.0, -1.0, 100.0], [10.0, 1.0, 300.0])
X = np.clip(RNG.normal([3.0, 0.2, 180.0], [1.0, 0.1, 20.0], (400, 3)), *BOUNDS)
Y = (X[:, 0] > 3).astype(int)
GAPS = np.where(RNG.random(X.shape) < 0.3, np.nan, X)
DELTA = 1e-5

pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.full]


def array(x):
    return keras.ops.convert_to_numpy(x)


def model_of(*layers, shape=(3,), **kwargs):
    model = keras.Sequential(
        [
            keras.Input(shape),
            *layers,
            keras.layers.Flatten(),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(1, name="head", **kwargs),
        ]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    return model


def released(layer, x=X, epsilon=1e6, shape=(3,), **kwargs):
    """The layer after a fit, and the callback."""
    model = model_of(layer, shape=shape)
    private = PrivateModel(
        fm.PrivacyBudget(epsilon, DELTA), data=(x, Y[: len(x)]), **kwargs
    )
    model.fit(x, Y[: len(x)], verbose=0, callbacks=[private])
    return model, private


# A Keras layer --------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    "kwargs",
    [{}, {"limit": 1.5, "missing": "mean"}, {"axis": 1, "name": "columns"}],
)
def test_it_is_a_keras_citizen(kwargs, tmp_path):
    def make(**more):
        return PrivateNormalization(BOUNDS, **kwargs, **more)

    x = X[:5].astype("float32")
    check_layer(make, x, trainable_fit=False)
    check_promise(make, x, tmp_path, trainable_fit=False)
    layer, _ = released(make())
    config = layer.layers[0].get_config()
    assert all(config[name] == value for name, value in kwargs.items())
    json.dumps(config)
    check_saved(layer.layers[0], x, tmp_path / "m.keras")


def test_until_its_release_it_maps_the_bounds():
    layer = PrivateNormalization(BOUNDS)
    corners = np.array([BOUNDS[0], BOUNDS[1]])
    np.testing.assert_allclose(
        array(layer(corners)), [[-1] * 3, [1] * 3], atol=1e-6
    )
    assert not layer.is_released and not layer.trainable_weights


@pytest.mark.parametrize("policy", POLICIES)
def test_large_columns_in_every_precision(policy):
    """A column beyond half precision's range is standardised all the same."""
    layer = PrivateNormalization((0.0, 1e6), dtype=policy)
    found = layer(np.array([[250_000.0, 1e6]], "float32"))
    assert keras.backend.standardize_dtype(found.dtype) == layer.compute_dtype
    found = array(keras.ops.cast(found, "float32"))
    np.testing.assert_allclose(found, [[-0.5, 1.0]], rtol=1e-2)


# What is released -----------------------------------------------------------


def test_statistics_are_those_of_the_records():
    """Without much noise it is what Keras' layer adapts to."""
    model, private = released(PrivateNormalization(BOUNDS, name="columns"))
    adapted = keras.layers.Normalization()
    adapted.adapt(X)
    found = array(model.layers[0](X))
    wanted = np.clip(array(adapted(X)), -3, 3)
    np.testing.assert_allclose(found, wanted, atol=2e-2)
    first, head = private.ledger.entries
    assert first.name == "columns (column moments)" and head.name == "head"
    assert "3 columns, each within public bounds" in first.uses
    assert first.proof == "docs/proofs/column_moments.md"
    statement = private.report()
    assert "weights of layer 'columns': from its own release" in statement
    # What the same statistics would be without a release is not seen.
    assert "earlier scaling, filling in or selection" in statement


@pytest.mark.once
def test_a_tenth_of_the_budget_and_no_more_than_it():
    model = model_of(PrivateNormalization(BOUNDS, name="columns"))
    private = PrivateModel(fm.PrivacyBudget(1.0, DELTA), data=(X, Y))
    plan = private.plan(model)
    assert "columns (column moments) (proven): GaussianMechanism" in plan
    model.fit(X, Y, verbose=0, callbacks=[private])
    first, head = private.ledger.entries
    ratio = [e.mechanism["noise_multiplier"] for e in (first, head)]
    assert ratio[0] / ratio[1] == pytest.approx(3, rel=1e-6)
    assert private.ledger.epsilon() <= 1.0


@pytest.mark.parametrize("delta", [0.0, DELTA])
def test_outputs_stay_within_the_limit_whatever_the_noise(delta):
    model = model_of(PrivateNormalization(BOUNDS, limit=2.0))
    private = PrivateModel(fm.PrivacyBudget(1e-3, delta), data=(X, Y))
    model.fit(X, Y, verbose=0, callbacks=[private])
    found = array(model.layers[0](np.array([BOUNDS[0], BOUNDS[1], [1e9] * 3])))
    assert np.abs(found).max() <= 2.0
    assert np.isfinite(model.predict(X, verbose=0)).all()


def test_values_outside_the_bounds_count_as_at_them():
    far = np.where(RNG.random(X.shape) < 0.1, 1e30, X)
    near = np.clip(far, *BOUNDS)
    found = [
        released(PrivateNormalization(BOUNDS), x, reproducible_noise=3)[0]
        .layers[0]
        .get_weights()
        for x in (far, near)
    ]
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("axis", [-1, 1])
def test_channels_over_all_places(axis):
    images = RNG.normal([0.2, 0.6], [0.05, 0.2], (200, 4, 5, 2))
    layer = PrivateNormalization((0, 1), axis=axis)
    x = np.moveaxis(images, -1, axis)
    model, _ = released(layer, x, shape=x.shape[1:])
    inside = np.clip(images, 0, 1)
    mean, scale = (array(w) for w in (layer.mean, layer.scale))
    np.testing.assert_allclose(mean, inside.mean((0, 1, 2)), atol=1e-3)
    np.testing.assert_allclose(scale, inside.std((0, 1, 2)), atol=3e-3)
    found = np.moveaxis(array(layer(x)), axis, -1)
    wanted = np.clip((inside - mean) / scale, -3, 3)
    np.testing.assert_allclose(found, wanted, atol=1e-3)


# Missing values -------------------------------------------------------------


def test_missing_values_are_counted_and_become_the_mean():
    layer = PrivateNormalization(BOUNDS, missing="mean")
    model, _ = released(layer, GAPS)
    np.testing.assert_allclose(
        array(layer.mean), np.nanmean(GAPS, axis=0), rtol=1e-3
    )
    np.testing.assert_allclose(
        array(layer.scale), np.nanstd(GAPS, axis=0), rtol=3e-2
    )
    found = array(layer(GAPS))
    assert (found[np.isnan(GAPS)] == 0).all()
    assert np.isfinite(model.predict(GAPS, verbose=0)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_said_to_be_missing_is_refused(bad):
    """Nothing is charged for it."""
    spoiled = X.copy()
    spoiled[7, 1] = bad
    layers = [PrivateNormalization(BOUNDS)]
    if bad == np.inf:
        layers.append(PrivateNormalization(BOUNDS, missing="mean"))
    for layer in layers:
        private = PrivateModel(fm.PrivacyBudget(1.0, DELTA), data=(spoiled, Y))
        with pytest.raises(ValueError, match="NaN or infinite"):
            model_of(layer).fit(X, Y, verbose=0, callbacks=[private])
        assert not private.ledger.entries


def test_missing_values_go_where_they_are_known_only():
    """Another layer beside it would hand NaN on."""
    inputs = keras.Input((3,))
    columns = PrivateNormalization(BOUNDS, missing="mean")(inputs)
    both = keras.layers.Concatenate()([inputs, columns])
    outputs = fm.layers.PrivateDense(1)(fm.layers.NormalizationLayer()(both))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    private = PrivateModel(fm.PrivacyBudget(1.0, DELTA), data=(GAPS, Y))
    with pytest.raises(ValueError, match="NaN or infinite"):
        model.fit(GAPS, Y, verbose=0, callbacks=[private])
    assert not private.ledger.entries


@pytest.mark.once
def test_an_owner_counts_as_one_record_may():
    """Hundreds of rows of one owner move the mean no more than one row."""
    crowd = np.vstack([X[:100], np.tile([10.0, 1.0, 300.0], (300, 1))])
    owners = np.r_[np.arange(100), np.full(300, 100)]
    layer = PrivateNormalization(BOUNDS)
    unit = fm.Unit(owners=owners)
    _, private = released(layer, crowd, guarantee=fm.Proven(unit=unit))
    wanted = crowd[:101].mean(axis=0)
    half = (np.array(BOUNDS[1]) - BOUNDS[0]) / 2
    assert (np.abs(array(layer.mean) - wanted) < 0.02 * half).all()
    assert "each owner's sum scaled back" in private.ledger.entries[0].uses
    assert "reconstruction.md" in private.ledger.entries[0].proof


# Bounds from quantiles ------------------------------------------------------


def test_quantiles_take_the_place_of_bounds_that_are_too_wide(tmp_path):
    """A range 200 times too wide: without quantiles a scale is lost in it."""
    low, high = np.array(BOUNDS[0]), np.array(BOUNDS[1])
    wide = (low - 100 * (high - low), high + 100 * (high - low))
    spread, scales = X.std(axis=0), {}
    for quantiles in (None, (0.02, 0.98)):
        layer = PrivateNormalization(wide, quantiles=quantiles, name="columns")
        model, private = released(layer, epsilon=20.0, reproducible_noise=1)
        scales[quantiles] = array(layer.scale) / spread
        assert len(private.ledger.entries) == 2 + (quantiles is not None)
        check_saved(layer, X[:5].astype("float32"), tmp_path / "m.keras")
    assert (scales[None] > 5).all()
    assert (scales[0.02, 0.98] < 2.5).all()
    (histograms, moments, _) = private.ledger.entries
    assert histograms.name == "columns (column histograms)"
    assert "256 bins within public bounds" in histograms.uses
    assert moments.name == "columns (column moments)"
    # Beyond a bound is at it.
    far = array(layer(np.array([wide[1], array(layer.high)])))
    np.testing.assert_allclose(far[0], far[1], atol=1e-5)


def test_before_a_release_and_after_a_failure_the_bounds_are_public(
    monkeypatch,
):
    layer = PrivateNormalization(BOUNDS, quantiles=(0.1, 0.9))
    corners = np.array([BOUNDS[0], BOUNDS[1]])
    model = model_of(layer)
    wanted = [[-1] * 3, [1] * 3]
    np.testing.assert_allclose(array(layer(corners)), wanted, atol=1e-6)
    private = PrivateModel(fm.PrivacyBudget(1e6, DELTA), data=(X, Y))

    def broken(*_, **__):
        raise RuntimeError("cut off")

    monkeypatch.setattr(ColumnMomentsRelease, "means_and_scales", broken)
    with pytest.raises(RuntimeError, match="cut off"):
        model.fit(X, Y, verbose=0, callbacks=[private])
    assert not layer.is_released
    np.testing.assert_allclose(array(layer(corners)), wanted, atol=1e-6)
    # What was read was charged all the same.
    assert len(private.ledger.entries) == 2
