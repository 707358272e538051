"""Scores of estimators: which rows, what they cost, what they say."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import balanced_accuracy_score, recall_score, roc_auc_score
from sklearn.model_selection import cross_val_score

import keras_fm as fm
from keras_fm.estimators import PrivateClassifier, PrivateRegressor
from keras_fm.evaluation.parts_by_hash import part_by_hash

pytestmark = pytest.mark.once

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1500, 3))
Y = np.where(X[:, 0] + 0.5 * RNG.normal(size=1500) > 0.3, "yes", "no")
NUMBERS = X[:, 0] + 0.5 * RNG.normal(size=1500)


def made(epsilon=200.0, **kwargs):
    given = {"bounds": (-4, 4), "classes": ["no", "yes"], **kwargs}
    return PrivateClassifier(epsilon, 1e-5, **given)


def holds(interval, true):
    """Within three times an interval at 95 %: of Gaussian noise it fails less
    than once in 10^8 runs."""
    wide = interval.high - interval.low
    return interval.low - wide <= true <= interval.high + wide


def test_rows_that_were_held_out_are_scored():
    model = made(evaluation=0.3, held_out=0.3).fit(X, Y)
    spent = model.ledger_.epsilon()
    found = model.private_score(X, Y, share=0.2)
    assert spent < model.ledger_.epsilon() <= 200
    _, (x, y) = part_by_hash(X, Y, 0.3)
    said = model.predict(x)
    for one, true in zip(found.recall(), recall_score(y, said, average=None)):
        assert holds(one, true)
    balanced = found.balanced_accuracy()
    assert holds(balanced, balanced_accuracy_score(y, said))
    auc = roc_auc_score(y == "yes", model.decision_function(x))
    assert holds(found.auc(), auc)
    likely = model.predict_proba(x)[:, 1]
    kept = (likely >= found.threshold(0.8))[y == "yes"].mean()
    assert 0.78 < kept < 0.9
    loss = -np.log(model.predict_proba(x)[y == "yes", 1]).sum()
    loss -= np.log(model.predict_proba(x)[y == "no", 0]).sum()
    assert holds(found.mean("log_loss"), loss / len(y))
    _, fit, score = model.ledger_.entries
    assert "held out by a public hash: 0.3 of rows" in fit.notes
    assert "(held out of the training by a public hash" in score.uses
    assert "population" in repr(found)
    # What the fit held out counts, whatever is set after it.
    model.set_params(held_out=None)
    again = model.private_score(X, Y, metrics="accuracy", share="rest")
    assert again.statistics["means"].sum() < 0.5 * len(X)


def test_training_rows_are_said_to_be_in_sample():
    model = PrivateRegressor(
        200.0, 1e-5, bounds=(-4, 4), target_bounds=(-4, 4), evaluation=0.5
    ).fit(X, NUMBERS)
    found = model.private_score(X, NUMBERS, share=0.4)
    assert holds(found.r2(), model.score(X, NUMBERS))
    error = np.abs(model.predict(X) - NUMBERS).mean()
    assert holds(found.mean("mean_absolute_error"), error)
    assert "(in sample)" in model.ledger_.entries[3].uses
    assert "in sample" in repr(found)
    with pytest.raises(ValueError, match="in sample"):
        found.mean("mean_absolute_error", of="population")
    model.private_score(X, NUMBERS, share="rest")
    with pytest.raises(ValueError, match="Nothing is left"):
        model.private_score(X, NUMBERS, share="rest")


def test_numbers_of_two_classes_are_scored_as_classes():
    model = PrivateRegressor(
        200.0, 1e-5, bounds=(-4, 4), target_bounds=(0, 1), evaluation=0.5
    ).fit(X, Y == "yes")
    found = model.private_score(X, Y == "yes", share=0.2, metrics="auc")
    assert holds(found.auc(), roc_auc_score(Y == "yes", model.predict(X)))
    with pytest.raises(ValueError, match="must be whole numbers"):
        model.private_score(X, NUMBERS, share=0.1, metrics="auc")
    assert len(model.ledger_.entries) == 4


def test_a_score_is_left_its_share_of_every_budget():
    """Of all fits of clones together, and nothing else for a second one."""
    model = made(fits=3, evaluation=0.1)
    cross_val_score(model, X, Y, cv=2, error_score="raise")
    model.fit(X, Y)
    with pytest.raises(fm.BudgetExceededError):
        clone(model).fit(X, Y)
    model.private_score(X, Y, metrics="accuracy")
    with pytest.raises(fm.BudgetExceededError):
        model.private_score(X, Y, metrics="accuracy")
    assert len(model.ledger_.entries) == 7


def test_a_score_without_a_share():
    model = made().fit(X, Y)
    spent = model.ledger_.entries
    with pytest.raises(ValueError, match=r"evaluation=0.1"):
        model.private_score(X, Y)
    assert model.ledger_.entries == spent


def test_columns_that_are_not_used_are_not_hashed():
    """A column of dates was refused."""
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table["joined"] = pd.Timestamp("2020-01-01")
    columns = {name: (-4, 4) for name in "abc"}
    model = made(bounds=None, columns=columns, held_out=0.3, evaluation=0.1)
    model.fit(table, Y)
    found = model.private_score(table, Y, metrics="accuracy")
    _, (x, _) = part_by_hash(table[[*columns]], Y, 0.3)
    # Noise of epsilon 20: beyond 20 rows less than once in 10^9 runs.
    assert abs(found.statistics["means"].sum() - len(x)) < 20


def test_noise_drawn_is_noise_charged():
    """Of 10,000 empty bins; 6 % off less than once in a million runs."""
    model = made(2.0, evaluation=0.1).fit(X, Y)
    found = model.private_score(X[:9], Y[:9], metrics="auc", bins=1000)
    charged = model.ledger_.entries[-1].build_mechanism().stddev
    assert found.statistics["auc"].std() == pytest.approx(charged, rel=0.06)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"evaluation": 1.0}, "`evaluation` must be"),
        ({"evaluation": -0.1}, "`evaluation` must be"),
        ({"held_out": 1.0}, "`held_out` must be"),
        ({"held_out": 0.2, "neighbours": "replace_one"}, "`held_out` needs"),
    ],
)
def test_what_leaves_no_part_is_refused(change, message):
    model = made(**change)
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y)
    ledger = model._shared.ledger
    assert ledger is None or not ledger.entries
