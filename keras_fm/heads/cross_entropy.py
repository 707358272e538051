"""Taylor cross-entropy of an output layer, as a function of two statistics.

For records (h_i, t_i) and logits z_i = W^T h_i, the second-order expansion of
the cross-entropy of every output about z = 0 is

    sum_i sum_m [log 2 + (1/2 - y_im) z_im + z_im^2 / 8]
      = n M log 2 + <L, W> + tr(W^T A W) / 8,

with A = sum_i h_i h_i^T and L = sum_i h_i (1/2 - y_i)^T (dPA Eq. 14, AdLM
Eq. 25). A and S = sum_i h_i t_i^T, t the one-hot label (L = S 1 1^T / 2 - S)
or t = y - 1/2 for one binary output (L = -S), are all that is ever read.

The proofs of the sensitivities are in docs/proofs/cross_entropy.md.
"""

import dataclasses

import numpy as np

from keras_fm.kernel import checks, domain
from keras_fm.kernel.noisy_statistics import released_as
from keras_fm.kernel.quadratic_release import QuadraticRelease
from keras_fm.kernel.query import QuadraticQuery


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEntropyQuery(QuadraticQuery):
    """The Taylor cross-entropy objective of one dense output layer.

    Args:
        num_outputs: int M. With `M == 1` labels are binary (0 or 1),
            otherwise classes 0..M-1.
        num_features, feature_bound, nonnegative, quadratic_scale, grouped,
            reach: see `QuadraticQuery`.

    Labels are `(n,)`: classes 0..M-1, or 0/1 if `M == 1`; or `(n, M)`
    one-hot.

    Example:

    >>> objective = CrossEntropyQuery(num_features=8, num_outputs=3)
    >>> round(objective.sensitivity("l2", neighbours="add_remove"), 4)
    1.4142
    """

    num_outputs: int

    def __post_init__(self):
        super().__post_init__()
        checks.fields(self, num_outputs=checks.count)

    @property
    def num_targets(self):
        return self.num_outputs

    @property
    def target_bound(self):
        """Bound on `||t||_2`: 1 for a one-hot label, 1/2 for y - 1/2."""
        return 0.5 if self.num_outputs == 1 else 1.0

    @property
    def target_l1_bound(self):
        return self.target_bound

    @property
    def targets_aligned(self):
        return self.num_outputs > 1

    @property
    def reads(self):
        """What a release of this objective reads, in words."""
        target = "y - 1/2" if self.num_outputs == 1 else "one-hot y"
        return self._reads(f"t = {target}")

    def targets(self, y, n, clip=False):
        m = self.num_outputs
        found = domain.class_indices(y, n, max(m, 2), columns=m)
        if m == 1:
            return found[:, None] - 0.5
        return np.eye(m)[found]

    def linear_coefficients(self, linear):
        """L = sum h (1/2 - y)^T, `(m, M)`, from S."""
        if self.num_outputs == 1:
            return -linear
        return linear.sum(axis=1, keepdims=True) / 2 - linear


@released_as(CrossEntropyQuery)
class CrossEntropyRelease(QuadraticRelease):
    """A released `CrossEntropyQuery`."""

    def signal_share(self):
        """How much of the released S is signal, in [0, 1], estimated from
        the release alone: one minus the noise's expected share of the
        squared length of S (its differences between classes)."""
        linear = self.linear
        m, outputs = linear.shape
        degrees = m * outputs
        if outputs > 1:
            linear = linear - linear.mean(axis=1, keepdims=True)
            degrees = m * (outputs - 1)
        variance = self.mechanism.coordinate_variance(self.objective.size)
        length = float(np.vdot(linear, linear))
        return max(0.0, 1 - variance * degrees / length) if length else 0.0

    def estimated_records(self):
        """An estimate of n from the release alone: trace(A) / C^2, which
        assumes features at their norm bound; at least 1."""
        bound = self.objective.feature_bound
        return max(1.0, float(np.trace(self.quadratic)) / bound**2)

    def pseudo_records(self, ridge_factor=0.5):
        """The released objective as an ordinary data set.

        Returns:
            `(x, t)`: `x` `(m, m)` rows and real-valued targets `t` `(m, M)`
            such that the Taylor cross-entropy summed over these pseudo
            records is the (post-processed) released objective, up to a
            constant. Train any linear model on them for as long as you
            like.
        """
        hessian, minimiser = self.minimise(ridge_factor)
        values, vectors = np.linalg.eigh(hessian)
        x = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        return x, 0.5 + x @ minimiser / 4
