"""Taylor cross-entropy of an output layer, as a function of two statistics.

For records (h_i, t_i) and logits z_i = W^T h_i, the second-order expansion of
the cross-entropy of every output about z = 0 is

    sum_i sum_m [log 2 + (1/2 - y_im) z_im + z_im^2 / 8]
      = n M log 2 + <L, W> + tr(W^T A W) / 8,

with A = sum_i h_i h_i^T and L = sum_i h_i (1/2 - y_i)^T (dPA Eq. 14, AdLM
Eq. 25). A and S = sum_i h_i t_i^T, t the one-hot label (L = S 1 1^T / 2 - S)
or t = y - 1/2 for one binary output (L = -S), are all that is ever read.

The proofs of the sensitivities are in docs/proofs/cross_entropy.md.
"""

import dataclasses
import math

import numpy as np
from scipy.linalg import blas

from keras_fm import budget as budget_lib
from keras_fm import domain

NORMS = ("l1", "l2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEntropyObjective:
    """The Taylor cross-entropy objective of one dense output layer.

    Args:
        num_features: int m, length of a feature vector h (bias entry
            included).
        num_outputs: int M. With `M == 1` labels are binary (0 or 1),
            otherwise classes 0..M-1.
        feature_bound: C, bound on `||h||_2`.
        nonnegative: whether every feature is known to be >= 0; negative
            ones are then refused. It lowers replace_one sensitivities.
        quadratic_scale: alpha > 0. The released vector is (A / alpha, S):
            a larger alpha gives A more of the noise and S less.

    Example:

    >>> objective = CrossEntropyObjective(num_features=8, num_outputs=3)
    >>> round(objective.sensitivity("l2", neighbours="add_remove"), 4)
    1.4142
    """

    num_features: int
    num_outputs: int
    feature_bound: float = 1.0
    nonnegative: bool = False
    quadratic_scale: float = 1.0

    names = ("quadratic", "linear")
    proof = "docs/proofs/cross_entropy.md"

    def __post_init__(self):
        for name in ("num_features", "num_outputs"):
            count = domain.check_count(name, getattr(self, name))
            object.__setattr__(self, name, count)
        # Plain Python numbers: a float32 bound would round sensitivities.
        for name in ("feature_bound", "quadratic_scale"):
            bound = domain.check_norm_bound(name, getattr(self, name))
            object.__setattr__(self, name, bound)
        object.__setattr__(self, "nonnegative", bool(self.nonnegative))

    # Statistics ----------------------------------------------------------

    @property
    def target_bound(self):
        """Bound on `||t||_2`: 1 for a one-hot label, 1/2 for y - 1/2."""
        return 0.5 if self.num_outputs == 1 else 1.0

    @property
    def reads(self):
        """What a release of this objective reads, in words."""
        target = "y - 1/2" if self.num_outputs == 1 else "one-hot y"
        return (
            f"A = sum h h^T ({self.num_features} x {self.num_features}) and "
            f"S = sum h t^T ({self.num_features} x {self.num_outputs}, "
            f"t = {target}) over all records, once, ||h||_2 <= "
            f"{self.feature_bound:g}"
        )

    def zero(self):
        """Statistics of no record: `(A, S)`, float64."""
        m = self.num_features
        quadratic = np.zeros((m, m), dtype=np.float64, order="F")
        return quadratic, np.zeros((m, self.num_outputs))

    def accumulate(self, statistics, h, y, clip=False):
        """Adds a batch to `statistics` (in place where possible).

        Only the upper triangle of A is filled; `pack` reads no other.

        Args:
            statistics: what `zero()` or an earlier call returned.
            h: `(n, m)` features.
            y: `(n,)` labels: classes 0..M-1, or 0/1 if `M == 1`; or
                `(n, M)` one-hot.
            clip: whether rows outside the bound are scaled back.

        Raises:
            ValueError: on NaN, wrong shapes, labels outside their range,
                features outside their bounds.
        """
        quadratic, linear = statistics
        rows = self._check_features(h, clip)
        targets = self._targets(y, len(rows))
        # dsyrk fills one triangle: half the work of a full product.
        quadratic = blas.dsyrk(
            1.0, rows.T, beta=1.0, c=quadratic, overwrite_c=1
        )
        linear += rows.T @ targets
        return quadratic, linear

    def _check_features(self, h, clip):
        h = np.asarray(h)
        if h.ndim != 2 or h.shape[1] != self.num_features:
            raise ValueError(
                f"Features must have shape (records, {self.num_features}). "
                f"Received: shape={h.shape}"
            )
        rows = domain.project_to_ball(h, self.feature_bound, clip=clip)
        if self.nonnegative and rows.min(initial=0.0) < 0:
            raise ValueError(
                "At least one feature is negative, but the layer declares "
                "`nonnegative=True`. Remove the declaration or make the "
                "features nonnegative (a ReLU, or public bounds)."
            )
        return rows

    def _targets(self, y, n):
        y = np.asarray(y)
        m = self.num_outputs
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if len(y) != n:
            raise ValueError(
                "Labels and features must hold the same number of records. "
                f"Received: {len(y)} labels, {n} feature vectors"
            )
        if y.ndim == 2 and y.shape[1] == m:
            if not np.all(((y == 0) | (y == 1)).all(axis=1)) or not np.all(
                y.sum(axis=1) == 1
            ):
                raise ValueError(
                    "Labels of shape (records, classes) must be one-hot."
                )
            return y.astype(np.float64)
        if y.ndim != 1:
            raise ValueError(
                f"Labels must have shape (records,) or (records, {m}). "
                f"Received: shape={y.shape}"
            )
        top = max(m, 2)
        if not np.all((y >= 0) & (y < top) & (y == np.floor(y))):
            raise ValueError(
                f"Labels must be whole numbers in [0, {top}). At least one "
                "label is outside."
            )
        if m == 1:
            return y[:, None].astype(np.float64) - 0.5
        return np.eye(m)[y.astype(np.int64)]

    # Sensitivity ---------------------------------------------------------

    def quadratic_sensitivity(self, norm, *, neighbours):
        """Sensitivity of A in the coordinates of `pack`.

        L2 (Frobenius): C^2 (add_remove), sqrt(2) C^2 (replace_one).
        L1 (upper triangle): C^2 (1 + m) / 2 (add_remove), attained by equal
        entries; C^2 sqrt(m (m + 3) / 2) (replace_one), approached by
        vectors constant on two halves. For m = 1, C^2 in all cases.
        docs/proofs/cross_entropy.md, propositions 1 and 2.
        """
        replace, m = self._relation(norm, neighbours), self.num_features
        square = self.feature_bound**2
        if m == 1:
            return square
        if norm == "l2":
            return square * (math.sqrt(2) if replace else 1.0)
        if replace:
            return square * math.sqrt(m * (m + 3) / 2)
        return square * (1 + m) / 2

    def linear_sensitivity(self, norm, *, neighbours):
        """Sensitivity of S, with T the bound on `||t||_2`.

        L2: C T (add_remove); replace_one 2 C T, or sqrt(2) C T if features
        are nonnegative and labels one-hot, where <h, h'><t, t'> >= 0.
        L1: sqrt(m) C T (add_remove), twice that (replace_one).
        docs/proofs/cross_entropy.md, proposition 3.
        """
        replace = self._relation(norm, neighbours)
        product = self.feature_bound * self.target_bound
        if norm == "l1":
            product *= math.sqrt(self.num_features)
            return 2 * product if replace else product
        if not replace:
            return product
        return product * (math.sqrt(2) if self._aligned else 2.0)

    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of the released vector (A / alpha, S).

        L1: the sum of the parts. L2: sqrt(C^4 / alpha^2 + C^2 T^2)
        (add_remove). For replace_one the parts are not at their worst for
        the same pair; with s = |<h, h'>| the squared distance is at most

            2 (C^4 - s^2) / alpha^2 + 2 C^2 T^2 + 2 s T^2,

        largest at s = min(alpha^2 T^2 / 2, C^2); without the last term, at
        s = 0, if features are nonnegative and labels one-hot.
        docs/proofs/cross_entropy.md, proposition 4.

        Args:
            norm: `"l1"` or `"l2"`.
            neighbours: `"add_remove"` or `"replace_one"`.
        """
        replace = self._relation(norm, neighbours)
        alpha = self.quadratic_scale
        if norm == "l1" or not replace:
            quadratic = self.quadratic_sensitivity(norm, neighbours=neighbours)
            linear = self.linear_sensitivity(norm, neighbours=neighbours)
            if norm == "l1":
                return quadratic / alpha + linear
            return math.hypot(quadratic / alpha, linear)
        c2, t2 = self.feature_bound**2, self.target_bound**2
        overlap = 0.0 if self._aligned else min(alpha**2 * t2 / 2, c2)
        return math.sqrt(
            2 * (c2**2 - overlap**2) / alpha**2 + 2 * c2 * t2 + 2 * overlap * t2
        )

    @property
    def _aligned(self):
        return self.nonnegative and self.num_outputs > 1

    def _relation(self, norm, neighbours):
        if norm not in NORMS:
            raise ValueError(
                f'`norm` must be "l1" or "l2". Received: norm={norm!r}'
            )
        relation = budget_lib.Neighbours.of(neighbours)
        return relation is budget_lib.Neighbours.REPLACE_ONE

    # The vector a mechanism perturbs -------------------------------------

    @property
    def size(self):
        """Length of the released vector."""
        m = self.num_features
        return m * (m + 1) // 2 + m * self.num_outputs

    @property
    def shapes(self):
        """Shapes of the statistics by `names`."""
        m = self.num_features
        return (m, m), (m, self.num_outputs)

    def pack(self, statistics, norm):
        """Flattens (A / alpha, S) so that `norm` of the vector is the norm
        the sensitivity refers to.

        For `"l2"` off-diagonal entries of A are multiplied by sqrt(2), so
        the vector's length is the Frobenius norm; for `"l1"` every entry of
        the upper triangle counts once.
        """
        quadratic, linear = statistics
        upper = np.triu_indices(self.num_features)
        flat = quadratic[upper] / self.quadratic_scale
        if norm == "l2":
            flat[upper[0] != upper[1]] *= math.sqrt(2)
        return np.concatenate([flat, linear.ravel()])

    def unpack(self, vector, norm):
        """The inverse of `pack`: symmetric A and S."""
        m = self.num_features
        rows, columns = np.triu_indices(m)
        flat = vector[: len(rows)] * self.quadratic_scale
        if norm == "l2":
            flat[rows != columns] /= math.sqrt(2)
        quadratic = np.empty((m, m))
        quadratic[rows, columns] = flat
        quadratic[columns, rows] = flat
        return quadratic, vector[len(rows) :].reshape(m, self.num_outputs)

    def off_diagonal_stddev(self, mechanism):
        """Standard deviation of the noise on an off-diagonal entry of A."""
        stddev = math.sqrt(mechanism.coordinate_variance(self.size))
        stddev *= self.quadratic_scale
        return stddev / math.sqrt(2) if mechanism.norm == "l2" else stddev

    def expected_squared_error(self, mechanism):
        """Expected squared Frobenius error of (A, S) under `mechanism`."""
        m, variance = (
            self.num_features,
            mechanism.coordinate_variance(self.size),
        )
        # In L1 coordinates an off-diagonal error appears twice in A.
        entries = m * (m + 1) / 2 if mechanism.norm == "l2" else m * m
        return variance * (
            entries * self.quadratic_scale**2 + m * self.num_outputs
        )

    # The objective -------------------------------------------------------

    def linear_coefficients(self, linear):
        """L = sum h (1/2 - y)^T, `(m, M)`, from S."""
        if self.num_outputs == 1:
            return -linear
        return linear.sum(axis=1, keepdims=True) / 2 - linear

    def value(self, weights, statistics):
        """The objective without its constant n M log 2, at `(m, M)` weights.

        Args:
            weights: `(m, M)` array.
            statistics: `(A, S)` with A symmetric.
        """
        quadratic, linear = statistics
        linear = self.linear_coefficients(linear)
        return float(
            np.vdot(linear, weights) + np.vdot(weights, quadratic @ weights) / 8
        )

    def config(self):
        return dataclasses.asdict(self)
