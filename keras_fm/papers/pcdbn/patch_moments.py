"""Moments of a record's patches, from which a convolutional energy follows.

u = [v; kappa] is a patch beside a public constant, and x = w.u is the value
of a feature map there. The hidden probabilities of a convolutional RBM are a
polynomial sigma_L(x / Z) of degree L = m - 1. Its energy is

    -sum x sigma_L(x / Z) = -sum_l a_l Z^-l <T_{l+1}, w^(l+1)>,

with T_j the moments of order j of the patches. Because of the constant entry
the tensor of order m holds all lower ones. A release therefore uses only

    T_m = sum_records mean_positions u (x) ... (x) u    (m factors).

The proofs are in docs/proofs/patch_moments.md.
"""

import dataclasses
import functools
import math

import numpy as np

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import OwnedSumQuery
from keras_fm.kernel.sums import by_unit
from keras_fm.papers.pcdbn import symmetric_tensor

ORDERS = (2, 3, 4)
# Size of the largest array while patches are summed.
_CHUNK = 2**20
_FEWEST_PATCHES = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchMomentQuery(OwnedSumQuery):
    """The moments of order m of patches, averaged over a record's positions.

    A patch is u = [v; kappa] with a public constant as its last entry. Every
    entry of the symmetric tensor is held once: `C(p + m - 1, m)` numbers
    (5x5 patches: 351 for m = 2, 23,751 for m = 4). The entry with indices
    `i_0 <= i_1 <= ...` is at position `sum_k C(i_k + k, k + 1)`.

    Args:
        num_features: int p >= 2, length of u with its constant entry.
        order: int m in 2..4.
        feature_bound: C, bound on `||u||_2`: `sqrt(C^2 - kappa^2)` is left
            for v.
        constant: kappa, `0 < kappa < C`.
        grouped: `True` if the privacy unit is an owner of several records:
            the owner's records are summed, and the sum is scaled back to the
            norms that one record may have.
        reach: int >= 0, the number of *other* privacy units whose records
            may depend on one unit's data.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> objective = PatchMomentQuery(
    ...     num_features=26, order=4, feature_bound=2.0, constant=1.0
    ... )
    >>> objective.size, objective.sensitivity("l2", neighbours="add_remove")
    (23751, 16.0)
    """

    num_features: int
    order: int = 2
    feature_bound: float
    constant: float

    names = ("moments",)
    proof_of_one_record = "docs/proofs/patch_moments.md"

    def __post_init__(self):
        self._keep(
            num_features=functools.partial(
                checks.integer,
                at_least=2,
                wanted="at least 2: it counts the constant entry, too",
            ),
            order=functools.partial(checks.one_of, choices=ORDERS),
            # Plain Python numbers: a float32 bound would round sensitivities.
            feature_bound=checks.norm_bound,
            constant=checks.norm_bound,
        )
        if not self.constant < self.feature_bound:
            raise ValueError(
                "`constant` must be below `feature_bound`, or nothing is left "
                f"for the patch. Received: constant={self.constant}, "
                f"feature_bound={self.feature_bound}"
            )

    @property
    def patch_bound(self):
        """B, bound on `||v||_2`: `sqrt(C^2 - kappa^2)`."""
        # A product: the difference of squares would lose digits.
        c, kappa = self.feature_bound, self.constant
        return math.sqrt((c - kappa) * (c + kappa))

    @property
    def uses(self):
        """Describes in words what a release uses of the records."""
        words = (
            f"moments of order {self.order} of patches u = [v; "
            f"{self.constant:g}] of {self.num_features} entries "
            f"({self.size} numbers), averaged over each record's positions "
            "and summed over all records, once, ||u||_2 <= "
            f"{self.feature_bound:g}"
        )
        return words + self._unit_in_words()

    # Statistics ----------------------------------------------------------

    @property
    def entry_bounds(self):
        """Bound on one privacy unit's part of an entry."""
        return (self.feature_bound**self.order,)

    def accumulate(self, statistics, patches, owners=None, clip=False):
        """Adds a batch to the statistics.

        Args:
            statistics: the result of `zero()` or of an earlier call.
            patches: `(n, positions, p)`, the constant last. You may choose
                any positions, also different ones in each call, by a public
                rule or by the record alone. The array may be a view; it is
                used in chunks.
            owners: `(n,)` ids, needed if `grouped`: all records of an owner
                in one batch, next to each other.
            clip: whether patches outside the bound are scaled back. Their
                constant entry does not change.

        Raises:
            ValueError: on NaN, wrong shapes, another constant than declared,
                patches outside their bound. Nothing is added then.
        """
        patches = np.asarray(patches)
        if (
            patches.ndim != 3
            or patches.shape[2] != self.num_features
            or not patches.shape[1]
        ):
            raise ValueError(
                "Patches must have shape (records, positions, "
                f"{self.num_features}) with at least one position. Received: "
                f"shape={patches.shape}"
            )
        (batch,) = by_unit(
            self,
            owners,
            len(patches),
            lambda part: (self._sum(patches[part], clip),),
            lambda own: (self._owner_scale(own) * own[0],),
        )
        return (statistics[0] + batch,)

    def _sum(self, patches, clip):
        """Unique entries of the sum over records of their mean tensors."""
        p, m = self.num_features, self.order
        first, second = m - m // 2, m // 2
        n, positions, _ = patches.shape
        columns = math.comb(p + first - 1, first)
        rows = max(_CHUNK // columns, _FEWEST_PATCHES)
        rows = min(rows, summation.ROWS)
        steps = min(positions, rows), max(rows // positions, 1)
        # The product of monomials of half the order has every entry.
        product = summation.CompensatedSum()
        for i in range(0, n, steps[1]):
            for j in range(0, positions, steps[0]):
                part = patches[i : i + steps[1], j : j + steps[0]]
                u = self._checked(part.reshape(-1, p), clip)
                product.add(_product(u, first, second))
        indices = symmetric_tensor.indices(p, m)
        entries = product.value()[
            symmetric_tensor.rank(indices[:, :first]),
            symmetric_tensor.rank(indices[:, first:]),
        ]
        return entries / positions

    def _checked(self, patches, clip):
        """Patches `(count, p)` within their bound, float64."""
        rounding = bounds_lib.ROUNDING.get(patches.dtype, 2e-2)
        last = patches[:, -1].astype(np.float64)
        if not np.all(np.abs(last - self.constant) <= rounding * self.constant):
            raise ValueError(
                "The last entry of every patch must be the public constant "
                f"{self.constant:g}; at least one patch has another."
            )
        u = np.empty(patches.shape)
        u[:, :-1] = bounds_lib.project_to_ball(
            patches[:, :-1], self.patch_bound, clip=clip
        )
        # Set exactly: it is not scaled with v and must have no rounding.
        u[:, -1] = self.constant
        return u

    # Sensitivity ---------------------------------------------------------

    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of the moments in the coordinates of `pack`.

        For one record, with B^2 = C^2 - kappa^2 and d = p - 1:

        * L2 (Frobenius), add_remove: C^m.
        * L2, replace_one: sqrt(2 (C^2m - g)), g the least value of s^m for s
          in [2 kappa^2 - C^2, C^2]: sqrt(2) C^m if m is even and
          2 kappa^2 <= C^2.
        * L1 (unique entries), add_remove:
          sum_j kappa^(m-j) C(d + j - 1, j) (B / sqrt(d))^j, j = 0..m.
        * L1, replace_one: less than twice the terms with j > 0.

        The first three are attained (the second for d >= 2).
        docs/proofs/patch_moments.md, propositions 2 to 4.

        For an owner of several records (`grouped`), add_remove is the same.
        replace_one is twice that, or sqrt(2) times in L2 if m is even or
        2 kappa^2 >= C^2. Each of `reach` other units adds the larger of the
        two values. docs/proofs/patch_moments.md, proposition 5.

        Args:
            norm: `"l1"` or `"l2"`.
            neighbours: `"add_remove"` or `"replace_one"`.
        """
        return super().sensitivity(norm, neighbours=neighbours)

    def _unit(self, norm, replace):
        """Largest change by one privacy unit's own records."""
        if self.grouped and replace:
            aligned = self.order % 2 == 0 or self._least_cosine >= 0
            factor = math.sqrt(2) if norm == "l2" and aligned else 2.0
            return factor * self._record(norm, replace=False)
        return super()._unit(norm, replace)

    @property
    def _least_cosine(self):
        """For two patches at their bound: (2 kappa^2 - C^2) / C^2."""
        return 1 - 2 * (self.patch_bound / self.feature_bound) ** 2

    def _record(self, norm, replace):
        if norm == "l1":
            return self._record_l1(replace)
        largest = self.feature_bound**self.order
        if not replace:
            return largest
        m, cosine = self.order, self._least_cosine
        if cosine > 0:
            # 1 - cosine^m without loss of digits near 1.
            share = (self.patch_bound / self.feature_bound) ** 2
            apart = -math.expm1(m * math.log1p(-2 * share))
        else:
            apart = 1.0 if m % 2 == 0 else 1 - cosine**m
        return math.sqrt(2 * apart) * largest

    def _record_l1(self, replace):
        m, d, kappa = self.order, self.num_features - 1, self.constant
        entry = self.patch_bound / math.sqrt(d)
        parts = [
            kappa ** (m - j) * math.comb(d + j - 1, j) * entry**j
            for j in range(m + 1)
        ]
        if not replace:
            return sum(parts)
        by_degree = 0.0
        for j in range(1, m + 1):
            part = 2 * parts[j]
            if j % 2 == 0:
                # Even powers have nonnegative inner products.
                spread = (
                    math.sqrt(2 * symmetric_tensor.spread(d, j))
                    if d > 1
                    else 1.0
                )
                spread *= self.patch_bound**j * kappa ** (m - j)
                part = min(part, spread)
            by_degree += part
        # All records have the same entry kappa^m.
        whole = math.sqrt(symmetric_tensor.spread(d + 1, m) - 1)
        return min(by_degree, whole * self._record("l2", replace=True))

    # The vector that a mechanism adds noise to ----------------------------

    @property
    def size(self):
        """Length of the released vector."""
        return math.comb(self.num_features + self.order - 1, self.order)

    @property
    def shapes(self):
        """Shapes of the statistics by `names`."""
        return ((self.size,),)

    @property
    def _lengths(self):
        """Square roots of each unique entry's multiplicity in the tensor."""
        return np.sqrt(
            symmetric_tensor.multiplicities(self.num_features, self.order)
        )

    def pack(self, statistics, norm):
        """The moments as the vector for which `sensitivity(norm)` holds.

        For `"l2"` every unique entry is multiplied by the square root of
        its multiplicity. The vector's length is then the Frobenius norm of
        the whole tensor. For `"l1"` every unique entry counts once.
        """
        vector = np.array(statistics[0], dtype=np.float64)
        return vector * self._lengths if norm == "l2" else vector

    def unpack(self, vector, norm):
        """The inverse of `pack`."""
        vector = np.array(vector, dtype=np.float64)
        return (vector / self._lengths if norm == "l2" else vector,)

    def stddevs(self, mechanism):
        """Standard deviations of the noise on the unique entries.

        Noise of scale sigma is sigma / sqrt(multiplicity) on an entry in L2
        coordinates, and sigma on every entry in L1 coordinates.
        """
        stddev = math.sqrt(mechanism.coordinate_variance(self.size))
        if mechanism.norm == "l2":
            return stddev / self._lengths
        return np.full(self.size, stddev)

    # The energy of filters: exact functions of moments, noisy or not -------

    def moment(self, moments, order):
        """The moments of an order up to m, as a dense symmetric array.

        Args:
            moments: `(size,)` unique entries of order m.
            order: int in 1..m. Order 4 makes an array of `p^4` numbers: half
                a million for p = 26, 54 MB for p = 51.

        Returns:
            `(p,) * order` float64 array: the tensor of order m, with its
            surplus indices at the constant entry, over `kappa^(m - order)`.
        """
        p, m = self.num_features, self.order
        checks.integer("order", order, at_least=1, at_most=m)
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

        It is -sum_k sum_l a_l Z^-l <T_{l+1}, w_k^(l+1)>. For moments without
        noise it equals -sum_k sum_records mean_positions x sigma_L(x / Z).

        Args:
            filters: `(p, K)`, one column per filter w, the weight of the
                constant entry last (the bias over kappa).
            moments: `(size,)` unique entries.
            coefficients: a_0, a_1, ... of sigma_L, constant first; at most m.
            scale: Z > 0, public.

        Returns:
            float.
        """
        filters, terms = self._powers(filters, moments, coefficients, scale)
        return -math.fsum(a * float(np.vdot(filters, g)) for a, g in terms)

    def gradient(self, filters, moments, coefficients, scale):
        """Gradient of `value` by the filters, `(p, K)`.

        Exact for any moments, noisy or not. Arguments as in `value`.
        """
        filters, terms = self._powers(filters, moments, coefficients, scale)
        total = np.zeros_like(filters)
        for power, (a, g) in enumerate(terms, start=1):
            total -= power * a * g
        return total

    def _powers(self, filters, moments, coefficients, scale):
        """`(a_l Z^-l, sum x^l u)` by l, each sum `(p, K)`.

        The tensor stays a matrix, monomials of half the order by the same:
        the square of p (p + 1) / 2 numbers for m = 4.
        """
        p, m = self.num_features, self.order
        filters = np.asarray(filters, dtype=np.float64)
        coefficients = np.asarray(coefficients, dtype=np.float64)
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
        """`matrix` times the coefficients of x^power, written as a polynomial
        of degree `half` in u with powers of the constant entry."""
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


def _product(u, first, second):
    """Monomials of one order by those of another, summed over rows."""
    # For an array times itself NumPy does half the work.
    if first == second == 1:
        return u.T @ u
    u = np.ascontiguousarray(u.T)
    left = symmetric_tensor.monomials(u, first)
    if first == second:
        return left @ left.T
    return left @ symmetric_tensor.monomials(u, second).T


@released_as(PatchMomentQuery)
class PatchMomentRelease(Release):
    """A released `PatchMomentQuery`: moments of patches plus noise.

    All methods are post-processing: exact functions of the released moments
    and of public constants. They use no more budget.
    """

    def moment(self, order):
        """The moments of an order up to m, `(p,) * order`, symmetric.

        They are sums over records, not divided by `count()`. Order 2 may be
        indefinite. See `PatchMomentQuery.moment`.
        """
        return self.query.moment(self.statistics["moments"], order)

    def stddev(self, order):
        """Standard deviations of the noise on `moment(order)`, entry by
        entry."""
        stddevs = self.query.stddevs(self.mechanism)
        return self.query.moment(stddevs, order)

    def count(self):
        """Noisy n, at least 1: the entry of constants alone over kappa^m.
        With owners, it estimates the sum of their factors."""
        constant = self.query.constant**self.query.order
        return max(1.0, float(self.statistics["moments"][-1]) / constant)

    def noise_edge(self):
        """Spectral edge of the noise on `moment(2)`, for large p.

        s is the standard deviation of an off-diagonal entry. For m = 2 and 3
        the edge is 2 sqrt(p) s (Wigner's semicircle). For m = 4 in L2
        coordinates the row of the constant has three times the variance,
        which moves the edge to 3 / sqrt(2) times sqrt(p) s.
        docs/proofs/patch_moments.md, proposition 7.
        """
        p, order = self.query.num_features, self.query.order
        variance = self.mechanism.coordinate_variance(self.query.size)
        ratio = 1
        if self.mechanism.norm == "l2":
            # An entry off the diagonal is m (m - 1) times in the tensor.
            variance, ratio = variance / (order * (order - 1)), order - 1
        edge = ratio / math.sqrt(ratio - 1) if ratio > 2 else 2.0
        lower = self.query.constant ** (order - 2)
        return edge * math.sqrt(p * variance) / lower

    def energy(self, filters, coefficients, scale):
        """The energy of the patches, per record.

        Args:
            filters: `(p, K)`, the weight of the constant entry last.
            coefficients: of the polynomial in x / scale, constant first, at
                most m.
            scale: Z > 0, public.

        Returns:
            float, `PatchMomentQuery.value` over `count()`.
        """
        total = self.query.value(
            filters, self.statistics["moments"], coefficients, scale
        )
        return total / self.count()

    def energy_gradient(self, filters, coefficients, scale):
        """Gradient of `energy` by the filters, `(p, K)`."""
        total = self.query.gradient(
            filters, self.statistics["moments"], coefficients, scale
        )
        return total / self.count()
