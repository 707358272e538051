"""Steps that were paid for are the steps that run: same noise, same samples,
counted where no callback reaches."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.kernel import mechanisms

rng = np.random.default_rng(0)
RECORDS = rng.normal(size=(200, 6)).astype("float32")
LABELS = (RECORDS[:, 0] > 0).astype(int)
BUDGET = fm.PrivacyBudget(2.0, 1e-5)

pytestmark = pytest.mark.usefixtures("untraced")


def net(**arguments):
    arguments.setdefault("clip", 0.5)
    model = fm.models.GradientNet(
        (6,), [keras.layers.Dense(2)], name="net", **arguments
    )
    model.compile(keras.optimizers.SGD(0.1))
    return model


def batches(steps=5, **arguments):
    return fm.datasets.PoissonBatches(
        RECORDS, LABELS, batch_size=20, steps_per_epoch=steps, **arguments
    )


def fit(model, ledger, steps=5, epochs=1, callbacks=(), spends=1.0, **data):
    private = fm.callbacks.PrivateModel(
        ledger, guarantee=fm.Proven(spends=spends)
    )
    model.fit(
        batches(steps, **data),
        epochs=epochs,
        verbose=0,
        callbacks=[private, *callbacks],
    )


def new_ledger():
    return fm.Ledger(BUDGET, neighbours="add_remove")


def taken(model):
    """What the noisy steps of a model cost, whatever a ledger says."""
    return mechanisms.SampledGaussianMechanism(
        sensitivity=1.0,
        noise_multiplier=model.noise_multiplier,
        sampling_rate=0.1,
        steps=model.steps_taken,
    )


def test_steps_of_a_namesake_are_not_taken_at_less_noise():
    """One script, run twice on one ledger, planned in another way."""
    ledger = new_ledger()
    first, second = net(planned_steps=1000), net(planned_steps=5)
    fit(first, ledger, spends=0.3)
    fit(second, ledger, spends=0.7)
    assert second.noise_multiplier < first.noise_multiplier / 2
    with pytest.raises(fm.BudgetExceededError, match="5 more than were paid"):
        fit(second, ledger)
    # The first one's are there still.
    fit(first, ledger, epochs=2)
    assert first.steps_taken == 15 and second.steps_taken == 5
    spent = mechanisms.compose_epsilon([taken(first), taken(second)], 1e-5)
    assert spent <= ledger.epsilon() <= 2.0 * (1 + 1e-9)


class Stop(keras.callbacks.Callback):
    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            if self.error:
                raise self.error
            self.model.stop_training = True


def test_an_interrupted_fit_leaves_no_step_to_other_loops():
    ledger, model = new_ledger(), net(planned_steps=20)
    with pytest.raises(KeyboardInterrupt):
        fit(model, ledger, callbacks=[Stop(KeyboardInterrupt())])
    assert not model._noise.may_step and not model._noise.has_seed
    with pytest.raises(ValueError, match="in a fit with its ledger only"):
        model.fit(batches(), verbose=0)
    # Those of the epoch that was cut off stay used.
    assert ledger.steps_left("net (steps)") == 15
    fit(model, ledger)


class Tree(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.tree = self.model.get_state_tree(value_format="numpy_array")


def test_the_seed_is_in_no_state_tree():
    """What `keras.callbacks.OrbaxCheckpoint` writes."""
    tree, model = Tree(), net()
    fit(model, new_ledger(), callbacks=[tree])
    text = str(tree.tree)
    assert "kernel" in text
    assert "seed" not in text and "steps_armed" not in text


def test_thresholds_of_another_ledger_are_refused():
    ledger, model = new_ledger(), net(clip="histogram")
    fit(model, ledger)
    assert len(ledger.entries) == 2
    again = fm.models.GradientNet.from_config(model.get_config())
    again.compile(keras.optimizers.SGD(0.1))
    other = new_ledger()
    with pytest.raises(ValueError, match="is not in this ledger"):
        fit(again, other)
    assert not other.entries
    # Public ones are anybody's.
    again.learn_thresholds([0.5])
    fit(again, other)


def test_thresholds_of_a_fit_that_stopped_stay_paid_for():
    """By the ledger they were released under, and by no other."""
    ledger, model = new_ledger(), net(clip="histogram", planned_steps=5)

    def stop(*_, **__):
        raise KeyboardInterrupt

    model.__dict__["fix_steps"] = stop
    with pytest.raises(KeyboardInterrupt):
        fit(model, ledger)
    del model.__dict__["fix_steps"]
    thresholds, other = model.partitions, new_ledger()
    with pytest.raises(ValueError, match="is not in this ledger"):
        fit(model, other)
    assert not other.entries and model.partitions == thresholds
