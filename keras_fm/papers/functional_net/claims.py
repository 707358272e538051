"""FunctionalNet's own noise scale: claimed, never proven."""

import math

from keras_fm.parts.step import replace_one_factor

EXPANSION_REASON = (
    "none. Theorem 6 leaves out the sum over incoming units, and records "
    "exceed it; sums are clipped, not records; see docs/guarantees.md"
)


def network_expansion_sensitivity(sizes, *, neighbours):
    """S of FunctionalNet's Theorem 6: `2 (0.25^m P + P (0.1^m + 0.001625 m))`.

    With P the product of the sizes of the m layers above the inputs. As
    printed, for replace_one; half of it for add_remove. It is no bound: with
    five inputs and one output in [0, 1] two records reach 1.63 for 0.70
    (docs/proofs/network_expansion.md).

    Args:
        sizes: units of every layer.
        neighbours: `"add_remove"` or `"replace_one"`.

    Example:

    >>> round(network_expansion_sensitivity([1], neighbours="replace_one"), 5)
    0.70325
    """
    m, product = len(sizes), math.prod(sizes)
    full = 2 * (0.25**m * product + product * (0.1**m + 0.001625 * m))
    return full * replace_one_factor(neighbours)
