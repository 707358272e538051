"""Steps that take every record once a pass: in a fixed order, with noise that
later steps partly take back, or each in a step by chance.

The proofs are in docs/proofs/correlated_noise.md and balls_in_bins.md.
"""

import dataclasses
import functools
import math

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel.noise_mechanisms import BallsInBinsMechanism
from keras_fm.kernel.reads.sampling import SamplingPlan

# Steps whose noise one step draws again, if nobody says how many.
_MOST_BANDS = 16
# More than rounding takes off a sensitivity: of positive numbers, one a step.
_MARGIN = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation:
    """Every record once a pass, in an order that stays, with correlated noise.

    Given to `fit` of a `make_private` model in the place of Poisson samples:
    the records are cut into `ceil(n / batch_size)` steps, the same in every
    epoch. No sample is drawn, and none amplifies the privacy. In its place
    the noise of a step takes back a part of that of the steps before, so
    that sums over many steps have little.

    Args:
        min_separation: `None`, or int: a record must be in at most one of so
            many steps after another; `fit` refuses a `batch_size` that cuts
            the records into fewer.
        bands: `None`, or int: over how many steps noise is correlated, 1 for
            independent noise. Every step draws so many vectors of noise.
            `None`: of 1, 2, 4, 8 and 16 the one with the least error of sums
            over steps.

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
        """The `CorrelatedNoise` of so many steps.

        Args:
            separation: int, steps of a pass.
            steps: int, of all passes.

        Raises:
            ValueError: if a pass has too few steps.
        """
        if separation < (self.min_separation or 1):
            raise ValueError(
                "`batch_size` must cut the records into at least "
                f"`min_separation` steps: {self.min_separation} are asked for, "
                f"and a pass has {separation}. Give a smaller `batch_size`."
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
    """Every record once a pass, in a step that is drawn anew in every epoch.

    Given to `fit` of a `make_private` model in the place of Poisson samples:
    in each epoch every record is put into one of `ceil(n / batch_size)`
    steps, each equally likely and whatever the others are in, so that sizes
    of batches vary. (Records that are shuffled and cut into batches of one
    size are something else, and nothing is proven of them here.)

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
    """The samples of `BallsInBins`: a `SamplingPlan` of Poisson samples, with
    its capacity, as records are in a step with no larger probability."""

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
    """Noise of a step: the sum of `weights[j]` times the fresh vector of j
    steps before.

    With `W` the lower triangular Toeplitz matrix of `weights`, the first
    coefficients of `sqrt(1 - x)`, the noise of all steps is `W z`, and what
    a record changes in `inverse(W)` times the sums is bounded by
    `sensitivity` contributions.

    Args:
        bands: int >= 1, how many weights.
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
        """The L2 sensitivity where a contribution has a norm of at most 1:
        of a record of the first step, in all passes."""
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
        """Standard deviation of the noise on sums over the first steps, on
        average over their number; a fit that spends a budget has it times
        its noise multiplier."""
        sums = np.full(self.steps, math.fsum(self.weights))
        sums[: self.bands] = np.cumsum(self.weights)[: self.steps]
        return self.sensitivity * math.sqrt(np.cumsum(sums**2).mean())
