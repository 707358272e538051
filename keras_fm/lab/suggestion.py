"""Settings for training with noisy steps, from public numbers alone."""

import dataclasses
import math

from keras_fm.kernel import checks
from keras_fm.kernel.access import sampling
from keras_fm.kernel.budget import Neighbours, PrivacyBudget, warn_of_delta

# Chosen on public data sets (digits, USPS, MNIST, CIFAR-10): the best rates of
# DP-SGD there, for epsilon 0.25 to 8, were those at which the noise of all
# steps gave a weight this standard deviation, within a factor of three.
_WEIGHT_NOISE = 1.0
_STEPS, _PARTS, _MOMENTUM = 400, 4, 0.9
# Length of a step, momentum included, if all gradients agree.
_LONGEST_STEP = 32.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suggestion:
    """The result of `suggest`; `print` shows it in words.

    Attributes:
        batch_size, epochs: for `fit`.
        learning_rate, momentum: for `keras.optimizers.SGD`.
        noise_multiplier: standard deviation of a step's noise over the clip,
            such that all steps together spend the budget.
        signal_to_noise: of a step, at most: length of the sum if all gradients
            agree, over the length of the noise.
        rows: number of rows at which that ratio is 1.
        budget: a `PrivacyBudget`.
    """

    batch_size: int
    epochs: int
    learning_rate: float
    momentum: float
    noise_multiplier: float
    signal_to_noise: float
    rows: int
    budget: PrivacyBudget

    def __str__(self):
        hint = (
            " Fewer layers that learn, or rounds on public features, need "
            "fewer."
        ) * (self.signal_to_noise < 1)
        return "\n".join(
            [
                "private = fm.make_private(model)",
                f"private.compile(keras.optimizers.SGD({self.learning_rate:g}, "
                f"momentum={self.momentum:g}), loss)",
                f"private.fit(x, y, batch_size={self.batch_size}, "
                f"epochs={self.epochs}, callbacks=[fm.callbacks.PrivateModel("
                f"{self.budget.epsilon:g}, {self.budget.delta:g})])",
                "",
                f"Noise multiplier {self.noise_multiplier:.3g}; signal to "
                f"noise of a step: at most {self.signal_to_noise:.2g}.",
                f"You need about {self.rows:,} rows.{hint}",
            ]
        )


def suggest(n, epsilon, delta, weights=10_000):
    """Suggests training settings for `make_private`, without using data.

    It plans 400 steps with an expected batch of a fourth of the records, and
    divides gradients by their norm (`clip=None`). At its learning rate the
    noise of all steps moves a weight by about 1.

    Args:
        n: int, the number of records, public.
        epsilon, delta: the privacy budget.
        weights: int, the number of trained weights, or the model.

    Returns:
        A `Suggestion`; print it.

    Raises:
        ValueError: if a number is outside its range.

    Example:

    >>> suggest(60_000, 2.0, 1e-6, weights=26_010).batch_size
    15000
    """
    checks.count("n", n)
    budget = PrivacyBudget(epsilon, delta)
    checks.gaussian_delta(delta)
    warn_of_delta(delta, n)
    if not checks.is_integer(weights):
        learned = weights.trainable_variables
        weights = sum(math.prod(v.shape) for v in learned)
    checks.count("weights", weights)
    batch = max(1, n // _PARTS)
    steps = -(-_STEPS // math.ceil(n / batch)) * math.ceil(n / batch)
    plan = sampling.plan(
        n, batch_size=batch, steps=steps, delta=delta, epsilon=epsilon
    )
    noise = sampling.noise_multiplier(
        plan, budget, neighbours=Neighbours.ADD_REMOVE
    )
    moved = noise * math.sqrt(steps) / batch
    rate = min(_WEIGHT_NOISE / moved, _LONGEST_STEP) * (1 - _MOMENTUM)
    signal = batch / (noise * math.sqrt(weights))
    return Suggestion(
        batch_size=batch,
        epochs=steps // math.ceil(n / batch),
        learning_rate=float(f"{rate:.2g}"),
        momentum=_MOMENTUM,
        noise_multiplier=noise,
        signal_to_noise=signal,
        rows=math.ceil(n / signal),
        budget=budget,
    )
