"""All steps of DP-SGD by its own libraries, told from their neighbour's.

As in `whole_steps`, every record is a canary with a feature of its own, and
an absent one leaves a record of zeros, whose gradient is zero. The model is
linear with two outputs and stays where a canary's gradient is longer than the
clip, so that every step moves the canary's weights the same way, by the clip,
if it is drawn. The adversary looks after every step, as the accountant has it.
"""

import math

import keras
import numpy as np

from keras_fm.lab.auditing.objective import ObjectiveAudit
from keras_fm.lab.auditing.white_box import sampled_ratio
from keras_fm.lab.baselines import DPSGDConfig

CLIP = 0.1
# Of a sum of gradients: weights stay near zero.
_RATE = 0.01
# From one output to the other, where label 1 pulls.
_TOWARDS = np.array([-1.0, 1.0]) / math.sqrt(2)


def audit_dp_sgd(
    library,
    budget,
    *,
    steps,
    runs,
    sampling_rate=None,
    lanes=1024,
    seed=None,
):
    """Lower bound on the epsilon of all steps together, under add_remove.

    Args:
        library: `keras_fm.lab.baselines.DPSGDClassifier` or
            `JaxDPSGDClassifier`.
        budget: the `PrivacyBudget` that they spend.
        steps: int, of a fit.
        runs: int, canaries in all fits together.
        sampling_rate: float in (0, 1) of Poisson samples, or `None`: full
            batches.
        lanes: int, canaries of one fit.
        seed: `None`, or an int for tests, of coins, samples and noise.

    Returns:
        An `ObjectiveAudit`: `reach` is what a canary adds to the sum of a
        step over the clip, by a fit without noise, on average.
    """
    rng = np.random.default_rng(seed)
    batch = sampling_rate and round(sampling_rate * lanes)
    config = DPSGDConfig(
        learning_rate=_RATE * (batch or lanes),
        l2_norm_clip=CLIP,
        momentum=0.0,
        sampling="poisson" if batch else "full",
        batch_size=batch,
        steps=steps,
    )

    def fit(epsilon, shown):
        given = None if seed is None else int(rng.integers(2**31))
        model = keras.Sequential(
            [
                keras.Input((lanes,)),
                keras.layers.Dense(
                    2, use_bias=False, kernel_initializer="zeros"
                ),
            ]
        )
        classifier = _watched(library)(
            model, config, epsilon, budget.delta, seed=given
        )
        x = np.diag(shown).astype("float32")
        classifier.fit(x, np.ones(lanes, int), num_classes=2)
        kernels = np.array([np.zeros((lanes, 2)), *classifier.kernels])
        return classifier, np.diff(kernels, axis=0) @ _TOWARDS / _RATE

    _, alone = fit(math.inf, np.ones(lanes))
    rate = batch / lanes if batch else 1.0
    ratios, coins = [], []
    for _ in range(-(-runs // lanes)):
        shown = rng.integers(0, 2, lanes)
        classifier, found = fit(budget.epsilon, shown)
        stddev = classifier.plan.noise_multiplier * CLIP
        each = (found - CLIP / 2) * CLIP / stddev**2
        ratios.append(sampled_ratio(each, rate).sum(axis=0))
        coins.append(shown)
    return ObjectiveAudit.of_ratios(
        classifier.ledger,
        ratios,
        coins,
        reach=float(np.mean(alone)) / (rate * CLIP),
    )


def _watched(library):
    """The library's class, which keeps the weights after every step."""

    class Watched(library):
        def _take(self, step, plan, batches):
            self.kernels = []

            def watched(batch):
                step(batch)
                if hasattr(step, "twin"):
                    (kernel,) = step.twin.get_weights()
                else:
                    (kernel,) = step.weights()
                self.kernels.append(np.array(kernel, np.float64))

            super()._take(watched, plan, batches)

    return Watched
