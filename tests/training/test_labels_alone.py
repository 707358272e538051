"""A fit under `neighbours="replace_label"`: what it says, keeps and refuses."""

import keras
import numpy as np
import pytest
from fit_checks import Unreadable

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.core import record_alone

pytestmark = pytest.mark.full

GENERATOR = np.random.default_rng(0)
X = GENERATOR.random((90, 6)).astype("float32")
Y = np.arange(90) % 3
ALONE = fm.Proven(neighbours="replace_label")
BUDGET = fm.PrivacyBudget(2.0, 1e-5)


def built(*below, **kwargs):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            *below,
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(3, name="head", **kwargs),
        ]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    return model


def test_features_may_whiten_themselves_in_a_frozen_layer():
    """The recipe of docs/results/private_labels.md."""
    h = X.astype("float64")
    values, vectors = np.linalg.eigh(np.cov(h.T))
    map_ = vectors / np.sqrt(values + 1e-5)
    whiten = keras.layers.Dense(len(map_), trainable=False, name="whiten")
    whiten.build((None, len(map_)))
    whiten.set_weights([map_, -h.mean(axis=0) @ map_])
    model, private = (
        built(whiten),
        PrivateModel(BUDGET, data=(X, Y), guarantee=ALONE),
    )
    model.fit(X, Y, verbose=0, callbacks=[private])
    assert "whiten" in private.report()
    # White but for being brought to one length.
    found = private.release.quadratic[:6, :6] / len(X)
    np.testing.assert_allclose(found, np.eye(6) / 6, atol=0.12)


class ByRow(keras.layers.Layer):
    """As networks do it in their last bits: each row a little otherwise."""

    def call(self, inputs):
        rows = keras.ops.cumsum(keras.ops.ones_like(inputs[:, :1]), axis=0)
        return keras.ops.sin(inputs * (1 + rows / 2**12))


def test_what_is_released_of_features_depends_on_no_label(monkeypatch):
    """A has no noise, and records stood in rows by a hash of features and
    label: where rows differ in their last bits (scattering on JAX), A told
    every label."""
    found = []
    for label in (0, 1, 2):
        y = Y.copy()
        y[7] = label
        monkeypatch.setattr(record_alone, "_is_listed", lambda kind: True)
        model = built(ByRow(name="by_row"))
        private = PrivateModel(BUDGET, data=(X, y), guarantee=ALONE)
        model.fit(X, y, verbose=0, callbacks=[private])
        found.append(private.release.quadratic)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.once
def test_the_statement_says_that_features_are_public():
    model = built()
    private = PrivateModel(BUDGET, data=(X, Y), guarantee=ALONE)
    assert "features are public" in private.plan(model)
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[private])
    text = private.report()
    assert "neighbours: replace_label" in text
    assert "uncovered:  features of the records, which are public" in text
    assert "docs/proofs/labels.md" in text
    assert private.ledger.epsilon() <= 2.0
    # What is kept is the second moment itself.
    h = np.asarray(model.layers[0](X), np.float64)
    h = model.get_layer("head").augment(h)
    np.testing.assert_allclose(private.release.quadratic, h.T @ h, atol=1e-3)


@pytest.mark.parametrize("numbers", [True, False])
def test_numbers_and_several_labels_alone(numbers):
    kind = {"loss": "binary_cross_entropy"}
    y = np.stack([Y == 0, Y == 1], axis=1).astype("float32")
    if numbers:
        kind = {"loss": "squared_error", "target_bounds": (-1.0, 3.0)}
        y = y + X[:, :2]
    model = keras.Sequential(
        [
            keras.Input((6,)),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(2, **kind),
        ]
    )
    model.compile("sgd", "mse" if numbers else fm.losses.TaylorCrossEntropy())
    private = PrivateModel(BUDGET, data=(X, y), guarantee=ALONE)
    model.fit(X, y, verbose=0, callbacks=[private])
    release = private.release
    assert release.query.public_features
    h = np.asarray(model.layers[0](X), np.float64)
    h = model.layers[-1].augment(h)
    np.testing.assert_allclose(release.quadratic, h.T @ h, atol=1e-3)
    targets = release.query.targets(y, len(y))
    assert np.abs(release.linear - h.T @ targets).max() > 0.1
    assert private.ledger.epsilon() <= 2.0


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: built(rounds=3), "Leave out `rounds`"),
        (
            lambda: built(fm.layers.NormalizationLayer(), fm.layers.DPPCA(4)),
            "DPPCA .* has no proof",
        ),
        (
            lambda: fm.models.AdaptiveLaplace((6,), 3),
            "RelevanceScaling .* has no proof",
        ),
        (
            lambda: fm.models.DeepPrivateAutoencoder(
                (6,), hidden=(4,), units=3
            ),
            "PrivateEncoder .* has no proof",
        ),
        (
            lambda: fm.models.FunctionalNet((6,), [keras.layers.Dense(3)]),
            "FunctionalNet .* has no proof",
        ),
    ],
)
def test_what_is_not_proved_is_refused_and_reads_nothing(make, match):
    model = make()
    private = PrivateModel(BUDGET, data=Unreadable(), guarantee=ALONE)
    with pytest.raises(ValueError, match=match):
        private.plan(model)
    assert not private.ledger.entries


def test_other_units_forms_and_ledgers_are_refused():
    unit = fm.Unit(owners=np.arange(90) // 2)
    for more in ({"unit": unit}, {"unit": fm.Unit(reach=1)}):
        with pytest.raises(ValueError, match="not supported"):
            PrivateModel(
                BUDGET,
                data=(X, Y),
                guarantee=fm.Proven(neighbours="replace_label", **more),
            )
    with pytest.raises(ValueError, match="does not support"):
        PrivateModel(
            BUDGET,
            data=(X, Y),
            guarantee=fm.Published(lot=10, neighbours="replace_label"),
        )
    ledger = fm.Ledger(BUDGET, neighbours="replace_one")
    with pytest.raises(ValueError, match="that of the ledger"):
        PrivateModel(ledger, data=(X, Y), guarantee=ALONE)
    # Nor by the relation of a ledger that is continued.
    ledger = fm.Ledger(BUDGET, neighbours="replace_label")
    with pytest.raises(ValueError, match="does not support"):
        PrivateModel(ledger, data=(X, Y), guarantee=fm.Published(lot=10))
    private = PrivateModel(ledger, data=(X, Y))
    built().fit(X, Y, verbose=0, callbacks=[private])
    assert ledger.entries[0].neighbours == "replace_label"
