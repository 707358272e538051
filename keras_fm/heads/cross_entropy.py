"""Taylor cross-entropy of an output layer, as a function of two statistics.

For records (h_i, t_i) and logits z_i = W^T h_i, the second-order expansion of
the cross-entropy of every output about z = 0 is

    sum_i sum_m [log 2 + (1/2 - y_im) z_im + z_im^2 / 8]
      = n M log 2 + <L, W> + tr(W^T A W) / 8,

with A = sum_i h_i h_i^T and L = sum_i h_i (1/2 - y_i)^T (dPA Eq. 14, AdLM
Eq. 25). A release uses nothing of the records but A and S = sum_i h_i t_i^T.
For classes t is the one-hot label (L = S 1 1^T / 2 - S). For outputs that are
separate labels t = y - 1/2 (L = -S).

The proofs of the sensitivities are in docs/proofs/cross_entropy.md.
"""

import dataclasses
import math

import numpy as np

from keras_fm.core.quadratic_release import QuadraticObjective
from keras_fm.heads import class_weights
from keras_fm.heads.head_release import HeadRelease
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel.ledger.noisy_statistics import released_as
from keras_fm.kernel.query import QuadraticQuery


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEntropyQuery(QuadraticObjective, QuadraticQuery):
    """Query for the Taylor cross-entropy of one dense output layer.

    Args:
        num_outputs: int M. With `M == 1` labels are binary (0 or 1),
            otherwise classes 0..M-1.
        independent: whether the outputs are M separate labels, each 0 or 1,
            instead of classes.
        class_weights: `None`, or a number in [0, 1] for each class. It
            multiplies what a record of the class adds to A and S.
        num_features, feature_bound, nonnegative, quadratic_scale, grouped,
            reach: see `QuadraticQuery`.

    Labels are `(n,)`: classes 0..M-1, or 0/1 if `M == 1`. Or they are
    `(n, M)`: one-hot, or with `independent` any zeros and ones.

    Example:

    >>> objective = CrossEntropyQuery(num_features=8, num_outputs=3)
    >>> round(objective.sensitivity("l2", neighbours="add_remove"), 4)
    1.4142
    """

    num_outputs: int
    independent: bool = False
    class_weights: tuple | None = None

    # The label that a logit of zero stands for.
    target_centre = 0.5

    def __post_init__(self):
        super().__post_init__()
        checks.fields(self, num_outputs=checks.count, independent=checks.flag)
        class_weights.check_field(self)
        if self.class_weights and self.public_features:
            raise ValueError(
                "`class_weights` and `public_features=True` must not be "
                "combined: A, which is then public, would depend on labels. "
                "Leave out one."
            )

    @property
    def num_targets(self):
        return self.num_outputs

    @property
    def _one_hot(self):
        return self.num_outputs > 1 and not self.independent

    @property
    def target_shift(self):
        """The number added to labels of 0 and 1 to make t."""
        return 0.0 if self._one_hot else -0.5

    @property
    def target_bound(self):
        """Bound on `||t||_2`: 1 if t is one-hot, sqrt(M) / 2 if y - 1/2."""
        return 1.0 if self._one_hot else math.sqrt(self.num_outputs) / 2

    @property
    def target_l1_bound(self):
        return 1.0 if self._one_hot else self.num_outputs / 2

    @property
    def targets_aligned(self):
        return self._one_hot

    @property
    def uses(self):
        """What a release of this objective uses of the records, in words."""
        target = "one-hot y" if self._one_hot else "y - 1/2"
        weights = class_weights.in_words(self.class_weights)
        return self._uses(f"t = {target}") + weights

    def targets(self, y, n, clip=False):
        m, shift = self.num_outputs, self.target_shift
        if self.independent:
            return _several_labels(y, n, m) + shift
        found = bounds_lib.class_indices(y, n, max(m, 2), columns=m)
        if m == 1:
            return found[:, None] + shift
        return np.eye(m)[found]

    def _weighed(self, rows, targets):
        if self.class_weights is None:
            return rows, targets
        root = class_weights.of_records(self.class_weights, targets) ** 0.5
        return rows * root, targets * root

    def linear_coefficients(self, linear):
        """L = sum h (1/2 - y)^T, `(m, M)`, computed from S."""
        if not self._one_hot:
            return -linear
        return linear.sum(axis=1, keepdims=True) / 2 - linear


@released_as(CrossEntropyQuery)
class CrossEntropyRelease(HeadRelease):
    """The release of a `CrossEntropyQuery`: its noisy statistics A and S."""


def _several_labels(y, n, labels):
    """Labels of 0 and 1 of `n` records, `(n, labels)` float64.

    Raises:
        ValueError: for another shape or other labels. The message shows no
            label.
    """
    y = np.asarray(y)
    bounds_lib.check_numbers(y.dtype)
    if y.ndim == 1 and labels == 1:
        y = y[:, None]
    bounds_lib.check_count("labels", y, n)
    if y.shape != (n, labels):
        raise ValueError(
            "Several labels must have shape (records, labels) with "
            f"{labels} of them. Received: shape={y.shape}"
        )
    if not np.all((y == 0) | (y == 1)):
        raise ValueError("Several labels must be 0 or 1. At least one is not.")
    return y.astype(np.float64)
