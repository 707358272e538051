"""dPA's own noise scale of an auto-encoder: claimed, never proven."""

from keras_fm.parts.step import replace_one_factor

RECONSTRUCTION_REASON = (
    "none. The codes depend on the encoder's weights, so the coefficients "
    "change at every step, and every step reads the exact coefficients of its "
    "batch; see docs/guarantees.md"
)


def reconstruction_sensitivity(visible, units, *, neighbours):
    """Delta = d (b + b^2 / 4) of an auto-encoder's coefficients.

    L1 norm, codes in [0, 1]^b and visible units in [0, 1]^d, as printed (dPA
    Lemma 2); half of it for add_remove.

    Example:

    >>> reconstruction_sensitivity(784, 100, neighbours="replace_one")
    2038400.0
    """
    full = float(visible * (units + units**2 / 4))
    return full * replace_one_factor(neighbours)
