"""DPME: an M-estimator fitted to a noisy histogram of the records.

The records (x, y) are counted on a public grid, every cell's count gets
Laplace noise, and logistic regression is fitted to the cell centres with the
noisy counts as weights (Lei 2011). `PublicGrid` and `weighted_logistic` also
serve `FilterPriority`.

The proofs are in docs/proofs/regression_baselines.md.
"""

import dataclasses
import math
import types

import numpy as np
from sklearn.linear_model import LogisticRegression

from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.lab.baselines.private_estimator import PrivateClassifier

PROJECTIONS = ("random", "leading")
_MOST_BINS = 2**15
# Step of features and directions, so that sums over any number of features fit
# into 53 bits.
_STEP = 2.0**-20


def bandwidth(num_records, num_dimensions):
    """Lei's cell width for features in the unit cube.

    h = (sqrt(log n) / n)^(2 / (2 + d)) makes the bias of cell centres, of
    order h, and the noise of h^-d cells, of order h^(-d/2) sqrt(log n) / n,
    equal.

    Args:
        num_records: int n, public.
        num_dimensions: int d, number of binned features.

    Returns:
        float in (0, 1].

    Example:

    >>> round(bandwidth(10_000, 2), 4)
    0.0174
    """
    n = max(checks.count("num_records", num_records), 2)
    d = checks.count("num_dimensions", num_dimensions)
    return min(1.0, (math.sqrt(math.log(n)) / n) ** (2 / (2 + d)))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublicGrid:
    """A grid of equal cells over (features, label), fixed without using
    records.

    Without a projection the axes are the features, in [0, 1]. With one they
    are z = P (u - 1/2), u the features in the unit cube, clipped to
    [-1, 1]. If a row of P is drawn uniformly from the unit sphere, z has
    standard deviation at most 1/2 for every point of the cube. P and u - 1/2
    are cut to multiples of 2^-20, whose products and sums are exact. So even
    near an edge the cell of a record depends on no other record.

    Args:
        bins: int, cells along each axis.
        num_features: int d.
        num_dimensions: int q, number of axes.
        projection: `None` (the first q features), or P `(q, d)` with rows
            of unit length; cut to multiples of 2^-20.
    """

    bins: int
    num_features: int
    num_dimensions: int
    projection: np.ndarray | None = None

    def __post_init__(self):
        # Cells are stored as 16-bit numbers.
        checks.integer(
            "bins",
            self.bins,
            at_least=2,
            at_most=_MOST_BINS,
            wanted=f"from 2 to {_MOST_BINS}, along each axis",
        )
        if self.projection is not None:
            object.__setattr__(self, "projection", _exact(self.projection))

    @classmethod
    def of(
        cls,
        num_records,
        num_features,
        *,
        max_cells,
        num_dimensions=None,
        bins=None,
        projection="random",
        projection_seed=0,
        refinement=1,
    ):
        """The grid by a rule of public numbers.

        1. Axes: all features if two cells on each axis, times two labels,
           make at most `max_cells`; otherwise as many axes as do.
        2. Cells per axis: as many as follow from Lei's bandwidth, at least two,
           but no more than fit into `max_cells`; times `refinement`.
        3. With fewer axes than features, the axes are random directions
           drawn from `projection_seed`, or the first features.

        Args:
            num_records, num_features: ints, public.
            max_cells: int >= 4.
            num_dimensions, bins: ints that replace the rule.
            projection: `"random"` or `"leading"`.
            projection_seed: int, public.
            refinement: int.
        """
        fit = max(1, int(max_cells // 2).bit_length() - 1)
        q = min(num_features, fit)
        if num_dimensions is not None:
            q = num_dimensions
        if bins is None:
            bins = max(2, math.ceil(1 / bandwidth(num_records, q)))
            # Integers: a rounded root could be wrong by one.
            while bins > 2 and 2 * bins**q > max_cells:
                bins -= 1
            bins *= refinement
        matrix = None
        if q < num_features and projection == "random":
            rng = np.random.default_rng(projection_seed)
            matrix = rng.normal(size=(q, num_features))
            matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
        return cls(
            bins=bins,
            num_features=num_features,
            num_dimensions=q,
            projection=matrix,
        )

    @property
    def cells(self):
        """Number of cells, both labels."""
        return 2 * self.bins**self.num_dimensions

    def locate(self, cube, labels):
        """Cells `(n, q + 1)` of records: a number from 0 to bins - 1 for
        each axis, and the label."""
        if self.projection is None:
            position = cube[:, : self.num_dimensions]
        else:
            position = (_exact(cube - 0.5) @ self.projection.T + 1) / 2
        cells = np.floor(np.clip(position, 0.0, 1.0) * self.bins)
        cells = np.minimum(cells, self.bins - 1)
        return np.column_stack([cells, labels]).astype(np.uint16)

    def cells_at(self, numbers):
        """Cells `(k, q + 1)` of places in the order of `numpy.ndindex`."""
        shape = (self.bins,) * self.num_dimensions + (2,)
        return np.column_stack(np.unravel_index(numbers, shape))

    def centres(self, cells):
        """Centres `(k, q)` of cells and their labels `(k,)`."""
        position = (cells[:, :-1] + 0.5) / self.bins
        if self.projection is not None:
            position = 2 * position - 1
        return position, cells[:, -1].astype(np.int64)

    def cube_function(self, weights, bias):
        """Turns a linear function of the axes into one of the unit cube."""
        if self.projection is not None:
            full = weights @ self.projection
            return full, bias - full.sum() / 2
        full = np.zeros(self.num_features)
        full[: self.num_dimensions] = weights
        return full, bias

    def describe(self):
        """The grid in words, for the ledger."""
        axes = (
            f"{self.num_dimensions} random directions of "
            if self.projection is not None
            else f"{self.num_dimensions} of "
            if self.num_dimensions < self.num_features
            else ""
        )
        return (
            f"{self.bins} bins on each of {axes}{self.num_features} "
            "features, and the label"
        )


def _exact(values):
    """A copy in steps whose sums of products are exact."""
    return summation.on_grid(np.array(values, np.float64), _STEP)


def weighted_logistic(points, labels, weights, inverse_penalty):
    """Logistic regression on weighted points.

    Args:
        points: array `(k, q)`.
        labels: array `(k,)` of 0 and 1.
        weights: array `(k,)`, at least 0.
        inverse_penalty: scikit-learn's C.

    Returns:
        Weights `(q,)` and bias. If only one label has weight, the weights
        are zero and the bias is its smoothed log odds.
    """
    kept = weights > 0
    points, labels, weights = points[kept], labels[kept], weights[kept]
    mass = np.bincount(labels, weights=weights, minlength=2)
    if not np.all(mass > 0):
        return np.zeros(points.shape[1]), math.log(
            (mass[1] + 1) / (mass[0] + 1)
        )
    solver = LogisticRegression(C=inverse_penalty, max_iter=1000)
    solver.fit(points, labels, sample_weight=weights)
    return solver.coef_[0], float(solver.intercept_[0])


class HistogramClassifier(PrivateClassifier):
    """The common part of `DPME` and `FilterPriority`: a public grid and a
    plan."""

    def __init__(
        self,
        epsilon,
        *,
        max_cells,
        num_dimensions=None,
        bins=None,
        projection="random",
        projection_seed=0,
        num_records=None,
        C=1.0,
        **arguments,
    ):
        super().__init__(epsilon, **arguments)
        wanted = "at least 4: two cells for each label"
        checks.count("max_cells", max_cells)
        checks.integer("max_cells", max_cells, at_least=4, wanted=wanted)
        self.max_cells = max_cells
        self.num_dimensions = checks.optional(
            checks.count, "num_dimensions", num_dimensions
        )
        self.bins = checks.optional(checks.count, "bins", bins)
        self.num_records = checks.optional(
            checks.count, "num_records", num_records
        )
        self.projection = checks.one_of("projection", projection, PROJECTIONS)
        self.projection_seed = projection_seed
        self.C = checks.positive("C", C)

    def _make_grid(self, num_records, num_features, refinement, most):
        grid = PublicGrid.of(
            self.num_records or num_records,
            num_features,
            max_cells=self.max_cells,
            num_dimensions=self.num_dimensions,
            bins=self.bins,
            projection=self.projection,
            projection_seed=self.projection_seed,
            refinement=refinement,
        )
        if grid.cells > most:
            raise ValueError(
                f"The grid has {grid.cells} cells, and each needs noise; at "
                f"most {most} can be. Lower `num_dimensions` or `bins`."
            )
        return grid

    def _read(self, plan, cube, targets):
        grid = plan.grid
        cells = grid.locate(cube, targets)
        number = np.zeros(len(cells), np.int64)
        for axis in range(grid.num_dimensions):
            number = number * grid.bins + cells[:, axis]
        return np.bincount(2 * number + cells[:, -1], minlength=grid.cells)

    def _histogram_sensitivity(self):
        # A replaced record leaves one cell and enters another.
        return 2.0 if self._ledger.neighbours.replaces else 1.0

    def _notes(self):
        """Notes whether the plan took the number of records as public."""
        if self.num_records is not None or self._ledger.neighbours.replaces:
            return ()
        return ("the number of records is public: the grid depends on it",)

    def _fit_cells(self, grid, cells, weights):
        points, labels = grid.centres(cells)
        weights, bias = weighted_logistic(points, labels, weights, self.C)
        self._set_weights(*grid.cube_function(weights, bias))


class DPME(HistogramClassifier):
    """Logistic regression on a noisy histogram (Lei 2011).

    Every cell of the grid, empty or not, gets Laplace noise of scale 2 /
    epsilon (replace_one) or 1 / epsilon (add_remove). Negative counts become
    zero. The number of cells grows exponentially with the number of axes. So
    with many features the axes are public random directions, as many as fit
    into `max_cells` with two cells each. Two cells are coarse: if features
    crowd in one corner of their bounds, splitting a direction in the middle
    separates little even without noise. Tighter public bounds, or fewer
    directions with more `bins`, help.

    Args:
        epsilon: float in (0, 1e6]; delta is 0.
        low, high: public bounds of the features, scalars or arrays `(d,)`.
        max_cells: int >= 4, most cells of the grid, both labels. (The
            default was fixed on scikit-learn's digits and simulated data.)
        num_dimensions: `None` (the rule), or the number of axes.
        bins: `None` (the bandwidth of Lei, see `bandwidth`, reduced to what
            fits), or the number of cells along each axis.
        projection: `"random"` (seeded random directions) or `"leading"` (the
            first features), if there are fewer axes than features.
        projection_seed: int, public.
        num_records: `None`, or a public number of records, for the bandwidth.
            `None` declares that the number of records in `fit` is public.
        C: float > 0, scikit-learn's inverse penalty.
        neighbours: `"replace_one"` (the paper's) or `"add_remove"`.
        reproducible_noise: `None`, or an int seed ("not private").

    Attributes:
        coef_, intercept_: the logit's function, in the units of x.
        grid_: the `PublicGrid`.
        counts_: the released counts `(cells,)`, negative ones set to zero,
            in the order of `numpy.ndindex` over (axes, label).
        ledger: the `keras_fm.Ledger` of the spent budget.

    Raises:
        ValueError: on arguments outside their range.

    Example:

    >>> model = DPME(1.0, low=0.0, high=1.0, max_cells=4096)
    >>> model.ledger.epsilon()
    0.0

    Source: Lei, "Differentially Private M-Estimators", NIPS 2011.
    """

    def __init__(self, epsilon, *, max_cells=2**13, **arguments):
        super().__init__(epsilon, max_cells=max_cells, **arguments)

    def _plan(self, num_records, num_features):
        grid = self._make_grid(num_records, num_features, 1, self.max_cells)
        return types.SimpleNamespace(
            grid=grid,
            sensitivity=self._histogram_sensitivity(),
            uses=f"counts of all {grid.cells} cells, once: {grid.describe()}",
            notes=self._notes(),
        )

    def _release(self, plan, exact, mechanism, source):
        # A record is in one cell, and its substitute in another.
        noisy = mechanism.perturb(exact, source, dimension=2)
        self.grid_, self.counts_ = plan.grid, np.maximum(noisy, 0.0)
        kept = np.flatnonzero(self.counts_)
        cells = plan.grid.cells_at(kept)
        self._fit_cells(plan.grid, cells, self.counts_[kept])
