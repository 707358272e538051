"""What a record's gradient is multiplied by, from its norms."""

import math

from keras import ops

# A norm is of float32 numbers; below the clip by more than it may be wrong.
_MARGIN = 1 - 1e-4
# Added to the norm that a gradient is divided by, Bu et al. 2023.
STABILITY = 0.01


class Clips:
    """One clip on whole gradients, or one on each part of them.

    Each part of a record's gradient leaves with a norm of at most 1, so P
    parts together with one of at most sqrt(P).

    Args:
        clip: a float, the largest norm of a gradient; infinity: gradients are
            not clipped at all; `None`: every gradient is divided by its
            norm; or a list of pairs of variables and such
            a clip on the part of the gradient by them.
    """

    def __init__(self, clip):
        pairs = clip if isinstance(clip, list) else [((), clip)]
        self.clips = [one for _, one in pairs]
        self._parts = {
            id(variable): part
            for part, (variables, _) in enumerate(pairs)
            for variable in variables
        }

    def part_of(self, variable):
        """The part that a variable belongs to, from 0."""
        return self._parts[id(variable)] if len(self.clips) > 1 else 0

    def scales(self, squared, factors):
        """What each part of a gradient is multiplied by, and which records
        are kept at all.

        Args:
            squared: list of `(n,)` squared norms, one for each part.
            factors: `(n,)` from 0 to 1; 0 for padding.

        Returns:
            list of `(n,)` numbers, and `(n,)` bools.
        """
        found, kept = [], factors > 0
        for value, clip in zip(squared, self.clips):
            norms = ops.sqrt(value)
            kept = ops.logical_and(kept, ops.isfinite(norms))
            if clip == math.inf:
                scale = ops.ones_like(norms)
            elif clip is None:
                scale = _MARGIN / (norms + STABILITY)
            else:
                scale = _MARGIN / ops.maximum(norms, clip)
            found.append(scale * factors)
        return found, kept
