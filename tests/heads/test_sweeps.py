"""Fits on a release side by side: what separate fits lead to."""

import keras
import numpy as np
import pytest

from keras_fm.heads.sweeps import sweep
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.release import calibrate, release
from keras_fm.layers import PrivateDense
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.queries import SecondMomentQuery

BUDGET = PrivacyBudget(2.0, 1e-5)
M, OUTPUTS, STEPS = 7, 3, 12
RATES, RIDGES = [0.3, 2.0], [0.25, 1.0]
BIAS_FEATURE = 0.1
STARTS = np.random.default_rng(1).normal(size=(2, M, OUTPUTS))


def released(objective, *batch):
    ledger = Ledger(BUDGET, neighbours="add_remove")
    made = release(
        objective,
        [batch],
        mechanism=calibrate(objective, BUDGET, neighbours="add_remove"),
        ledger=ledger,
        name="head",
        noise=NoiseSource(0),
    )
    return made, ledger


def head(start=None):
    """A layer, with public first weights where a start is given."""
    given = {}
    if start is not None:
        bias = start[-1] * BIAS_FEATURE
        given = {
            "kernel_initializer": lambda shape, dtype: start[:-1],
            "bias_initializer": lambda shape, dtype: bias,
        }
    layer = PrivateDense(OUTPUTS, bias_feature=BIAS_FEATURE, **given)
    layer.build((None, M - 1))
    return layer


def records(n=300):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, M - 1))
    y = (x[:, 0] > 0) + (x[:, 1] > 0.5)
    return x / np.linalg.norm(x, axis=1, keepdims=True) * 0.999, y


@pytest.fixture(scope="module")
def made():
    x, y = records()
    layer = head()
    return released(layer.objective(), layer.augment(x), y)


def fitted(made, start, ridge, optimizer):
    """A Keras fit on the release; weights and the loss at them."""
    layer = head(start)
    model = keras.Sequential([keras.Input((M - 1,)), layer])
    layer.learn(*made, ridge_factor=ridge, start="current")
    model.compile(optimizer, TaylorCrossEntropy(), jit_compile=False)
    zeros = np.zeros((4, M - 1), "float32")
    model.fit(zeros, np.zeros(4, int), epochs=STEPS, batch_size=4, verbose=0)
    kernel, bias = layer.get_weights()
    return np.vstack([kernel, bias / layer.bias_feature])


OPTIMIZERS = [
    lambda rate: keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
    lambda rate: keras.optimizers.Adam(rate),
]


@pytest.mark.parametrize("index", range(len(OPTIMIZERS)))
def test_every_run_is_the_fit_of_a_layer(made, untraced, index):
    optimizer = OPTIMIZERS[index]
    found = sweep(
        made[0],
        STARTS,
        RATES,
        RIDGES,
        [optimizer(0.123)],
        steps=STEPS,
        bias_feature=head().bias_feature,
    )
    assert found.weights.shape == (1, 2, 2, 2, M, OUTPUTS)
    for s, r, g in ((0, 0, 0), (1, 1, 1), (0, 1, 0)):
        wanted = fitted(made, STARTS[s], RIDGES[g], optimizer(RATES[r]))
        np.testing.assert_allclose(
            found.weights[0, s, r, g], wanted, rtol=2e-4, atol=2e-4
        )
        assert np.abs(wanted - STARTS[s]).max() > 0.1


def test_all_at_once_is_one_after_the_other(made):
    names = ["sgd", "adam", "rmsprop", "adagrad", "adadelta", "adamax", "lion"]
    found = sweep(made[0], STARTS, RATES, RIDGES, names, steps=STEPS)
    for o, name in enumerate(names):
        for s, r, g in ((0, 1, 0), (1, 0, 1)):
            one = sweep(
                made[0],
                STARTS[[s]],
                [RATES[r]],
                [RIDGES[g]],
                [name],
                steps=STEPS,
            )
            np.testing.assert_allclose(
                found.weights[o, s, r, g],
                one.weights[0, 0, 0, 0],
                rtol=1e-4,
                atol=1e-4,
            )
            np.testing.assert_allclose(
                found.losses[o, s, r, g], one.losses[0, 0, 0, 0], rtol=1e-4
            )


def test_losses_are_those_of_the_released_objective(made):
    found = sweep(made[0], STARTS, RATES, RIDGES, steps=STEPS)
    objective, n = made[0].query, made[0].estimated_records()
    linear = objective.linear_coefficients(made[0].linear)
    for g, ridge in enumerate(RIDGES):
        hessian, minimiser = made[0].minimise(ridge)

        def loss(w, hessian=hessian):
            return (np.vdot(linear, w) + np.vdot(w, hessian @ w) / 8) / n

        assert found.minima[g] == pytest.approx(loss(minimiser), rel=1e-9)
        for s in range(2):
            for r in range(2):
                wanted = loss(found.weights[0, s, r, g])
                assert found.losses[0, s, r, g] == pytest.approx(wanted)
    # They fall, to the minimum.
    long = sweep(made[0], STARTS, [20.0], RIDGES, steps=400)
    np.testing.assert_allclose(
        long.losses[0, :, 0], [found.minima] * 2, rtol=1e-3
    )
    assert (found.losses > found.minima).all()


def test_a_run_that_diverges_leaves_the_others_alone(made):
    alone = sweep(made[0], STARTS, [1.0], steps=200)
    both = sweep(made[0], STARTS, [1.0, 1e6], steps=200)
    assert not np.isfinite(both.losses[0, :, 1]).any()
    np.testing.assert_allclose(
        both.weights[:, :, :1], alone.weights, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "changed, match",
    [
        ({"starts": STARTS[0]}, "`starts` must have shape"),
        ({"starts": STARTS * np.nan}, "`starts` must be finite"),
        ({"learning_rates": [0.0]}, "greater than 0"),
        ({"learning_rates": []}, "list of finite"),
        ({"ridge_factors": [-1.0]}, "at least 0"),
        ({"steps": 0}, "`steps`"),
        ({"bias_feature": 0.0}, "`bias_feature`"),
        ({"optimizers": ["ftrl"]}, "no Ftrl"),
        (
            {
                "optimizers": [
                    keras.optimizers.SGD(
                        keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
                    )
                ]
            },
            "no schedule",
        ),
        ({"optimizers": [keras.optimizers.SGD(clipnorm=1.0)]}, "clipnorm"),
    ],
)
def test_invalid_arguments(made, changed, match):
    arguments = {
        "starts": STARTS,
        "learning_rates": RATES,
        "steps": STEPS,
    } | changed
    with pytest.raises(ValueError, match=match):
        sweep(made[0], **arguments)


def test_other_releases_are_refused():
    other, _ = released(SecondMomentQuery(num_features=3), np.eye(3))
    with pytest.raises(ValueError, match="PrivateDense"):
        sweep(other, STARTS, RATES, steps=1)
