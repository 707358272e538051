"""EnergyModel: contrastive divergence by ordinary compile and fit."""

import functools

import keras
import numpy as np
import pytest

from keras_fm.papers.pcdbn.chebyshev_crbm import ChebyshevCRBM
from keras_fm.papers.pcdbn.energy_model import EnergyModel

pytestmark = pytest.mark.full

SHAPE = (4, 3, 2)


def array(x):
    return keras.ops.convert_to_numpy(x)


def images(count=4, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).random((count, *shape)).astype("float32")


def one_layer(
    filters=2, kernel_size=2, shape=SHAPE, view=None, size=0.5, **kwargs
):
    """An EnergyModel of one RBM, with the biases of its visible units: the
    non-private twin, unless `unprotected=False` is given."""
    kwargs.setdefault("unprotected", True)
    layer = ChebyshevCRBM(filters, kernel_size, guarantee="published", **kwargs)
    records = keras.Input(shape)
    model = EnergyModel(
        keras.Model(records, layer(records)), [layer], **(view or {})
    )
    rng = np.random.default_rng(7)
    layer.set_weights(
        [rng.normal(0, size, w.shape) for w in layer.get_weights()]
    )
    layer.set_pretraining(True)
    return model, layer


def two_layers(unprotected=True, **view):
    kwargs = {"guarantee": "published", "unprotected": unprotected}
    first = ChebyshevCRBM(3, 2, name="first", **kwargs)
    second = ChebyshevCRBM(2, 2, name="second", **kwargs)
    records = keras.Input(SHAPE)
    pooled = keras.layers.MaxPooling2D(2, padding="same")(first(records))
    whole = keras.Model(records, second(pooled))
    return EnergyModel(whole, [first, second], **view), first, second


# The loss, by hand --------------------
#
# In float64, for "valid" padding and Z = 1: x stays within [-1, 1].

PLAIN = {"padding": "valid", "normalization": "constant", "scale": 20.0}


def windows(v):
    found = np.lib.stride_tricks.sliding_window_view(v, (2, 2), axis=(1, 2))
    return np.moveaxis(found, 3, -1)


def responses(weights, v):
    x = np.einsum("nijabc,abck->nijk", windows(v), weights[0])
    return x + weights[1]


def hidden(layer, weights, v):
    coefficients = layer.approximation.coefficients
    x = responses(weights, v) / layer.scale
    return np.polynomial.polynomial.polyval(x, coefficients)


def energies(layer, weights, v):
    x = responses(weights, v)
    total = -np.sum(x * hidden(layer, weights, v), axis=(1, 2, 3))
    return total - np.sum(v * weights[2], axis=(1, 2, 3))


def visible(weights, h):
    z = np.zeros((len(h), *SHAPE)) + weights[2]
    rows, columns = h.shape[1:3]
    for a, b in np.ndindex(2, 2):
        z[:, a : a + rows, b : b + columns] += np.einsum(
            "nijk,ck->nijc", h, weights[0][a, b]
        )
    return 1 / (1 + np.exp(-z))


def slopes(loss, weights, step=1e-5):
    """Central differences of a loss by every weight."""
    found = []
    for index, weight in enumerate(weights):
        slope = np.zeros(weight.shape)
        for entry in np.ndindex(*weight.shape):
            ends = []
            for sign in (-1, 1):
                moved = [w.copy() for w in weights]
                moved[index][entry] += sign * step
                ends.append(loss(moved))
            slope[entry] = (ends[1] - ends[0]) / (2 * step)
        found.append(slope)
    return found


def descent(model, x):
    """What one step of SGD takes off the weights, and the logs."""
    layer = model.stack[-1]
    before = layer.get_weights()
    model.compile(keras.optimizers.SGD(1.0))
    # Every record has its own draws.
    logs = model.fit(x, batch_size=len(x), shuffle=False, verbose=0).history
    found = [a - b for a, b in zip(before, layer.get_weights(), strict=True)]
    return found, {name: values[0] for name, values in logs.items()}


def test_the_end_of_the_chain_is_held_constant():
    model, layer = one_layer(view={"seed": 3}, degree=3, **PLAIN)
    x = images()
    v, weights = x.astype(float), [w.astype(float) for w in layer.get_weights()]
    end = array(layer.chain(x, 1, keras.random.SeedGenerator(3))).astype(float)
    p = array(layer(x))
    drawn = keras.random.uniform(p.shape, seed=keras.random.SeedGenerator(3))
    states = (array(drawn) < p).astype(float)
    np.testing.assert_allclose(end, visible(weights, states), atol=1e-5)

    def loss(weights, end=end):
        change = energies(layer, weights, v) - energies(layer, weights, end)
        return change.mean()

    wanted = slopes(loss, weights)
    taken, logs = descent(model, x)
    assert logs["loss"] == pytest.approx(loss(weights), rel=1e-4)
    for made, slope in zip(taken, wanted, strict=True):
        np.testing.assert_allclose(made, slope, atol=1e-4)
    # It would be another one if v' moved with the weights.
    moving = slopes(lambda w: loss(w, visible(w, states)), weights)
    for index in (0, 2):  # The states are given: no bias of theirs.
        assert np.abs(wanted[index] - moving[index]).max() > 1e-2


def test_the_absolute_contrast_holds_nothing_constant():
    model, layer = one_layer(view={"contrast": "absolute"}, degree=3, **PLAIN)
    x = images()
    v, weights = x.astype(float), [w.astype(float) for w in layer.get_weights()]

    def loss(weights, end=None):
        p = hidden(layer, weights, v)
        end = visible(weights, p) if end is None else end
        drift = hidden(layer, weights, end) - p
        return np.mean(np.abs(drift)) + np.mean(np.abs(end - v))

    wanted = slopes(loss, weights)
    taken, logs = descent(model, x)
    assert logs["loss"] == pytest.approx(loss(weights), rel=1e-4)
    for made, slope in zip(taken, wanted, strict=True):
        np.testing.assert_allclose(made, slope, atol=1e-4)
    fixed = visible(weights, hidden(layer, weights, v))
    held = slopes(lambda w: loss(w, fixed), weights)
    assert np.abs(held[0] - wanted[0]).max() > 1e-3
    assert not held[2].any() and np.abs(wanted[2]).max() > 1e-3


@pytest.mark.parametrize("noisy", [False, True])
def test_loss_with_and_without_noise(noisy):
    model, layer = one_layer(view={"seed": 5}, unprotected=not noisy)
    if noisy:
        noise = np.random.default_rng(0).normal(0, 0.1, (8, 2))
        layer.fix_noise(coefficient_noise=noise)
    x = images()

    def value(training):
        end = layer.chain(x, 1, keras.random.SeedGenerator(5), training)
        change = layer.energy(x, training=training) - layer.energy(
            end, training=training
        )
        return float(array(change).mean())

    assert (abs(value(True) - value(False)) > 1e-3) == noisy
    wanted = value(True)
    _, logs = descent(model, x)
    assert logs["loss"] == pytest.approx(wanted, rel=1e-4)
    # Evaluation is without noise.
    other, clean = one_layer(view={"seed": 5})
    if noisy:
        clean.fix_noise(coefficient_noise=noise)
    layer = clean
    wanted, error = value(False), array(layer.reconstruct(x)) - x
    other.compile("sgd")
    logs = other.evaluate(x, verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(wanted, rel=1e-4)
    assert logs["reconstruction_error"] == pytest.approx(
        np.mean(error**2), rel=1e-4
    )


# Learning --------------------


def test_every_step_has_its_own_draws():
    model, layer = one_layer(view={"seed": 4})
    model.compile(keras.optimizers.SGD(0.0))
    losses = [model.train_on_batch(images(), return_dict=True)["loss"]
              for _ in range(3)]  # fmt: skip
    assert len({float(loss) for loss in losses}) == 3


# A view of a model --------------------


def test_noise_below_rests_and_noise_above_acts(monkeypatch):
    model, first, second = two_layers(unprotected=False, seed=0)
    x = images()
    clean = array(model.below(x))
    first.fix_noise(coefficient_noise=np.full((8, 3), 0.1))
    second.fix_noise(coefficient_noise=np.full((8, 2), 0.1))
    np.testing.assert_array_equal(array(model.below(x)), clean)
    first.trainable = False
    used = []
    for layer in (first, second):
        drawn = functools.partial(_noted, used, layer.noise_now)
        monkeypatch.setattr(layer, "noise_now", drawn)
    model.compile("sgd", run_eagerly=True)
    model.fit(x, verbose=0)
    assert {layer.name for layer in used} == {second.name}


def _noted(used, noise_now, name):
    used.append(noise_now.__self__)
    return noise_now(name)


# Unprotected --------------------


@pytest.mark.filterwarnings("ignore:.*trainable weights")
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_released_layer_shows_nothing_of_the_records():
    model, layer = one_layer(unprotected=False)
    layer.trainable = False
    layer.mark_released("{}")
    before = layer.get_weights()
    model.compile("sgd")
    assert model.fit(images(), verbose=0).history == {"loss": [0.0]}
    for weight, kept in zip(layer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, kept)
    layer.trainable = True
    with pytest.raises(ValueError, match="Set `trainable = False`"):
        model.train_on_batch(images())
