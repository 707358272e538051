"""First-order coefficients of an output layer at its current weights.

A record (h, y) has logits z = W^T h and a loss l. The first-order Taylor
coefficient of l about W is the outer product h delta^T with delta = dl/dz: the
gradient. Each is scaled back to a Frobenius norm of at most `clip`. Their sum,

    G(W) = sum_i min(1, clip / (||h_i|| ||delta_i||)) h_i delta_i^T

is what one round uses of the records (DP-MAC with first-order coefficients,
DP-SGD for one linear layer). The norm of an outer product is the product of
its factors' norms, so no gradient of a single record is ever formed. The
proof of the sensitivity is in docs/proofs/gradient.md.

If the privacy unit is an owner of several records, the sum of the owner's
coefficients is scaled back once more. One matrix per owner is formed.
"""

import dataclasses
import math
from functools import partial

import numpy as np

from keras_fm.heads import class_weights
from keras_fm.heads.coefficient_grid import EXACT_ROWS, CoefficientGrid
from keras_fm.heads.cross_entropy import CrossEntropyQuery
from keras_fm.heads.squared_error import bounds_in_words
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.access.at_weights import AtWeights
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import SumQuery, clipped_sensitivity
from keras_fm.kernel.sums import inside, owner_runs, scaled_by_owner

_OF_CLASSES = "crammer_singer"
# Cross-entropy, until `GradientRounds.choose` sets the loss.
BY_FIRST_ROUND = "by_first_round"
# The largest norm of a coefficient that is scaled back without losing digits.
_LARGEST_NORM = 1e250
# Numbers (records times features) that stay in a processor's cache;
# multiplications of a product that needs no copy, and the fewest records for
# which that is worth it.
_CACHED, _FEW, _LEAST = 2**18, 10**6, 24
LOSSES = (
    "cross_entropy",
    "squared_hinge",
    "crammer_singer",
    "squared_error",
    BY_FIRST_ROUND,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientQuery(SumQuery):
    """Query for the clipped gradients of one dense output layer.

    Args:
        num_features: int m, length of a feature vector h (bias entry
            included).
        num_outputs: int M. With `M == 1` labels are binary (0 or 1),
            otherwise classes 0..M-1.
        feature_bound: C, bound on `||h||_2`.
        clip: threshold > 0 on the Frobenius norm of one record's gradient
            (first-order coefficient). It is the sensitivity.
        loss: `"cross_entropy"` (softmax; logistic for M = 1) or
            `"squared_hinge"` (`sum_m max(0, 1 - s_m z_m)^2 / 2` with
            s = 1 for the record's class and -1 for others) or
            `"crammer_singer"` (`max(0, 1 + max_{m != y} z_m - z_y)^2 / 2`;
            the same for M = 1). Under the last two, records beyond the
            margin contribute nothing. `"squared_error"`
            (`sum_m (z_m - t_m)^2 / 2`) is for numbers. `"by_first_round"`
            starts with the cross-entropy; after the first round it may change
            to `"crammer_singer"`, see `Rounds`.
        grouped: whether the privacy unit is an owner of several records.
            `clip` then limits each coefficient of an owner and their sum.
        independent: whether the outputs are M separate labels, each 0 or 1,
            instead of classes.
        target_bounds: for numbers only, which are scaled to [-1, 1]; see
            `SquaredErrorQuery`.
        class_weights: `None`, or a number in [0, 1] for each class. It
            multiplies a record's coefficient after the clip.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> objective = GradientQuery(num_features=8, num_outputs=3, clip=0.1)
    >>> objective.sensitivity("l2", neighbours="add_remove")
    0.1
    """

    num_features: int
    num_outputs: int
    feature_bound: float = 1.0
    clip: float = 1.0
    loss: str = "cross_entropy"
    grouped: bool = False
    independent: bool = False
    target_bounds: tuple | None = None
    class_weights: tuple | None = None

    # All rounds are one entry of the ledger.
    paid_for_together = True

    # A release of many rounds keeps the weights that they led to.
    names = ("weights",)
    proof = "docs/proofs/gradient.md"

    def __post_init__(self):
        checks.fields(
            self,
            num_features=checks.count,
            num_outputs=checks.count,
            feature_bound=checks.norm_bound,
            clip=checks.norm_bound,
            loss=partial(checks.one_of, choices=LOSSES),
            grouped=checks.flag,
            independent=checks.flag,
        )
        numbers = self.loss == "squared_error"
        if numbers != (self.target_bounds is not None):
            raise ValueError(
                '`target_bounds` belong to loss="squared_error", which '
                f"needs them. Received: target_bounds={self.target_bounds}, "
                f"loss={self.loss!r}"
            )
        of_classes = (_OF_CLASSES, BY_FIRST_ROUND)
        if self.independent and self.loss in ("squared_error", *of_classes):
            raise ValueError(
                "`independent=True` is for labels: their loss is "
                '"cross_entropy" or "squared_hinge". Received: '
                f"loss={self.loss!r}"
            )
        if numbers:
            bounds = bounds_lib.target_bounds(
                "target_bounds", self.target_bounds, self.num_outputs
            )
            object.__setattr__(self, "target_bounds", bounds)
        class_weights.check_field(self)

    @property
    def uses(self):
        """What one round uses of the records, in words."""
        whose = "each record's"
        if self.grouped:
            whose += " and the sum of each owner's"
        of = ""
        if self.target_bounds is not None:
            of = f"; y from {bounds_in_words(self.target_bounds)}"
        elif self.independent:
            of = "; every output a label of its own"
        loss = self.loss
        if loss == BY_FIRST_ROUND:
            loss = f"cross_entropy (after round 1 perhaps {_OF_CLASSES})"
        return (
            f"gradients of the {loss} of an output layer "
            f"({self.num_features} x {self.num_outputs}{of}), {whose} "
            f"clipped to norm {self.clip:g}"
            + class_weights.in_words(self.class_weights)
        )

    def with_loss(self, loss):
        """This query with one of the losses that `"by_first_round"` leaves
        open. Shapes and sensitivity stay the same.

        Raises:
            ValueError: if the loss of this query is not open.
        """
        open_losses = ("cross_entropy", _OF_CLASSES)
        if self.loss != BY_FIRST_ROUND or loss not in open_losses:
            raise ValueError(
                f"A query with loss={BY_FIRST_ROUND!r} may change to a loss "
                f"of {open_losses}. Received: loss={loss!r} for {self}"
            )
        return dataclasses.replace(self, loss=loss)

    @property
    def shapes(self):
        return ((self.num_features, self.num_outputs),)

    def sensitivity(self, norm, *, neighbours):
        """L2 sensitivity of G: `clip` (add_remove), `2 clip` (replace_one).

        docs/proofs/gradient.md, proposition 1; for owners, proposition 6.

        Args:
            norm: `"l2"`.
            neighbours: `"add_remove"` or `"replace_one"`.
        """
        return clipped_sensitivity(self.clip, norm, neighbours)

    def rounding_error(self, norm):
        """Largest distance of the computed sum from the exact one, see
        `keras_fm.kernel.sums.error_bound`."""
        return summation.error_bound(self.clip, grouped=self.grouped)

    # One round -----------------------------------------------------------

    def at(self, weights):
        """G at these weights as a query of one round, which
        `keras_fm.partial_statistics.PartialStatistics` can sum up.

        Args:
            weights: `(m, M)`, public.

        Example:

        >>> objective = GradientQuery(num_features=2, num_outputs=1)
        >>> partial = PartialStatistics(objective.at(np.zeros((2, 1))))
        >>> partial.add(np.array([[0.6, 0.8]]), np.array([1]))
        """
        return GradientAt(self, weights)

    def check_records(self, h, y, clip=False, owners=None):
        """Checks a batch and returns features and targets as `total` takes
        them.

        Args:
            h: `(n, m)` features.
            y: labels, see `CrossEntropyQuery`, or numbers in their own unit.
            clip: whether rows and numbers outside their bounds are clipped to
                them instead of refused.
            owners: `(n,)` ids, needed if `grouped`. All records of an owner
                must be in one batch, next to each other.

        Returns:
            tuple `(h, t)`: int16 `(n, m)`, features in steps of a grid, and
            `targets`. If `grouped` `(h, t, counts)`, with the number of
            records of each owner in turn.

        Raises:
            ValueError: on NaN, wrong shapes, labels or numbers outside their
                range, features outside their bound.
        """
        rows = bounds_lib.checked_features(
            h, self.num_features, self.feature_bound, clip
        )
        rows = self._grid.narrow(rows)
        targets = self.targets(y, len(rows), clip)
        if not self.grouped:
            return rows, targets
        runs = owner_runs(owners, len(rows))
        return rows, targets, np.array([r.stop - r.start for r in runs], int)

    @property
    def _grid(self):
        return CoefficientGrid(self.feature_bound, self.clip)

    def targets(self, y, n, clip=False):
        """`(n, M)` float64: one-hot classes, separate labels of 0 and 1, or
        numbers scaled to [-1, 1]."""
        if self.target_bounds is not None:
            return bounds_lib.numbers(y, n, self.target_bounds, clip)
        labels = CrossEntropyQuery(
            num_features=self.num_features,
            num_outputs=self.num_outputs,
            independent=self.independent,
        )
        # Without the shift all labels are 0 or 1.
        return labels.targets(y, n) - labels.target_shift

    def _residuals(self, z, targets, xp=np):
        """delta = dl/dz, a column for each record, from logits and targets
        `(M, n)`. The logits may be overwritten. `xp` is NumPy, or
        `keras.ops` for tensors."""
        if self.loss == "squared_error":
            return z - targets
        if self.loss == _OF_CLASSES and self.num_outputs > 1:
            return _crammer_singer(z, targets, xp)
        if self.loss not in ("cross_entropy", BY_FIRST_ROUND):
            signs = 2 * targets - 1
            return -signs * _above_zero(1 - signs * z, xp)
        if self.num_outputs == 1 or self.independent:
            if xp is not np:
                # `tanh` of devices has fewer digits.
                return 1 / (1 + xp.exp(-z)) - targets
            return 0.5 + 0.5 * np.tanh(z / 2) - targets
        z -= xp.max(z, axis=0)
        p = xp.exp(z)
        p /= xp.sum(p, axis=0)
        p -= targets
        return p

    def cut(self, z, targets, lengths, weights):
        """Residuals of one round on a device: as `total` computes them, where
        rounding cannot matter.

        Args:
            z, targets: logits and targets `(M, n)`, float64 tensors.
            lengths: `(n,)`, see `lengths`.
            weights: `(n,)` factors of records, see `record_weights`.

        Returns:
            whole numbers `(M, n)`, and `(n,)`: whether they have NumPy's
            bits for sure. docs/proofs/gradient.md, "On a device".
        """
        # The query itself needs no framework.
        from keras import ops

        delta, m = self._residuals(z + 0.0, targets, ops), self.num_outputs
        norms = ops.sqrt(ops.sum(ops.square(delta), axis=0))
        over = norms * lengths / (self.clip * (1 - 1e-13))
        # On PyTorch, `maximum` and numbers in `where` are float32.
        scale = weights / self._grid.residual_step
        scale /= ops.where(over > 1, over, 1.0)
        # Of residuals: what functions of a device, and sums, may lose.
        error = 2.0**-46 + (m + ops.max(ops.abs(z), axis=0)) * 2.0**-50
        error = error * (1 + math.sqrt(m)) + norms * ((m + 16) * 2.0**-48)
        error, delta = error * scale, delta * scale
        whole = ops.round(delta)
        # What is below one step is cut to 0. False for NaN, too.
        sure = (ops.abs(delta - whole) > error) | (whole == 0)
        fine = (error < 0.25) & (norms < 1e100) & (lengths > 1e-140)
        sure = ops.all(sure, axis=0) & fine
        return ops.where(sure, ops.trunc(delta), 0.0), sure | (lengths == 0)

    def record_weights(self, targets):
        """`(n,)` factors after the clip, of targets `(n, M)`."""
        if self.class_weights is None:
            return np.ones(len(targets))
        return class_weights.of_records(self.class_weights, targets)[:, 0]

    def lengths(self, h):
        """Norms `(n,)` of features from `check_records`."""
        return self._grid.lengths(h)

    def total(self, h, targets, weights, counts=None, lengths=None):
        """G(W) of a batch from `check_records`, `(m, M)`.

        Without owners the sum is exact for up to `EXACT_ROWS` records of
        `keras_fm.heads.coefficient_grid`: it depends on the set of records,
        not on their order.

        Args:
            h, targets: `(n, m)` and `(n, M)`. Instead of h, a
                `keras_fm.core.device_sums.DeviceRows`.
            weights: `(m, M)`.
            counts: number of rows of each owner, in order. Needed if
                `grouped`.
            lengths: `(n,)`, `lengths(h)` if you have it already.

        A record whose coefficient overflows adds nothing. An error would
        reveal the record.
        """
        if not len(h):
            return np.zeros(self.shapes[0])
        if lengths is None:
            lengths = self.lengths(h)
        grid = self._grid
        whole, factors = grid.weights(weights)

        if self.grouped:
            h = np.asarray(h, np.float64)
            delta = self._scaled(whole @ h.T, factors, targets, lengths)
            return self._total_of_owners(h, delta.T, counts, grid.step)

        if hasattr(h, "sums"):
            sums, rest, rows = h.sums(self, targets, whole, factors)
            rest = rows, targets[rest], weights, None, lengths[rest]
            return grid.step * sums.T + self.total(*rest)

        # Allocating memory for every block would cost as much as its products.
        few, size = _blocks(*self.shapes[0])
        held = np.empty((min(len(h), size), h.shape[1]))
        added = np.empty(self.shapes[0][::-1])
        logits = np.empty((len(added), len(held)))

        def exact(parts):
            summed = np.zeros_like(added)
            for part in parts:
                # Still in the processor's cache for the second product.
                rows = held[: len(targets[part])]
                z = logits[:, : len(rows)]
                for some in summation.chunks(len(rows), few):
                    np.copyto(rows[some], h[part][some])
                    np.matmul(whole, rows[some].T, out=z[:, some])
                delta = self._scaled(z, factors, targets[part], lengths[part])
                for some in summation.chunks(len(rows), few):
                    np.matmul(delta[:, some], rows[some], out=added)
                    np.add(summed, added, out=summed)
            return summed

        blocks = summation.chunks(len(h), size)
        most = EXACT_ROWS // size
        (summed,) = summation.total(
            (exact(blocks[part]),)
            for part in summation.chunks(len(blocks), most)
        )
        return grid.step * summed.T

    def _scaled(self, z, factors, targets, lengths):
        """Residuals of records, `(M, n)`, scaled back so that no coefficient
        is longer than `clip`, and cut to whole steps. `z * factors` are the
        logits; z is overwritten."""
        with np.errstate(over="ignore", invalid="ignore"):
            z *= factors
            delta = self._residuals(z, targets.T)
            norms = summation.lengths(delta.T)
        # The square of a short length may round to 0; its norm is not 0.
        norms *= np.maximum(lengths, 1e-145)
        silent = ~(norms <= _LARGEST_NORM) | (lengths == 0)
        if silent.any():
            delta[:, silent], norms[silent] = 0.0, 0.0
        # The margin is larger than the rounding of norms and products.
        bound = self.clip * (1 - 1e-13)
        delta *= bound / np.maximum(norms, bound)
        if self.class_weights is not None:
            delta *= self.record_weights(targets)
        return self._grid.cut(delta)

    def _total_of_owners(self, h, delta, counts, step):
        """Forms the sum of each owner. Its length is then accurate to the last
        digits, however much the owner's records cancel."""

        def own_sum(own):
            (summed,) = summation.total(
                (h[own][part].T @ delta[own][part],)
                for part in summation.chunks(own.stop - own.start)
            )
            return (step * summed,)

        def scaled(own):
            (length,) = summation.lengths(own[0].reshape(1, -1))
            return inside(own, length, self.clip)

        ids = np.repeat(np.arange(len(counts)), counts)
        return scaled_by_owner(ids, len(h), own_sum, scaled)[0]


def _blocks(m, outputs):
    """The numbers of records in one product and in one block.

    For small products, matrix libraries have kernels that copy nothing.
    """
    size = min(max(_CACHED // m, 256), 4096)
    few = _FEW // (m * outputs) // 8 * 8
    few = min(few, size) if few >= _LEAST else size
    return few, size // few * few


def _above_zero(z, xp):
    # Keras' `maximum` has no float64 on PyTorch.
    return xp.where(z <= 0, 0.0, z)


def _crammer_singer(z, targets, xp):
    own = xp.sum(z * targets, axis=0)
    others = xp.where(targets > 0, -np.inf, z)
    of_rival = xp.arange(z.shape[0])[:, None] == xp.argmax(others, axis=0)
    missing = _above_zero(1 + xp.max(others, axis=0) - own, xp)
    return xp.where(of_rival, missing, -missing * targets)


@released_as(GradientQuery)
class WeightsRelease(Release):
    """The release of a `GradientQuery`: the weights after its rounds. They
    depend on the noisy sums alone."""

    def vector(self):
        return None


class GradientAt(AtWeights):
    """A `GradientQuery` at fixed weights `(m, M)`: one round."""

    def __init__(self, objective, weights):
        super().__init__(objective, [weights], objective.shapes)

    @property
    def entry_bounds(self):
        """Bounds on what one record adds to any entry."""
        return (self.query.clip,)

    def zero(self):
        """The sum over no records, `(m, M)`."""
        return (np.zeros(self.query.shapes[0]),)

    def num_records(self, h, *_):
        """How many records a batch holds."""
        return len(h)

    @property
    def grouped(self):
        """Whether a batch needs the owners of its records."""
        return self.query.grouped

    def accumulate(self, statistics, h, y, owners=None, clip=False):
        """Returns the sum with a batch added.

        Args:
            statistics: from `zero()` or an earlier call.
            h, y, owners, clip: see `GradientQuery.check_records`.
        """
        checked = self.query.check_records(h, y, clip, owners)
        rows, targets, *counts = checked
        summed = self.query.total(rows, targets, self.weights[0], *counts)
        return (statistics[0] + summed,)

    def vector(self, statistics):
        """The vector to which noise is added."""
        return statistics[0].ravel()
