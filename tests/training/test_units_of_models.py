"""Models whose privacy unit is an owner of several records."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel

pytestmark = pytest.mark.full

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
    assert all("each owner's sum" in e.uses or "sum of each owner's" in e.uses
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


# Words, and what a record is -----------------------------------------------


WORDS = "one patient with all rows"
DECLARED = "one record (one row of the data given), by declaration " + WORDS


def dense():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(3),
        ]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    return model


def declared(words=WORDS, data=(X, Y), **kwargs):
    guarantee = fm.Proven(unit=fm.Unit(words=words))
    return PrivateModel(
        epsilon=2.0, delta=1e-5, data=data, guarantee=guarantee, **kwargs
    )


@pytest.mark.once
def test_words_that_nobody_proved_stand_as_a_declaration(tmp_path):
    """`Unit(words="one patient with all rows")` without owners was printed as
    the unit of a guarantee that is for one row."""
    callback, model = declared(ledger=tmp_path / "ledger.json"), dense()
    assert f"unit: {DECLARED}\n" in callback.plan(model)
    model.fit(X, Y, callbacks=[callback], verbose=0)
    ledger = callback.ledger
    for text in (
        callback.report(),
        ledger.statement(),
        fm.Ledger.open(tmp_path / "ledger.json").statement(),
        fm.Ledger.from_json(ledger.to_json()).statement(),
        fm.Ledger.from_json(model.layers[-1].ledger_json).statement(),
    ):
        assert f"unit:       {DECLARED}\n" in text
        assert text.count(WORDS) == 1
    # With owners their grouping is proved, and the words are not.
    unit = fm.Unit(owners=OWNERS, words="one patient")
    assert unit.name == (
        "one owner with all its rows (ids given as `owners`), by declaration "
        "one patient"
    )
    # Of a ledger that was begun with words nothing else is known.
    budget = fm.PrivacyBudget(1.0, 1e-5)
    by_hand = fm.Ledger(budget, neighbours="add_remove", unit=WORDS)
    assert f"unit:       {WORDS} (by declaration)\n" in by_hand.statement()


@pytest.mark.once
def test_words_do_not_make_owners_of_rows_in_a_ledger_that_goes_on():
    """Releases for rows, in the words of a ledger of owners."""
    by_owner = private(X, Y, OWNERS).ledger
    for words in (None, WORDS, by_owner.unit):
        guarantee = fm.Proven(unit=fm.Unit(words=words))
        with pytest.raises(ValueError, match="`unit` must be|cannot count"):
            PrivateModel(by_owner, data=(X, Y), guarantee=guarantee)
    rows = declared().ledger
    for words, owners in ((WORDS, OWNERS), (None, OWNERS), ("a user", None)):
        guarantee = fm.Proven(unit=fm.Unit(words=words, owners=owners))
        with pytest.raises(ValueError, match="`unit` must be|cannot count"):
            PrivateModel(rows, data=(X, Y), guarantee=guarantee)
    for words in (None, WORDS):
        guarantee = fm.Proven(unit=fm.Unit(words=words))
        again = PrivateModel(rows, data=(X, Y), guarantee=guarantee)
        assert again.ledger is rows
    with pytest.raises(ValueError, match="`unit` must be"):
        fm.Unit(words="")


@pytest.mark.parametrize("owners", [None, OWNERS])
@pytest.mark.once
def test_every_statement_says_once_what_a_record_is(owners):
    """`np.repeat(x, 16)`, oversampling and bootstraps were certified without
    a word on what one record is."""
    callback, model = private(X, Y, owners), dense()
    line = (
        "record:     one row of the data as given; a person or record "
        "in several rows is protected only with `owners`\n"
    )
    assert callback.report().count(line) == 1
    model.fit(X, Y, callbacks=[callback], verbose=0)
    assert callback.report().count(line) == 1
    published = fm.Ledger(fm.PrivacyBudget(1.0, 0), neighbours="replace_one")
    assert published.statement().count(line) == 1
