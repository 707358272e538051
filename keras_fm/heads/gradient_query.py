"""First-order coefficients of an output layer at its current weights.

For a record (h, y), logits z = W^T h and a loss l, the first-order Taylor
coefficient of l about W is the outer product h delta^T with delta = dl/dz.
Scaled back to a Frobenius norm of at most `clip` and summed,

    G(W) = sum_i min(1, clip / (||h_i|| ||delta_i||)) h_i delta_i^T

is what one read of the records gives (DP-MAC with first-order coefficients,
DP-SGD for one linear layer). The norm of an outer product is the product of
its factors' norms, so no gradient of a single record is ever formed. The
proof of the sensitivity is in docs/proofs/gradient.md.

Where the privacy unit is an owner of several records, the sum of their
coefficients is scaled back once more: one matrix per owner is formed.
"""

import dataclasses
from functools import partial

import numpy as np

from keras_fm.heads import class_weights
from keras_fm.heads.coefficient_grid import EXACT_ROWS, CoefficientGrid
from keras_fm.heads.cross_entropy import CrossEntropyQuery
from keras_fm.heads.squared_error import bounds_in_words
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import SumQuery, clipped_sensitivity
from keras_fm.kernel.reads.at_weights import AtWeights
from keras_fm.kernel.sums import (
    inside,
    owner_runs,
    scaled_by_owner,
)

_OF_CLASSES = "crammer_singer"
# Cross-entropy, until `GradientReads.choose` says which.
BY_FIRST_ROUND = "by_first_round"
# Of coefficients that are scaled back without losing digits.
_LARGEST_NORM = 1e250
# Numbers of records that stay in a processor's cache; multiplications of
# products that are fast as they are, and the fewest records that they pay for.
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
    """The clipped first-order coefficients of one dense output layer.

    Args:
        num_features: int m, length of a feature vector h (bias entry
            included).
        num_outputs: int M. With `M == 1` labels are binary (0 or 1),
            otherwise classes 0..M-1.
        feature_bound: C, bound on `||h||_2`.
        clip: threshold > 0 on the Frobenius norm of one record's
            coefficient, which is the sensitivity.
        loss: `"cross_entropy"` (softmax; logistic for M = 1) or
            `"squared_hinge"` (`sum_m max(0, 1 - s_m z_m)^2 / 2` with
            s = 1 for the record's class and -1 for others) or
            `"crammer_singer"` (`max(0, 1 + max_{m != y} z_m - z_y)^2 / 2`;
            the same for M = 1). Under the last two, records beyond the
            margin fall silent. `"squared_error"`
            (`sum_m (z_m - t_m)^2 / 2`) is of numbers. `"by_first_round"` is
            the cross-entropy, which reads after the first one may leave for
            `"crammer_singer"`, see `Rounds`.
        grouped: whether the privacy unit is an owner of several records:
            `clip` is the threshold on the sum of an owner's coefficients as
            on each of them.
        independent: whether the outputs are M labels of their own, each 0 or
            1, instead of classes.
        target_bounds: of numbers alone, which are scaled to [-1, 1]; see
            `SquaredErrorQuery`.
        class_weights: `None`, or a number in [0, 1] for each class, which
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

    # All reads are one entry of the ledger.
    paid_for_together = True

    # What a release of many reads keeps: the weights they led to.
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
    def reads(self):
        """What one read takes, in words."""
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
            loss = f"cross_entropy, or after the first read {_OF_CLASSES},"
        return (
            f"first-order coefficients of the {loss} of an output layer "
            f"({self.num_features} x {self.num_outputs}{of}), {whose} "
            f"clipped to norm {self.clip:g}"
            + class_weights.in_words(self.class_weights)
        )

    def with_loss(self, loss):
        """The same query of one of the losses that `"by_first_round"` leaves
        open: same shapes, same sensitivity.

        Raises:
            ValueError: if the loss of this query is not open.
        """
        open_losses = ("cross_entropy", _OF_CLASSES)
        if self.loss != BY_FIRST_ROUND or loss not in open_losses:
            raise ValueError(
                f"Of a query with loss={BY_FIRST_ROUND!r} the loss may be one "
                f"of {open_losses}. Received: loss={loss!r} for {self}"
            )
        return dataclasses.replace(self, loss=loss)

    @property
    def shapes(self):
        return ((self.num_features, self.num_outputs),)

    def sensitivity(self, norm, *, neighbours):
        """L2 sensitivity of G: `clip` (add_remove), `2 clip` (replace_one).

        docs/proofs/gradient.md, proposition 1; of owners, proposition 6.

        Args:
            norm: `"l2"`.
            neighbours: `"add_remove"` or `"replace_one"`.
        """
        return clipped_sensitivity(self.clip, norm, neighbours)

    def rounding_error(self, norm):
        """How far the computed sum may be from that of real numbers, see
        `summation.error_bound`."""
        return summation.error_bound(self.clip, grouped=self.grouped)

    # One read ------------------------------------------------------------

    def at(self, weights):
        """G at these weights as an objective of one pass, which
        `keras_fm.partial_statistics.PartialStatistics` sums up.

        Args:
            weights: `(m, M)`, public.

        Example:

        >>> objective = GradientQuery(num_features=2, num_outputs=1)
        >>> partial = PartialStatistics(objective.at(np.zeros((2, 1))))
        >>> partial.add(np.array([[0.6, 0.8]]), np.array([1]))
        """
        return GradientAt(self, weights)

    def check_records(self, h, y, clip=False, owners=None):
        """Features inside their bound and targets of a batch, as `total`
        takes them.

        Args:
            h: `(n, m)` features.
            y: labels, see `CrossEntropyQuery`, or numbers in their own unit.
            clip: whether rows and numbers outside their bounds are brought
                back.
            owners: `(n,)` ids, needed if `grouped`: all records of an owner
                in one batch, next to each other.

        Returns:
            tuple `(h, t)`: int16 `(n, m)`, features in steps of a grid, and
            `targets`; if `grouped` `(h, t, counts)`, the numbers of records
            of one owner after the other.

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
        """`(n, M)` float64: one-hot labels, zeros and ones of labels of
        their own, or numbers scaled to [-1, 1]."""
        if self.target_bounds is not None:
            return bounds_lib.numbers(y, n, self.target_bounds, clip)
        labels = CrossEntropyQuery(
            num_features=self.num_features,
            num_outputs=self.num_outputs,
            independent=self.independent,
        )
        # Zeros and ones, of one-hot labels and of all others.
        return labels.targets(y, n) - labels.target_shift

    def residuals(self, h, targets, weights):
        """delta = dl/dz of every record that `check_records` returned,
        `(n, M)`."""
        whole, factors = self._grid.weights(weights)
        z = whole @ np.asarray(h, np.float64).T
        return self._residuals(z * factors, targets.T).T

    def _residuals(self, z, targets):
        """`residuals` with a column for each record: of logits and targets
        `(M, n)`, which may be overwritten."""
        if self.loss == "squared_error":
            return z - targets
        if self.loss == _OF_CLASSES and self.num_outputs > 1:
            return _crammer_singer(z, targets)
        if self.loss not in ("cross_entropy", BY_FIRST_ROUND):
            signs = 2 * targets - 1
            return -signs * np.maximum(0.0, 1 - signs * z)
        if self.num_outputs == 1 or self.independent:
            return 0.5 + 0.5 * np.tanh(z / 2) - targets
        z -= z.max(axis=0)
        p = np.exp(z, out=z)
        p /= p.sum(axis=0)
        p -= targets
        return p

    def lengths(self, h):
        """Norms of features that `check_records` returned, `(n,)`."""
        return self._grid.lengths(h)

    def total(self, h, targets, weights, counts=None, lengths=None):
        """G(W) of a batch that `check_records` returned, `(m, M)`.

        Without owners it is exact, for up to `coefficient_grid.EXACT_ROWS`
        records: a function of the set of records.

        Args:
            h, targets: `(n, m)` and `(n, M)`; or in the place of h what has
                `logits` and `sums`, see `keras_fm.core.device_sums`.
            weights: `(m, M)`.
            counts: needed if `grouped`: how many of the rows each owner has,
                in their order.
            lengths: `(n,)`, `lengths(h)` where that is known.

        A record whose coefficient overflows counts for nothing: an error
        would tell of it.
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

        if hasattr(h, "logits"):
            delta = self._scaled(h.logits(whole), factors, targets, lengths)
            return grid.step * h.sums(delta).T

        # New memory for every block costs as much as its products.
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
        """The residuals of records, `(M, n)`, scaled back so that their
        coefficients are no longer than `clip`, and cut to whole steps; of
        logits over `factors`, which are overwritten."""
        with np.errstate(over="ignore", invalid="ignore"):
            z *= factors
            delta = self._residuals(z, targets.T)
            norms = summation.lengths(delta.T)
        # Squares below the smallest number must not pass for a norm of 0.
        norms *= np.maximum(lengths, 1e-145)
        silent = ~(norms <= _LARGEST_NORM) | (lengths == 0)
        if silent.any():
            delta[:, silent], norms[silent] = 0.0, 0.0
        # Inside by more than the rounding of norms and products amounts to.
        bound = self.clip * (1 - 1e-13)
        delta *= bound / np.maximum(norms, bound)
        if self.class_weights is not None:
            delta *= class_weights.of_records(self.class_weights, targets).T
        return self._grid.cut(delta)

    def _total_of_owners(self, h, delta, counts, step):
        """Each owner's sum is formed, so that its length is known to the
        last digits however much its records cancel."""

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
    """Records of a product, and of all that is done with them at once.

    Libraries have kernels without a copy for products of few numbers.
    """
    size = min(max(_CACHED // m, 256), 4096)
    few = _FEW // (m * outputs) // 8 * 8
    few = min(few, size) if few >= _LEAST else size
    return few, size // few * few


def _crammer_singer(z, targets):
    own = np.einsum("ij,ij->j", z, targets)
    others = np.where(targets > 0, -np.inf, z)
    rival, columns = others.argmax(axis=0), np.arange(z.shape[1])
    missing = np.maximum(0.0, 1 + others[rival, columns] - own)
    delta = -missing * targets
    delta[rival, columns] = missing
    return delta


@released_as(GradientQuery)
class WeightsRelease(Release):
    """The weights that reads of a `GradientQuery` led to: a function of
    their noisy sums alone."""

    def vector(self):
        return None


class GradientAt(AtWeights):
    """A `GradientQuery` at weights `(m, M)`."""

    def __init__(self, objective, weights):
        super().__init__(objective, [weights], objective.shapes)

    @property
    def entry_bounds(self):
        """Bounds on what one record adds to any entry."""
        return (self.query.clip,)

    def zero(self):
        """The sum over no record, `(m, M)`."""
        return (np.zeros(self.query.shapes[0]),)

    def num_records(self, h, *_):
        """How many records a batch holds."""
        return len(h)

    @property
    def grouped(self):
        """Whether batches need their records' owners."""
        return self.query.grouped

    def accumulate(self, statistics, h, y, owners=None, clip=False):
        """The sum with a batch added.

        Args:
            statistics: what `zero()` or an earlier call returned.
            h, y, owners, clip: see `GradientQuery.check_records`.
        """
        checked = self.query.check_records(h, y, clip, owners)
        rows, targets, *counts = checked
        summed = self.query.total(rows, targets, self.weights[0], *counts)
        return (statistics[0] + summed,)

    def vector(self, statistics):
        """What noise is added to."""
        return statistics[0].ravel()
