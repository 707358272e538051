"""Features, weights and residuals in whole steps of public grids.

Products of such numbers, and sums of many, are whole numbers that float64
holds: a matrix library may add them in any order, and to any other records,
and the result has the same bits. The proof is in docs/proofs/gradient.md,
proposition 10.
"""

import dataclasses
import math

import numpy as np

from keras_fm.kernel import sums as summation

# Steps of features within the power of two above their bound.
_FEATURE_BITS = 14
# Of residuals, within what the longest feature leaves of `clip`.
_RESIDUAL_BITS = 24
# Of weights: a column of them times a feature vector is below 2^53 steps.
_LOGIT_BITS = 53 - _FEATURE_BITS
# Below it weights have fewer digits, so that their step is no subnormal number.
_LEAST_EXPONENT = -800
# Of which a sum of products is exact.
EXACT_ROWS = 2**14


@dataclasses.dataclass(frozen=True)
class CoefficientGrid:
    """The grids of one query: all of them powers of two.

    Args:
        feature_bound: C, on `||h||_2`.
        clip: on the Frobenius norm of `h delta^T`.

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
        """Of entries of coefficients and of their sums."""
        return self.feature_step * self.residual_step

    def narrow(self, rows):
        """Features cut towards zero, in steps: no norm becomes larger.

        Args:
            rows: float64 `(n, m)`, within their bound; overwritten.

        Returns:
            int16 `(n, m)`.
        """
        rows /= self.feature_step
        return rows.astype(np.int16)

    def lengths(self, narrow):
        """Norms of features in steps, `(n,)`, in their own unit."""
        return self.feature_step * summation.lengths(
            np.asarray(narrow, np.float64)
        )

    def weights(self, weights):
        """Weights in steps, one for each output, and what makes logits of
        products with features in steps.

        Args:
            weights: `(m, M)`.

        Returns:
            whole numbers `(M, m)` and factors `(M, 1)`, float64.
        """
        columns = np.ascontiguousarray(weights.T)
        most = np.abs(columns).max(axis=1, initial=0.0)
        # Of a column's norm, at most that of `m` largest entries.
        above = np.frexp(most)[1] + _above(math.sqrt(weights.shape[0]))
        exponents = above[:, None] + 1 - _LOGIT_BITS
        exponents = np.maximum(exponents, _LEAST_EXPONENT)
        whole = np.rint(np.ldexp(columns, -exponents))
        return whole, np.ldexp(self.feature_step, exponents)

    def cut(self, delta):
        """Residuals cut towards zero, in steps, in place."""
        delta /= self.residual_step
        return np.trunc(delta, out=delta)


def _above(bound):
    """The exponent of the least power of two that is not below `bound`."""
    digits, exponent = math.frexp(bound)
    return exponent - (digits == 0.5)
