"""Sums over records, and how far one privacy unit can move them.

`SumQuery` is any sum of arrays, and its layout for a mechanism.
`OwnedSumQuery` is one whose unit may be an owner of several records.
`QuadraticQuery` has the sums for every objective that is quadratic in its
weights. For records (h_i, t_i), a feature vector and a target vector, they are

    A = sum_i h_i h_i^T    and    S = sum_i h_i t_i^T,

and nothing else is used. A subclass defines t, and how the objective is made
from A and S. The proofs are in docs/proofs/cross_entropy.md (one record),
docs/proofs/reconstruction.md (any targets, several records of one owner) and
docs/proofs/labels.md (labels alone).
"""

import abc
import dataclasses
import math
import typing
from functools import partial

import numpy as np

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.budget import Neighbours

NORMS = ("l1", "l2")


class SumQuery(abc.ABC):
    """A sum of arrays of known `shapes`, one array after the other."""

    # Whether the privacy unit is an owner, whose sum is scaled back.
    grouped = False

    @property
    @abc.abstractmethod
    def shapes(self):
        """Shapes of the statistics by `names`."""

    @abc.abstractmethod
    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of the vector that `pack` gives, in `norm`."""

    def num_records(self, batch, *_, **__):
        """How many records a batch holds."""
        return len(batch)

    def zero(self):
        """Statistics of no record, float64."""
        return tuple(np.zeros(shape) for shape in self.shapes)

    @property
    def size(self):
        """Length of the released vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def pack(self, statistics, norm):
        """The vector that gets the noise."""
        return np.concatenate(
            [np.array(s, dtype=np.float64).ravel() for s in statistics]
        )

    def unpack(self, vector, norm):
        """The inverse of `pack`."""
        found, start = [], 0
        for shape in self.shapes:
            stop = start + math.prod(shape)
            part = np.array(vector[start:stop], dtype=np.float64)
            found.append(part.reshape(shape))
            start = stop
        return tuple(found)

    def public_part(self, statistics):
        """Statistics by name that are not secret under the relation of the
        query. A release holds them unchanged; `unpack` does not give them."""
        return {}

    def rounding_error(self, norm):
        """How far the computed vector may be from the exact one, see
        `keras_fm.kernel.sums.error_bound`."""
        return summation.error_bound(
            self.sensitivity(norm, neighbours="add_remove"),
            grouped=self.grouped,
        )

    def config(self):
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnedSumQuery(SumQuery):
    """A `SumQuery` whose privacy unit may be an owner of several records.

    Args:
        grouped: whether an owner's records are summed and scaled back to the
            norms that one record may have.
        reach: int >= 0, how many *other* units' records may depend on one
            unit's data.
    """

    grouped: bool = False
    reach: int = 0

    proof_of_one_record: typing.ClassVar[str]
    proof_of_owners = "docs/proofs/reconstruction.md"

    @abc.abstractmethod
    def _record(self, norm, replace):
        """Sensitivity of the vector for one record."""

    def _keep(self, **rules):
        """`checks.fields`, with the rules of the fields of all such queries."""
        checks.fields(self, grouped=checks.flag, reach=checks.natural, **rules)

    def _unit(self, norm, replace):
        """How much one privacy unit's own records may change."""
        if self.grouped and replace:
            return 2 * self._record(norm, replace=False)
        return self._record(norm, replace)

    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of the vector that `pack` gives.

        For one record see `proof`. For an owner of several (`grouped`): the
        same under add_remove, and twice that under replace_one, or less if
        the query proves it. Each of `reach` other units adds the larger one.
        docs/proofs/reconstruction.md, propositions 3 and 4.

        Args:
            norm: `"l1"` or `"l2"`.
            neighbours: `"add_remove"` or `"replace_one"`.
        """
        replace = is_replaced(norm, neighbours)
        total = self._unit(norm, replace)
        if self.reach:
            # A reached record may change, or appear or vanish. If a record's
            # largest part is constant, the second is more.
            total += self.reach * max(
                self._unit(norm, replace=True), self._unit(norm, replace=False)
            )
        return total

    @property
    def proof(self):
        """Where the sensitivity is proved, for the ledger."""
        own, other = self.proof_of_one_record, self.proof_of_owners
        if (self.grouped or self.reach) and other not in own:
            return f"{own}, {other}"
        return own

    def _unit_in_words(self):
        words = ""
        if self.grouped:
            words += "; each owner's sum scaled back to one record's norm"
        return words + reach_in_words(self.reach)

    def _scaled(self, own):
        """An owner's sums, scaled back."""
        shrink = self._owner_scale(own)
        return tuple(shrink * part for part in own)

    def _owner_scale(self, own):
        """Brings an owner's sum to the norms that one record may have."""
        scale = 1.0
        for norm in NORMS:
            length = summation.lengths(self.pack(own, norm)[None], norm)[0]
            # The margin exceeds the error of the length; no jump at the bound.
            bound = self._record(norm, replace=False) * (1 - 1e-12)
            if length > bound:
                scale = min(scale, bound / length)
        return scale

    def rounding_error(self, norm):
        """How far the computed vector may be from the exact one, see
        `keras_fm.kernel.sums.error_bound`."""
        return summation.error_bound(
            self._record(norm, replace=False),
            reach=self.reach,
            grouped=self.grouped,
        )


# How an entry states that other units' records depend on one unit's data.
REACHES = "one unit's data enters the records of at most"


def reach_in_words(reach):
    """`reach` for the ledger; nothing if no unit enters others' records."""
    return f"; {REACHES} {reach} other units" if reach else ""


def is_replaced(norm, neighbours):
    """Whether a record is replaced, not added or removed. Also checks the norm
    in which the change is measured."""
    checks.either("norm", norm, NORMS)
    return Neighbours.of(neighbours).replaces


def clipped_sensitivity(bound, norm, neighbours):
    """L2 sensitivity of a sum of vectors of norm at most `bound`: `bound`
    (add_remove), `2 bound` (replace_one).

    docs/proofs/gradient.md, propositions 1 and 3.

    Raises:
        ValueError: for another norm.
    """
    if norm != "l2":
        raise ValueError(
            'Clipped coefficients have an "l2" sensitivity only. '
            f"Received: norm={norm!r}"
        )
    replaces = Neighbours.of(neighbours).replaces
    return 2 * bound if replaces else bound


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuadraticQuery(OwnedSumQuery):
    """The sums A and S over records, with their sensitivities.

    Args:
        num_features: int m, length of a feature vector h (bias entry
            included).
        feature_bound: C, bound on `||h||_2`.
        feature_l1_bound: `None`, or B >= C, a bound on `||h||_1`: sqrt(s) C
            for features with at most s nonzero entries. If B is below
            sqrt(m) C it lowers L1 sensitivities, and with them the noise of
            a pure epsilon.
        nonnegative: whether every feature is known to be >= 0; negative
            ones are then refused. It lowers replace_one sensitivities.
        quadratic_scale: alpha > 0. The released vector is (A / alpha, S):
            a larger alpha gives A more of the noise and S less.
        grouped: whether the privacy unit is an owner of several records (a
            user). The owner's records are summed, and the sum is scaled back
            to the norm that one record may have.
        reach: int >= 0, how many *other* privacy units' records may depend
            on one unit's data (a friend's behaviour among the features).
        public_features: whether only the labels are secret, which is
            `neighbours="replace_label"` and no other relation. A is released
            unchanged, and only S gets noise.
    """

    num_features: int
    feature_bound: float = 1.0
    feature_l1_bound: float | None = None
    nonnegative: bool = False
    quadratic_scale: float = 1.0
    public_features: bool = False

    names: typing.ClassVar[tuple[str, ...]] = ("quadratic", "linear")
    proof_of_one_record = "docs/proofs/cross_entropy.md"
    proof_of_labels = "docs/proofs/labels.md"
    # Whether targets are labels, which features do not reveal.
    targets_are_labels = True
    # Sums over so many records can be exact.
    exact_rows = summation.EXACT_ROWS

    def __post_init__(self):
        self._keep(
            num_features=checks.count,
            # Plain Python numbers: a float32 bound would round sensitivities.
            feature_bound=checks.norm_bound,
            quadratic_scale=checks.norm_bound,
            nonnegative=checks.flag,
            public_features=checks.flag,
            feature_l1_bound=partial(checks.optional, checks.norm_bound),
        )
        if not self.public_features:
            return
        if not self.targets_are_labels:
            raise ValueError(
                f"A {type(self).__name__} uses features only, and "
                "`public_features=True` protects labels only. Leave it out."
            )
        if self.grouped or self.reach:
            raise ValueError(
                "`public_features=True` protects the label of one record: "
                "`grouped` and `reach` are not supported. Received: "
                f"grouped={self.grouped}, reach={self.reach}"
            )

    @property
    def proof(self):
        """Where the sensitivity is proved, for the ledger."""
        return self.proof_of_labels if self.public_features else super().proof

    # Targets -------------------------------------------------------------

    @abc.abstractmethod
    def targets(self, y, n, clip):
        """The targets of a batch of `n` records, `(n, M)` float64."""

    @property
    @abc.abstractmethod
    def num_targets(self):
        """M, length of a target vector t."""

    @property
    @abc.abstractmethod
    def target_bound(self):
        """T, bound on `||t||_2`."""

    @property
    def target_l1_bound(self):
        """Bound on `||t||_1`."""
        return math.sqrt(self.num_targets) * self.target_bound

    @property
    def targets_aligned(self):
        """Whether `<t, t'> >= 0` for any two targets."""
        return False

    # One record ----------------------------------------------------------

    @property
    def _dense_features(self):
        """r, bound on `||h||_1^2 / C^2`: how many equal entries reach the L1
        bound B. Without B it is m, which holds for all vectors."""
        if self.feature_l1_bound is None:
            return self.num_features
        # No vector is longer in the L2 norm than in the L1 norm.
        ratio = max(self.feature_l1_bound / self.feature_bound, 1.0)
        return min(self.num_features, ratio**2)

    def quadratic_sensitivity(self, norm, *, neighbours):
        """Sensitivity of A in the coordinates of `pack`, for one record.

        L2 (Frobenius): C^2 (add_remove), sqrt(2) C^2 (replace_one).
        L1 (upper triangle): C^2 (1 + r) / 2 (add_remove), attained by r
        equal entries. Under replace_one, the smaller of two:
        C^2 sqrt(m (m + 3) / 2), approached by vectors constant on two
        halves, and C^2 (1 + r), attained by vectors without a common entry.
        Here r is m, or (B / C)^2 with B = `feature_l1_bound` if that is
        less. For m = 1, C^2 in all cases.
        docs/proofs/cross_entropy.md, propositions 1 and 2.
        """
        return self._quadratic(norm, is_replaced(norm, neighbours))

    def _quadratic(self, norm, replace):
        m, square = self.num_features, self.feature_bound**2
        if m == 1:
            return square
        if norm == "l2":
            return square * (math.sqrt(2) if replace else 1.0)
        r = self._dense_features
        if replace:
            return square * min(math.sqrt(m * (m + 3) / 2), 1 + r)
        return square * (1 + r) / 2

    def linear_sensitivity(self, norm, *, neighbours):
        """Sensitivity of S for one record; T and T_1 bound the targets.

        L2: C T (add_remove); replace_one 2 C T, or sqrt(2) C T if features
        are nonnegative and targets aligned, where <h, h'><t, t'> >= 0.
        L1: sqrt(r) C T_1, which is B T_1 with a `feature_l1_bound` B
        (add_remove), twice that (replace_one).
        docs/proofs/cross_entropy.md, proposition 3, and
        docs/proofs/reconstruction.md, proposition 1.
        """
        return self._linear(norm, is_replaced(norm, neighbours))

    def _linear(self, norm, replace):
        if norm == "l1":
            product = self.feature_bound * self.target_l1_bound
            product *= math.sqrt(self._dense_features)
            return 2 * product if replace else product
        product = self.feature_bound * self.target_bound
        if not replace:
            return product
        return product * (math.sqrt(2) if self._aligned else 2.0)

    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of the released vector (A / alpha, S).

        One record. L1: the sum of the parts. L2:
        sqrt(C^4 / alpha^2 + C^2 T^2) (add_remove). Under replace_one, no pair
        is the worst for both parts. With s = |<h, h'>| the squared distance
        is at most

            2 (C^4 - s^2) / alpha^2 + 2 C^2 T^2 + 2 s T^2,

        largest at s = min(alpha^2 T^2 / 2, C^2). If features are nonnegative
        and targets aligned, the last term is absent, and s = 0.
        docs/proofs/cross_entropy.md, proposition 4.

        An owner of several records (`grouped`): the same for add_remove,
        twice the add_remove value for replace_one (sqrt(2) times for A alone
        in the L2 norm). Each of `reach` other units adds the replace_one
        value. docs/proofs/reconstruction.md, propositions 3 and 4.

        Labels alone (`public_features`), replace_label: of S, C D with D the
        longest change of a target in L2 (sqrt(2) for one-hot labels, 1 for a
        binary one, else 2 T); in L1 sqrt(r) C 2 T_1. docs/proofs/labels.md,
        proposition 1.

        Args:
            norm: `"l1"` or `"l2"`.
            neighbours: `"add_remove"`, `"replace_one"` or `"replace_label"`,
                which without `public_features` is a case of the second.

        Raises:
            ValueError: with `public_features`, for another relation than
                replace_label.
        """
        if self.public_features:
            is_replaced(norm, neighbours)
            return self._label_change(norm, neighbours)
        return super().sensitivity(norm, neighbours=neighbours)

    def _label_change(self, norm, neighbours):
        relation = Neighbours.of(neighbours)
        if relation is not Neighbours.REPLACE_LABEL:
            raise ValueError(
                "`public_features=True` releases the features' second moment "
                'without noise, which neighbours="replace_label" alone '
                f"allows. Received: neighbours={str(relation)!r}"
            )
        if norm == "l1":
            return self._linear(norm, replace=True)
        return self.feature_bound * self.target_change

    @property
    def target_change(self):
        """D, bound on `||t - t'||_2` of two targets."""
        return (math.sqrt(2) if self.targets_aligned else 2) * self.target_bound

    def _unit(self, norm, replace):
        """What one privacy unit's own records may change."""
        if self.grouped and replace:
            # Sums of squares have nonnegative inner products.
            squares = norm == "l2" and not self.target_bound
            factor = math.sqrt(2) if squares else 2.0
            return factor * self._record(norm, replace=False)
        return super()._unit(norm, replace)

    def _record(self, norm, replace):
        if self.public_features:
            return self._linear(norm, replace)
        alpha = self.quadratic_scale
        if norm == "l1" or not replace:
            quadratic = self._quadratic(norm, replace)
            linear = self._linear(norm, replace)
            if norm == "l1":
                return quadratic / alpha + linear
            return math.hypot(quadratic / alpha, linear)
        c2, t2 = self.feature_bound**2, self.target_bound**2
        if self.num_features == 1 and not t2:
            return c2 / alpha
        overlap = 0.0 if self._aligned else min(alpha**2 * t2 / 2, c2)
        return math.sqrt(
            2 * (c2**2 - overlap**2) / alpha**2 + 2 * c2 * t2 + 2 * overlap * t2
        )

    @property
    def _aligned(self):
        return self.nonnegative and self.targets_aligned

    # Statistics ----------------------------------------------------------

    def _uses(self, targets):
        """What a release uses, in words; `targets` describes S."""
        m = self.num_features
        words = f"A = sum h h^T ({m} x {m})"
        if targets:
            words += f" and S = sum h t^T ({m} x {self.num_targets}, {targets})"
        words += f" over all records, once, ||h||_2 <= {self.feature_bound:g}"
        if self.feature_l1_bound is not None:
            words += f", ||h||_1 <= {self.feature_l1_bound:g}"
        if self.public_features:
            words += "; features are public, and A with them"
        return words + self._unit_in_words()

    def zero(self):
        """Statistics of no record: `(A, S)`, float64."""
        m = self.num_features
        quadratic = np.zeros((m, m), dtype=np.float64, order="F")
        return quadratic, np.zeros((m, self.num_targets))

    @property
    def entry_bounds(self):
        """Bounds on what one privacy unit adds to an entry of A, and of S."""
        c = self.feature_bound
        return c * c, c * (self.target_bound or 1.0)

    def accumulate(
        self, statistics, h, y=None, owners=None, clip=False, exact=False
    ):
        """Statistics with a batch added.

        Only the upper triangle of A is filled; `pack` reads no other.

        Args:
            statistics: what `zero()` or an earlier call returned; its arrays
                may be reused.
            h: `(n, m)` features.
            y: what `targets` takes.
            owners: `(n,)` ids, needed if `grouped`: all records of an owner
                in one batch, next to each other.
            clip: whether rows outside the bound are scaled back. Their
                targets are, too: such a record is fitted no worse, it only
                counts less.
            exact: whether features and targets are cut to a grid
                (`sums.on_grid`), on which sums over up to `exact_rows`
                records have no rounding.

        Raises:
            ValueError: on NaN, wrong shapes, labels outside their range,
                features outside their bounds.
        """
        rows = self._check_features(h, clip)
        targets = self.targets(y, len(rows), clip)
        if clip:
            targets = targets * bounds_lib.share_within(rows, h)
        rows, targets = self._weighed(rows, targets)
        if not len(rows):
            return statistics
        if exact:
            steps = self.grid_steps
            rows = summation.on_grid(rows, steps[0])
            targets = summation.on_grid(np.array(targets, float), steps[1])
        if self.grouped:
            batch = summation.scaled_by_owner(
                owners,
                len(rows),
                lambda part: self._sum(rows[part], targets[part]),
                lambda own: self._scaled(own, exact),
            )
        elif exact:
            return self._added(statistics, rows, targets)
        else:
            batch = self._sum(rows, targets)
        return tuple(s + b for s, b in zip(statistics, batch))

    def _weighed(self, rows, targets):
        """The rows and targets of which A and S are made, no longer than they
        were."""
        return rows, targets

    def _sum(self, rows, targets):
        """A and S of some rows."""
        from scipy.linalg import blas

        return summation.total(
            # dsyrk fills one triangle: half the work of a full product.
            (
                blas.dsyrk(1.0, rows[part].T),
                rows[part].T @ targets[part],
            )
            for part in summation.chunks(len(rows))
        )

    def _added(self, statistics, rows, targets):
        """A and S with some rows added, without a copy of A."""
        from scipy.linalg import blas

        quadratic, linear = statistics
        quadratic = blas.dsyrk(1.0, rows.T, 1.0, quadratic, overwrite_c=True)
        if targets.size:
            # NumPy has its own BLAS, whose threads would compete.
            more = blas.dgemm(1.0, rows.T, targets.T, trans_b=True)
            linear = linear + more
        return quadratic, linear

    def _scaled(self, own, exact):
        """An owner's sums, scaled back."""
        own = super()._scaled(own)
        if not exact:
            return own
        step = self.grid_steps[0]
        return tuple(
            summation.on_grid(part, step * other)
            for part, other in zip(own, self.grid_steps)
        )

    @property
    def grid_steps(self):
        """Grid steps of features and of targets."""
        bounds = self.feature_bound, self.target_bound or 1.0
        return tuple(summation.grid_step(bound) for bound in bounds)

    def _check_features(self, h, clip):
        within = self.feature_bound, clip, self.feature_l1_bound
        rows = bounds_lib.checked_features(h, self.num_features, *within)
        if self.nonnegative and rows.min(initial=0.0) < 0:
            raise ValueError(
                "At least one feature is negative, but the layer declares "
                "`nonnegative=True`. Remove the declaration or make the "
                "features nonnegative (a ReLU, or public bounds)."
            )
        return rows

    # The vector a mechanism perturbs -------------------------------------

    @property
    def size(self):
        """Length of the perturbed vector."""
        m = self.num_features
        linear = m * self.num_targets
        return linear + (0 if self.public_features else m * (m + 1) // 2)

    @property
    def shapes(self):
        """Shapes of the statistics by `names`."""
        m = self.num_features
        return (m, m), (m, self.num_targets)

    def pack(self, statistics, norm):
        """Flattens (A / alpha, S) so that `norm` of the vector is the norm
        that the sensitivity refers to.

        For `"l2"` off-diagonal entries of A are multiplied by sqrt(2), so
        the vector's length is the Frobenius norm; for `"l1"` every entry of
        the upper triangle counts once. With `public_features`, S alone.
        """
        quadratic, *linear = statistics
        if self.public_features:
            return np.array(linear[0], np.float64).ravel()
        upper = np.triu_indices(self.num_features)
        flat = quadratic[upper] / self.quadratic_scale
        if norm == "l2":
            flat[upper[0] != upper[1]] *= math.sqrt(2)
        return np.concatenate([flat, *(part.ravel() for part in linear)])

    def unpack(self, vector, norm):
        """The inverse of `pack`: symmetric A and S. With `public_features`
        A is NaN: see `public_part`."""
        m = self.num_features
        if self.public_features:
            return np.full((m, m), np.nan), np.reshape(vector, (m, -1)).copy()
        rows, columns = np.triu_indices(m)
        flat = vector[: len(rows)] * self.quadratic_scale
        if norm == "l2":
            flat[rows != columns] /= math.sqrt(2)
        quadratic = np.empty((m, m))
        quadratic[rows, columns] = flat
        quadratic[columns, rows] = flat
        return quadratic, vector[len(rows) :].reshape(m, self.num_targets)

    def public_part(self, statistics):
        """A, symmetric, where features are public."""
        if not self.public_features:
            return {}
        upper = np.triu(statistics[0])
        return {"quadratic": upper + np.triu(upper, 1).T}
