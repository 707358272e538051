"""Logits from the sums of one release: what they are without noise, and that
noise makes them careful."""

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import log_loss

from keras_fm.estimators import PrivateClassifier

pytestmark = pytest.mark.once
RNG = np.random.default_rng(0)
CENTRES = np.array([[2, 0, 0], [0, 2, 1], [0, -1, 2]])


def table(classes, n=3000):
    shares = np.array([0.6, 0.1, 0.3])[:classes]
    y = RNG.choice(classes, n, p=shares / shares.sum())
    x = CENTRES[y] + RNG.normal(size=(n, 3)) @ [
        [1, 0.5, 0],
        [0, 1, 0],
        [0, 0, 1],
    ]
    return np.clip(x, -6, 6), y


def fitted(epsilon, x, y, **kwargs):
    given = {"bounds": (-6, 6), "classes": list(range(y.max() + 1))}
    return PrivateClassifier(epsilon, 1e-6, **(given | kwargs)).fit(x, y)


@pytest.mark.parametrize("classes", [2, 3])
def test_without_noise_it_is_linear_discriminant_analysis(classes):
    x, y = table(classes)
    found = fitted(1e5, x, y).predict_proba(x)
    known = LinearDiscriminantAnalysis().fit(x, y).predict_proba(x)
    # Rows far out count less.
    assert np.abs(found - known).mean() < 0.01
    assert log_loss(y, found) < log_loss(y, known) + 0.002


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("epsilon", [1e-3, 0.05, 0.3])
def test_much_noise_does_not_make_it_sure(classes, epsilon):
    """Mean log-loss of ten fits; without limits it was above 100."""
    x, y = table(classes, 600)
    losses = [
        log_loss(
            y, fitted(epsilon, x, y).predict_proba(x), labels=[*range(classes)]
        )
        for _ in range(10)
    ]
    assert np.mean(losses) < 3


def test_it_is_saved_with_the_estimator_and_follows_each_fit():
    x, y = table(3)
    model = fitted(1e4, x, y, fits=2)
    one = model.predict_proba(x)
    model.fit(x, (y + 1) % 3)
    np.testing.assert_array_equal(
        (one.argmax(axis=1) + 1) % 3, model.predict_proba(x).argmax(axis=1)
    )
