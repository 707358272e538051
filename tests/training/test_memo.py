"""Several releases of one model read its features once."""

import gc

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.kernel import release as release_lib
from keras_fm.training import memo, proven_plan

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 5)).astype("float32")
Y = np.arange(150) % 3

pytestmark = [
    pytest.mark.usefixtures("untraced"),
    pytest.mark.full,
]


def model_of(branches=False):
    """Four parts that learn, a public map below each of them."""
    records = keras.Input((5,))
    inputs = fm.layers.RandomFeatures(8, seed=1)(records)
    inputs = fm.layers.NormalizationLayer()(inputs)
    x = fm.layers.PrivateNormalization((-1, 1), name="columns")(inputs)
    x = fm.layers.NormalizationLayer()(x)
    if branches:
        # What the second part reads is not made of what the first one read.
        beside = fm.layers.NormalizationLayer()(records)
        x = keras.layers.Concatenate()([x, beside])
        x = fm.layers.NormalizationLayer()(x)
    x = fm.layers.DPPCA(6, whitening=0.5, name="directions")(x)
    x = fm.layers.NormalizationLayer()(x)
    x = fm.layers.PrivateEncoder(4, name="codes")(x)
    x = keras.layers.Rescaling(0.5)(x)
    model = keras.Model(
        records, fm.layers.PrivateDense(3, name="head", clip=True)(x)
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    return model


def passes(monkeypatch, model, data, **unit):
    """Weights of a fit, and how often it went through the records."""
    count = []
    placed = proven_plan.ProvenPlan.placed
    with monkeypatch.context() as patch:
        patch.setattr(
            proven_plan.ProvenPlan,
            "placed",
            lambda self, *a: count.append(0) or placed(self, *a),
        )
        private = fm.callbacks.PrivateModel(
            fm.PrivacyBudget(5.0, 1e-5),
            data=data,
            guarantee=fm.Proven(**unit),
            reproducible_noise=7,
        )
        model.fit(X, Y, callbacks=[private], verbose=0)
    assert len(private.ledger.entries) == 4
    return [keras.ops.convert_to_numpy(w) for w in model.weights], len(count)


@pytest.mark.parametrize("owners", [None, np.arange(150) // 2])
def test_weights_are_those_of_a_pass_for_every_release(monkeypatch, owners):
    unit = {} if owners is None else {"unit": fm.Unit(owners=owners)}
    once, count = passes(monkeypatch, model_of(), (X, Y), **unit)
    assert count == 1
    monkeypatch.setattr(memo, "MOST", 0)
    often, count = passes(monkeypatch, model_of(), (X, Y), **unit)
    assert count == 4
    for one, other in zip(once, often, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_parts_of_something_beside_it_begin_at_the_records(monkeypatch):
    kept, count = passes(monkeypatch, model_of(branches=True), (X, Y))
    # Once for the columns, once for the directions and all above them.
    assert count == 2
    monkeypatch.setattr(memo, "MOST", 0)
    often, _ = passes(monkeypatch, model_of(branches=True), (X, Y))
    for one, other in zip(kept, often, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_what_streams_is_not_kept(monkeypatch):
    def data():
        for first in range(0, len(X), 50):
            yield X[first : first + 50], Y[first : first + 50]

    assert passes(monkeypatch, model_of(), data)[1] == 4


def test_nothing_is_kept_after_a_fit_that_ends_or_fails(monkeypatch):
    """What is kept is as secret as the records."""

    def found():
        gc.collect()
        kind = memo.Memo
        return [k for k in gc.get_objects() if isinstance(k, kind)]

    model = model_of()
    passes(monkeypatch, model, (X, Y))
    assert all(kept.batches is None for kept in found())

    release = release_lib.release

    def fail(*args, name, **kwargs):
        if "codes" in name:
            assert any(kept.batches for kept in found())
            raise RuntimeError("on the way")
        return release(*args, name=name, **kwargs)

    monkeypatch.setattr(release_lib, "release", fail)
    with pytest.raises(RuntimeError, match="on the way"):
        passes(monkeypatch, model_of(), (X, Y))
    assert all(kept.batches is None for kept in found())
