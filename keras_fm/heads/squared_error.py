"""Squared error of an output layer that predicts numbers, by two statistics.

For records (h_i, y_i) with every y_ij in its public bounds, targets
t = (y - centre) / half in [-1, 1]^M and outputs z_i = W^T h_i,

    sum_i ||t_i - z_i||^2 / 2 = sum_i ||t_i||^2 / 2 - <S, W> + tr(W^T A W) / 2

with A = sum_i h_i h_i^T, the same for all M outputs, and S = sum_i h_i t_i^T.
A release uses nothing of the records but these two.

The proofs of the sensitivities are in docs/proofs/squared_error.md.
"""

import dataclasses
import math

import numpy as np
from scipy import special

from keras_fm.core.quadratic_release import QuadraticObjective
from keras_fm.heads.head_release import HeadRelease
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel.ledger.noisy_statistics import released_as
from keras_fm.kernel.query import QuadraticQuery


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquaredErrorQuery(QuadraticObjective, QuadraticQuery):
    """Query for the squared error of one dense output layer on numbers.

    Args:
        num_outputs: int M, how many numbers the layer predicts.
        target_bounds: public `(low, high)` for all M numbers, or M such
            pairs. They scale the targets to [-1, 1].
        num_features, feature_bound, nonnegative, quadratic_scale, grouped,
            reach: see `QuadraticQuery`. With `quadratic_scale = C / sqrt(M)`
            A and S have the same weight.

    Targets are `(n, M)`, or `(n,)` if `M == 1`, in their own unit.

    The L2 sensitivity under add_remove is sqrt(C^4 / alpha^2 + C^2 M). For
    the others see `QuadraticQuery.sensitivity`, with T = sqrt(M) and
    `||t||_1 <= M`. docs/proofs/squared_error.md, proposition 1.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> objective = SquaredErrorQuery(num_features=8, target_bounds=(0, 50))
    >>> round(objective.sensitivity("l2", neighbours="add_remove"), 4)
    1.4142
    """

    num_outputs: int = 1
    target_bounds: tuple

    proof_of_one_record = "docs/proofs/squared_error.md"
    curvature = 1 / 2
    # The scaled target that an output of zero stands for.
    target_centre = 0.0

    def __post_init__(self):
        super().__post_init__()
        checks.fields(self, num_outputs=checks.count)
        bounds = bounds_lib.target_bounds(
            "target_bounds", self.target_bounds, self.num_outputs
        )
        object.__setattr__(self, "target_bounds", bounds)

    @property
    def num_targets(self):
        return self.num_outputs

    @property
    def target_bound(self):
        return math.sqrt(self.num_outputs)

    @property
    def uses(self):
        """What a release of this objective uses of the records, in words."""
        return self._uses(
            "t = y scaled to [-1, 1] from "
            f"{bounds_in_words(self.target_bounds)}"
        )

    def targets(self, y, n, clip=False):
        return bounds_lib.numbers(y, n, self.target_bounds, clip)

    def linear_coefficients(self, linear):
        """L = -S."""
        return -linear


_TINY = float(np.finfo(float).tiny)


def bounds_in_words(bounds):
    """The different bounds of the outputs, as text."""
    return ", ".join(f"[{a:g}, {b:g}]" for a, b in dict.fromkeys(bounds))


@released_as(SquaredErrorQuery)
class SquaredErrorRelease(HeadRelease):
    """The release of a `SquaredErrorQuery`: its noisy statistics A and S."""

    def minimise(self, ridge_factor=0.5, constant=None, unsure=1 / 3):
        """Post-processing: weights from the release and public numbers alone.
        They are the closer to zero, the larger the noise is.

        The mean of the numbers is estimated first, and the rest from what is
        left of A and S about the means. Eigenvalues of A are freed of
        what the noise adds to their spread. The weights are a mean over
        normal priors, each weighed by how likely it makes S: with noise alone
        they are near zero. docs/proofs/squared_error.md.

        Args:
            ridge_factor: float >= 0, a ridge in units of the noise's spectral
                edge, where A is not shrunk.
            constant: `None`, or the value of the last feature, the same for
                every record.
            unsure: variance of the mean of the numbers before the release:
                1/3 if it may be anywhere in [-1, 1].

        Returns:
            `(hessian, minimiser)` as in `QuadraticRelease.minimise`.
        """
        hessian, _ = super().minimise(ridge_factor)
        second, linear = self.quadratic, self.linear
        noise = self.mechanism.coordinate_variance(self.query.size)
        entry = self.query.off_diagonal_stddev(self.mechanism) ** 2
        n, mean = self.estimated_records(), np.zeros(linear.shape[1])
        if constant:
            n = max(second[-1, -1] / constant**2, 1.0)
            scaled = constant * n
            centre, mean = second[:-1, -1] / scaled, linear[-1] / scaled
            bound = max(self.query.feature_bound**2 - constant**2, _TINY)
            centre /= max(1.0, np.linalg.norm(centre) / bound**0.5)
            error = (noise + 2 * entry * (mean / constant) ** 2) / scaled**2
            mean = np.clip(mean / (1 + error / unsure), -1.0, 1.0)
            linear = linear[:-1] - n * np.outer(centre, mean)
            second = second[:-1, :-1] - n * np.outer(centre, centre)
        values, vectors = np.linalg.eigh(second)
        values, kept = without_noise(values, entry)
        # Standard deviations of a weight, uniform up to the largest: one that
        # explains a twentieth of what numbers of this mean can vary.
        most = n / (20 * max(values.sum(), _TINY)) * (1 - mean**2) + _TINY
        prior = np.geomspace(1e-5, 1.0, 24)[:, None, None] * most
        values = (values + kept * ridge_factor * self.noise_edge())[:, None]
        means = (mean / (constant or 1.0)) ** 2
        error = noise + entry * (means + kept * len(values) * prior)
        spread = values**2 * prior + error + _TINY
        along = vectors.T @ linear
        likely = np.log(prior) - (along**2 / spread + np.log(spread)).sum(
            axis=1, keepdims=True
        )
        share = special.softmax(likely / 2, axis=0) * prior / spread
        weights = vectors @ (share.sum(axis=0) * values * along)
        if not constant:
            return hessian, weights
        constant_weight = (mean - centre @ weights) / constant
        return hessian, np.vstack([weights, constant_weight])


def without_noise(values, entry):
    """Eigenvalues of a noisy A as they were before the noise, and the kept
    share of their variance. `entry` is the variance of an entry's noise.

    The estimator for additive Gaussian noise of Bun, Allez, Bouchaud and
    Potters (2016), its kernel half as wide as the noise.
    """
    d, apart = len(values), values[:, None] - values
    pull = apart / (apart**2 + entry * d / 4 + _TINY)
    found = values - 2 * entry * pull.sum(axis=1)
    kept = (found.std() / max(values.std(), _TINY)) ** 2
    # No mean below its own error; what the noise hides of A is not nothing.
    found += max(values.mean(), math.sqrt(2 * entry / d)) - found.mean()
    return np.maximum(found, 0.0), np.clip(kept, 1 / (d + 1), 1.0)
