"""Settings from public numbers."""

import math

import keras
import pytest

import keras_fm as fm
from keras_fm.kernel.access import sampling
from keras_fm.kernel.mechanisms import compose_epsilon

pytestmark = pytest.mark.once


def test_the_settings_spend_the_budget():
    found = fm.suggest(6000, 2.0, 1e-6, weights=1000)
    per_epoch = math.ceil(6000 / found.batch_size)
    plan = sampling.plan(
        6000,
        batch_size=found.batch_size,
        steps=found.epochs * per_epoch,
        delta=1e-6,
        epsilon=2.0,
    )
    spent = compose_epsilon([plan.mechanism(found.noise_multiplier)], 1e-6)
    assert 1.99 < spent <= 2
    # What the plan of a fit says of the same settings.
    inputs = keras.Input((99,))
    model = keras.Model(inputs, keras.layers.Dense(10)(inputs))
    callback = fm.callbacks.PrivateModel(2.0, 1e-6)
    text = callback.plan(
        fm.make_private(model),
        6000,
        batch_size=found.batch_size,
        epochs=found.epochs,
    )
    same = fm.suggest(6000, 2.0, 1e-6, model)
    assert same.signal_to_noise == pytest.approx(found.signal_to_noise)
    assert f"at most {same.signal_to_noise:.3g} (" in text


def test_more_budget_is_a_longer_way_and_fewer_rows():
    by_epsilon = [fm.suggest(10_000, e, 1e-6) for e in (0.5, 2.0, 8.0)]
    rates = [found.learning_rate for found in by_epsilon]
    rows = [found.rows for found in by_epsilon]
    assert rates == sorted(set(rates))
    assert rows == sorted(set(rows), reverse=True)
    # The rows that it asks for are enough.
    enough = fm.suggest(by_epsilon[0].rows, 0.5, 1e-6)
    assert enough.signal_to_noise == pytest.approx(1, rel=0.05)
    assert "need fewer" in str(by_epsilon[0])
    assert "need fewer" not in str(enough) or enough.signal_to_noise < 1
    # However much budget there is, a step stays one.
    far = fm.suggest(10**7, 100.0, 1e-9)
    assert far.learning_rate <= 3.2


def test_what_it_prints_is_what_to_write():
    found = fm.suggest(400, 1.0, 1e-5, weights=50)
    made = "\n".join(str(found).splitlines()[:3])
    assert f"batch_size=100, epochs={found.epochs}," in made
    compile(made, "suggestion", "exec")
    assert f"{found.rows:,} rows" in str(found)


@pytest.mark.parametrize(
    "given", [(0, 1.0, 1e-5), (10, 0.0, 1e-5), (10, 1.0, 0.0), (10, 1.0, 2)]
)
def test_numbers_outside_their_range(given):
    with pytest.raises(ValueError):
        fm.suggest(*given)
