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
            "t = y scaled to [-1, 1] from the public bounds "
            f"{bounds_in_words(self.target_bounds)}"
        )

    def targets(self, y, n, clip=False):
        return bounds_lib.numbers(y, n, self.target_bounds, clip)

    def linear_coefficients(self, linear):
        """L = -S."""
        return -linear


def bounds_in_words(bounds):
    """The different bounds of the outputs, as text."""
    return ", ".join(f"[{a:g}, {b:g}]" for a, b in dict.fromkeys(bounds))


@released_as(SquaredErrorQuery)
class SquaredErrorRelease(HeadRelease):
    """The release of a `SquaredErrorQuery`: its noisy statistics A and S."""
