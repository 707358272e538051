"""The bound on shuffled batches, by simulation and on a real `DPMAC`."""

import math

import keras
import numpy as np
import pytest
from scipy import special

import keras_fm as fm
from keras_fm.kernel.access import sampling
from keras_fm.kernel.mechanisms import GaussianMechanism, compose_epsilon
from keras_fm.lab.auditing.shuffled_batches import (
    last_weights_epsilon,
    shuffled_batches_epsilon,
)

pytestmark = pytest.mark.full


def simulated(batches, noise, threshold, shift, runs, rng):
    """How often a batch exceeds the threshold, and how many are shifted."""
    sums = rng.normal(scale=noise, size=(runs, batches))
    sums[np.arange(runs), rng.integers(0, batches, runs)] += shift
    return np.mean(sums.max(axis=1) > threshold)


def test_probabilities_by_simulation():
    found = shuffled_batches_epsilon(6, 1.2, 0.01)
    rng = np.random.default_rng(0)
    for shift, exact in ((2.0, found.probability), (1.0, found.without)):
        seen = simulated(6, 1.2, found.threshold, shift, 400_000, rng)
        # Five standard deviations.
        assert abs(seen - exact) < 5 * np.sqrt(exact / 400_000)
    assert found.epsilon == pytest.approx(
        np.log((found.probability - 0.01) / found.without)
    )


def test_one_batch_is_a_gaussian_mechanism():
    """No batch is hidden: one sum, two data sets a distance of 1 apart."""
    for noise in (0.7, 1.5, 4.0):
        found = shuffled_batches_epsilon(1, noise, 1e-5)
        mechanism = GaussianMechanism(sensitivity=1.0, noise_multiplier=noise)
        exact = compose_epsilon([mechanism], 1e-5)
        assert 0.5 * exact < found.epsilon <= exact


def test_never_above_the_same_sums_without_a_shuffle():
    """Knowing the batch is worse: 2 in one batch against 1 in the last."""
    for batches in (2, 50, 3000):
        for noise in (0.6, 1.0, 3.0):
            found = shuffled_batches_epsilon(batches, noise, 1e-5)
            far = math.sqrt(5)
            known = GaussianMechanism(
                sensitivity=far, noise_multiplier=noise / far
            )
            assert found.epsilon <= compose_epsilon([known], 1e-5)
    assert shuffled_batches_epsilon(4, 500.0, 0.1).epsilon == 0


def test_last_weights_by_simulation():
    rates, noise, runs = np.array([1.0, 0.5, 0.2]), 1.1, 400_000
    found = last_weights_epsilon(rates, noise, 0.01)
    rng = np.random.default_rng(2)
    sums = rng.normal(scale=noise, size=(runs, 3))
    with_it = sums.copy()
    with_it[np.arange(runs), rng.integers(0, 3, runs)] += 2.0
    sums[:, -1] += 1.0
    for drawn, exact in (
        (with_it, found.probability),
        (sums, found.without),
    ):
        seen = np.mean(drawn @ rates > found.threshold)
        # Five standard deviations.
        assert abs(seen - exact) < 5 * np.sqrt(exact / runs)
    assert found.epsilon == pytest.approx(
        np.log((found.probability - 0.01) / found.without)
    )


def test_poisson_samples_are_not_refuted_by_the_same_event():
    """Control: a sum seen alone, that a record joins with rate 1/T."""
    batches, claimed, delta = 60, 0.5, 1e-5
    plan = sampling.plan(
        1000 * batches,
        sampling="shuffled",
        batch_size=1000,
        steps=batches,
        delta=delta,
    )
    noise = sampling.noise_multiplier(
        plan, fm.PrivacyBudget(claimed, delta), neighbours="add_remove"
    )
    falling = last_weights_epsilon(np.eye(1, batches)[0], noise, delta)
    assert falling.epsilon > 3 * claimed
    assert last_weights_epsilon(np.ones(batches), noise, delta).epsilon < (
        claimed
    )
    c = np.linspace(0, 14, 2000)
    q = special.ndtr(-c)
    p = (1 - 1 / batches) * q + special.ndtr(1 / noise - c) / batches
    assert np.all(p - delta <= np.exp(claimed) * q)


class Steps(keras.callbacks.Callback):
    """The first weight after every step."""

    def on_train_begin(self, logs=None):
        self.kernel = [self.read()]

    def on_train_batch_end(self, batch, logs=None):
        self.kernel.append(self.read())

    def read(self):
        kernel = self.model.private_layers[0].kernel
        return float(keras.ops.convert_to_numpy(kernel)[0, 0])


SIZE, CLIP = 3, 0.01


def published(x, y):
    """A `DPMAC` of one weight, and its callback."""
    model = fm.models.DPMAC(
        (1,),
        [keras.layers.Dense(1, use_bias=False)],
        clip=[CLIP],
    )
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(1e4, 1e-5),
        data=(x, y),
        guarantee=fm.Published(lot=SIZE, neighbours="add_remove"),
    )
    return model, private


@pytest.mark.parametrize("record", [True, False])
def test_a_published_dpmac_shows_these_sums(record):
    """15 records in batches of 3, all of them opposite to one, or 14."""
    n, size, clip = 15, SIZE, CLIP
    y = np.ones((n, 1), "float32")
    y[7] = 0.0
    x = np.ones((n, 1), "float32")
    if not record:
        x, y = np.delete(x, 7, axis=0), np.delete(y, 7, axis=0)
    model, private = published(x, y)
    steps = Steps()
    model.compile(keras.optimizers.SGD(1.0))
    model.fit(
        x, y, batch_size=size, epochs=1, callbacks=[private, steps], verbose=0
    )
    sums = -np.diff(steps.kernel) * size / clip
    assert len(sums) == 5
    # Of 3 like records: -3. Ten standard deviations of the noise are 0.5.
    parts = np.round(sums + size).astype(int)
    np.testing.assert_allclose(sums + size, parts, atol=0.5)
    if record:
        assert sorted(parts) == [0, 0, 0, 0, 2]
    else:
        assert sorted(parts) == [0, 0, 0, 0, 1]


def test_a_published_dpmac_shows_its_first_batch_in_its_last_weights():
    """Rates that fall: the part of the first sum is all but alone."""
    n, size, clip = 15, SIZE, CLIP
    x = np.ones((n, 1), "float32")
    seen = set()
    for attempt in range(40):
        # A seeded shuffle is the same in every fit.
        y = np.ones((n, 1), "float32")
        y[attempt % n] = 0.0
        model, private = published(x, y)
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
            [0], [1.0, 1e-3]
        )
        model.compile(keras.optimizers.SGD(schedule))
        kernel = model.private_layers[0].kernel
        before = float(keras.ops.convert_to_numpy(kernel)[0, 0])
        model.fit(x, y, batch_size=size, callbacks=[private], verbose=0)
        after = float(keras.ops.convert_to_numpy(kernel)[0, 0])
        part = (before - after) * size / clip + size
        assert min(abs(part), abs(part - 2.0)) < 0.5
        seen.add(round(part))
        if seen == {0, 2}:
            return
    # By chance once in 7,500 times.
    raise AssertionError("the record was in no first batch")
