"""Data as the papers' experiments split them."""

import numpy as np
import pytest

from keras_fm.datasets import health_simulator
from keras_fm.lab.reproduce import sources

pytestmark = pytest.mark.once


def test_printed_windows(monkeypatch):
    """Four steps, as many of either class, a tenth at random for testing."""
    network = health_simulator.simulate("daily", seed=0, users=20, steps=20)
    monkeypatch.setattr(sources, "network", lambda name: network)
    train, test = sources.printed_windows("any")
    rows = np.concatenate([train.x, test.x])
    assert len(test) == len(rows) // 10
    assert np.concatenate([train.y, test.y]).mean() == 0.5
    history = train.columns["history"]
    assert history.stop - history.start == 3 * 30
    # Not by time, and no row twice.
    assert test.steps.min() < np.median(train.steps) < test.steps.max()
    places = {*zip(train.users, train.steps), *zip(test.users, test.steps)}
    assert len(places) == len(rows)
    few = network.windows(history=3)
    assert len(rows) == 2 * min(np.sum(few.y == 0), np.sum(few.y == 1))
