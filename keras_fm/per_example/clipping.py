"""The factor of a record's gradient, from its norm."""

from keras_fm.per_example import direct_ops as ops

# Keeps norms below the clip by more than their float32 error.
_MARGIN = 1 - 1e-4
# Added to the norm by which a gradient is divided, Bu et al. 2023.
STABILITY = 0.01


def scales(clip, squared, factors):
    """Factors that bring each gradient to a norm of at most 1, and which of the
    norms are finite.

    Args:
        clip: a float, the largest norm of a gradient; `None`: every gradient
            is divided by its norm.
        squared: `(n,)` squared norms.
        factors: `(n,)` from 0 to 1; 0 for padding.

    Returns:
        `(n,)` numbers, and `(n,)` bools.
    """
    norms = ops.sqrt(squared)
    if clip is None:
        scale = _MARGIN / (norms + STABILITY)
    else:
        scale = _MARGIN / ops.maximum(norms, clip)
    return scale * factors, ops.isfinite(norms)
