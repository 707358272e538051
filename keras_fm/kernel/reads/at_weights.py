"""A query at given public weights: what one read of several sums up."""

import hashlib
import json

import numpy as np


class AtWeights:
    """Coefficients at given weights, as a query of one pass.

    `keras_fm.partial_statistics.PartialStatistics` sums it up in any number
    of processes. The weights are part of its config, by a hash (they are
    public), so that sums at other weights cannot be merged.

    Args:
        query: what the coefficients are of.
        weights: list of arrays of the shapes `shapes`.
        shapes: what the query expects.

    Raises:
        ValueError: if shapes do not fit, or a weight is not finite.
    """

    def __init__(self, query, weights, shapes):
        weights = tuple(np.array(w, np.float64, order="C") for w in weights)
        found = tuple(w.shape for w in weights)
        if found != tuple(shapes):
            raise ValueError(
                f"`weights` must have the shapes {tuple(shapes)}. Received: "
                f"{found}"
            )
        # Of what is public: an error that depends on records tells of them.
        if not all(np.all(np.isfinite(w)) for w in weights):
            raise ValueError("The weights overflowed; lower `learning_rate`.")
        self.query, self.weights = query, weights
        digest = hashlib.sha256()
        for w in weights:
            # Zeros have one sign here: they are the same weights.
            digest.update((w + 0.0).tobytes())
        self.digest = digest.hexdigest()

    def config(self):
        return {**self.query.config(), "at_weights": self.digest}

    def __eq__(self, other):
        return type(self) is type(other) and self._known() == other._known()

    def __hash__(self):
        return hash(self._known())

    def _known(self):
        return json.dumps(self.config(), sort_keys=True)

    def __repr__(self):
        return f"<{self.query} at weights {self.digest[:8]}>"
