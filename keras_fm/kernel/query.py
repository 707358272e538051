"""Objectives that are quadratic in the weights: A and S, once for all.

For records (h_i, t_i), a feature vector and a target vector, every objective
of this family is a function of

    A = sum_i h_i h_i^T    and    S = sum_i h_i t_i^T,

so these two are all that is ever read. What t is, and how the objective is
put together from A and S, is said by the subclass. How far a record moves them
stands in `quadratic_sensitivity`, what is made of them in
`quadratic_objective`.
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
from keras_fm.kernel.planning.quadratic_objective import QuadraticObjective
from keras_fm.kernel.quadratic_sensitivity import QuadraticSensitivity
from keras_fm.kernel.reads.sums_by_owner import scaled_by_owner


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuadraticQuery(QuadraticObjective, QuadraticSensitivity):
    """A and S of records, with their sensitivities.

    Args:
        num_features: int m, length of a feature vector h (bias entry
            included).
        feature_bound: C, bound on `||h||_2`.
        feature_l1_bound: `None`, or B >= C, a further bound on `||h||_1`:
            sqrt(s) C of features that have at most s entries other than
            zero. It lowers L1 sensitivities, and with them the noise of a
            pure epsilon, where B is below sqrt(m) C.
        nonnegative: whether every feature is known to be >= 0; negative
            ones are then refused. It lowers replace_one sensitivities.
        quadratic_scale: alpha > 0. The released vector is (A / alpha, S):
            a larger alpha gives A more of the noise and S less.
        grouped: whether the privacy unit is an owner of several records (a
            user): the owner's records are summed, and the sum is scaled back
            to the norm that one record may have.
        reach: int >= 0, how many *other* privacy units' records may depend
            on one unit's data (a friend's behaviour among the features).
        public_features: whether labels alone are secret, which is
            `neighbours="replace_label"` and no other relation: A is released
            as it is, and S alone has noise.
    """

    num_features: int
    feature_bound: float = 1.0
    feature_l1_bound: float | None = None
    nonnegative: bool = False
    quadratic_scale: float = 1.0
    grouped: bool = False
    reach: int = 0
    public_features: bool = False

    names: typing.ClassVar[tuple[str, ...]] = ("quadratic", "linear")
    proof_of_one_record = "docs/proofs/cross_entropy.md"
    proof_of_labels = "docs/proofs/labels.md"
    # Whether targets are labels, which features do not tell.
    targets_are_labels = True
    # Sums of that many records are exact if that is asked for.
    exact_rows = summation.EXACT_ROWS

    def __post_init__(self):
        checks.fields(
            self,
            num_features=checks.count,
            # Plain Python numbers: a float32 bound would round sensitivities.
            feature_bound=checks.norm_bound,
            quadratic_scale=checks.norm_bound,
            nonnegative=checks.flag,
            grouped=checks.flag,
            reach=checks.natural,
            public_features=checks.flag,
        )
        checks.fields(
            self,
            feature_l1_bound=partial(
                bounds_lib.l1_bound, feature_bound=self.feature_bound
            ),
        )
        if not self.public_features:
            return
        if not self.targets_are_labels:
            raise ValueError(
                f"A {type(self).__name__} has no labels: its targets are of "
                "the features, which `public_features=True` takes for public."
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
        """What a batch of `n` records gives as targets, `(n, M)` float64."""

    # Statistics ----------------------------------------------------------

    def _reads(self, targets):
        """What a release reads, in words; `targets` describes S."""
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
            clip: whether rows outside the bound are scaled back.
            exact: whether features and targets are cut to a grid
                (`summation.on_grid`) where sums over up to `exact_rows`
                records have no rounding.

        Raises:
            ValueError: on NaN, wrong shapes, labels outside their range,
                features outside their bounds.
        """
        rows = self._check_features(h, clip)
        targets = self.targets(y, len(rows), clip)
        if not len(rows):
            return statistics
        if exact:
            steps = self._grid_steps
            rows = summation.on_grid(rows, steps[0])
            targets = summation.on_grid(np.array(targets, float), steps[1])
        if self.grouped:
            batch = scaled_by_owner(
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
            # NumPy has a BLAS of its own, whose threads would compete.
            more = blas.dgemm(1.0, rows.T, targets.T, trans_b=True)
            linear = linear + more
        return quadratic, linear

    def _scaled(self, own, exact):
        """An owner's sums, scaled back."""
        shrink = self._owner_scale(own)
        own = tuple(shrink * part for part in own)
        if not exact:
            return own
        step = self._grid_steps[0]
        return tuple(
            summation.on_grid(part, step * other)
            for part, other in zip(own, self._grid_steps)
        )

    @property
    def _grid_steps(self):
        """Of features and of targets."""
        bounds = self.feature_bound, self.target_bound or 1.0
        return tuple(summation.grid_step(bound) for bound in bounds)

    def _check_features(self, h, clip):
        rows = bounds_lib.checked_features(
            h,
            self.num_features,
            self.feature_bound,
            clip,
            self.feature_l1_bound,
        )
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
        the sensitivity refers to.

        For `"l2"` off-diagonal entries of A are multiplied by sqrt(2), so
        the vector's length is the Frobenius norm; for `"l1"` every entry of
        the upper triangle counts once. With `public_features` S alone.
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
