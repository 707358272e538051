"""Data as the papers' experiments split them."""

import numpy as np
import pytest

from keras_fm.datasets import health_simulator
from keras_fm.lab.reproduce import sources
from keras_fm.models import BehaviorCDBN

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
    # The condition on others: all members at the window's steps.
    members = train.columns["members"]
    low, high = network.bounds.T
    attributes = np.clip(network.attributes, low, high)
    for part in (train, test):
        past = part.x[-1, members].reshape(4, 20, 30)
        for k, step in enumerate(past):
            np.testing.assert_allclose(
                step, attributes[:, part.steps[-1] - k], rtol=1e-6
            )
            own = step[part.users[-1]]
            np.testing.assert_array_equal(own, part.x[-1, 30 * k : 30 * k + 30])
    assert part.x.shape[1] == members.stop == len(part.low) == len(part.names)
    assert (part.x >= part.low).all() and (part.x <= part.high).all()
    assert part.reach == 19
    # As the model scales them, their sum is a mean.
    scaled = (part.x - part.low) / (part.high - part.low)
    mean = (attributes[:, part.steps[0] - np.arange(4)] - low) / (high - low)
    assert scaled[0, members].sum() == pytest.approx(mean.mean(), rel=1e-4)
    model = BehaviorCDBN.of(train, guarantee="published", unprotected=True)
    conditions = ("social", "events", "members")
    assert model.rbms[0].conditions == sum(
        train.columns[name].stop - train.columns[name].start
        for name in conditions
    )
    few = network.windows(history=3)
    assert len(rows) == 2 * min(np.sum(few.y == 0), np.sum(few.y == 1))
