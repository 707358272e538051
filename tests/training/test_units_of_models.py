"""Models whose privacy unit is an owner of several records."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel

N = 90
GENERATOR = np.random.default_rng(0)
X = GENERATOR.random((N, 6)).astype("float32")
Y = np.arange(N) % 3
OWNERS = GENERATOR.permutation(np.arange(N) // 3)


def functional():
    layers = [keras.layers.Dense(4, activation="sigmoid")]
    return fm.models.FunctionalNet(
        (6,), [*layers, keras.layers.Dense(3)], rounds=2, name="net"
    )


def adaptive():
    model = fm.models.AdaptiveLaplace((6,), 3)
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    return model


def private(x, y, owners, epsilon=2.0, **kwargs):
    return PrivateModel(
        fm.PrivacyBudget(epsilon, 1e-5),
        data=(x, y),
        guarantee=fm.Proven(unit=fm.Unit(owners=owners)),
        **kwargs,
    )


@pytest.mark.parametrize("build", [functional, adaptive])
@pytest.mark.once
def test_the_statement_names_owners_and_spends_the_budget(build):
    model, callback = build(), private(X, Y, OWNERS)
    if build is functional:
        model.compile("sgd")
    model.fit(X, Y, callbacks=[callback], verbose=0)
    text = callback.report()
    assert "one owner with all its rows" in text
    assert all("each owner's sum" in e.reads or "sum of each owner's" in e.reads
               for e in callback.ledger.entries)  # fmt: skip
    assert 1.9 < callback.ledger.epsilon() <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize("build", [functional, adaptive])
@pytest.mark.once
def test_rows_that_an_owner_has_twice_count_once(build):
    """Every owner has one record and its copy: what is released is what the
    records alone give, since their sums are scaled back."""
    twice = np.repeat(X, 2, axis=0), np.repeat(Y, 2)
    found = []
    for (x, y), owners in (
        ((X, Y), np.arange(N)),
        (twice, np.repeat(np.arange(N), 2)),
    ):
        keras.utils.set_random_seed(1)
        model = build()
        if build is functional:
            model = fm.models.FunctionalNet(
                (6,),
                [keras.layers.Dense(3)],
                rounds=1,
                clip=1e-3,
                name="net",
            )
            model.compile("sgd")
        callback = private(x, y, owners, epsilon=1e5, reproducible_noise=1)
        model.fit(x, y, callbacks=[callback], verbose=0, epochs=1)
        found.append(callback.releases)
    for name, release in found[0].items():
        for key, values in release.statistics.items():
            other = found[1][name].statistics[key]
            scale = np.abs(values).max()
            assert np.abs(values - other).max() < 0.02 * scale, (name, key)


@pytest.mark.once
def test_streams_and_reach_are_refused():
    callback = private(X, Y, OWNERS)
    callback.data = lambda: iter([(X, Y)])
    model = functional()
    model.compile("sgd")
    with pytest.raises(ValueError, match="`data` must be arrays"):
        model.fit(X, Y, callbacks=[callback], verbose=0)
    assert not callback.ledger.entries
    guarantee = fm.Proven(unit=fm.Unit(owners=OWNERS, reach=1))
    for build in (functional, adaptive):
        callback = PrivateModel(
            fm.PrivacyBudget(2.0, 1e-5), data=(X, Y), guarantee=guarantee
        )
        with pytest.raises(ValueError, match="`reach` is not supported"):
            callback.plan(build())
