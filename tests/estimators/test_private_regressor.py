import numpy as np
import pytest
from fit_checks import shown
from sklearn.model_selection import cross_val_score

import keras_fm as fm
from keras_fm.estimators import PrivateRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, size=(300, 3))
Y = 20 + 5 * X[:, 0] - 2 * X[:, 1] + RNG.normal(size=300) / 2
DELTA = 1e-5


def made(epsilon=1e4, **kwargs):
    given = {"bounds": (-2, 2), "target_bounds": (0, 40), **kwargs}
    return PrivateRegressor(epsilon, DELTA, **given)


@pytest.mark.parametrize("rounds", [None, 30])
def test_it_learns_numbers(rounds):
    model = made(20.0, rounds=rounds).fit(X, Y)
    assert model.score(X, Y) > 0.8
    assert model.predict(X).shape == (300,)
    entries = model.ledger_.entries
    assert len(entries) == (2 if rounds else 3)
    assert {entry.guarantee for entry in entries} == {"proven"}
    assert model.ledger_.epsilon() <= 20


@pytest.mark.once
def test_every_fold_is_charged():
    model = made(fits=3)
    assert cross_val_score(model, X, Y, cv=3, error_score="raise").min() > 0.8
    with pytest.raises(fm.BudgetExceededError, match="`fits=k`"):
        model.fit(X, Y)


def test_numbers_stay_within_their_public_bounds():
    """In the records as they count, and in what is predicted."""
    far = np.where(Y > 25, 1e6, Y)
    found = [
        made(target_bounds=(10, 30), reproducible_noise=1).fit(X, y).predict(X)
        for y in (far, np.minimum(far, 30))
    ]
    np.testing.assert_array_equal(*found)
    noisy = made(1e-3, target_bounds=(10, 30)).fit(X, Y).predict(X)
    assert noisy.min() >= 10 and noisy.max() <= 30


@pytest.mark.parametrize("bounds", [[(0, 40)], [0, 40], np.array([[0, 40]])])
def test_bounds_of_the_target_in_each_form_of_the_layer(bounds):
    """A pair in a list spent the budget, and then nothing predicted."""
    model = made(target_bounds=bounds).fit(X, Y)
    assert model.score(X, Y) > 0.8
    # Those of the fit, whatever is set later.
    model.set_params(target_bounds=None)
    assert model.predict(X).max() <= 40


@pytest.mark.parametrize(
    "wrong",
    [None, 3, (1, 0), (0, np.inf), (0, "a"), ("0", "100"), (0, 10**400)],
)
def test_bounds_of_the_target_are_needed(wrong):
    model = made(target_bounds=wrong)
    with pytest.raises(ValueError, match="ounds|bound"):
        model.fit(X, Y)
    model.set_params(target_bounds=(0, 40)).fit(X, Y)


@pytest.mark.once
def test_what_is_no_number_is_refused_and_not_shown():
    for secret in ("a-secret", 10**400):
        y = Y.astype(object)
        y[5] = secret
        with pytest.raises(ValueError, match="must hold numbers") as caught:
            made().fit(X, y)
        assert not any(str(secret) in text for text in shown(caught.value))
