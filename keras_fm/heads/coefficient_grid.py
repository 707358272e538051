"""Features, weights and residuals as whole multiples of public grid steps.

Float64 holds products of such numbers, and sums of many, exactly. A matrix
library may add them in any order and next to any other records: the bits of
the result stay the same. The proof is in docs/proofs/gradient.md, proposition
10.
"""

import dataclasses
import math

import numpy as np

from keras_fm.kernel import sums as summation

# The power of two above the feature bound is 2^14 steps.
_FEATURE_BITS = 14
# The same for residuals, within `clip` over the length of the longest feature.
_RESIDUAL_BITS = 24
# For weights: a column of them times a feature vector is below 2^53 steps.
_LOGIT_BITS = 53 - _FEATURE_BITS
# Weights below it have fewer digits, so that their step stays a normal number.
_LEAST_EXPONENT = -800
# A sum of products is exact over up to so many rows.
EXACT_ROWS = 2**14


@dataclasses.dataclass(frozen=True)
class CoefficientGrid:
    """The grids of one query. All steps are powers of two.

    Args:
        feature_bound: C, bound on `||h||_2`.
        clip: bound on the Frobenius norm of `h delta^T`.

    Example:

    >>> grid = CoefficientGrid(1.0, 0.1)
    >>> grid.narrow(np.array([[0.25, -1.0]]))
    array([[  4096, -16384]], dtype=int16)
    """

    feature_bound: float
    clip: float

    @property
    def feature_step(self):
        return 2.0 ** (_above(self.feature_bound) - _FEATURE_BITS)

    @property
    def residual_step(self):
        exponent = math.frexp(self.clip)[1] - 1 - _above(self.feature_bound)
        return 2.0 ** (exponent - _RESIDUAL_BITS)

    @property
    def step(self):
        """The step of coefficients and of their sums."""
        return self.feature_step * self.residual_step

    def narrow(self, rows):
        """Features in steps, cut towards zero so that no norm becomes larger.

        Args:
            rows: float64 `(n, m)`, within their bound; overwritten.

        Returns:
            int16 `(n, m)`.
        """
        rows /= self.feature_step
        return rows.astype(np.int16)

    def lengths(self, narrow):
        """Norms `(n,)`, in the unit of the features, of features in steps."""
        return self.feature_step * summation.lengths(
            np.asarray(narrow, np.float64)
        )

    def weights(self, weights):
        """Weights in steps, each output with a step of its own. A product with
        features in steps, times the returned factor, is a logit.

        Args:
            weights: `(m, M)`.

        Returns:
            whole numbers `(M, m)` and factors `(M, 1)`, float64.
        """
        columns = np.ascontiguousarray(weights.T)
        most = np.abs(columns).max(axis=1, initial=0.0)
        # A bound on a column's norm: as if all `m` entries were the largest.
        above = np.frexp(most)[1] + _above(math.sqrt(weights.shape[0]))
        exponents = above[:, None] + 1 - _LOGIT_BITS
        exponents = np.maximum(exponents, _LEAST_EXPONENT)
        whole = np.rint(np.ldexp(columns, -exponents))
        return whole, np.ldexp(self.feature_step, exponents)

    def cut(self, delta):
        """Residuals in steps, cut towards zero, in place."""
        delta /= self.residual_step
        return np.trunc(delta, out=delta)


def _above(bound):
    """The exponent of the least power of two that is at least `bound`."""
    digits, exponent = math.frexp(bound)
    return exponent - (digits == 0.5)
