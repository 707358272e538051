"""How far one privacy unit moves A = sum h h^T and S = sum h t^T.

The proofs are in docs/proofs/cross_entropy.md (one record),
docs/proofs/reconstruction.md (any targets, several records of one owner) and
docs/proofs/labels.md (labels alone).
"""

import abc
import math

from keras_fm.kernel.budget import Neighbours
from keras_fm.kernel.sum_query import OwnedSumQuery, is_replaced


class QuadraticSensitivity(OwnedSumQuery):
    """Sensitivities of a `QuadraticQuery`, which has the fields that are
    named here."""

    num_features: int
    feature_bound: float
    feature_l1_bound: float | None
    nonnegative: bool
    quadratic_scale: float
    public_features: bool

    # Targets -------------------------------------------------------------

    @property
    @abc.abstractmethod
    def num_targets(self):
        """M, length of a target vector t."""

    @property
    @abc.abstractmethod
    def target_bound(self):
        """T, bound on `||t||_2`."""

    @property
    def target_l1_bound(self):
        """Bound on `||t||_1`."""
        return math.sqrt(self.num_targets) * self.target_bound

    @property
    def targets_aligned(self):
        """Whether `<t, t'> >= 0` for any two targets."""
        return False

    # One record ----------------------------------------------------------

    @property
    def _dense_features(self):
        """r, bound on `||h||_1^2 / C^2`: how many equal entries reach the L1
        bound B. Without one m, which bounds it for all vectors."""
        if self.feature_l1_bound is None:
            return self.num_features
        ratio = self.feature_l1_bound / self.feature_bound
        return min(self.num_features, ratio**2)

    def quadratic_sensitivity(self, norm, *, neighbours):
        """Sensitivity of A in the coordinates of `pack`, for one record.

        L2 (Frobenius): C^2 (add_remove), sqrt(2) C^2 (replace_one).
        L1 (upper triangle): C^2 (1 + r) / 2 (add_remove), attained by r
        equal entries; the smaller one of C^2 sqrt(m (m + 3) / 2), approached
        by vectors constant on two halves, and C^2 (1 + r), attained by
        vectors without a common entry (replace_one). Here r is m, or
        (B / C)^2 with B = `feature_l1_bound` if that is less. For m = 1, C^2
        in all cases.
        docs/proofs/cross_entropy.md, propositions 1 and 2.
        """
        return self._quadratic(norm, is_replaced(norm, neighbours))

    def _quadratic(self, norm, replace):
        m, square = self.num_features, self.feature_bound**2
        if m == 1:
            return square
        if norm == "l2":
            return square * (math.sqrt(2) if replace else 1.0)
        r = self._dense_features
        if replace:
            return square * min(math.sqrt(m * (m + 3) / 2), 1 + r)
        return square * (1 + r) / 2

    def linear_sensitivity(self, norm, *, neighbours):
        """Sensitivity of S for one record, T and T_1 the bounds on targets.

        L2: C T (add_remove); replace_one 2 C T, or sqrt(2) C T if features
        are nonnegative and targets aligned, where <h, h'><t, t'> >= 0.
        L1: sqrt(r) C T_1, which is B T_1 with a `feature_l1_bound` B
        (add_remove), twice that (replace_one).
        docs/proofs/cross_entropy.md, proposition 3, and
        docs/proofs/reconstruction.md, proposition 1.
        """
        return self._linear(norm, is_replaced(norm, neighbours))

    def _linear(self, norm, replace):
        if norm == "l1":
            product = self.feature_bound * self.target_l1_bound
            product *= math.sqrt(self._dense_features)
            return 2 * product if replace else product
        product = self.feature_bound * self.target_bound
        if not replace:
            return product
        return product * (math.sqrt(2) if self._aligned else 2.0)

    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of the released vector (A / alpha, S).

        One record. L1: the sum of the parts. L2:
        sqrt(C^4 / alpha^2 + C^2 T^2) (add_remove). For replace_one the parts
        are not at their worst for the same pair; with s = |<h, h'>| the
        squared distance is at most

            2 (C^4 - s^2) / alpha^2 + 2 C^2 T^2 + 2 s T^2,

        largest at s = min(alpha^2 T^2 / 2, C^2); without the last term, at
        s = 0, if features are nonnegative and targets aligned.
        docs/proofs/cross_entropy.md, proposition 4.

        An owner of several records (`grouped`): the same for add_remove,
        twice the add_remove value for replace_one (sqrt(2) times for A alone
        in the L2 norm). Each of `reach` other
        units adds the replace_one value. docs/proofs/reconstruction.md,
        propositions 3 and 4.

        Labels alone (`public_features`), replace_label: of S, C D with D the
        longest change of a target in L2 (sqrt(2) for one-hot labels, 1 for a
        binary one, else 2 T); in L1 sqrt(r) C 2 T_1. docs/proofs/labels.md,
        proposition 1.

        Args:
            norm: `"l1"` or `"l2"`.
            neighbours: `"add_remove"`, `"replace_one"` or `"replace_label"`,
                which without `public_features` is a case of the second.

        Raises:
            ValueError: with `public_features`, for another relation than
                replace_label.
        """
        if self.public_features:
            is_replaced(norm, neighbours)
            return self._label_change(norm, neighbours)
        return super().sensitivity(norm, neighbours=neighbours)

    def _label_change(self, norm, neighbours):
        relation = Neighbours.of(neighbours)
        if relation is not Neighbours.REPLACE_LABEL:
            raise ValueError(
                "`public_features=True` releases the features' second moment "
                'without noise, which neighbours="replace_label" alone '
                f"allows. Received: neighbours={str(relation)!r}"
            )
        if norm == "l1":
            return self._linear(norm, replace=True)
        return self.feature_bound * self.target_change

    @property
    def target_change(self):
        """D, bound on `||t - t'||_2` of two targets."""
        return (math.sqrt(2) if self.targets_aligned else 2) * self.target_bound

    def _unit(self, norm, replace):
        """What one privacy unit's own records may change."""
        if self.grouped and replace:
            # Sums of squares have nonnegative inner products.
            squares = norm == "l2" and not self.target_bound
            factor = math.sqrt(2) if squares else 2.0
            return factor * self._record(norm, replace=False)
        return super()._unit(norm, replace)

    def _record(self, norm, replace):
        if self.public_features:
            return self._linear(norm, replace)
        alpha = self.quadratic_scale
        if norm == "l1" or not replace:
            quadratic = self._quadratic(norm, replace)
            linear = self._linear(norm, replace)
            if norm == "l1":
                return quadratic / alpha + linear
            return math.hypot(quadratic / alpha, linear)
        c2, t2 = self.feature_bound**2, self.target_bound**2
        if self.num_features == 1 and not t2:
            return c2 / alpha
        overlap = 0.0 if self._aligned else min(alpha**2 * t2 / 2, c2)
        return math.sqrt(
            2 * (c2**2 - overlap**2) / alpha**2 + 2 * c2 * t2 + 2 * overlap * t2
        )

    @property
    def _aligned(self):
        return self.nonnegative and self.targets_aligned
