"""Settings of noisy steps, from public numbers alone."""

import dataclasses
import math

from keras_fm.kernel import checks
from keras_fm.kernel.budget import Neighbours, PrivacyBudget, warn_of_delta
from keras_fm.kernel.reads import sampling

# Chosen on public data sets (digits, USPS, MNIST, CIFAR-10): the best rates of
# DP-SGD there, for epsilon 0.25 to 8, gave a weight this standard deviation
# from the noise of all steps, within a factor of three.
_WEIGHT_NOISE = 1.0
_STEPS, _PARTS, _MOMENTUM = 400, 4, 0.9
# Length of a step, momentum included, if all gradients agree.
_LONGEST_STEP = 32.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What `suggest` says; printed in words.

    Attributes:
        batch_size, epochs: of `fit`.
        learning_rate, momentum: of `keras.optimizers.SGD`.
        noise_multiplier: of all steps together.
        signal_to_noise: of a step, at most: the length of the sum if all
            gradients agree, over that of the noise.
        rows: how many rows make that 1.
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
        few = self.signal_to_noise < 1
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
                f"You need about {self.rows:,} rows"
                + (
                    ". Fewer layers that learn, or rounds on public features, "
                    "need fewer."
                    if few
                    else "."
                ),
            ]
        )


def suggest(n, epsilon, delta, weights=10_000):
    """Suggests settings of `make_private` from public numbers alone.

    A fourth of the records is the expected batch, 400 steps are taken, and
    gradients are divided by their norm (`clip=None`). The learning rate is
    that at which the noise of all steps moves a weight by about 1.

    Args:
        n: int, how many records there are, public.
        epsilon, delta: of the budget.
        weights: int, how many weights learn, or the model that they are of.

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
