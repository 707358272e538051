"""Noisy descent of a linear layer is what Keras, and DP-SGD, make of it."""

import importlib.util
import math

import keras
import neighbours
import numpy as np
import pytest
from linear_records import gradients, objective, records

import keras_fm as fm
from keras_fm.heads.rounds import Rounds
from keras_fm.kernel.access import sampling
from keras_fm.kernel.budget import PrivacyBudget

pytestmark = pytest.mark.full

DELTA = 1e-5


def test_without_noise_it_is_keras_sgd_on_clipped_gradients():
    h, y = records()
    layer = keras.layers.Dense(3, use_bias=False, kernel_initializer="zeros")
    layer.build((None, 4))
    optimizer = keras.optimizers.SGD(2.0, momentum=0.9)
    for _ in range(20):
        weights = keras.ops.convert_to_numpy(layer.kernel).astype("float64")
        step = gradients(h, y, weights, 0.5) / 60
        gradient = keras.ops.convert_to_tensor(step.astype("float32"))
        optimizer.apply([gradient], [layer.kernel])
    rounds = Rounds(rounds=20, learning_rate=2.0, momentum=0.9)
    query = objective(clip=0.5)
    found = query.check_records(h, y)
    made = rounds.descend(
        lambda weights: query.total(*found, weights), np.zeros((4, 3)), 60
    )
    assert np.abs(made).max() > 0.5
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer.kernel), made, rtol=1e-4, atol=1e-5
    )


def dp_sgd(data, seed, **kwargs):
    # tensorflow-privacy itself cannot be imported beside Keras 3 by name.
    for name in ("tensorflow", "tf_keras", "tensorflow_privacy"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    from keras_fm.lab.baselines.dp_sgd import DPSGDClassifier, DPSGDConfig

    config = DPSGDConfig(learning_rate=3.0, momentum=0.9, **kwargs)
    rival = DPSGDClassifier(None, config, math.inf, DELTA, seed=seed)
    rival.fit(data[0], data[1], num_classes=3)
    (head,) = rival.to_keras().layers
    kernel, bias = head.get_weights()
    return rival, np.concatenate([kernel, bias[None]])


@pytest.mark.parametrize("form", ["fast_clipping", "vectorized"])
@pytest.mark.parametrize("batch_size", [None, 20])
def test_dp_sgd_of_a_linear_layer_is_a_special_case(form, batch_size):
    """The same full or Poisson batches, no noise: the same weights."""
    h, y = records(n=80)
    h, steps, clip = h.astype("float32"), 15, 0.4
    rival, wanted = dp_sgd(
        (h, y),
        seed=4,
        form=form,
        sampling="full" if batch_size is None else "poisson",
        batch_size=batch_size,
        steps=steps,
        l2_norm_clip=clip,
    )
    # The constant 1 of a Dense bias is a feature like the others.
    augmented = np.concatenate([h, np.ones((80, 1))], axis=1)
    made = objective(5, feature_bound=math.sqrt(2) + 1e-6, clip=clip)
    samples = rival.plan.batches(np.random.default_rng(4))

    def read(weights):
        rows = next(samples)
        found = made.check_records(augmented[rows], y[rows])
        return made.total(*found, weights)

    rounds = Rounds(
        rounds=steps,
        batch_size=batch_size,
        learning_rate=3.0,
        momentum=0.9,
        clip=clip,
    )
    weights = rounds.descend(read, np.zeros((5, 3)), batch_size or 80)
    assert np.abs(weights).max() > 0.5
    # Many records were clipped, and some were not.
    delta = neighbours.residuals(
        made, *made.check_records(augmented, y), weights
    )
    lengths = np.linalg.norm(augmented, axis=1) * np.linalg.norm(delta, axis=1)
    assert 0.1 < np.mean(lengths > clip) < 1.0
    np.testing.assert_allclose(weights, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("batch_size", [None, 50])
def test_its_noise_is_that_of_dp_sgd(batch_size):
    """DP-SGD keeps a thousandth of delta for samples beyond its buffer,
    which reads from the records do not need."""
    from keras_fm.lab.baselines.dp_sgd import DPSGDConfig

    config = DPSGDConfig(
        learning_rate=1.0,
        l2_norm_clip=0.1,
        sampling="full" if batch_size is None else "poisson",
        batch_size=batch_size,
        steps=30,
    )
    rival = config.plan(1000, 2.0, DELTA)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            fm.layers.PrivateDense(
                3, rounds=Rounds(rounds=30, batch_size=batch_size)
            ),
        ]
    )
    private = fm.callbacks.PrivateModel(
        PrivacyBudget(2.0, DELTA), data=records(1000)
    )
    (step,) = _entries(private, model)
    assert step.mechanism["steps"] == rival.steps == 30
    assert step.mechanism["sampling_rate"] == rival.sampling_rate
    assert step.mechanism["sensitivity"] == config.l2_norm_clip
    own = step.mechanism["noise_multiplier"]
    assert own == pytest.approx(rival.noise_multiplier, rel=3e-4)
    wanted = sampling.noise_multiplier(
        (rival.sampling_rate, 30),
        PrivacyBudget(2.0, DELTA),
        neighbours="add_remove",
    )
    assert own == pytest.approx(wanted, rel=1e-4)


def _entries(private, model):
    private.set_model(model)
    return private._make_plan().entries()
