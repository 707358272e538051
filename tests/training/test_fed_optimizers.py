"""An optimizer that something else has used does not go on into private steps.

People look at gradients with the model's own optimizer, in a loop of plain
calls, and put the weights back. What it then remembers are gradients of
records that no ledger knows.
"""

import keras
import numpy as np
import pytest

import keras_fm as fm

pytestmark = pytest.mark.usefixtures("untraced")

D = 6
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, D)).astype("float32")
Y = np.arange(40) % 3


def net(optimizer):
    keras.utils.set_random_seed(0)
    model = fm.models.GradientNet(
        (D,), [keras.layers.Dense(3)], planned_steps=6, name="net"
    )
    model.compile(optimizer())
    return model


def head(optimizer):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((D,)),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(3),
        ]
    )
    model.compile(optimizer(), fm.losses.TaylorCrossEntropy())
    return model


def first_fit(model, ledger=None):
    """Returns what fits it again, with the same seeds."""
    budget = ledger or fm.PrivacyBudget(2.0, 1e-5)
    if isinstance(model, fm.models.GradientNet):
        private = fm.callbacks.PrivateModel(budget, reproducible_noise=1)
        batches = fm.datasets.PoissonBatches(
            X, Y, sampling="full", steps_per_epoch=2
        )
        data = {"x": batches}
    else:
        private = fm.callbacks.PrivateModel(
            budget, data=(X, Y), reproducible_noise=1
        )
        data = {"x": X, "y": Y, "epochs": 3}

    def fit():
        model.fit(**data, verbose=0, callbacks=[private])

    fit()
    return fit


def momenta():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam():
    return keras.optimizers.Adam(0.05)


def feed(model, sign=1.0):
    """Ten steps of a loop of one's own, and the weights put back."""
    weights = model.get_weights()
    given = [sign * np.ones_like(w) for w in weights]
    for _ in range(10):
        model.optimizer.apply(
            [keras.ops.convert_to_tensor(g) for g in given],
            model.trainable_variables,
        )
    model.set_weights(weights)


@pytest.mark.parametrize("optimizer", [momenta, adam])
@pytest.mark.parametrize("build", [net, head])
def test_what_it_was_fed_moves_no_later_step(build, optimizer):
    found = []
    for sign in (1.0, -1.0):
        model = build(optimizer)
        fit = first_fit(model)
        feed(model, sign)
        fit()
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("build", [net, head])
def test_a_fit_that_goes_on_keeps_its_momenta(build):
    """And the learning rate that was set meanwhile."""
    model = build(momenta)
    fit = first_fit(model)
    model.optimizer.learning_rate = 0.01
    before = int(model.optimizer.iterations)
    fit()
    assert int(model.optimizer.iterations) > before > 0
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)
    feed(model)
    fit()
    assert int(model.optimizer.iterations) <= before
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)


@pytest.mark.parametrize("fed", [False, True])
def test_a_saved_model_goes_on_with_momenta_of_noisy_steps_alone(fed, tmp_path):
    model, budget = net(momenta), fm.PrivacyBudget(2.0, 1e-5)
    ledger = fm.Ledger(budget, neighbours="add_remove")
    first_fit(model, ledger)
    if fed:
        feed(model)
    model.save(tmp_path / "net.keras")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    count = int(loaded.optimizer.iterations)
    assert count == (12 if fed else 2)
    private = fm.callbacks.PrivateModel(ledger, reproducible_noise=1)
    batches = fm.datasets.PoissonBatches(
        X, Y, sampling="full", steps_per_epoch=2
    )
    loaded.fit(batches, verbose=0, callbacks=[private])
    assert int(loaded.optimizer.iterations) == (2 if fed else 4)
