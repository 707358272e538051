"""The release of a noisy step, and its sensitivity.

It is the sum of the records' gradients, or of each layer's coefficients. Each
is clipped to the threshold of its partition (a layer and an order; for a
gradient, all layers together). The training forms the sums. The proof is in
docs/proofs/gradient.md.
"""

import dataclasses
import math

from keras_fm.kernel import checks
from keras_fm.kernel.query import clipped_sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerCoefficientsQuery:
    """Clipped coefficients of several layers, in units of their thresholds.

    Args:
        thresholds: tuple of floats > 0, the L2 threshold of each partition
            (a layer and an order); at least one.

    Raises:
        ValueError: if there is none, or one is outside its range.

    Example:

    >>> objective = LayerCoefficientsQuery(thresholds=(0.1, 1.0))
    >>> round(objective.sensitivity("l2", neighbours="add_remove"), 4)
    1.4142
    """

    thresholds: tuple

    proof = "docs/proofs/gradient.md, docs/proofs/mechanisms.md"

    def __post_init__(self):
        object.__setattr__(
            self,
            "thresholds",
            tuple(checks.norm_bound("threshold", t) for t in self.thresholds),
        )
        if not self.thresholds:
            raise ValueError(
                "`thresholds` must hold one number for each partition. "
                "Received: thresholds=()"
            )

    @property
    def uses(self):
        """What one step uses of the records, in words."""
        clips = ", ".join(f"{t:g}" for t in self.thresholds)
        return (
            "Taylor coefficients of the layers' objectives at the current "
            f"weights, each record's clipped to the norms {clips}"
        )

    def sensitivity(self, norm, *, neighbours):
        """L2 sensitivity of the partitions, each over its threshold:
        sqrt(P) for P partitions (add_remove), 2 sqrt(P) (replace_one).

        docs/proofs/gradient.md, proposition 3 (the paper's sqrt(M K)); for
        owners, proposition 7.

        Args:
            norm: `"l2"`.
            neighbours: `"add_remove"` or `"replace_one"`.
        """
        bound = math.sqrt(len(self.thresholds))
        return clipped_sensitivity(bound, norm, neighbours)
