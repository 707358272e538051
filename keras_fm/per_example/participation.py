"""Steps that use every record once an epoch, in a fixed order or at random. In
a fixed order, later steps cancel a part of the noise of earlier ones.

The proofs are in docs/proofs/correlated_noise.md and balls_in_bins.md.
"""

import dataclasses
import functools
import math

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel.access.sampling import SamplingPlan
from keras_fm.kernel.noise_mechanisms import BallsInBinsMechanism

# The most bands tried if `bands` is `None`.
_MOST_BANDS = 16
# More than the rounding error of a sensitivity, a sum of positive numbers.
_MARGIN = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation:
    """Uses every record once an epoch, in a fixed order, with correlated noise.

    Pass it to `fit` of a `make_private` model to replace Poisson samples. The
    records are cut into `ceil(n / batch_size)` steps, the same in every epoch.
    No sample is drawn, so sampling does not amplify the privacy. Instead each
    step cancels a part of the noise of the steps before it, so sums over many
    steps have little noise.

    Args:
        min_separation: `None`, or int: of this many steps in a row, a record is
            in at most one. `fit` refuses a `batch_size` that cuts the records
            into fewer steps.
        bands: `None`, or int: over how many steps noise is correlated; 1 for
            independent noise. Every step draws this many vectors of noise.
            `None` takes the one of 1, 2, 4, 8 and 16 with the least error of
            sums over steps.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    ```python
    private.fit(
        x,
        y,
        batch_size=256,
        epochs=4,
        participation=fm.Participation(min_separation=100),
        callbacks=[budget],
    )
    ```

    Source: Kalinin, McKenna, Upadhyay and Lampert, "Back to Square Roots: An
    Optimal Bound on the Matrix Factorization Error for Multi-Epoch
    Differentially Private SGD", 2025.
    """

    min_separation: int | None = None
    bands: int | None = None

    def __post_init__(self):
        for name in ("min_separation", "bands"):
            checks.optional(checks.count, name, getattr(self, name))

    def noise(self, separation, steps):
        """The `CorrelatedNoise` of a fit with this many steps.

        Args:
            separation: int, steps of an epoch.
            steps: int, of all epochs.

        Raises:
            ValueError: if an epoch has too few steps.
        """
        if separation < (self.min_separation or 1):
            raise ValueError(
                "An epoch must have at least `min_separation` steps. "
                f"Received: min_separation={self.min_separation}, but the "
                f"epoch has {separation} step(s). Give a smaller `batch_size`."
            )
        if self.bands is not None:
            return CorrelatedNoise(min(self.bands, steps), separation, steps)
        bands = [2**i for i in range(5) if 2**i <= min(steps, _MOST_BANDS)]
        return min(
            (CorrelatedNoise(p, separation, steps) for p in bands),
            key=lambda noise: noise.error,
        )


@dataclasses.dataclass(frozen=True)
class BallsInBins:
    """Puts every record into one random step of each epoch.

    Pass it to `fit` of a `make_private` model to replace Poisson samples. An
    epoch has `ceil(n / batch_size)` steps. Each record is put into one of them,
    all equally likely and independent of the other records, so batch sizes
    vary. (Shuffling records and cutting them into batches of one size is
    different; nothing is proven for it here.)

    Example:

    ```python
    private.fit(
        x,
        y,
        batch_size=256,
        epochs=10,
        participation=fm.BallsInBins(),
        callbacks=[budget],
    )
    ```

    Source: Chua et al., "Balls-and-Bins Sampling for DP-SGD", 2024.
    """


class BinsPlan(SamplingPlan):
    """The `SamplingPlan` of `BallsInBins`. It has the capacity of one for
    Poisson samples: the probability of a record to be in a step is not
    larger."""

    def mechanism(self, noise_multiplier, sensitivity=1.0):
        return BallsInBinsMechanism(
            sensitivity=sensitivity,
            noise_multiplier=noise_multiplier,
            sampling_rate=1 / math.ceil(self.n / self.expected_batch_size),
            steps=self.steps,
            overflow_probability=self.overflow_probability,
        )


@dataclasses.dataclass(frozen=True)
class CorrelatedNoise:
    """Noise of a step: the sum of `weights[j]` times the vector drawn j steps
    before.

    With `W` the lower triangular Toeplitz matrix of `weights`, the first
    coefficients of `sqrt(1 - x)`, the noise of all steps is `W z`. One record
    changes `inverse(W)` times the sums by at most `sensitivity` contributions.

    Args:
        bands: int >= 1, the number of weights.
        separation: int >= 1: a record is in steps `i`, `i + separation`, ...
        steps: int >= 1.
    """

    bands: int
    separation: int
    steps: int

    @functools.cached_property
    def weights(self):
        """Tuple of floats, the first 1 and all others below 0."""
        found = [1.0]
        for j in range(1, self.bands):
            found.append(found[-1] * (j - 1.5) / j)
        return tuple(found)

    @functools.cached_property
    def sensitivity(self):
        """The L2 sensitivity if a contribution has norm at most 1. It is that
        of a record of the first step, over all epochs."""
        column = self._column()
        found = np.zeros(self.steps)
        for start in range(0, self.steps, self.separation):
            found[start:] += column[: self.steps - start]
        return math.sqrt(found @ found) * (1 + _MARGIN)

    def _column(self):
        """The first column of the inverse of the matrix of weights."""
        from scipy import signal

        impulse = np.zeros(self.steps)
        impulse[0] = 1.0
        return signal.lfilter([1.0], self.weights, impulse)

    @property
    def error(self):
        """Standard deviation of the noise on sums over the first steps,
        averaged over their number. A fit multiplies it by its noise
        multiplier."""
        sums = np.full(self.steps, math.fsum(self.weights))
        sums[: self.bands] = np.cumsum(self.weights)[: self.steps]
        return self.sensitivity * math.sqrt(np.cumsum(sums**2).mean())
