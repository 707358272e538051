"""Coefficients of the layers of a `DPMAC` or `GradientNet`.

What one noisy step takes from its records: for every layer the sum of the
records' coefficients, each clipped to the threshold of its partition (a layer
and an order, or all layers together). The sums themselves are formed where the
model is trained; this file says what they cost. The proof is in
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
        joint: whether there is one partition, of all layers: the threshold
            is on the norm of a record's whole gradient.
        grouped: whether the privacy unit is an owner of several records,
            which adds the mean of their clipped coefficients.

    Raises:
        ValueError: if there is none, or one is outside its range.

    Example:

    >>> objective = LayerCoefficientsQuery(thresholds=(0.1, 1.0))
    >>> round(objective.sensitivity("l2", neighbours="add_remove"), 4)
    1.4142
    """

    thresholds: tuple
    joint: bool = False
    grouped: bool = False

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
        checks.fields(self, grouped=checks.flag, joint=checks.flag)
        if self.joint and len(self.thresholds) > 1:
            raise ValueError(
                "`joint` coefficients of all layers have one threshold. "
                f"Received: thresholds={self.thresholds}"
            )

    @property
    def reads(self):
        """What one step takes, in words."""
        clips = ", ".join(f"{t:g}" for t in self.thresholds)
        clipped = f"each record's clipped to the norms {clips}"
        if self.joint:
            clipped = f"each record's of all layers clipped to the norm {clips}"
        return (
            "Taylor coefficients of the layers' objectives at the current "
            f"weights, {clipped}"
            + (", averaged over each owner's records" if self.grouped else "")
        )

    def sensitivity(self, norm, *, neighbours):
        """L2 sensitivity of the partitions, each over its threshold:
        sqrt(P) for P partitions (add_remove), 2 sqrt(P) (replace_one).

        docs/proofs/gradient.md, proposition 3; the paper's sqrt(M K). Of
        owners, proposition 7.

        Args:
            norm: `"l2"`.
            neighbours: `"add_remove"` or `"replace_one"`.
        """
        bound = math.sqrt(len(self.thresholds))
        return clipped_sensitivity(bound, norm, neighbours)
