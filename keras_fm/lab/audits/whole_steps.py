"""All steps of a DP-MAC as one release, told from their neighbour's.

As in `whole_rounds`, every record is a canary with a feature of its own, and
an absent one leaves a record of zeros. The fit is a `DPMAC` of one layer on
Poisson samples under `PrivateModel`, with plain descent: the weights after
two steps show the noisy sum between them, so the adversary is who looks at
the model after every step. Sampler, clipping, noise and ledger are those of
the fit.
"""

import keras
import numpy as np

from keras_fm import callbacks, models
from keras_fm.lab.auditing.objective import ObjectiveAudit
from keras_fm.lab.auditing.white_box import sampled_ratio

_CLIP = 0.1


def audit_steps(
    budget,
    *,
    steps,
    sampling_rate,
    runs,
    lanes=4096,
    seed=None,
):
    """Lower bound on the epsilon of all steps together, under add_remove.

    Args:
        budget: the `PrivacyBudget` that they spend.
        steps: int, steps of a fit.
        sampling_rate: float in (0, 1), of the Poisson samples.
        runs: int, canaries in all fits together.
        lanes: int, canaries of one fit.
        seed: `None`, or an int for tests, of coins, samples and noise.

    Returns:
        An `ObjectiveAudit`: `reach` is what a canary adds to the sum of a
        sample over the clip, on average.
    """
    rng = np.random.default_rng(seed)
    ratios, coins, reaches = [], [], []
    for _ in range(-(-runs // lanes)):
        shown = rng.integers(0, 2, lanes)
        given = None if seed is None else int(rng.integers(2**31))
        found = _one_fit(budget, steps, sampling_rate, shown, given)
        coins.append(shown)
        ratios.append(found[0])
        reaches.append(found[1])
    return ObjectiveAudit.of_ratios(
        found[2], ratios, coins, reach=float(np.mean(reaches))
    )


def _one_fit(budget, steps, sampling_rate, shown, seed):
    """Ratios `(lanes,)`, how far canaries reach, and the ledger."""
    lanes = len(shown)
    x = np.zeros((lanes, lanes), "float32")
    np.fill_diagonal(x, shown)
    model = models.DPMAC(
        (lanes,), [keras.layers.Dense(1, use_bias=False)], clip=[_CLIP]
    )
    private = callbacks.PrivateModel(budget, reproducible_noise=seed)
    size = round(sampling_rate * lanes)
    sums = _Sums(size)
    model.compile(keras.optimizers.SGD(1.0))
    model.fit(
        x,
        np.ones((lanes, 1), "float32"),
        batch_size=size,
        steps_per_epoch=steps,
        callbacks=[private, sums],
        verbose=0,
    )
    mechanism = private.ledger.entries[-1].build_mechanism()
    stddev = mechanism.stddev * _CLIP
    ratios, reached = np.zeros(lanes), 0.0
    for before, noisy in sums.found:
        # The label is 1: a probability less than that.
        apart = -np.minimum(_CLIP, 1 / (1 + np.exp(before)))
        ratio = (noisy - apart / 2) * apart / stddev**2
        ratios += sampled_ratio(ratio, mechanism.sampling_rate)
        reached += float(np.mean(np.abs(apart))) / _CLIP
    return ratios, reached / steps, private.ledger


class _Sums(keras.callbacks.Callback):
    """`(weights before a step, noisy sum of the step)` of every step."""

    def __init__(self, expected):
        super().__init__()
        self._expected = expected
        self.found = []

    def on_train_begin(self, logs=None):
        self._before = self._weights()

    def on_train_batch_end(self, batch, logs=None):
        after = self._weights()
        step = (self._before - after) * self._expected
        self.found.append((self._before, step))
        self._before = after

    def _weights(self):
        kernel = self.model.private_layers[0].kernel
        return np.array(keras.ops.convert_to_numpy(kernel)[:, 0], np.float64)
