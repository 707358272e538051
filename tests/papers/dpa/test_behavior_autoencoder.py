"""dPAH on windows of a small synthetic network."""

import keras
import numpy as np
import pytest

from keras_fm import PrivacyBudget, Proven, Unit
from keras_fm.callbacks import PrivateModel
from keras_fm.datasets import health_simulator
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.models import BehaviorAutoencoder, unprotected_twin

pytestmark = pytest.mark.full

DELTA = 1e-6


@pytest.fixture(scope="module")
def parts():
    network = health_simulator.simulate("daily", seed=0, steps=60)
    return network.windows(history=2, social="public").split(0.8)


@pytest.fixture(scope="module")
def friends():
    network = health_simulator.simulate("daily", seed=0, steps=12)
    windows = network.windows(history=1, social="friends", max_friends=2)
    return windows.split(0.8)[0]


def fitted(train, **arguments):
    model = BehaviorAutoencoder.of(train, hidden=(60,))
    budget = arguments.pop("budget", PrivacyBudget(8.0, DELTA))
    private = PrivateModel(
        budget,
        data=(train.x, train.y),
        guarantee=Proven(**arguments),
        notes=(train.note,),
    )
    model.compile("sgd", TaylorCrossEntropy())
    model.fit(train.x, train.y, batch_size=4096, callbacks=[private], verbose=0)
    return model, private


def test_it_reconstructs_the_attributes_now(parts):
    train, test = parts
    model, _ = fitted(train, budget=PrivacyBudget(1000.0, DELTA))
    start, stop = model.encoders[0].visible_range
    now = test.columns["present"]
    assert (start, stop) == (now.start, now.stop)
    low, high = test.low[start:stop], test.high[start:stop]
    seen = (test.x[:, start:stop] - low) / (high - low)
    found = (model.reconstruct(test.x) - low) / (high - low)
    assert found.shape == seen.shape
    spread = np.mean((seen - seen.mean(axis=0)) ** 2)
    assert np.mean((found - seen) ** 2) < 0.5 * spread


@pytest.mark.once
def test_friends_are_charged(friends):
    assert friends.reach == 2

    def sensitivity(reach):
        private = PrivateModel(
            PrivacyBudget(8.0, DELTA),
            data=(friends.x, friends.y),
            guarantee=Proven(unit=Unit(owners=friends.users, reach=reach)),
        )
        plan = private.plan(BehaviorAutoencoder.of(friends, hidden=(20,)))
        line = plan.splitlines()[-2]
        assert line.startswith("  output")
        assert ("at most 2 other units" in plan) == (reach == 2)
        return float(line.split("sensitivity ")[1].split(",")[0])

    # Own user once, two friends twice each.
    assert sensitivity(2) == pytest.approx(5 * sensitivity(0), rel=1e-5)


def test_saving_keeps_columns_and_bounds(tmp_path, parts):
    train, test = parts
    model, _ = fitted(train)
    path = str(tmp_path / "m.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert isinstance(loaded, BehaviorAutoencoder)
    np.testing.assert_array_equal(
        loaded.predict(test.x[:64], verbose=0),
        model.predict(test.x[:64], verbose=0),
    )
    assert loaded.get_config()["columns"] == model.get_config()["columns"]


def test_the_published_form_conditions_the_code(parts):
    train, _ = parts
    for form, sizes in (("published", [200, 200]), ("proven", [100])):
        model = BehaviorAutoencoder.of(train, guarantee=form)
        assert [encoder.units for encoder in model.encoders] == sizes
    model = BehaviorAutoencoder.of(train, hidden=(8, 6), guarantee="published")
    private = PrivateModel(
        1.0, 0.0, data=(train.x, train.y), guarantee=model.guarantee()
    )
    scales = [
        e.mechanism["laplace_scale"] for e in private_entries(private, model)
    ]
    d = 30
    # d (b + b^2 / 4) over an epsilon of 1/3, then M = 1 (dPA Lemmas 2, 3).
    assert scales == pytest.approx(
        [3 * d * (8 + 16), 3 * 8 * (6 + 9), 3 * (6 + 9)]
    )
    with pytest.raises(ValueError, match="'encoder_1' has no release"):
        model.pretrain(train.x[:2000], epochs=1, batch_size=500)
    twin = unprotected_twin(model)
    assert type(twin) is BehaviorAutoencoder
    twin.pretrain(train.x[:2000], epochs=1, batch_size=500)
    first = twin.encoders[0]
    assert first.visible_dim == d and first.input_dim == train.x.shape[1]


def private_entries(private, model):
    private.set_model(model)
    return private._make_plan().entries()
