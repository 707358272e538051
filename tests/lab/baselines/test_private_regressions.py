"""What every private regression does alike: domain, ledger, seeds, refusals."""

import math

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from keras_fm.kernel.ledger.ledger import BudgetExceededError
from keras_fm.lab.baselines import (
    FunctionalLinearRegression,
    FunctionalLogisticRegression,
)
from keras_fm.lab.baselines.dpme import DPME
from keras_fm.lab.baselines.filter_priority import FilterPriority

pytestmark = [pytest.mark.once, pytest.mark.full]

LOGISTIC, LINEAR = FunctionalLogisticRegression, FunctionalLinearRegression
HISTOGRAMS = (DPME, FilterPriority)
KINDS = (LOGISTIC, LINEAR, *HISTOGRAMS)
RELATIONS = {"add_remove": 1.0, "replace_one": 2.0}

of_each_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, epsilon=1.0, **kwargs):
    arguments = {"low": 0.0, "high": 1.0, "reproducible_noise": 0}
    if kind is LINEAR:
        arguments |= {"target_low": -1.0, "target_high": 1.0}
    return kind(epsilon, **{**arguments, **kwargs})


def records(n=200, d=4, seed=0):
    x = np.random.default_rng(seed).random((n, d))
    return x, (x.sum(axis=1) > d / 2).astype(int)


class Unread:
    """Records that must not be read."""

    shape = (100, 4)

    def __array__(self, *args, **kwargs):
        pytest.fail("the records were read")


@of_each_kind
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_ledger_is_charged_once(kind, relation):
    x, y = records()
    model = make(kind, 0.3, neighbours=relation, reproducible_noise=None)
    assert model.ledger.epsilon() == 0 and "none" in model.report()
    assert model.fit(x, y) is model
    assert model.ledger.epsilon() == pytest.approx(0.3, rel=1e-12)
    (entry,) = model.ledger.entries
    assert entry.guarantee == "proven" and entry.private
    assert entry.neighbours == relation
    assert entry.mechanism["epsilon"] == 0.3
    if kind in HISTOGRAMS:
        assert entry.mechanism["sensitivity"] == RELATIONS[relation]
        # Under replace_one the number of records is the same for neighbours.
        assert bool(entry.notes) == (relation == "add_remove")
    report = model.report()
    assert "proven:     (epsilon = 0.3, delta = 0)" in report
    assert "docs/proofs/regression_baselines.md" in report
    released = model.coef_.copy()
    with pytest.raises(BudgetExceededError):
        model.fit(Unread(), Unread())
    assert len(model.ledger.entries) == 1
    np.testing.assert_array_equal(model.coef_, released)


@pytest.mark.parametrize("kind", HISTOGRAMS)
def test_a_public_number_of_records_is_not_taken_from_the_data(kind):
    model = make(kind, neighbours="add_remove", num_records=1000)
    assert model.fit(*records()).ledger.entries[0].notes == ()
    grids = [make(kind, num_records=1000)._plan(n, 2).grid for n in (5, 500)]
    assert grids[0].cells == grids[1].cells


@of_each_kind
def test_seeded_noise_is_labelled_not_private(kind):
    x, y = records()
    models = [make(kind).fit(x, y) for _ in "ab"]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    assert "NOT PRIVATE" in models[0].report()
    assert math.isinf(models[0].ledger.epsilon())
    free = [make(kind, reproducible_noise=None).fit(x, y) for _ in "ab"]
    assert not np.array_equal(free[0].coef_, free[1].coef_)
    assert "NOT PRIVATE" not in free[0].report()


@pytest.mark.parametrize("kind", (LOGISTIC, *HISTOGRAMS))
def test_accuracy_at_a_large_epsilon(kind):
    """Breast cancer, where 63 % of the records have the larger class: the
    bounds are round numbers, not the data's."""
    x, y = load_breast_cancer(return_X_y=True)
    high = [40, 50, 250, 3000, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1]
    high += [3, 5, 25, 600, 0.05, 0.15, 0.4, 0.06, 0.08, 0.03]
    high += [50, 60, 300, 5000, 0.25, 1.2, 1.5, 0.3, 0.7, 0.25]
    if kind is LOGISTIC:
        model = make(kind, 1e5, high=np.array(high), sensitivity="tight")
    else:
        x, model = x[:, :2], make(kind, 100.0, low=5.0, high=[30.0, 40.0])
    assert model.fit(x[:400], y[:400]).score(x[400:], y[400:]) > 0.85
    p = model.predict_proba(x[400:])
    np.testing.assert_allclose(p.sum(axis=1), 1)
    np.testing.assert_array_equal(p.argmax(axis=1), model.predict(x[400:]))
    np.testing.assert_allclose(
        np.log(p[:, 1] / p[:, 0]), model.decision_function(x[400:])
    )


LABELS = "Labels must be 0 or 1"


@of_each_kind
@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x, y: (x[:, 0], y), r"`x` must have shape \(n, d\)"),
        (lambda x, y: (x[:0], y[:0]), "at least one record"),
        (lambda x, y: (x[:, :3], y), "as many features as the bounds"),
        (lambda x, y: (x * np.nan, y), "`x` must be finite"),
        (lambda x, y: (x / 0.0, y), "`x` must be finite"),
        (lambda x, y: (x, y[1:]), r"`y` must have shape \(n,\)"),
        (lambda x, y: (x, np.eye(2)[y]), r"`y` must have shape \(n,\)"),
        (lambda x, y: (x, y * np.nan), f"{LABELS}|must be finite"),
        (lambda x, y: (x, np.where(y, np.inf, 0)), f"{LABELS}|be finite"),
        (lambda x, y: (x, y + 1), LABELS),
        (lambda x, y: (x, y / 2), LABELS),
    ],
)
def test_invalid_records_cost_nothing(kind, change, message):
    model = make(kind, low=np.zeros(4))
    with np.errstate(all="ignore"):
        bad = change(*records())
    if message == LABELS and kind is LINEAR:
        return  # Targets of any size are clipped.
    with pytest.raises(ValueError, match=message):
        model.fit(*bad)
    assert model.ledger.entries == ()
    assert model.fit(*records()).coef_.shape == (4,)


@pytest.mark.parametrize("kind", HISTOGRAMS)
def test_grids_of_too_many_cells_are_refused_before_reading(kind):
    for cells, changes in {
        12_500_000: {"bins": 50, "num_dimensions": 4},
        2 * 2**80: {"bins": 2**20, "num_dimensions": 4},
    }.items():
        model = make(kind, **changes)
        with pytest.raises(ValueError, match=f"{cells} cells|from 2 to"):
            model.fit(Unread(), Unread())
        assert model.ledger.entries == ()
