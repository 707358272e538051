"""The bound on shuffled batches, by simulation and on a real `DPMAC`."""

import math

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.auditing import shuffled_batches_epsilon
from keras_fm.kernel.mechanisms import GaussianMechanism, compose_epsilon


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


def test_epochs_multiply_the_chances_to_stay_below():
    one, three = (
        shuffled_batches_epsilon(5, 2.0, 1e-3, epochs=e) for e in (1, 3)
    )
    assert three.epsilon != one.epsilon
    rng = np.random.default_rng(1)
    above = [
        simulated(5, 2.0, three.threshold, 2.0, 300_000, rng) for _ in range(3)
    ]
    seen = 1 - np.prod([1 - p for p in above])
    assert seen == pytest.approx(three.probability, rel=0.05)


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


@pytest.mark.parametrize(
    "given, message",
    [
        ((0, 1.0, 1e-5), "`batches`"),
        ((5, 0.0, 1e-5), "`noise_multiplier`"),
        ((5, 1.0, 1.0), "`delta`"),
    ],
)
def test_bad_arguments_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        shuffled_batches_epsilon(*given)
    with pytest.raises(ValueError, match="`epochs`"):
        shuffled_batches_epsilon(5, 1.0, 1e-5, epochs=0)


class Steps(keras.callbacks.Callback):
    """The first weight after every step."""

    def on_train_begin(self, logs=None):
        self.kernel = [self.read()]

    def on_train_batch_end(self, batch, logs=None):
        self.kernel.append(self.read())

    def read(self):
        kernel = self.model.private_layers[0].kernel
        return float(keras.ops.convert_to_numpy(kernel)[0, 0])


@pytest.mark.parametrize("record", [True, False])
def test_a_published_dpmac_shows_these_sums(record):
    """15 records in batches of 3, all of them opposite to one, or 14."""
    n, size, clip = 15, 3, 0.01
    y = np.ones((n, 1), "float32")
    y[7] = 0.0
    x = np.ones((n, 1), "float32")
    if not record:
        x, y = np.delete(x, 7, axis=0), np.delete(y, 7, axis=0)
    model = fm.models.DPMAC(
        (1,),
        [keras.layers.Dense(1, use_bias=False)],
        clip=[clip],
        noise_multiplier=0.05,
    )
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(1e4, 1e-5),
        data=(x, y),
        guarantee=fm.Published(lot=size, neighbours="add_remove"),
    )
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
        assert list(parts) == [0, 0, 0, 0, 1]
