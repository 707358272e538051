"""A query at given public weights: the sum of one round."""

import hashlib
import json

import numpy as np


class AtWeights:
    """The coefficients of a query at given weights, as a query of one round.

    `keras_fm.partial_statistics.PartialStatistics` sums it up in any number
    of processes. Its config has a hash of the weights, which are public, so
    sums at other weights cannot be merged.

    Args:
        query: the query that has the coefficients.
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
        # Public numbers only: an error that depends on records would leak.
        if not all(np.all(np.isfinite(w)) for w in weights):
            raise ValueError("The weights overflowed; lower `learning_rate`.")
        self.query, self.weights = query, weights
        digest = hashlib.sha256()
        for w in weights:
            # Zeros get one sign here: they are the same weights.
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
