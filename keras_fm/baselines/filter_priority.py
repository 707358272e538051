"""Filter-Priority: a small private summary of a huge sparse histogram.

On a fine grid nearly all cells are empty, and noise on every one of them
would fill the grid with dummies. What survives a high-pass filter on the
noisy counts can be drawn without visiting the empty cells: each passes by
itself with a known, small probability. Priority sampling then keeps a fixed
number of cells with unbiased weights (Cormode et al. 2012).

Which empty cells pass is drawn exactly, for a grid of any size: points of a
Poisson process over *all* cells hit each cell independently, a little more
often than cells pass; coins make up for that, and hits on occupied cells are
discarded. The proof is in docs/proofs/regression_baselines.md.
"""

import functools
import math
import types
from fractions import Fraction

import numpy as np

from keras_fm.baselines.dpme import HistogramClassifier
from keras_fm.kernel import checks, discrete_noise
from keras_fm.kernel.reads import exact_draws

# Points that are drawn at a time fill memory, whatever the grid.
_MOST_POINTS = 1_000_000


def high_pass_threshold(cells, scale, expected):
    """The threshold that about `expected` empty cells of noise pass.

    P(Laplace(scale) >= t) = exp(-t / scale) / 2 for t >= 0.

    Args:
        cells: int of any size, all cells of the grid.
        scale: float > 0, the noise's scale.
        expected: int > 0.

    Returns:
        float >= 0.
    """
    return scale * max(0.0, math.log(cells) - math.log(2 * expected))


def passing_points(cells, scale, threshold):
    """Expected number of Poisson points, `cells * -log(1 - p)`, with p the
    probability that an empty cell's noise reaches `threshold`."""
    return _hits(cells, -math.log(2) - threshold / scale)


def _hits(cells, log_p):
    p = math.exp(log_p)
    # Below 1e-16, -log(1 - p) is p to all digits, and p may underflow.
    log_rate = math.log(-math.log1p(-p)) if p > 1e-16 else log_p
    log_points = math.log(cells) + log_rate
    return math.exp(log_points) if log_points < 700 else math.inf


def _empty_passes(scale, least, bits):
    """Encloses `2**bits` times the probability that discrete Laplace noise
    of `scale` is `least >= 0` or more: q^least / (1 + q), q = exp(-1 /
    scale)."""
    n, d = scale.numerator, scale.denominator
    low, high = discrete_noise.exp_bounds(least * d, n, bits)
    one, q = 1 << bits, discrete_noise.exp_bounds(d, n, bits)
    return (low << bits) // (one + q[1]), -(-(high << bits) // (one + q[0]))


@functools.lru_cache(maxsize=64)
def _kept_hits(cells, points, scale, least, bits):
    """Encloses `2**bits` times the share of hit, empty cells that pass.

    A cell is hit by one of Poisson(`points`) points with probability
    1 - exp(-points / cells), no less than that of passing.
    """
    # The denominator is 1 / cells or more; none of its digits may be lost.
    work = bits + 2 * cells.bit_length() + 64
    low, high = _empty_passes(scale, least, work)
    missed = discrete_noise.exp_bounds(points, cells, work)
    one = 1 << work
    return (
        (low << bits) // (one - missed[0]),
        -(-(high << bits) // (one - missed[1])),
    )


@functools.lru_cache(maxsize=64)
def _points(cells, scale, least):
    """A whole mean number of points that hit no cell too rarely."""
    float_scale = float(scale)
    log_p = -float(least / scale) - math.log1p(math.exp(-1 / float_scale))
    points = max(1, math.ceil(_hits(cells, log_p)))
    while _kept_hits(cells, points, scale, least, 64)[1] > 2**64:
        points += 1 + (points >> 20)
    return points


@functools.lru_cache(maxsize=512)
def _one_more(k, bits):
    """Encloses `2**bits P(X > k | X >= k)`, X Poisson of mean 1."""
    # The tails are about 1 / k!.
    work = bits + 64 + 2 * k * k.bit_length()
    low, high = discrete_noise.exp_bounds(1, 1, work)

    def tail(k):
        """k! P(X > k), 2^work times."""
        whole = math.factorial(k)
        terms = sum(whole // math.factorial(j) for j in range(k + 1))
        return (whole << work) - high * terms, (whole << work) - low * terms

    before = (1 << work, 1 << work) if k == 0 else tail(k - 1)
    after = tail(k)
    return (
        (after[0] << bits) // (max(k, 1) * before[1]),
        min(1 << bits, -(-(after[1] << bits) // (max(k, 1) * before[0]))),
    )


def poisson(mean, source):
    """A Poisson number of integer mean, exactly: a sum of such of mean 1,
    each counted up by one coin after another.

    Args:
        mean: int >= 0.
        source: a `NoiseSource`.
    """
    total, alive, k = 0, mean, 0
    while alive:
        coins = exact_draws.bernoulli(
            functools.partial(_one_more, k), alive, source
        )
        alive, k = int(coins.sum()), k + 1
        total += alive
    return total


def noisy_cells(grid, occupied, counts, mechanism, threshold, source):
    """Cells whose count plus Laplace noise reaches `threshold`.

    Has the distribution of adding noise to *every* cell of the grid and
    dropping what is below the threshold, exactly.

    Args:
        grid: a `PublicGrid`.
        occupied: array `(k, q + 1)`, the different cells that hold records.
        counts: array `(k,)`, their counts.
        mechanism: a `LaplaceMechanism` of the histogram's sensitivity.
        threshold: float >= 0.
        source: a `NoiseSource`.

    Returns:
        Cells `(j, q + 1)` in lexicographic order (which tells nothing of
        how they came to pass) and their noisy counts `(j,)`.
    """
    # How many cells are occupied is private: a record is in one of them, and
    # its substitute in another.
    release = mechanism.lattice_release(dimension=2)
    scale, step = release.sampler.scale, Fraction(release.lattice.step)
    least = math.ceil(Fraction(threshold) / step)
    noisy = release(counts, source)
    passed = noisy >= float(least * step)
    mean = _points(grid.cells, scale, least)
    points = poisson(mean, source)
    hits = np.empty((points, grid.num_dimensions + 1), np.uint16)
    for bound, columns in ((grid.bins, hits[:, :-1]), (2, hits[:, -1:])):
        drawn = exact_draws.uniform_integers(bound, columns.size, source)
        columns[...] = drawn.reshape(columns.shape)
    # The first of equal rows is the occupied one, if there is one.
    both = np.concatenate([occupied.astype(np.uint16), hits])
    rows, first = np.unique(both, axis=0, return_index=True)
    empty = first >= len(occupied)
    kept = np.empty(len(rows), bool)
    kept[~empty] = passed[first[~empty]]
    kept[empty] = exact_draws.bernoulli(
        functools.partial(_kept_hits, grid.cells, mean, scale, least),
        int(empty.sum()),
        source,
    )
    # What noise exceeds its threshold by has the law of noise that is not
    # negative.
    excess = _nonnegative(release.sampler, int(empty.sum()), source)
    values = np.empty(len(rows))
    values[empty] = float(least * step) + release.lattice.values(excess)
    values[~empty] = noisy[first[~empty]]
    return rows[kept], values[kept]


def _nonnegative(sampler, size, source):
    """Samples given that they are not negative."""
    parts, missing = [np.empty(0, np.int64)], size
    while missing:
        drawn = sampler.sample(2 * missing, source)
        parts.append(drawn[drawn >= 0][:missing])
        missing -= len(parts[-1])
    return np.concatenate(parts)


def priority_sample(values, size, generator):
    """Priority sampling: `size` items with unbiased weights.

    Item i has priority v_i / u_i, u_i uniform on (0, 1]; the `size` largest
    stay with weight max(v_i, t), t the largest priority left out. The
    expected weight of every item is v_i (Duffield, Lund and Thorup 2007).

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
    `refinement` times as many cells along each; every cell's count gets
    Laplace noise of scale 2 / epsilon (replace_one) or 1 / epsilon
    (add_remove), simulated on the empty cells; counts below `threshold` are
    dropped; priority sampling keeps `sample_size` cells; logistic
    regression is fitted to this synthetic data. The grid may have any
    number of cells. (The paper draws two-sided geometric noise; so does
    this, in finer steps, at the same epsilon.)

    On a huge grid the threshold that keeps the dummies few exceeds the
    counts of real cells, and nothing of the data remains: that is the
    algorithm's own limit. `num_dimensions` and `bins` choose another grid.

    Args:
        epsilon: float in (0, 1e6]; delta is 0.
        low, high: public bounds of the features, scalars or arrays `(d,)`.
        sample_size: `None` (the public number of records), or the most
            cells of the sample.
        threshold: `None` (about `sample_size` empty cells pass), or a
            float >= 0.
        refinement: int, cells along an axis for each one of the rule.
        max_cells: int >= 4, of the grid before it is refined (see
            `PublicGrid.of`). (The default was fixed on scikit-learn's
            digits and simulated data.)
        num_dimensions, bins: `None` (the rule), or the grid's axes and the
            cells along each axis.
        projection: `"random"` (seeded random directions) or `"leading"`
            (the first features), where there are fewer axes than features.
        projection_seed: int, public.
        num_records: `None`, or a public number of records that the grid
            and the sample's size are computed from. `None` declares the
            number of records given to `fit` public.
        C: float > 0, scikit-learn's inverse penalty.
        neighbours: `"replace_one"` or `"add_remove"`.
        reproducible_noise: `None`, or an int seed ("not private").

    Attributes:
        coef_, intercept_: the logit's function, in the units of x.
        grid_: the `PublicGrid`.
        threshold_: the filter's threshold.
        cells_, weights_: the released summary: cells `(k, q + 1)` (bins and
            label) and their weights.
        ledger: what was spent.

    Raises:
        ValueError: on arguments outside their range, or (in `fit`, before
            anything is read) a threshold that too many empty cells pass.

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
        grid = self._make_grid(num_records, num_features, self.refinement)
        size = self.sample_size or self.num_records or num_records
        sensitivity = self._histogram_sensitivity()
        scale = sensitivity / self._ledger.budget.epsilon
        threshold = self.threshold
        if threshold is None:
            threshold = high_pass_threshold(grid.cells, scale, size)
        points = passing_points(grid.cells, scale, threshold)
        if points > _MOST_POINTS:
            raise ValueError(
                f"About {points:.3g} empty cells would pass the filter, "
                f"more than {_MOST_POINTS}. Raise `threshold` or lower "
                f"`sample_size`. Received: threshold={threshold:g}"
            )
        return types.SimpleNamespace(
            grid=grid,
            sensitivity=sensitivity,
            threshold=threshold,
            sample_size=size,
            reads=(
                f"counts of all {_number(grid.cells)} cells, once: "
                f"{grid.describe()}; those of at least {threshold:.6g} after "
                f"noise, sampled to {size}"
            ),
            notes=self._notes(),
        )

    def _read(self, plan, cube, targets):
        cells = plan.grid.locate(cube, targets)
        return np.unique(cells, axis=0, return_counts=True)

    def _release(self, plan, exact, mechanism, source):
        occupied, counts = exact
        cells, values = noisy_cells(
            plan.grid, occupied, counts, mechanism, plan.threshold, source
        )
        kept, weights = priority_sample(
            values, plan.sample_size, source.generator()
        )
        self.grid_, self.threshold_ = plan.grid, plan.threshold
        self.cells_, self.weights_ = cells[kept], weights
        self._fit_cells(plan.grid, self.cells_, self.weights_)

    def synthetic_data(self):
        """The released summary as records: cell centres.

        Returns:
            Positions `(k, q)` on the grid's axes (features scaled to
            [0, 1], or directions in [-1, 1]), labels `(k,)`, weights
            `(k,)`.
        """
        if self.coef_ is None:
            raise RuntimeError(
                "This FilterPriority is not fitted. Call `fit` first."
            )
        return *self.grid_.centres(self.cells_), self.weights_


def _number(cells):
    return str(cells) if cells < 10**9 else f"10^{math.log10(cells):.1f}"
