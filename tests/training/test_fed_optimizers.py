"""An optimizer that something else has used does not go on into private steps.

People look at gradients with the model's own optimizer, in a loop of plain
calls, and put the weights back. What it then remembers are gradients of
records that no ledger knows.
"""

import keras
import numpy as np
import pytest

import keras_fm as fm

pytestmark = [
    pytest.mark.usefixtures("untraced"),
    pytest.mark.full,
]

D = 6
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, D)).astype("float32")
Y = np.arange(40) % 3


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


def first_fit(model):
    """Returns what fits it again, with the same seeds."""
    private = fm.callbacks.PrivateModel(
        epsilon=2.0, delta=1e-5, data=(X, Y), reproducible_noise=1
    )

    def fit():
        model.fit(X, Y, epochs=3, verbose=0, callbacks=[private])

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
def test_what_it_was_fed_moves_no_later_step(optimizer):
    found = []
    for sign in (1.0, -1.0):
        model = head(optimizer)
        fit = first_fit(model)
        feed(model, sign)
        fit()
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_fit_that_goes_on_keeps_its_momenta():
    """And the learning rate that was set meanwhile."""
    model = head(momenta)
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
