"""Filter-Priority: a small private summary of a sparse histogram.

On a fine grid nearly all cells are empty, and noise would turn them into
dummies, cells that seem filled. A high-pass filter drops most small noisy
counts. Priority sampling keeps a fixed number of cells with unbiased weights
(Cormode et al. 2012).
"""

import math
import types

import numpy as np

from keras_fm.kernel import checks
from keras_fm.lab.baselines.dpme import HistogramClassifier

# Most cells of a grid, since every cell gets noise.
_MOST_CELLS = 2**20
# Least weight.
_LEAST = 1e-12


def high_pass_threshold(cells, scale, expected):
    """The threshold that the noise of about `expected` empty cells exceeds.

    P(Laplace(scale) >= t) = exp(-t / scale) / 2 for t >= 0.

    Args:
        cells: int of any size, all cells of the grid.
        scale: float > 0, the noise's scale.
        expected: int > 0.

    Returns:
        float >= 0.
    """
    return scale * max(0.0, math.log(cells) - math.log(2 * expected))


def priority_sample(values, size, generator):
    """Priority sampling: `size` items with unbiased weights.

    Item i has priority v_i / u_i, u_i uniform on (0, 1]; the items with the
    `size` largest priorities stay, with weight max(v_i, t); t is the largest
    priority left out. The expected weight of every item is v_i (Duffield, Lund
    and Thorup 2007).

    Args:
        values: array `(k,)`, positive.
        size: int > 0.
        generator: a NumPy generator.

    Returns:
        Sorted indices of the sample and their weights.
    """
    if len(values) <= size:
        return np.arange(len(values)), np.array(values, np.float64)
    priorities = values / (1.0 - generator.random(len(values)))
    order = np.argpartition(-priorities, size)
    kept = np.sort(order[:size])
    return kept, np.maximum(values[kept], priorities[order[size]])


class FilterPriority(HistogramClassifier):
    """Logistic regression on a sampled sparse histogram (Cormode et al.).

    The records are counted on a grid whose axes follow DPME's rule, with
    `refinement` times as many cells along each. Every count gets Laplace noise
    of scale 2 / epsilon (replace_one) or 1 / epsilon (add_remove). Counts below
    `threshold` are dropped, and priority sampling keeps `sample_size` cells.
    Logistic regression is fitted to these cells. (The paper draws two-sided
    geometric noise, and on a huge grid only values above the threshold. Here
    noise has finer steps and is drawn for every cell, with the same epsilon and
    distribution.)

    On a large grid a threshold that drops most dummies exceeds the counts of
    real cells, and little of the data remains. This is a limit of the
    algorithm. `num_dimensions` and `bins` choose another grid.

    Args:
        epsilon: float in (0, 1e6]; delta is 0.
        low, high: public bounds of the features, scalars or arrays `(d,)`.
        sample_size: `None` (the public number of records), or the most
            cells of the sample.
        threshold: `None` (about `sample_size` empty cells exceed it), or a
            float >= 0.
        refinement: int, factor on the number of cells along each axis.
        max_cells: int >= 4, of the grid before it is refined (see
            `PublicGrid.of`). (The default was fixed on scikit-learn's
            digits and simulated data.)
        num_dimensions, bins: `None` (the rule), or the grid's axes and the
            cells along each axis.
        projection: `"random"` (seeded random directions) or `"leading"`
            (the first features), if there are fewer axes than features.
        projection_seed: int, public.
        num_records: `None`, or a public number of records, for the grid and the
            sample's size. `None` declares that the number of records in `fit`
            is public.
        C: float > 0, scikit-learn's inverse penalty.
        neighbours: `"replace_one"` or `"add_remove"`.
        reproducible_noise: `None`, or an int seed ("not private").

    Attributes:
        coef_, intercept_: the logit's function, in the units of x.
        grid_: the `PublicGrid`.
        threshold_: the filter's threshold.
        cells_, weights_: the released summary: cells `(k, q + 1)` (bins and
            label) and their weights.
        ledger: the `keras_fm.Ledger` of the spent budget.

    Raises:
        ValueError: on arguments outside their range, or (in `fit`, before using
            the records) a grid of more than a million cells.

    Example:

    >>> model = FilterPriority(1.0, low=0.0, high=1.0, sample_size=500)
    >>> model.ledger.epsilon()
    0.0

    Source: Cormode, Procopiuc, Srivastava and Tran, "Differentially Private
    Publication of Sparse Data", 2011 (ICDT 2012, "Differentially Private
    Summaries for Sparse Data").
    """

    def __init__(
        self,
        epsilon,
        *,
        sample_size=None,
        threshold=None,
        refinement=2,
        max_cells=2**6,
        **arguments,
    ):
        super().__init__(epsilon, max_cells=max_cells, **arguments)
        self.sample_size = checks.optional(
            checks.count, "sample_size", sample_size
        )
        self.threshold = checks.optional(
            checks.nonnegative, "threshold", threshold
        )
        self.refinement = checks.count("refinement", refinement)

    def _plan(self, num_records, num_features):
        grid = self._make_grid(
            num_records, num_features, self.refinement, _MOST_CELLS
        )
        size = self.sample_size or self.num_records or num_records
        sensitivity = self._histogram_sensitivity()
        threshold = self.threshold
        if threshold is None:
            threshold = high_pass_threshold(
                grid.cells, sensitivity / self._ledger.budget.epsilon, size
            )
        return types.SimpleNamespace(
            grid=grid,
            sensitivity=sensitivity,
            threshold=threshold,
            sample_size=size,
            uses=(
                f"counts of all {grid.cells} cells, once: {grid.describe()}; "
                f"those of at least {threshold:.6g} after noise, sampled to "
                f"{size}"
            ),
            notes=self._notes(),
        )

    def _release(self, plan, exact, mechanism, source):
        noisy = mechanism.perturb(exact, source, dimension=2)
        passed = np.flatnonzero(noisy >= max(plan.threshold, _LEAST))
        kept, weights = priority_sample(
            noisy[passed], plan.sample_size, source.generator()
        )
        self.grid_, self.threshold_ = plan.grid, plan.threshold
        self.cells_ = plan.grid.cells_at(passed[kept])
        self.weights_ = weights
        self._fit_cells(plan.grid, self.cells_, self.weights_)
