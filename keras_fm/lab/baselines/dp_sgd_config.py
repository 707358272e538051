"""Settings of DP-SGD, and the plan that follows from them.

Sampler and accountant are one object, a `SamplingPlan` of `keras_fm.kernel`, so
they cannot disagree.
"""

import dataclasses
import math
from functools import partial

import keras
import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel.access import sampling as sampling_lib
from keras_fm.kernel.budget import (
    Neighbours,
    PrivacyBudget,
    warn_of_delta,
)
from keras_fm.kernel.planning import sampled_noise

# Largest number in a record, so that its gradient fits into float32: one NaN
# would make the whole batch NaN.
LARGEST = 1e6
FORMS = ("fast_clipping", "vectorized")
_OPTIMIZERS = ("sgd", "adam")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPSGDConfig:
    """Settings of DP-SGD training. Every field is public.

    Args:
        learning_rate: float > 0.
        l2_norm_clip: float > 0. Each record's gradient, over all weights
            together, is scaled down to at most this L2 norm.
        form: for tensorflow-privacy: `"fast_clipping"` (its `DPSequential` with
            a layer registry, which forms only norms of per-record gradients if
            every trainable layer is `Dense`, else the gradients;
            `report()["clipping"]` names it) or `"vectorized"` (its
            `VectorizedDPKerasSGDOptimizer` / `...AdamOptimizer`: per-record
            gradients through a Jacobian). Both define the same mechanism.
            `None` chooses `"fast_clipping"`; jax-privacy, which has one form,
            needs `None`.
        optimizer: `"sgd"` or `"adam"`.
        momentum: float in [0, 1), for `"sgd"`.
        sampling: `"poisson"` (each record joins each batch independently
            with probability `batch_size / n`; proven), `"full"` (each step uses
            all records; proven) or `"shuffled"` (batches of a fixed size from a
            fresh permutation in each epoch, accounted *as if* they were
            Poisson, as is common practice: only claimed).
        batch_size: int, the expected batch size; `None` with `"full"`.
        steps: int, number of updates. Give `steps` or `epochs`.
        epochs: float, number of updates in units of `n / batch_size`.
        physical_batch_size: int, rows whose gradients are in memory at a time;
            `None` chooses. It changes time and memory, not the mechanism.
        decay: float in (0, 1]: share of the learning rate that is left at the
            last step; it falls linearly.
        average: float in [0, 1): decay factor of the exponential moving average
            over the steps' weights that is the result; 0 for the weights after
            the last step. It uses no more privacy.
        views: int, changed copies of a record, made by the classifier's
            `augment`. Their mean gradient is clipped (De et al.). Only for
            jax-privacy and `"vectorized"`.

    Raises:
        ValueError: if a value is outside its range, NaN or infinite, or two
            values contradict each other.

    Example:

    >>> DPSGDConfig(
    ...     learning_rate=2.0, l2_norm_clip=0.1, batch_size=256, steps=100
    ... ).sampling
    'poisson'

    Source: Abadi et al., "Deep Learning with Differential Privacy", 2016.
    """

    learning_rate: float
    l2_norm_clip: float
    form: str | None = None
    optimizer: str = "sgd"
    momentum: float = 0.9
    sampling: str = "poisson"
    batch_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    physical_batch_size: int | None = None
    decay: float = 1.0
    average: float = 0.0
    views: int = 1

    def __post_init__(self):
        positive = partial(checks.optional, checks.count)
        checks.fields(
            self,
            form=partial(checks.optional, checks.one_of, choices=FORMS),
            optimizer=partial(checks.one_of, choices=_OPTIMIZERS),
            sampling=partial(checks.one_of, choices=sampling_lib.SAMPLINGS),
            learning_rate=checks.positive,
            l2_norm_clip=checks.positive,
            momentum=partial(checks.number, at_least=0, below=1),
            batch_size=positive,
            steps=positive,
            physical_batch_size=positive,
            decay=partial(checks.number, above=0, at_most=1),
            average=partial(checks.number, at_least=0, below=1),
            views=checks.count,
            epochs=partial(checks.optional, checks.positive),
        )
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("Give one of `steps` and `epochs`.")

    def rates(self, schedules, steps):
        """The learning rate, or a `PolynomialDecay` over the steps from Keras'
        or tf-keras' `schedules`."""
        if self.decay == 1:
            return self.learning_rate
        last = self.decay * self.learning_rate
        return schedules.PolynomialDecay(self.learning_rate, steps, last)

    def keras_optimizer(self, steps):
        """The optimizer of Keras 3 for this many steps."""
        rates = self.rates(keras.optimizers.schedules, steps)
        if self.optimizer == "sgd":
            return keras.optimizers.SGD(rates, momentum=self.momentum)
        return keras.optimizers.Adam(rates)

    def plan(self, n, epsilon, delta, neighbours="add_remove", others=()):
        """The steps and the cost of a fit on `n` records, without using them.

        Args:
            n: int, number of records, public by declaration.
            epsilon: float in (0, 100], or infinite to clip without noise.
            delta: float in (0, 1).
            neighbours: `"add_remove"` or `"replace_one"`.
            others: mechanisms that the same budget already paid for.

        Returns:
            A `DPSGDPlan`.

        Raises:
            ValueError: if the batch is larger than `n`, a budget is outside
                its range, or the relation has no accounting here (Poisson
                batches under `"replace_one"`).
        """
        neighbours = Neighbours.of(neighbours)
        check_budget(epsilon, delta)
        sampled_noise.check_neighbours(self.sampling, neighbours)
        batch = sampling_lib.expected_batch_size(
            n, self.sampling, self.batch_size
        )
        if math.isfinite(epsilon):
            warn_of_delta(delta, n)
        steps = self.steps
        if steps is None:
            steps = max(1, round(self.epochs * n / batch))
        made = sampling_lib.plan(
            n,
            sampling=self.sampling,
            batch_size=self.batch_size,
            steps=steps,
            delta=delta,
            epsilon=epsilon,
        )
        return DPSGDPlan(
            **dataclasses.asdict(made),
            noise_multiplier=_noise_multiplier(
                made, epsilon, delta, neighbours, others
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPSGDPlan(sampling_lib.SamplingPlan):
    """The records of each step, and the noise that makes it private.

    Attributes:
        noise_multiplier: standard deviation of the noise on the sum of
            clipped gradients, in units of `l2_norm_clip`. Under `"replace_one"`
            a record changes the sum by twice the clip; the number includes this
            factor. 0 without noise.
    """

    noise_multiplier: float

    def batches(self, rng):
        """Yields `steps` arrays of record numbers.

        Poisson samples are independent, shuffled batches are consecutive
        parts of a fresh permutation in each epoch (the remainder is left
        out).

        Raises:
            RuntimeError: if a Poisson sample exceeds `capacity`.
        """
        size = self.expected_batch_size
        for step in range(self.steps):
            first = step % (self.n // size) * size
            if self.sampling == "full":
                yield np.arange(self.n)
            elif self.sampling == "poisson":
                yield sampling_lib.poisson_sample(
                    self.n, self.sampling_rate, self.capacity, rng
                )
            else:
                if first == 0:
                    order = rng.permutation(self.n)
                yield order[first : first + size]


def _noise_multiplier(made, epsilon, delta, neighbours, others):
    if math.isinf(epsilon):
        return 0.0
    sensitivity = 2 if neighbours.replaces else 1
    return sensitivity * sampling_lib.noise_multiplier(
        made,
        PrivacyBudget(epsilon, delta),
        neighbours=neighbours,
        others=others,
    )


def check_budget(epsilon, delta):
    if epsilon != math.inf:
        checks.number(
            "epsilon",
            epsilon,
            above=0,
            at_most=100,
            wanted="in (0, 100], or infinite for no noise",
        )
    checks.gaussian_delta(delta)


def check_records(x):
    """Refuses records whose gradients may have no finite norm.

    Raises:
        ValueError: its message holds none of the records' numbers.
    """
    more = (
        ": the gradient of a record with NaN or infinite entries has no norm "
        "to clip."
    )
    checks.finite("x", x, more)
    if max(np.max(x), -np.min(x)) > LARGEST:
        raise ValueError(
            f"`x` must hold numbers of at most {LARGEST:g}, or -{LARGEST:g}: "
            "gradients of larger ones may be beyond float32, and have no norm "
            "to clip. Divide its columns by public constants."
        )
