"""Panels: the privacy unit of an estimator is a person with many rows."""

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import keras_fm as fm
from keras_fm.estimators import PrivateClassifier, PrivateRegressor
from keras_fm.evaluation.parts_by_hash import one_row_of_each

pytestmark = pytest.mark.once

RNG = np.random.default_rng(0)
OWNERS = np.repeat(np.arange(400), RNG.integers(1, 8, 400))
N = len(OWNERS)
X = RNG.normal(size=(N, 3))
Y = np.where(X[:, 0] > 0, "yes", "no")


def made(epsilon=500.0, **kwargs):
    given = {"bounds": (-4, 4), "classes": ["no", "yes"], **kwargs}
    return PrivateClassifier(epsilon, 1e-5, **given)


@pytest.mark.parametrize("rounds", [None, 4])
def test_an_owner_is_the_unit_of_fit_and_score(rounds):
    model = made(evaluation=0.1, held_out=0.3, rounds=rounds)
    model.fit(X, Y, owners=OWNERS)
    assert model.ledger_.unit.startswith("one owner")
    assert "owner" in model.ledger_.entries[0].uses
    found = model.private_score(X, Y, OWNERS, metrics="accuracy")
    assert "one row of each owner" in repr(found)
    # A third of 400 owners, whatever the rows.
    asked = found.statistics["means"].sum()
    assert 60 < asked < 180
    with pytest.raises(ValueError, match="counts rows"):
        model.private_score(X, Y, share=0.01)


def test_an_owner_counts_as_one_however_many_rows_it_has():
    """A panel in which one person has 5,000 rows that are all wrong."""
    x = np.r_[X, np.tile([[2.0, 0, 0]], (5000, 1))]
    y, owners = np.r_[Y, ["no"] * 5000], np.r_[OWNERS, [1000] * 5000]
    with_owners = made(1e4).fit(x, y, owners=owners)
    assert with_owners.score(X, Y) > 0.9
    assert made(1e4).fit(x, y).score(X, Y) < 0.7


def test_folds_by_owner_share_one_budget():
    model = make_pipeline(FunctionTransformer(), made(fits=3))
    scores = cross_val_score(
        model,
        X,
        Y,
        groups=OWNERS,
        cv=GroupKFold(2),
        params={"privateclassifier__owners": OWNERS},
        error_score="raise",
    )
    assert scores.mean() > 0.8
    ledger = model[-1]._shared.ledger
    assert len(ledger.entries) == 4 and ledger.unit.startswith("one owner")


def test_rows_and_owners_do_not_mix(tmp_path):
    path = str(tmp_path / "ledger.json")
    model = PrivateRegressor(
        5.0, 1e-5, bounds=(-4, 4), target_bounds=(-4, 4), fits=2, ledger=path
    )
    model.fit(X, X[:, 0], owners=OWNERS)
    with pytest.raises(ValueError, match="unit of the ledger"):
        model.fit(X, X[:, 0])
    assert len(fm.Ledger.open(path).entries) == 3
    model.fit(X, X[:, 0], owners=OWNERS)
    with pytest.raises(ValueError, match="`owners` must hold one id"):
        made().fit(X, Y, owners=OWNERS[:-1])
    with pytest.raises(ValueError, match="`owners` must hold one id"):
        one_row_of_each(X, Y, OWNERS[1:])


def test_one_row_of_each_owner_is_drawn():
    x = np.arange(N)[:, None]
    first, labels = one_row_of_each(x, OWNERS, OWNERS)
    np.testing.assert_array_equal(labels, np.unique(OWNERS))
    other, _ = one_row_of_each(x, OWNERS, OWNERS)
    # Alike with a probability below 1e-100.
    assert not np.array_equal(first, other)
