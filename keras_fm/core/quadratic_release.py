"""Releases of queries that are quadratic in the weights."""

import abc
import math

import numpy as np

from keras_fm.kernel.ledger.noisy_statistics import Release


class QuadraticObjective(abc.ABC):
    """An objective that is made from the A and S of a `QuadraticQuery`, and
    the effect of noise on it. No guarantee rests on this class."""

    # The objective is <L, W> + curvature * tr(W^T A W).
    curvature = 1 / 8

    @abc.abstractmethod
    def linear_coefficients(self, linear):
        """L, `(m, M)`, from S."""

    def value(self, weights, statistics):
        """The objective without its constant, at `(m, M)` weights.

        Args:
            weights: `(m, M)` array.
            statistics: `(A, S)` with A symmetric.
        """
        quadratic, linear = statistics
        linear = self.linear_coefficients(linear)
        return float(
            np.vdot(linear, weights)
            + self.curvature * np.vdot(weights, quadratic @ weights)
        )

    def noise_edge(self, mechanism):
        """The unit of a ridge: the spectral edge of the noise on A. It is
        2 sqrt(m) times the standard deviation of an off-diagonal entry
        (Wigner's semicircle).

        If A is public, it is half of what the noise multiplier of S would
        mean for A: C^2 (sqrt(m) + sqrt(M)) / sqrt(2) times the standard
        deviation over C D. This rule was chosen on held-out images
        (docs/results/private_labels.md).
        """
        m = self.num_features
        if not self.public_features:
            return 2 * math.sqrt(m) * self.off_diagonal_stddev(mechanism)
        stddev = math.sqrt(mechanism.coordinate_variance(self.size))
        stddev *= self.feature_bound / self.target_change
        return stddev * (math.sqrt(m) + math.sqrt(self.num_targets)) / 2**0.5

    def off_diagonal_stddev(self, mechanism):
        """Standard deviation of the noise on an off-diagonal entry of A."""
        if self.public_features:
            return 0.0
        stddev = math.sqrt(mechanism.coordinate_variance(self.size))
        stddev *= self.quadratic_scale
        return stddev / math.sqrt(2) if mechanism.norm == "l2" else stddev


class SecondMoments(Release):
    """The common part of releases of A. `quadratic` `(m, m)` is A plus noise
    (symmetric, may be indefinite)."""

    @property
    def quadratic(self):
        return self.statistics["quadratic"]

    def noise_edge(self):
        """Spectral edge of the noise, see `QuadraticObjective`."""
        return self.query.noise_edge(self.mechanism)


class QuadraticRelease(SecondMoments):
    """A released objective that is quadratic in its weights. `quadratic` and
    `linear` `(m, M)` are A and S plus noise."""

    @property
    def linear(self):
        return self.statistics["linear"]

    def minimise(self, ridge_factor=0.5):
        """Post-processing: a convex objective and its minimiser.

        Negative eigenvalues of A are set to zero. A ridge of `ridge_factor`
        times the noise's spectral edge is added. This rule was fixed in
        advance and uses public numbers only.

        Returns:
            tuple `(hessian, minimiser)`: the objective is, up to a
            constant, `k tr((W - minimiser)^T hessian (W - minimiser))`
            with k the objective's `curvature`, `hessian` `(m, m)` and
            `minimiser` `(m, M)`.
        """
        values, vectors = np.linalg.eigh(self.quadratic)
        values = np.maximum(values, 0.0)
        positive = (vectors * values) @ vectors.T
        positive = (positive + positive.T) / 2
        ridge = ridge_factor * self.noise_edge()
        linear = self.query.linear_coefficients(self.linear)
        rotated = vectors.T @ (-linear / (2 * self.query.curvature))
        minimiser = vectors @ (_inverse(values + ridge)[:, None] * rotated)
        return positive + ridge * np.eye(len(positive)), minimiser


def _inverse(values):
    """The inverse of eigenvalues.

    With (almost) no noise the ridge vanishes. Directions that no record spans
    then get no weight instead of an exploding one.
    """
    largest = values.max(initial=0.0)
    floor = np.maximum(largest * 1e-12, np.finfo(float).tiny)
    return np.where(values > floor, 1 / np.maximum(values, floor), 0.0)
