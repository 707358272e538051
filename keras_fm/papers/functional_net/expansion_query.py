"""Second-order Taylor coefficients of a whole network about one point.

a are the affine outputs of a layer, z its inputs (with a constant 1 appended
for the bias), and E is the error of a record:

    g_ij = delta_i z_j,    delta_i = dE/da_i,
    h_ij = b_i v_j,        b_i = d2E/da_i^2 (or a bound), v_j = z_j^2.

The record's coefficients of a layer are therefore two outer products, whose
norms are products of the factors' norms. A record is clipped before any of
its coefficients is formed. Only sums over records are computed, in float64.
"""

import dataclasses
import math
from functools import partial

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.access.at_weights import AtWeights
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import SumQuery, is_replaced
from keras_fm.kernel.sums import by_unit, inside

CURVATURES = ("majorized", "diagonal")
NORMS = ("l2", "l1")
# The square of a smaller norm would underflow to zero.
_TINY = 1e-290
_HUGE = 1e100
_LARGEST_NORM = 1e250


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkExpansionQuery(SumQuery):
    """Gradient and diagonal curvature of a network's error, clipped jointly.

    A record's vector is `[g; curvature_weight h]` over all layers. It is
    scaled back to `clip` as a whole, which keeps the ratio of its parts (the
    Newton step).

    Args:
        shapes_of_layers: tuple of `(inputs, units)` of every layer. The
            constant input of a bias counts.
        clip: float > 0, threshold on the norm of one record's vector, which
            is the sensitivity; or `None` for exact sums, which have no
            sensitivity.
        norm: the norm that is clipped: `"l2"` (Gaussian noise) or `"l1"`
            (pure epsilon).
        curvature: `"diagonal"`: v_j is `z_j^2`, as in the paper.
            `"majorized"`: v_j is `|z_j| ||z||_1`. Then
            `(sum_j z_j d_j)^2 <= sum_j v_j d_j^2`, a bound that holds if all
            weights of a unit move at once.
        curvature_weight: float > 0, public weight of h in the vector.
        grouped: `True` if the privacy unit is an owner of several records:
            `clip` then also limits the sum of an owner's vectors.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> objective = NetworkExpansionQuery(
    ...     shapes_of_layers=((3, 2), (3, 1)), clip=0.5
    ... )
    >>> objective.size, objective.sensitivity("l2", neighbours="replace_one")
    (18, 1.0)

    Source: Manco and Pirro 2018, equations 1 to 6 (the factors); clipping
    and sensitivity are ours, docs/proofs/network_expansion.md.
    """

    shapes_of_layers: tuple
    clip: float | None = 1.0
    norm: str = "l2"
    curvature: str = "majorized"
    curvature_weight: float = 0.1
    grouped: bool = False

    names = ("gradient", "curvature")
    proof = "docs/proofs/network_expansion.md, docs/proofs/mechanisms.md"

    def __post_init__(self):
        shapes = tuple(
            tuple(checks.count("shapes_of_layers", size) for size in pair)
            for pair in self.shapes_of_layers
        )
        if not shapes or any(len(pair) != 2 for pair in shapes):
            raise ValueError(
                "`shapes_of_layers` must hold (inputs, units) of at least one "
                f"layer. Received: {self.shapes_of_layers}"
            )
        object.__setattr__(self, "shapes_of_layers", shapes)
        checks.fields(
            self,
            clip=partial(checks.optional, checks.norm_bound),
            curvature_weight=checks.norm_bound,
            norm=partial(checks.one_of, choices=NORMS),
            curvature=partial(checks.one_of, choices=CURVATURES),
            grouped=checks.flag,
        )
        if self.grouped and self.clip is None:
            raise ValueError("`grouped=True` needs a `clip` for owners' sums.")

    @property
    def num_weights(self):
        """Number of weights, P."""
        return sum(inputs * units for inputs, units in self.shapes_of_layers)

    @property
    def shapes(self):
        return ((self.num_weights,), (self.num_weights,))

    @property
    def uses(self):
        """Describes in words what a release uses of the records."""
        kind = "diagonal" if self.curvature == "diagonal" else "majorized"
        clipped = "unclipped"
        if self.clip is not None:
            owners = " and the sum of each owner's" * self.grouped
            clipped = (
                f"each record's{owners} clipped to {self.norm.upper()} norm "
                f"{self.clip:g}"
            )
        return (
            f"gradient and {kind} curvature of the error by "
            f"{self.num_weights} weights (curvature counted "
            f"{self.curvature_weight:g}) at the current weights, {clipped}"
        )

    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of the sum, in the norm that is clipped: `clip`
        (add_remove), `2 clip` (replace_one).

        For the other norm: the L2 norm of a vector is at most its L1 norm,
        and its L1 norm is at most `sqrt(size)` times its L2 norm.
        docs/proofs/network_expansion.md, proposition 2; for owners,
        docs/proofs/gradient.md, proposition 6.

        Args:
            norm: `"l1"` or `"l2"`.
            neighbours: `"add_remove"` or `"replace_one"`.

        Raises:
            ValueError: if `clip` is `None`.
        """
        if self.clip is None:
            raise ValueError(
                "Without `clip` one record may change the coefficients by any "
                "amount, so no noise is enough. Give `clip` a number."
            )
        replace = is_replaced(norm, neighbours)
        wider = norm == "l1" and self.norm == "l2"
        factor = math.sqrt(self.size) if wider else 1.0
        return (2 if replace else 1) * factor * self.clip

    # Statistics ----------------------------------------------------------

    def at(self, weights):
        """This query at the weights of the expansion, so that sums about
        different weights are never merged.

        Args:
            weights: list of `(inputs, units)` arrays, public.
        """
        return ExpansionAt(self, weights)

    @property
    def entry_bounds(self):
        """Bounds on one record's part of an entry of g and of h."""
        return self.clip, self.clip / self.curvature_weight

    def num_records(self, factors, *_):
        """Number of records in a batch."""
        return len(factors[0][0])

    def accumulate(self, statistics, factors, owners=None, clip=True):
        """Adds a batch to the statistics.

        Args:
            statistics: the result of `zero()` or of an earlier call.
            factors: for every layer a tuple `(z, delta, b)` of arrays
                `(n, inputs)`, `(n, units)`, `(n, units)`.
            owners: `(n,)` ids, needed if `grouped`: all records of an owner
                in one batch, next to each other.
            clip: ignored: every record is clipped if there is a threshold.

        Raises:
            ValueError: on wrong shapes, or a factor that is not a finite
                number. Nothing is added then.
        """
        rows = self._check(factors)
        scale = self._scales(rows)[:, None]
        pairs = (
            [(z, delta * scale) for z, _, delta, _ in rows],
            [(v, b * scale) for _, v, _, b in rows],
        )

        def own_sum(rows):
            return summation.total(
                tuple(
                    np.concatenate(
                        [
                            (x[rows][part].T @ y[rows][part]).ravel()
                            for x, y in own
                        ]
                    )
                    for own in pairs
                )
                for part in summation.chunks(rows.stop - rows.start)
            )

        batch = by_unit(self, owners, len(scale), own_sum, self._inside)
        return tuple(s + b for s, b in zip(statistics, batch))

    def _inside(self, own):
        vector = self.pack(own, self.norm)
        (length,) = summation.lengths(vector[None], self.norm)
        return inside(own, length, self.clip)

    def _check(self, factors):
        if len(factors) != len(self.shapes_of_layers):
            raise ValueError(
                f"Factors of {len(self.shapes_of_layers)} layers are needed. "
                f"Received: {len(factors)}"
            )
        rows = []
        for (inputs, units), given in zip(self.shapes_of_layers, factors):
            z, delta, b = (np.array(a, np.float64, order="C") for a in given)
            expected = [(len(z), size) for size in (inputs, units, units)]
            if [a.shape for a in (z, delta, b)] != expected:
                raise ValueError(
                    "Factors must have the shapes (records, inputs), "
                    "(records, units), (records, units). Received: "
                    f"{[a.shape for a in (z, delta, b)]} for a layer of "
                    f"{(inputs, units)}"
                )
            if self.curvature == "diagonal":
                v = np.square(z)
            else:
                size = np.abs(z)
                v = size * size.sum(axis=1, keepdims=True)
            rows.append((z, v, delta, b))
        if len({len(z) for z, *_ in rows}) > 1:
            raise ValueError("All layers must have the same records.")
        if not all(np.all(np.isfinite(a)) for row in rows for a in row):
            raise ValueError(
                "The coefficients of at least one record are not finite: it "
                "has a NaN or infinite entry, or one that overflows. Clean "
                "the records, or normalize them in `below`."
            )
        return rows

    def _scales(self, rows):
        """`(n,)` factors that bring every record inside its bound."""
        n = len(rows[0][0])
        if self.clip is None:
            return np.ones(n)
        with np.errstate(over="ignore", invalid="ignore"):
            norms = self._norms(rows)
        # A record whose products may overflow, or whose scaled factors may
        # lose their digits, is left out.
        for row in rows:
            for factor in (row[0], row[2], row[3]):
                norms[np.abs(factor).max(axis=1) > _HUGE] = np.inf
        norms[~(norms <= _LARGEST_NORM)] = np.inf
        # Stay below the bound by more than the rounding error of norms and
        # products.
        terms = 4 * len(self.shapes_of_layers) + 400
        bound = self.clip * (1 - terms * np.finfo(np.float64).eps)
        return np.minimum(1.0, bound / np.maximum(norms, _TINY))

    def _norms(self, rows):
        total = 0.0
        for z, v, delta, b in rows:
            for left, right, weight in (
                (z, delta, 1.0),
                (v, b, self.curvature_weight),
            ):
                if self.norm == "l1":
                    product = summation.lengths(left, "l1")
                    product = product * summation.lengths(right, "l1")
                    total = total + weight * product
                else:
                    # Products of squares may underflow.
                    product = _lengths(left) * _lengths(right)
                    total = np.hypot(total, weight * product)
        return total

    def pack(self, statistics, norm):
        """The vector that gets the noise: `[g; curvature_weight h]`."""
        gradient, curvature = statistics
        return np.concatenate([gradient, self.curvature_weight * curvature])

    def unpack(self, vector, norm):
        """The inverse of `pack`."""
        p = self.num_weights
        return vector[:p].copy(), vector[p:] / self.curvature_weight

    def layers(self, vector):
        """A vector `(P,)` as a list of `(inputs, units)` arrays."""
        found, start = [], 0
        for inputs, units in self.shapes_of_layers:
            stop = start + inputs * units
            found.append(vector[start:stop].reshape(inputs, units))
            start = stop
        return found


def _lengths(rows):
    """`(n,)` L2 norms that neither underflow nor overflow early."""
    largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), _TINY)
    scaled = rows / largest
    return largest[:, 0] * summation.lengths(scaled)


@released_as(NetworkExpansionQuery)
class NetworkExpansionRelease(Release):
    """A released `NetworkExpansionQuery`: a quadratic in every weight.

    All methods are post-processing: exact functions of the released
    coefficients and of public constants. They use no more budget.
    """

    def _layers(self):
        """Gradient and curvature of every layer."""
        found = self.statistics["gradient"], self.statistics["curvature"]
        return zip(*map(self.query.layers, found))

    def quadratic(self, ridge_factor=0.5, damping=0.1):
        """The convex quadratic `sum g d + 1/2 h d^2` of every layer, d the
        weights minus those it was expanded about.

        Without a positive curvature there is no minimum. Negative curvatures
        are set to zero. Then `damping` times a layer's mean curvature, and
        `2 ridge_factor` standard deviations of the noise, are added to all of
        its curvatures. This rule uses only the release and public numbers.

        Args:
            ridge_factor: float >= 0.
            damping: float >= 0.

        Returns:
            list of `(g, h)` for every layer, `(inputs, units)` each, h > 0.
        """
        objective = self.query
        stddev = math.sqrt(self.mechanism.coordinate_variance(objective.size))
        ridge = 2 * ridge_factor * stddev / objective.curvature_weight
        found = []
        for g, h in self._layers():
            h = np.maximum(h, 0.0) + damping * max(h.mean(), 0.0) + ridge
            # Without noise, a weight that no record moves must not change.
            found.append((g, np.maximum(h, _floor(h))))
        return found

    def printed(self):
        """The quadratic as in the paper, without damping and ridge.

        Along a weight whose curvature is not positive it has no minimum:
        such a weight does not move.

        Returns:
            as `quadratic`.
        """
        found = []
        for g, h in self._layers():
            convex = h > 0
            found.append(
                (np.where(convex, g, 0.0), np.where(convex, h, _floor(h)))
            )
        return found


def _floor(h):
    """The positive value that replaces a curvature of zero."""
    return max(h.max() * 1e-12, np.finfo(float).tiny)


class ExpansionAt(AtWeights):
    """A `NetworkExpansionQuery` at a network's weights, a list of
    `(inputs, units)` arrays. The factors of a batch must be computed at these
    weights; factors do not hold weights, so this is not checked."""

    def __init__(self, objective, weights):
        super().__init__(objective, weights, objective.shapes_of_layers)

    @property
    def entry_bounds(self):
        return self.query.entry_bounds

    def zero(self):
        return self.query.zero()

    @property
    def grouped(self):
        return self.query.grouped

    def num_records(self, factors, *_):
        return self.query.num_records(factors)

    def accumulate(self, statistics, factors, owners=None, clip=True):
        return self.query.accumulate(statistics, factors, owners)

    def vector(self, statistics):
        return self.query.pack(statistics, self.query.norm)
