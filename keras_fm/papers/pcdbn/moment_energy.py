"""The energy of convolutional filters, from moments of patches.

Exact functions of the moments, noisy or not, and of public constants: what
is made of a release.
"""

import numpy as np

from keras_fm.kernel import checks
from keras_fm.papers.pcdbn import symmetric_tensor


class MomentEnergy:
    """Moments of order `order` of patches of `num_features` entries, of
    which the last is `constant`, `size` numbers."""

    num_features: int
    order: int
    constant: float
    size: int

    def moment(self, moments, order):
        """The moments of an order up to m, as a dense symmetric array.

        Args:
            moments: `(size,)` unique entries of order m.
            order: int in 1..m. Order 4 makes an array of `p^4` numbers: half
                a million for p = 26, 54 MB for p = 51.

        Returns:
            `(p,) * order` float64 array: the tensor of order m with the
            constant entry for the indices it has more, over
            `kappa^(m - order)`.
        """
        p, m = self.num_features, self.order
        checks.integer(
            "order", order, at_least=1, at_most=m, wanted=f"between 1 and {m}"
        )
        indices = symmetric_tensor.indices(p, order)
        last = np.full((len(indices), m - order), p - 1, indices.dtype)
        lower = self._unique(moments)[
            symmetric_tensor.rank(np.hstack([indices, last]))
        ]
        lower = lower / self.constant ** (m - order)
        if order == 1:
            return lower
        pairs = symmetric_tensor.pairs(p)
        if order == 2:
            return lower[pairs]
        matrix = lower[symmetric_tensor.flattening(p, order)]
        return matrix[pairs] if order == 3 else matrix[pairs][:, :, pairs]

    def value(self, filters, moments, coefficients, scale):
        """The energy of the patches, summed over records and filters.

        -sum_k sum_l a_l Z^-l <T_{l+1}, w_k^(l+1)>, which for moments without
        noise is -sum_k sum_records mean_positions x sigma_L(x / Z).

        Args:
            filters: `(p, K)`, a filter w a column, the weight of the
                constant entry last (the bias over kappa).
            moments: `(size,)` unique entries.
            coefficients: a_0, a_1, ... of sigma_L, constant first; at most m.
            scale: Z > 0, public.

        Returns:
            float.
        """
        return float(self.values(filters, moments, coefficients, scale).sum())

    def values(self, filters, moments, coefficients, scale):
        """`value` filter by filter, `(K,)`."""
        filters, terms = self._powers(filters, moments, coefficients, scale)
        return -sum(a * np.einsum("ik,ik->k", filters, g) for a, g in terms)

    def gradient(self, filters, moments, coefficients, scale):
        """Gradient of `value` by the filters, `(p, K)`.

        Exact for any moments, noisy or not. Arguments as of `value`.
        """
        filters, terms = self._powers(filters, moments, coefficients, scale)
        total = np.zeros_like(filters)
        for power, (a, g) in enumerate(terms, start=1):
            total -= power * a * g
        return total

    def _powers(self, filters, moments, coefficients, scale):
        """`(a_l Z^-l, sum x^l u)` by l, each sum `(p, K)`.

        The tensor stays a matrix of monomials by monomials, of half the
        order each: p (p + 1) / 2 squared numbers for m = 4.
        """
        p, m = self.num_features, self.order
        filters = np.asarray(filters, dtype=np.float64)
        if filters.ndim != 2 or len(filters) != p:
            raise ValueError(
                f"Filters must have shape ({p}, filters), the weight of the "
                f"constant entry last. Received: shape={filters.shape}"
            )
        coefficients = np.asarray(coefficients, dtype=np.float64)
        if coefficients.ndim != 1 or not 1 <= len(coefficients) <= m:
            raise ValueError(
                f"Moments of order {m} hold the energy of a polynomial with "
                f"1 to {m} coefficients. Received: "
                f"coefficients={coefficients.tolist()}"
            )
        checks.positive("scale", scale)
        degree = len(coefficients) - 1
        matrix = self._unique(moments)[symmetric_tensor.flattening(p, m)]
        # sum (monomials of u) x^i, from the second half of the order.
        half = m // 2
        found = [
            self._contract(matrix, filters, i, half)
            for i in range(min(degree, half) + 1)
        ]
        if m > 2:
            # The first half has pairs: matrices sum u u^T x^i, `(p, p, K)`.
            found = [g[symmetric_tensor.pairs(p)] for g in found]
            last = found[0][:, -1] / self.constant
            rest = [np.einsum("ijk,jk->ik", g, filters) for g in found]
            found = [last, *rest]
        scales = float(scale) ** -np.arange(degree + 1.0)
        return filters, list(zip(coefficients * scales, found))

    def _contract(self, matrix, filters, power, half):
        """`matrix` times the coefficients of x^power as a polynomial of
        degree `half` in u: the constant entry fills up."""
        kappa, p = self.constant, self.num_features
        if power == 0:
            column = matrix[:, -1:] / kappa**half
            return np.repeat(column, filters.shape[1], axis=1)
        if power == half == 1:
            return matrix @ filters
        if power == 1:
            return matrix[:, symmetric_tensor.pairs(p)[-1]] @ (filters / kappa)
        i, j = symmetric_tensor.indices(p, 2).T
        doubled = np.where(i == j, 1.0, 2.0)[:, None]
        return matrix @ (doubled * filters[i] * filters[j])

    def _unique(self, moments):
        moments = np.asarray(moments, dtype=np.float64)
        if moments.shape != (self.size,):
            raise ValueError(
                f"Moments must have shape ({self.size},). Received: "
                f"shape={moments.shape}"
            )
        return moments
