"""A person with several rows is one record.

The habit that these guard: tables in which a person has many rows, trained as
if every row were a person of its own.
"""

import keras
import numpy as np
import pytest
from test_record_map import keys_for, length, plain_gradient, sums_of

import keras_fm as fm
from keras_fm.per_example import record_map
from keras_fm.per_example.given_records import GivenRecords
from keras_fm.per_example.owner_rows import OwnerLoss
from keras_fm.per_example.private_network import _made_up, _of_owners

pytestmark = [pytest.mark.full, pytest.mark.backend]

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")
# Twelve owners, of one to nine rows, in no order.
IDS = np.repeat(np.arange(12), [9, 1, 2, 3, 4, 3, 3, 3, 3, 3, 3, 3])
IDS = RNG.permutation(IDS)


def compiled(**kwargs):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((6,)), L.Dense(4, activation="tanh"), L.Dense(2)]
    )
    private = fm.make_private(model, **kwargs)
    private.compile(
        keras.optimizers.SGD(0.5),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return private


def callback(owners=IDS, **kwargs):
    return fm.callbacks.PrivateModel(
        fm.PrivacyBudget(8.0, 1e-3),
        guarantee=fm.Proven(unit=fm.Unit(owners=owners), **kwargs),
    )


def owned(most, weights=None):
    given = GivenRecords(X, Y, weights, batch_size=4)
    given.own(IDS, most)
    return given


def test_an_owner_adds_one_clip():
    """The mean over all rows of an owner, clipped once: whatever the owner's
    number of rows, it adds no more than anyone else."""
    private, given = compiled(clip=0.05), owned(9)
    made = record_map.chosen_for(
        OwnerLoss(private), 0.05, _of_owners(given, _made_up(given))
    )
    made.training = False
    owners = np.arange(12)
    rows, shares, factors = given.owners.drawn(owners, None, RNG)
    records = (X[rows], shares)
    keys = keys_for(made, 12)
    for owner in owners:
        own = np.flatnonzero(owner == IDS)
        assert set(rows[owner]) == set(own)
        alone = plain_gradient(private, X[own], Y[own])
        found = sums_of(made, records, Y[rows], keys, np.eye(12)[owner])
        scale = 1 / max(length(alone), 0.05)
        wanted = [v * scale for v in alone]
        for one, other in zip(found, wanted):
            np.testing.assert_allclose(one, other, atol=3e-4)
        assert length(found) <= 1
    assert np.all(factors == 1)


def test_rows_of_an_owner_are_drawn_anew():
    given = owned(2)
    (many,), (one,) = np.flatnonzero(np.bincount(IDS) == 9), [1]
    met = set()
    for _ in range(60):
        rows, shares, _ = given.owners.drawn(np.array([many, one]), None, RNG)
        assert len(set(rows[0])) == 2 and np.all(IDS[rows[0]] == many)
        # What is left repeats the owner's rows, and weighs nothing.
        assert rows[1][0] == rows[1][1] and list(shares[1]) == [2, 0]
        met |= set(rows[0])
    assert len(met) == 9


def test_weights_of_rows_act_after_the_clip():
    weights = np.where(IDS == 3, 0.25, 1.0)
    weights[np.flatnonzero(IDS == 4)[0]] = 0.0
    given = owned(9, weights)
    _, shares, factors = given.owners.drawn(np.arange(12), given.weights, RNG)
    assert factors[3] == 0.25 and factors[4] == 0.75 and factors[5] == 1
    np.testing.assert_allclose(shares.sum(axis=1), 9, rtol=1e-6)


def test_a_fit_of_owners():
    given, private = callback(), compiled(rows_per_owner=3)
    private.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[given])
    (entry,) = given.ledger.entries
    assert entry.mechanism["steps"] == 6
    assert entry.mechanism["sampling_rate"] == pytest.approx(4 / 12)
    assert "at most 3 of its rows" in entry.uses
    assert "one owner" in given.report()


@pytest.mark.once
def test_owners_are_given_to_fit():
    """The same entry and statement as of a guarantee that names them; a
    second fit goes on in the same ledger."""
    entries = []
    for named in (True, False):
        given = callback(spends=0.5) if named else rows(fm.Proven(spends=0.5))
        owners = {} if named else {"owners": IDS}
        private = compiled(rows_per_owner=3)
        for _ in range(2):
            private.fit(
                X,
                Y,
                4,
                steps_per_epoch=2,
                verbose=0,
                callbacks=[given],
                **owners,
            )
        assert "one owner" in given.report()
        entries.append([entry.mechanism for entry in given.ledger.entries])
    assert entries[0] == entries[1] and len(entries[0]) == 2


def rows(guarantee="proven", **kwargs):
    budget = fm.PrivacyBudget(8.0, 1e-3)
    return fm.callbacks.PrivateModel(budget, guarantee=guarantee, **kwargs)


@pytest.mark.once
def test_a_ledger_of_rows_takes_no_owners(tmp_path):
    """Not one in a file, nor one that somebody else charges, nor one that
    was charged for rows."""
    spent = rows(fm.Proven(spends=0.5))
    compiled().fit(X, Y, 4, steps_per_epoch=1, verbose=0, callbacks=[spent])
    shared = fm.Ledger(fm.PrivacyBudget(8.0, 1e-3), neighbours="add_remove")
    for given in (
        spent,
        rows(ledger=tmp_path / "privacy.json"),
        fm.callbacks.PrivateModel(shared),
    ):
        before = given.ledger.entries
        with pytest.raises(ValueError, match="Begin one for owners"):
            compiled(rows_per_owner=3).fit(
                X, Y, 4, verbose=0, callbacks=[given], owners=IDS
            )
        assert given.ledger.entries == before


@pytest.mark.parametrize(
    "most, given, words",
    [
        (None, callback, "make_private.model, rows_per_owner=8"),
        (3, lambda: callback(None), "must be given together"),
        (3, lambda: callback(IDS[:30]), "one id for each row"),
        (3, lambda: callback(n_public=False), "takes only `neighbours`"),
    ],
)
def test_owners_that_are_refused(most, given, words):
    given = given()
    with pytest.raises(ValueError, match=words):
        compiled(rows_per_owner=most).fit(
            X, Y, batch_size=4, verbose=0, callbacks=[given]
        )
    assert not given.ledger.entries
