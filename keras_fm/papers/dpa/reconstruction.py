"""Reconstruction error of an auto-encoder's decoder, by two statistics.

A record v has d visible units. A public or released encoder gives its
features h, and a decoder gives z = V^T h. Both errors, summed over records
and visible units,

    cross_entropy:  sum [log 2 + (1/2 - v_j) z_j + z_j^2 / 8]   (dPA Eq. 11)
    squared_error:  sum (v_j - c - z_j)^2 / 2

are quadratic in V: <-S, V> + k tr(V^T A V) and a constant, with
A = sum h h^T, S = sum h t^T, t = v - c and k = 1/8 (c = 1/2) or k = 1/2.
All d outputs share A: it is released once, not d times.

The proofs of the sensitivities are in docs/proofs/reconstruction.md.
"""

import dataclasses
from functools import partial

import numpy as np

from keras_fm.core.quadratic_release import QuadraticObjective, QuadraticRelease
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel.access import columns
from keras_fm.kernel.ledger.noisy_statistics import released_as
from keras_fm.kernel.query import QuadraticQuery

FORMS = ("cross_entropy", "squared_error")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReconstructionQuery(QuadraticObjective, QuadraticQuery):
    """The reconstruction objective of one dense decoder.

    Args:
        num_visible: int d, visible units that are reconstructed.
        visible_bound: T, bound on `||v - centre||_2`.
        centre: public constant that is subtracted from every visible unit;
            1/2 for `form="cross_entropy"`, whose expansion is about 1/2.
        form: `"cross_entropy"` or `"squared_error"`.
        num_features, feature_bound, nonnegative, quadratic_scale, grouped,
            reach: see `QuadraticQuery`. `quadratic_scale = C / T` makes
            A and S weigh the same.

    The L2 sensitivity under add_remove is sqrt(C^4 / alpha^2 + C^2 T^2);
    all others as `QuadraticQuery.sensitivity` states, with
    `||t||_1 <= sqrt(d) T`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> objective = ReconstructionQuery(
    ...     num_features=8, num_visible=3, visible_bound=2.0, centre=0.5
    ... )
    >>> round(objective.sensitivity("l2", neighbours="add_remove"), 4)
    2.2361
    """

    num_visible: int
    visible_bound: float
    centre: float = 0.5
    form: str = "cross_entropy"

    targets_are_labels = False
    proof_of_one_record = "docs/proofs/reconstruction.md"

    def __post_init__(self):
        super().__post_init__()
        checks.fields(
            self,
            num_visible=checks.count,
            visible_bound=checks.norm_bound,
            centre=partial(checks.number, wanted="a finite public constant"),
            form=partial(checks.one_of, choices=FORMS),
        )
        if self.form == "cross_entropy" and self.centre != 0.5:
            raise ValueError(
                'form="cross_entropy" expands about probability 1/2: it needs '
                f"`centre=0.5`. Received: centre={self.centre}"
            )

    @property
    def num_targets(self):
        return self.num_visible

    @property
    def target_bound(self):
        return self.visible_bound

    @property
    def curvature(self):
        return 1 / 8 if self.form == "cross_entropy" else 1 / 2

    @property
    def uses(self):
        """Describes in words what a release uses of the records."""
        return self._uses(
            f"t = v - {self.centre:g}, ||t||_2 <= {self.visible_bound:g}"
        )

    def targets(self, y, n, clip=False):
        y = columns.floats(y)
        if y.shape != (n, self.num_visible):
            raise ValueError(
                "Visible units must have shape (records, "
                f"{self.num_visible}). Received: shape={y.shape}, {n} records"
            )
        targets = y - np.asarray(self.centre, y.dtype)
        return bounds_lib.project_to_ball(
            targets, self.visible_bound, clip=clip
        )

    def linear_coefficients(self, linear):
        """L = -S in both forms."""
        return -linear


@released_as(ReconstructionQuery)
class ReconstructionRelease(QuadraticRelease):
    """A released `ReconstructionQuery`: a decoder for fixed features."""
