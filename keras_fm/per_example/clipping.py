"""What a record's gradient is multiplied by, from its norms."""

from keras import ops

# A norm is of float32 numbers; below the clip by more than it may be wrong.
_MARGIN = 1 - 1e-4
# Added to the norm that a gradient is divided by, Bu et al. 2023.
STABILITY = 0.01


def scales(clip, squared, factors):
    """What gradients are multiplied by, so that each leaves with a norm of at
    most 1, and which of the norms are numbers.

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
