"""What releases of an output layer's objective have in common."""

import numpy as np

from keras_fm.core.quadratic_release import QuadraticRelease


class HeadRelease(QuadraticRelease):
    """A released objective of one dense output layer."""

    def signal_share(self):
        """The share of the released S that is signal, in [0, 1]. It is one
        minus the expected share of noise in the squared length of S (for
        classes: of its differences), estimated from the release alone."""
        linear = self.linear
        m, outputs = linear.shape
        degrees = m * outputs
        if self.query.targets_aligned:
            linear = linear - linear.mean(axis=1, keepdims=True)
            degrees = m * (outputs - 1)
        variance = self.mechanism.coordinate_variance(self.query.size)
        length = float(np.vdot(linear, linear))
        return max(0.0, 1 - variance * degrees / length) if length else 0.0

    def estimated_records(self):
        """An estimate of n from the release alone, at least 1. It is
        trace(A) / C^2, which assumes features at their norm bound."""
        bound = self.query.feature_bound
        return max(1.0, float(np.trace(self.quadratic)) / bound**2)

    def pseudo_records(self, ridge_factor=0.5):
        """The released objective as an ordinary data set of pseudo records.

        Returns:
            `(x, t)`: rows `x` `(m, m)` and real-valued targets `t` `(m, M)`.
            Up to a constant, the loss summed over these rows is the
            (post-processed) released objective: the Taylor cross-entropy, or
            half the squared error of targets scaled to [-1, 1]. Train any
            linear model on them for as long as you like.
        """
        objective = self.query
        hessian, minimiser = self.minimise(ridge_factor)
        values, vectors = np.linalg.eigh(hessian)
        x = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        slope = 2 * objective.curvature
        return x, objective.target_centre + slope * (x @ minimiser)
