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

from keras_fm.objectives.quadratic import QuadraticObjective


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecondMomentObjective(QuadraticObjective):
    """A = sum u u^T alone.

    Args:
        num_features, feature_bound, quadratic_scale, grouped, reach: see
            `QuadraticObjective`.

    Sensitivities are those of A: L2 C^2 (add_remove), sqrt(2) C^2
    (replace_one); L1 C^2 (1 + m) / 2 and C^2 sqrt(m (m + 3) / 2).
    docs/proofs/cross_entropy.md, propositions 1 and 2; why A is enough:
    docs/proofs/reconstruction.md, proposition 2.

    Example:

    >>> objective = SecondMomentObjective(num_features=8, feature_bound=2.0)
    >>> objective.sensitivity("l2", neighbours="add_remove")
    4.0
    """

    names = ("quadratic",)
    proof_of_one_record = (
        "docs/proofs/reconstruction.md, docs/proofs/cross_entropy.md"
    )
    num_targets = 0
    target_bound = 0.0

    @property
    def reads(self):
        """What a release of this objective reads, in words."""
        return self._reads(None)

    def targets(self, y, n, clip=False):
        return np.zeros((n, 0))

    def linear_coefficients(self, linear):
        return linear

    @property
    def shapes(self):
        return (super().shapes[0],)

    def unpack(self, vector, norm):
        return (super().unpack(vector, norm)[0],)
