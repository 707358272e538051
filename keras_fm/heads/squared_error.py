"""Squared error of an output layer that predicts numbers, by two statistics.

For records (h_i, y_i) with every y_ij in its public bounds, targets
t = (y - centre) / half in [-1, 1]^M and outputs z_i = W^T h_i,

    sum_i ||t_i - z_i||^2 / 2 = sum_i ||t_i||^2 / 2 - <S, W> + tr(W^T A W) / 2

with A = sum_i h_i h_i^T, the same for all M outputs, and S = sum_i h_i t_i^T.
These two are all that is ever read.

The proofs of the sensitivities are in docs/proofs/squared_error.md.
"""

import dataclasses
import math

from keras_fm.core.quadratic_release import QuadraticObjective
from keras_fm.heads.head_release import HeadRelease
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel.ledger.noisy_statistics import released_as
from keras_fm.kernel.query import QuadraticQuery


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquaredErrorQuery(QuadraticObjective, QuadraticQuery):
    """The squared error of one dense output layer on numbers.

    Args:
        num_outputs: int M, numbers that are predicted.
        target_bounds: public `(low, high)` of all M numbers, or M such
            pairs. Within them targets are scaled to [-1, 1].
        num_features, feature_bound, nonnegative, quadratic_scale, grouped,
            reach: see `QuadraticQuery`. `quadratic_scale = C / sqrt(M)`
            makes A and S weigh the same.

    Targets are `(n, M)`, or `(n,)` if `M == 1`, in their own unit.

    The L2 sensitivity under add_remove is sqrt(C^4 / alpha^2 + C^2 M);
    all others as `QuadraticQuery.sensitivity` states, with T = sqrt(M) and
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
    # Of scaled targets, where an output of zero is.
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
    def reads(self):
        """What a release of this objective reads, in words."""
        return self._reads(
            "t = y scaled to [-1, 1] from the public bounds "
            f"{bounds_in_words(self.target_bounds)}"
        )

    def targets(self, y, n, clip=False):
        return bounds_lib.numbers(y, n, self.target_bounds, clip)

    def linear_coefficients(self, linear):
        """L = -S."""
        return -linear


def bounds_in_words(bounds):
    """Bounds of outputs, each once."""
    return ", ".join(f"[{a:g}, {b:g}]" for a, b in dict.fromkeys(bounds))


@released_as(SquaredErrorQuery)
class SquaredErrorRelease(HeadRelease):
    """A released `SquaredErrorQuery`."""
