"""Rounds of a FunctionalNet by hand: what a fit with PrivateModel does."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.kernel.access.gathered_rounds import GatheredRounds
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.release import calibrate
from keras_fm.papers.functional_net.expansion_descent import ExpansionDescent

BUDGET = fm.PrivacyBudget(4.0, 1e-5)


def records():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    x = 0.3 * rng.normal(size=(300, 5)) + np.eye(3, 5)[y]
    return x.astype("float32"), y


def build():
    keras.utils.set_random_seed(0)
    model = fm.models.FunctionalNet(
        (5,),
        [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3)],
        rounds=3,
        below=[fm.layers.NormalizationLayer()],
    )
    model.compile(keras.optimizers.SGD(0.0))
    return model


def by_hand(model, x, y, ledger):
    """The loop of docs/large_data.md, all in one process."""
    objective = model.objective("l2")

    def gather(weights):
        partial = PartialStatistics(objective.at(weights))
        partial.add(model.factors(x, y))
        return [partial]

    paid = GatheredRounds(
        objective,
        gather,
        mechanism=calibrate(
            objective, BUDGET, neighbours="add_remove", share=1 / model.rounds
        ),
        rounds=model.rounds,
        ledger=ledger,
        name=model.name,
        noise=NoiseSource(0),
    )
    descent = ExpansionDescent(model)
    for _ in range(model.rounds):
        descent.learn(paid(model.augmented_weights()))
    return descent


def test_rounds_by_hand_are_those_of_a_fit(untraced):
    x, y = records()
    fitted = build()
    private = fm.callbacks.PrivateModel(
        BUDGET, data=(x, y), reproducible_noise=0
    )
    fitted.fit(x, y, callbacks=[private], verbose=0)
    model, ledger = build(), fm.Ledger(BUDGET, neighbours="add_remove")
    before = model.augmented_weights()
    by_hand(model, x, y, ledger).finish(ledger)
    for one, other, start in zip(
        fitted.augmented_weights(), model.augmented_weights(), before
    ):
        # Batches of another size round factors in another way.
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
        assert np.abs(one - start).max() > 0.05
    assert model.is_released and not model.published
    entries = [(e.mechanism, e.uses, e.neighbours) for e in ledger.entries]
    assert entries == [
        (e.mechanism, e.uses, e.neighbours) for e in private.ledger.entries
    ]
    # From here on no record is read.
    model.fit(np.zeros_like(x), y, verbose=0)


def test_a_descent_ends_with_all_its_rounds_and_their_ledger(untraced):
    x, y = records()
    ledger = fm.Ledger(BUDGET, neighbours="add_remove")
    model = build()
    descent = by_hand(model, x, y, ledger)
    with pytest.raises(ValueError, match="has no entry"):
        descent.finish(fm.Ledger(BUDGET, neighbours="add_remove"))
    with pytest.raises(ValueError, match="has 3 rounds"):
        ExpansionDescent(model).finish(ledger)
    assert not model.is_released
