"""GradientNet on records of several views, which are clipped once."""

import keras
import numpy as np
import pytest
from gradient_nets import (
    NETWORKS,
    by_layer,
    gradients,
    network,
    private,
    sums,
)
from keras import layers as L

import keras_fm as fm

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 7)).astype("float32")
Y = np.arange(24) % 3


@pytest.mark.parametrize("case", ["dense", "pools that overlap"])
def test_views_are_one_record_that_is_clipped_once(case):
    plain, model = network(case), network(case, clip=0.5, views=3)
    x = np.random.default_rng(2).normal(size=(12, *model.input_shape[1:]))
    x, y = x.astype("float32"), np.repeat(np.arange(4) % 3, 3)
    each = [by_layer(plain, found) for found in gradients(plain, x, y)]
    exact = [
        np.mean(
            [each[3 * i + k][layer] for i in (record,) for k in range(3)], 0
        )
        for record in range(4)
        for layer in range(len(plain.private_layers))
    ]
    layers = len(plain.private_layers)
    exact = [exact[layers * i : layers * (i + 1)] for i in range(4)]
    whole = np.array([np.linalg.norm(np.concatenate(r)) for r in exact])
    assert whole.max() > 0.5
    np.testing.assert_allclose(
        model.coefficient_norms(x, y)[:, 0], whole, rtol=1e-3
    )
    scale = np.minimum(1, 0.5 / whole)
    scale[2] = 0
    # A view that is no number, or padding: the record counts for nothing.
    held, rows = x.copy(), np.ones(12, "float32")
    held[7] = np.nan
    rows[6:9] = 0
    for broken, weights in ((held, None), (x, rows)):
        made = sums(model, broken, y, sample_weight=weights)
        for k, found in enumerate(made):
            right = sum(s * r[k] for s, r in zip(scale, exact))
            np.testing.assert_allclose(found, right, atol=2e-3, rtol=1e-3)


def test_a_record_of_extreme_views_adds_no_more_than_the_clip():
    """Views that are huge, that cancel or that differ in all they say."""
    keras.utils.set_random_seed(0)
    layers = [
        L.Conv2D(3, 3, activation="relu"),
        L.Flatten(),
        L.Dense(9, activation="relu"),
        L.Dense(2),
    ]
    model = fm.models.GradientNet((6, 6, 1), layers, clip=0.1, views=8)
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(8, 6, 6, 1))
    alike = np.broadcast_to(normal[:1], normal.shape)
    for views in (normal, alike, alike + 1e-3 * normal, abs(normal)):
        for size in (1e-3, 1, 1e3, 1e6, 1e15):
            for labels in (np.zeros(8), np.arange(8) % 2):
                made = sums(model, (size * views).astype("float32"), labels)
                whole = np.concatenate(made).astype("float64")
                assert np.linalg.norm(whole) <= 0.1
    # Eight of them all the same add as much as one; by the label that is
    # wrong, for of the right one all that is left is rounding.
    assert np.linalg.norm(whole) < 0.1
    made = sums(model, (1e3 * alike).astype("float32"), np.ones(8))
    one = fm.models.GradientNet((6, 6, 1), model._stack[0], clip=0.1)
    right = sums(one, (1e3 * alike[:1]).astype("float32"), np.ones(1))
    assert np.linalg.norm(np.concatenate(right)) > 0.09
    for a, b in zip(made, right):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_an_owner_of_several_records_of_views_counts_once():
    keras.utils.set_random_seed(0)
    layers = [L.Dense(9, activation="relu"), L.Dense(2)]
    model = fm.models.GradientNet((5,), layers, clip=0.1, views=2)
    x = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
    owners = np.arange(4) // 3
    batches = fm.datasets.PoissonBatches(
        1e3 * x,
        np.zeros(4),
        sampling="full",
        owners=owners,
        rows_per_owner=3,
        augment=lambda record, rng: record * rng.uniform(0.5, 2),
        views=2,
    )
    rows, y, mask = batches[0]
    np.testing.assert_allclose(mask[:8], [1 / 3] * 6 + [1] * 2, rtol=1e-6)
    owned = mask.copy()
    owned[6:] = 0
    made = sums(model, rows, y, sample_weight=owned)
    assert np.linalg.norm(np.concatenate(made).astype("float64")) <= 0.1
    model.compile("sgd")
    unit = fm.Unit(owners=owners)
    callback = private(guarantee=fm.Proven(unit=unit))
    model.fit(batches, epochs=1, callbacks=[callback], verbose=0)
    (entry,) = callback.ledger.entries
    notes = " ".join(entry.notes)
    assert "owner" in notes and "mean over 2 views" in notes


def test_views_are_told_and_taken_together():
    keras.utils.set_random_seed(3)
    layers = NETWORKS["dense"][1]()
    model = fm.models.GradientNet((7,), layers, clip=0.5, views=4)
    model.compile("sgd")
    noisy = {"augment": lambda x, rng: x + rng.normal(size=7), "views": 4}
    sampled = fm.datasets.PoissonBatches(X, Y, batch_size=8, **noisy)
    callback = private()
    model.fit(sampled, epochs=2, callbacks=[callback], verbose=0)
    (entry,) = callback.ledger.entries
    assert entry.mechanism["sensitivity"] == 1.0
    assert "mean over 4 views" in " ".join(entry.notes)


@pytest.mark.parametrize("given, taken", [(1, 2), (2, 1), (3, 2)])
def test_rows_that_are_not_the_models_records_are_refused(given, taken):
    keras.utils.set_random_seed(3)
    layers = NETWORKS["dense"][1]()
    model = fm.models.GradientNet((7,), layers, clip=0.5, views=taken)
    model.compile("sgd")
    more = {"augment": lambda x, rng: x, "views": given} if given > 1 else {}
    sampled = fm.datasets.PoissonBatches(X, Y, batch_size=8, **more)
    callback = private()
    with pytest.raises(ValueError, match="counts once only"):
        model.fit(sampled, callbacks=[callback], verbose=0)
    assert not callback.ledger or not callback.ledger.entries
    assert model.steps_taken == 0
