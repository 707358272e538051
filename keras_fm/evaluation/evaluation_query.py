"""The query behind `private_evaluate`: a few counts for all metrics.

The model's output for a record is compared with the label, and the record adds
1 to every metric. For a mean (accuracy, errors) it adds a part to "right" and
the rest to "wrong". For a table (confusion matrix, bins of confidence) it adds
1 to one cell. A release uses these sums only. The proof of the sensitivities is
in docs/proofs/evaluation.md.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from keras_fm.evaluation import intervals
from keras_fm.kernel import checks
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import SumQuery, is_replaced, reach_in_words

MEANS = ("accuracy", "mean_absolute_error", "mean_squared_error", "log_loss")
TABLES = ("confusion_matrix", "calibration", "auc")
METRICS = (*MEANS, "r2", *TABLES)
# R^2 is computed from means of 1 - e^2, t and (2 t - 1)^2, for targets t
# scaled to [0, 1].
_OF_R2 = ("mean_squared_error", "target", "squared_target")
# A smaller probability of the true class counts as this one.
LEAST_PROBABILITY = 0.01
# The words in statements for rows that the model was trained on.
IN_SAMPLE = "in sample"
# Shares of a record are multiples of this: sums over up to 2^30 records are
# then exact.
GRID = 2.0**-20


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationQuery(SumQuery):
    """Query for the sums from which metrics of a model are computed.

    Args:
        metrics: names from `METRICS`, separated by commas or in a sequence.
        classes: int >= 2, size of a confusion matrix; an AUC needs 2.
        bins: int >= 2, number of bins of confidence for a calibration. An AUC
            has five times as many bins of scores.
        low, high: public bounds on targets and predictions, for errors.
        records: int, the public number of records (replace_one: neighbours
            have the same number). 0 if it is private: it is then noisy, too.
        reach: int >= 0, how many other units' records may depend on one
            unit's data, see `keras_fm.Unit`.
        rows: which records are used, in words; `"in sample"` if the model was
            trained on them.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> query = EvaluationQuery(metrics="accuracy, confusion_matrix", classes=3)
    >>> query.size, query.sensitivity("l1", neighbours="add_remove")
    (11, 2.0)
    """

    metrics: str | Sequence[str]
    classes: int = 2
    bins: int = 10
    low: float = 0.0
    high: float = 1.0
    records: int = 0
    reach: int = 0
    rows: str = ""

    proof = "docs/proofs/evaluation.md"

    def __post_init__(self):
        checks.fields(
            self,
            metrics=_names,
            classes=partial(checks.integer, at_least=2, at_most=10_000),
            bins=partial(checks.integer, at_least=2, at_most=10_000),
            low=checks.number,
            high=checks.number,
            records=checks.natural,
            reach=checks.natural,
        )
        # Errors are squared: these bounds keep squares finite and above 0.
        if not 1e-150 <= self.high - self.low <= 1e150:
            raise ValueError(
                "`low` must be below `high`, by 1e-150 to 1e150. Received: "
                f"low={self.low}, high={self.high}"
            )
        if "auc" in self.asked and self.classes != 2:
            checks.refuse("classes", self.classes, "2 if `metrics` has an AUC")

    # Requested metrics ---------------------------------------------------

    @property
    def asked(self):
        """The metrics as a tuple, in the order of `METRICS`."""
        return tuple(self.metrics.split(", "))

    @property
    def in_sample(self):
        """Whether `rows` says that the model was trained on these records."""
        return self.rows.startswith(IN_SAMPLE)

    @property
    def means(self):
        """The metrics that are a mean over records, or computed from such."""
        asked = [name for name in self.asked if name in MEANS]
        if "r2" in self.asked:
            asked += [name for name in _OF_R2 if name not in asked]
        return tuple(asked)

    @property
    def tables(self):
        """The metrics that are a table of counts."""
        return tuple(name for name in self.asked if name in TABLES)

    @property
    def names(self):
        return ("means",) * bool(self.means) + self.tables

    @property
    def shapes(self):
        # With a known number of records "wrong" follows from "right".
        means = (len(self.means), 1 if self.records else 2)
        shapes = {
            "means": means,
            "confusion_matrix": (self.classes, self.classes),
            "calibration": (self.bins, 2),
            "auc": (2, 5 * self.bins),
        }
        return tuple(shapes[name] for name in self.names)

    @property
    def entry_bounds(self):
        """Bounds on what one record adds to an entry of each array."""
        return (1.0,) * len(self.names)

    @property
    def uses(self):
        """What a release uses of the records, in words."""
        rest = "" if self.records else " and the number of records"
        parts = [f"sums of {', '.join(self.means)}{rest}"] * bool(self.means)
        if "confusion_matrix" in self.tables:
            parts.append(
                f"a confusion matrix ({self.classes} x {self.classes})"
            )
        if "calibration" in self.tables:
            parts.append(f"right and wrong in {self.bins} bins of confidence")
        if "auc" in self.tables:
            parts.append(f"both classes in {5 * self.bins} bins of scores")
        rows = f" ({self.rows})" if self.rows else ""
        return (
            f"of a model's outputs for the records{rows}: {'; '.join(parts)}; "
            "each record counts 1 in each, once" + reach_in_words(self.reach)
        )

    # Statistics ----------------------------------------------------------

    def accumulate(self, statistics, shares, cells=None, clip=False):
        """Adds a batch to `statistics`, in place.

        Args:
            statistics: from `zero()` or an earlier call.
            shares: `(n, means)`, in [0, 1]: how right each record is, cut to
                multiples of 2^-20.
            cells: `(n, tables)`, the flat index of each record's cell in
                each table. Not needed without tables.
            clip: ignored. Compute shares so that they are in [0, 1].

        Raises:
            ValueError: on NaN, shares or cells outside their range, or a
                wrong shape. Nothing is added then.
        """
        shares = np.array(shares, np.float64)
        n = len(shares)
        cells = np.zeros((n, 0)) if cells is None else np.asarray(cells)
        wanted = (n, len(self.means)), (n, len(self.tables))
        if (shares.shape, cells.shape) != wanted:
            raise ValueError(
                f"Shares must have shape (records, {wanted[0][1]}) and cells "
                f"(records, {wanted[1][1]}). Received: {shares.shape}, "
                f"{cells.shape}"
            )
        checks.all_finite(shares=shares, cells=cells)
        if not np.all((shares >= 0) & (shares <= 1)):
            raise ValueError("Shares must be in [0, 1]. At least one is not.")
        found = dict(zip(self.names, statistics))
        tables = [(name, found[name]) for name in self.tables]
        # All checks come before the first addition: a batch that is corrected
        # and added again must not count twice.
        for (name, table), column in zip(tables, cells.T):
            if not np.all((column >= 0) & (column < table.size)) or np.any(
                column != np.floor(column)
            ):
                raise ValueError(
                    f"Cells of {name} must be whole numbers in [0, "
                    f"{table.size}). At least one is not."
                )
        if self.means:
            shares = np.floor(shares / GRID) * GRID
            found["means"][:, 0] += shares.sum(axis=0)
            if not self.records:
                found["means"][:, 1] += (1 - shares).sum(axis=0)
        for (_, table), column in zip(tables, cells.T):
            counts = np.bincount(column.astype(np.int64), minlength=table.size)
            table += counts.reshape(table.shape)
        return statistics

    # Sensitivity ---------------------------------------------------------

    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of all sums together, for m means and t tables.

        ================= ==== ============= ===============
        number of records norm add_remove    replace_one
        ================= ==== ============= ===============
        noisy             L1   m + t         2 (m + t)
        noisy             L2   sqrt(m + t)   sqrt(2 (m + t))
        known             L1   m + t         m + 2 t
        known             L2   sqrt(m + t)   sqrt(m + 2 t)
        ================= ==== ============= ===============

        Each unit of `reach` adds the value of replace_one.
        docs/proofs/evaluation.md, proposition 1.

        Args:
            norm: `"l1"` or `"l2"`.
            neighbours: `"add_remove"`, `"replace_one"` or `"replace_label"`,
                which gets the value of `"replace_one"`.
        """
        total = self._moved(norm, is_replaced(norm, neighbours))
        return total + self.reach * self._moved(norm, True)

    def _moved(self, norm, replace):
        of_mean = 2 if replace and not self.records else 1
        moved = len(self.means) * of_mean
        moved += len(self.tables) * (2 if replace else 1)
        return float(moved) if norm == "l1" else math.sqrt(moved)

    def rounding_error(self, norm):
        """0: float64 adds up 2^30 multiples of 2^-20 without error."""
        return 0.0


def _names(name, value):
    """Metrics as one text in a fixed order."""
    found = value.split(",") if isinstance(value, str) else list(value)
    found = [v.strip() if isinstance(v, str) else v for v in found]
    if not found or set(found) - set(METRICS) or len(set(found)) < len(found):
        checks.refuse(name, value, f"some of {', '.join(METRICS)}, each once")
    return ", ".join(metric for metric in METRICS if metric in found)


@released_as(EvaluationQuery)
class Evaluation(Release):
    """Noisy metrics of a model on private records. You may publish them.

    All methods compute from the released noisy sums, so calling them costs no
    budget. The distribution of the noise is known, so intervals are exact
    about it. `of="records"` is the value on these records. `of="population"`
    is the value on the population that the records were drawn from. It
    assumes independent records that were not used to train or choose the
    model. Each interval holds with its own `level`, not all of them together.

    Example:

    >>> found = private_evaluate(model, (x, y), ledger=ledger, share=0.2)
    >>> accuracy = found.mean("accuracy")
    >>> accuracy.low <= accuracy.value <= accuracy.high
    True
    """

    def mean(self, name, *, of="records", level=0.95):
        """The mean of a metric over all records: accuracy, or an error.

        Args:
            name: one of the requested metrics `"accuracy"` (also from a
                confusion matrix), `"mean_absolute_error"`,
                `"mean_squared_error"` or `"log_loss"`.
            of: `"records"` or `"population"`.
            level: float in (0, 1).

        Returns:
            An `Interval`. Errors are in the unit of the numbers (or squared),
            from shares cut to 2^-20 of the largest error. For the population
            an error is assumed to vary as much as its mean allows. In a
            log-loss, a probability of the true class below 1 % counts as 1 %.

        Raises:
            ValueError: if the metric was not requested.
        """
        checks.one_of("name", name, MEANS)
        asked = self.query.asked
        if name == "accuracy" not in asked and "confusion_matrix" in asked:
            return self._accuracy(of, level)
        self._check_asked(name)
        self._check_of(of)
        right, *wrong = self.statistics["means"][self.query.means.index(name)]
        found = intervals.share(
            self._law,
            right,
            *(wrong or [0.0]),
            records=self.query.records,
            level=level,
            of=of,
        )
        scale = self.query.high - self.query.low
        if name == "accuracy":
            return found
        if name == "mean_squared_error":
            scale = scale**2
        elif name == "log_loss":
            scale = -math.log(LEAST_PROBABILITY)
        # Released shares are 1 minus the error.
        return intervals.Interval(
            scale * (1 - found.value),
            scale * (1 - found.high),
            scale * (1 - found.low),
            found.level,
            of,
        )

    def confusion_matrix(self):
        """Noisy counts `(classes, classes)`: rows are labels, columns are
        predictions. See `margin` for their error."""
        self._check_asked("confusion_matrix")
        return self.statistics["confusion_matrix"]

    def margin(self, level=0.95):
        """Bound on the error of a single count that holds with probability
        `level`."""
        checks.number("level", level, above=0, below=1)
        return self._law.margin(level)

    def recall(self, *, of="records", level=0.95):
        """Recall of each class, in their order: a list of `Interval`. Needs a
        confusion matrix.

        Args:
            of, level: see `mean`.
        """
        return self._of_classes(1, of, level)

    def precision(self, *, of="records", level=0.95):
        """Precision of each class, as `recall`."""
        return self._of_classes(0, of, level)

    def balanced_accuracy(self, *, of="records", level=0.95):
        """The mean recall over all classes, an `Interval`."""
        rates = zip(*self._rates(self._pairs(1), of))
        found = (sum(v) / self.query.classes for v in rates)
        return intervals.of_draws(*found, level=level, of=of)

    def auc(self, *, of="records", level=0.95):
        """The probability that a record of the second class has a higher
        score than one of the first, an `Interval`.

        A pair of records in one bin of scores counts as a half in `value`. The
        interval reaches from counting none of these pairs to counting all.
        """
        self._check_asked("auc")
        table = self.statistics["auc"]
        value = intervals.area(table)
        drawn = intervals.area(self._drawn(table, of))
        return intervals.of_draws(
            (value[0] + value[1]) / 2, *drawn, level=level, of=of
        )

    def threshold(self, recall):
        """The largest probability of the second class from which, and from
        every smaller edge of a bin of scores, the noisy recall of that class
        is at least `recall`: `model.predict_proba(X)[:, 1] >= threshold`.

        It is computed from the released bins, so it costs nothing more. Noise
        adds up over the bins above it: few `bins` have less of it. 0, which
        takes every record, if noise hides the class.
        """
        checks.number("recall", recall, above=0, at_most=1)
        self._check_asked("auc")
        second = self.statistics["auc"][1, ::-1]
        reached = intervals.ratio(np.cumsum(second), second.sum()) >= recall
        # Edges are even in the angle, see `private_evaluate`.
        left = len(second) - 2 - np.flatnonzero(~reached[:-1]).max(initial=-1)
        return float(np.sin(np.pi / 2 * left / len(second)) ** 2)

    def r2(self, *, level=0.95):
        """R^2 of the predicted numbers on these records, an `Interval` within
        minus infinity to 1."""
        self._check_asked("r2")
        places = [self.query.means.index(name) for name in _OF_R2]
        sums = self.statistics["means"][places]
        found = (self._r2(v) for v in (sums, self._drawn(sums, "records")))
        return intervals.of_draws(*found, level=level, least=-math.inf)

    def _r2(self, sums):
        total = self.query.records or sums.sum(axis=-1)
        shares = intervals.ratio(sums[..., 0], total)
        right, mean, square = np.moveaxis(shares, -1, 0)
        return 1 - intervals.ratio(1 - right, square / 4 - (mean - 0.5) ** 2)

    # Counts of a table as pairs (right, wrong).

    def _pairs(self, axis):
        self._check_asked("confusion_matrix")
        matrix = self.statistics["confusion_matrix"]
        right = np.diagonal(matrix)
        return np.stack([right, matrix.sum(axis=axis) - right], axis=-1)

    def _rates(self, pairs, of, counts=None):
        """The noisy share of each pair, and the least and the largest share
        after drawn noise is subtracted."""
        rng = np.random.default_rng(0)
        counts = counts or (1, self.query.classes - 1)
        for pair in pairs:
            both = pair, self._drawn(pair, of, counts, rng)
            found = (intervals.ratio(v[..., 0], v.sum(axis=-1)) for v in both)
            value, drawn = (np.clip(v, 0.0, 1.0) for v in found)
            yield value, *(np.nan_to_num(drawn, nan=end) for end in (0, 1))

    def _of_classes(self, axis, of, level):
        found = self._rates(self._pairs(axis), of)
        return [intervals.of_draws(*v, level=level, of=of) for v in found]

    def _accuracy(self, of, level):
        k, pairs = self.query.classes, self._pairs(1).sum(0, keepdims=True)
        (found,) = self._rates(pairs, of, (k, k * (k - 1)))
        return intervals.of_draws(*found, level=level, of=of)

    def _drawn(self, noisy, of, counts=1, rng=None):
        self._check_of(of)
        rng = np.random.default_rng(0) if rng is None else rng
        return self._law.held(rng, noisy, counts, sampled=of == "population")

    def _check_of(self, of):
        checks.either("of", of, intervals.OF)
        if of == "population" and self.query.in_sample:
            raise ValueError(
                "The model was trained on these rows (in sample), so there is "
                'no interval for the population. Write `of="records"`. '
                'Received: of="population"'
            )

    def reliability(self, *, of="records", level=0.95):
        """The table of a reliability diagram, one row for each bin.

        Args:
            of, level: see `mean`.

        Returns:
            list of dicts: `confidence` (low and high end of the bin),
            `records` (noisy count), `accuracy` (an `Interval`).
        """
        self._check_asked("calibration")
        self._check_of(of)
        edges = np.linspace(0.0, 1.0, self.query.bins + 1)
        return [
            {
                "confidence": (float(low), float(high)),
                "records": float(right + wrong),
                # The number of records in a bin is never public.
                "accuracy": intervals.share(
                    self._law, right, wrong, level=level, of=of
                ),
            }
            for low, high, (right, wrong) in zip(
                edges, edges[1:], self.statistics["calibration"]
            )
        ]

    def calibration_error(self, *, level=0.95):
        """Expected calibration error on these records: the mean distance
        between a bin's accuracy and the confidence at its middle.

        The usual definition takes the mean confidence of the bin. The two
        differ by at most half a bin's width. Noise makes `value` larger, most
        of all with many bins; the interval allows for it.

        Returns:
            An `Interval`, for these records.
        """
        self._check_asked("calibration")
        bins = self.query.bins
        right, wrong = self.statistics["calibration"].T
        return intervals.absolute_sum(
            self._law,
            right,
            wrong,
            (np.arange(bins) + 0.5) / bins,
            records=self.query.records,
            level=level,
        )

    def __repr__(self):
        lines = [
            f"Private evaluation ({self.query.metrics}; "
            f"{type(self.mechanism).__name__}, {self.neighbours})"
        ]
        lines += [f"  rows: {self.query.rows}"] * bool(self.query.rows)
        every = intervals.OF[:1] if self.query.in_sample else intervals.OF
        shown = [name for name in self.query.asked if name in MEANS]
        if "confusion_matrix" in self.query.tables:
            shown = ["accuracy", *(n for n in shown if n != "accuracy")]
        found = (
            (name, self.mean(name, of=of)) for name in shown for of in every
        )
        lines += [f"  {name}: {value}" for name, value in found]
        if "r2" in self.query.asked:
            lines.append(f"  r2: {self.r2()}")
        if "auc" in self.query.tables:
            lines += [f"  auc: {self.auc(of=of)}" for of in every]
        if "calibration" in self.query.tables:
            lines.append(f"  calibration error: {self.calibration_error()}")
        if "confusion_matrix" in self.query.tables:
            lines.append(
                f"  confusion matrix: {self.query.classes} x "
                f"{self.query.classes} counts, each +- {self.margin():.4g} "
                "(95%)"
            )
            found = (self.balanced_accuracy(of=of) for of in every)
            lines += [f"  balanced accuracy: {value}" for value in found]
            for name in ("recall", "precision") * (self.query.classes <= 10):
                for label, found in enumerate(getattr(self, name)()):
                    lines.append(f"  {name} of class {label}: {found}")
        if not self.private:
            lines.append("  NOT PRIVATE: the noise is reproducible")
        return "\n".join(lines)

    @property
    def _law(self):
        return intervals.NoiseLaw(self.mechanism, self.query.size)

    def _check_asked(self, name):
        if name not in self.query.asked:
            raise ValueError(
                f"`{name}` was not evaluated: it must be in `metrics`. "
                f"Received: metrics={self.query.metrics!r}"
            )
