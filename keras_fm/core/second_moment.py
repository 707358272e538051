"""The second moment of records: all that a linear auto-encoder ever needs.

With v a record and u = [v; c] (c a public constant), the squared error of
every affine encoder and decoder, r = V (W^T v + b) + a, is a polynomial in
(W, b, V, a) whose only data-dependent coefficients are the entries of

    A = sum_i u_i u_i^T.

Released once, A gives the mean (its last column), the covariance and its
principal directions, for any number of units and any training.
"""

import dataclasses

import numpy as np

from keras_fm.core.quadratic_release import QuadraticObjective, SecondMoments
from keras_fm.kernel import checks
from keras_fm.kernel.ledger.noisy_statistics import released_as
from keras_fm.kernel.query import QuadraticQuery


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecondMomentQuery(QuadraticObjective, QuadraticQuery):
    """The sum A = sum u u^T, without targets.

    Args:
        num_features, feature_bound, quadratic_scale, grouped, reach: see
            `QuadraticQuery`.

    Sensitivities of A. L2: C^2 (add_remove), sqrt(2) C^2 (replace_one).
    L1: C^2 (1 + m) / 2 (add_remove), C^2 sqrt(m (m + 3) / 2) (replace_one).
    Proof: docs/proofs/cross_entropy.md, propositions 1 and 2. Why A is
    enough: docs/proofs/reconstruction.md, proposition 2.

    Example:

    >>> objective = SecondMomentQuery(num_features=8, feature_bound=2.0)
    >>> objective.sensitivity("l2", neighbours="add_remove")
    4.0
    """

    names = ("quadratic",)
    proof_of_one_record = (
        "docs/proofs/reconstruction.md, docs/proofs/cross_entropy.md"
    )
    targets_are_labels = False
    num_targets = 0
    target_bound = 0.0

    @property
    def uses(self):
        """What a release of this objective uses, in words."""
        return self._uses(None)

    def targets(self, y, n, clip=False):
        return np.zeros((n, 0))

    def linear_coefficients(self, linear):
        return linear

    @property
    def shapes(self):
        return (super().shapes[0],)

    def unpack(self, vector, norm):
        return (super().unpack(vector, norm)[0],)


@released_as(SecondMomentQuery)
class SecondMomentRelease(SecondMoments):
    """A released `SecondMomentQuery` of records `[v; c]`.

    Everything here is post-processing: exact functions of the released A
    and of public constants, at no further privacy cost.
    """

    def moments(self, constant):
        """Mean and covariance of the records.

        Args:
            constant: c > 0, the last entry of every vector; or `None` if
                there is no such entry.

        Returns:
            tuple `(mean, covariance, count)`: `(d,)`, `(d, d)` symmetric
            (may be indefinite), and n as the noisy A states it, at least 1.
            Without a constant the mean is taken as zero and the count as 1,
            so the covariance is A, a sum over records.
        """
        if constant is None:
            return np.zeros(len(self.quadratic)), self.quadratic, 1.0
        count = max(1.0, self.quadratic[-1, -1] / constant**2)
        mean = self.quadratic[:-1, -1] / constant / count
        covariance = self.quadratic[:-1, :-1] / count - np.outer(mean, mean)
        return mean, covariance, count

    def principal(self, units, constant, ridge_factor=None):
        """The directions that a linear auto-encoder of `units` units keeps.

        They are the `units` eigenvectors of the noisy covariance with the
        largest eigenvalues. They minimise the released squared error (Eckart
        and Young). Noise does no harm here: any orthonormal directions are
        safe to project on. Variances are raised to the noise's spectral edge
        at least, because smaller eigenvalues may be noise alone.

        Args:
            units: int, at most d.
            constant: c, see `moments`.
            ridge_factor: `None`, or a ridge that replaces this floor: a
                multiple of the spectral edge, added to every variance.

        Returns:
            tuple `(mean, directions, variances)`: `(d,)`, orthonormal
            columns `(d, units)`, `(units,)` descending and positive.
        """
        mean, covariance, count = self.moments(constant)
        checks.integer("units", units, at_least=1, at_most=len(mean))
        values, vectors = np.linalg.eigh(covariance)
        values, vectors = values[::-1][:units], vectors[:, ::-1][:, :units]
        edge = self.noise_edge() / count
        if ridge_factor is not None:
            values = np.maximum(values, 0.0) + ridge_factor * edge
            edge = 0.0
        floor = max(edge, values.max(initial=0.0) * 1e-9, np.finfo(float).tiny)
        return mean, signed(vectors), np.maximum(values, floor)

    def gaussian_records(self, n, constant, seed=0):
        """Synthetic records with the released mean and covariance.

        This is an ordinary data set. Train any auto-encoder on it with
        `compile` and `fit`, as often as you like, at no further privacy cost.

        Args:
            n: int, how many.
            constant: c, see `moments`.
            seed: int, public.

        Returns:
            `(n, d)` array.
        """
        mean, covariance, _ = self.moments(constant)
        values, vectors = np.linalg.eigh(covariance)
        scaled = vectors * np.sqrt(np.maximum(values, 0.0))
        draw = np.random.default_rng(seed).standard_normal((n, len(mean)))
        return mean + draw @ scaled.T


def signed(directions):
    """Flips columns so that the largest entry is positive: an eigenvector's
    sign must not depend on the linear algebra library."""
    largest = np.abs(directions).argmax(axis=0)
    return directions * np.sign(directions[largest, range(len(largest))])
