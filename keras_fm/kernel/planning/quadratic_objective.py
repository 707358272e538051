"""What is made of A and S: an objective, and what noise does to it.

No guarantee rests on it.
"""

import abc
import math

import numpy as np


class QuadraticObjective(abc.ABC):
    """The objective of a `QuadraticQuery`, which has the fields that are
    named here."""

    num_features: int
    feature_bound: float
    quadratic_scale: float
    public_features: bool

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
        """What a ridge is measured in: the spectral edge of the noise on A,
        2 sqrt(m) times the standard deviation of an off-diagonal entry
        (Wigner's semicircle).

        Where A is public, half of what the noise multiplier of S would
        mean for A: C^2 (sqrt(m) + sqrt(M)) / sqrt(2) times the standard
        deviation over C D. A rule chosen on held-out images
        (docs/results/labels.md).
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

    def expected_squared_error(self, mechanism):
        """Expected squared Frobenius error of (A, S) under `mechanism`."""
        m, variance = (
            self.num_features,
            mechanism.coordinate_variance(self.size),
        )
        # In L1 coordinates an off-diagonal error appears twice in A.
        entries = m * (m + 1) / 2 if mechanism.norm == "l2" else m * m
        if self.public_features:
            entries = 0
        return variance * (
            entries * self.quadratic_scale**2 + m * self.num_targets
        )
