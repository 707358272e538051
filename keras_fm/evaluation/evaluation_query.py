"""How good a model is on records, as a function of few counts.

What a model makes of a record is compared with its label, and the record adds
one to each question that is asked: a share of it to "right" and the rest to
"wrong" (a mean), or all of it to one cell of a table (a confusion matrix, bins
of confidence). Those sums are all that is read. The proof of the sensitivities
is in docs/proofs/evaluation.md.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from keras_fm.evaluation import intervals
from keras_fm.kernel import checks
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.kernel.query import (
    SumQuery,
    is_replaced,
    reach_in_words,
)

MEANS = ("accuracy", "mean_absolute_error", "mean_squared_error")
TABLES = ("confusion_matrix", "calibration")
METRICS = MEANS + TABLES
# Shares of a record are multiples of this, which sums of up to 2^30 records
# hold without rounding.
GRID = 2.0**-20


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationQuery(SumQuery):
    """Sums that metrics of a model are computed from.

    Args:
        metrics: names of `METRICS`, separated by commas or in a sequence.
        classes: int >= 2, of a confusion matrix.
        bins: int >= 2, how many bins of confidence a calibration has.
        low, high: public bounds on the numbers that errors compare.
        records: int, the number of records where neighbours have the same
            (replace_one), or 0: then it is noisy as well.
        reach: int >= 0, how many other units' records may depend on one
            unit's data, see `keras_fm.Unit`.

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
        # Errors are squared.
        if not 1e-150 <= self.high - self.low <= 1e150:
            raise ValueError(
                "`low` must be below `high`, by 1e-150 to 1e150. Received: "
                f"low={self.low}, high={self.high}"
            )

    # What is asked -------------------------------------------------------

    @property
    def asked(self):
        """The metrics as a tuple, in the order of `METRICS`."""
        return tuple(self.metrics.split(", "))

    @property
    def means(self):
        """Those that are a mean of a share of each record."""
        return tuple(name for name in self.asked if name in MEANS)

    @property
    def tables(self):
        """Those that are a table of counts."""
        return tuple(name for name in self.asked if name in TABLES)

    @property
    def names(self):
        return ("means",) * bool(self.means) + self.tables

    @property
    def shapes(self):
        # Of a known number of records the rest says nothing.
        means = (len(self.means), 1 if self.records else 2)
        shapes = {
            "means": means,
            "confusion_matrix": (self.classes, self.classes),
            "calibration": (self.bins, 2),
        }
        return tuple(shapes[name] for name in self.names)

    @property
    def entry_bounds(self):
        """Bounds on what one record adds to an entry of each array."""
        return (1.0,) * len(self.names)

    @property
    def reads(self):
        """What a release reads, in words."""
        rest = "" if self.records else " and the number of records"
        parts = [f"sums of {', '.join(self.means)}{rest}"] * bool(self.means)
        if "confusion_matrix" in self.tables:
            parts.append(
                f"a confusion matrix ({self.classes} x {self.classes})"
            )
        if "calibration" in self.tables:
            parts.append(f"right and wrong in {self.bins} bins of confidence")
        return (
            f"of what a model makes of each record: {'; '.join(parts)}; each "
            "record counts 1 in each, once" + reach_in_words(self.reach)
        )

    # Statistics ----------------------------------------------------------

    def accumulate(self, statistics, shares, cells=None, clip=False):
        """Adds a batch to `statistics`, in place.

        Args:
            statistics: what `zero()` or an earlier call returned.
            shares: `(n, means)`, in [0, 1]: how right each record is; cut to
                multiples of 2^-20.
            cells: `(n, tables)`, the flat index of each record's cell in
                each table; may be left out where there are none.
            clip: ignored; whoever computes shares keeps them in [0, 1].

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
        # Nothing is added before all of it is right: who mends a batch and
        # adds it again would count it twice.
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
        """Sensitivity of all sums together, of m means and t tables.

        ================= ==== ============= ===============
        number of records norm add_remove    replace_one
        ================= ==== ============= ===============
        noisy             L1   m + t         2 (m + t)
        noisy             L2   sqrt(m + t)   sqrt(2 (m + t))
        known             L1   m + t         m + 2 t
        known             L2   sqrt(m + t)   sqrt(m + 2 t)
        ================= ==== ============= ===============

        and the value of replace_one more for each unit of `reach`.
        docs/proofs/evaluation.md, proposition 1.

        Args:
            norm: `"l1"` or `"l2"`.
            neighbours: `"add_remove"`, `"replace_one"` or `"replace_label"`,
                which is held to the second.
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
    """Metrics as one text, in one order."""
    found = value.split(",") if isinstance(value, str) else list(value)
    found = [v.strip() if isinstance(v, str) else v for v in found]
    if not found or set(found) - set(METRICS) or len(set(found)) < len(found):
        checks.refuse(name, value, f"some of {', '.join(METRICS)}, each once")
    return ", ".join(metric for metric in METRICS if metric in found)


@released_as(EvaluationQuery)
class Evaluation(Release):
    """Metrics of a model on private records, with their noise: public.

    Every number is a function of the noisy sums, so asking is free, and an
    interval is exact about the noise: its law is known. `of="records"` is
    about the value on these very records; `of="population"` about the
    population that they were drawn from, one independently of the other, by
    nobody who chose the model by them. Each interval holds with its own
    `level`, not all of them together.

    Example:

    >>> found = private_evaluate(model, (x, y), ledger=ledger, share=0.2)
    >>> accuracy = found.mean("accuracy")
    >>> accuracy.low <= accuracy.value <= accuracy.high
    True
    """

    def mean(self, name, *, of="records", level=0.95):
        """A mean of all records: accuracy, or an error.

        Args:
            name: `"accuracy"`, `"mean_absolute_error"` or
                `"mean_squared_error"`, one that was asked.
            of: `"records"` or `"population"`.
            level: float in (0, 1).

        Returns:
            An `Interval`; errors in units of the numbers (or squared), of
            shares cut to 2^-20 of the largest error. The population's takes
            an error to vary as much as it can at its mean.

        Raises:
            ValueError: if it was not asked.
        """
        self._check_asked(name)
        checks.one_of("name", name, MEANS)
        right, *wrong = self.statistics["means"][self._query.means.index(name)]
        found = self._share(right, *(wrong or [0.0]), of, level)
        scale = self._query.high - self._query.low
        if name == "accuracy":
            return found
        scale = scale if name == "mean_absolute_error" else scale**2
        # Shares are of what is right.
        return intervals.Interval(
            scale * (1 - found.value),
            scale * (1 - found.high),
            scale * (1 - found.low),
            found.level,
            of,
        )

    def confusion_matrix(self):
        """Noisy counts, `(classes, classes)`: rows are labels, columns what
        the model says. Each is off by `margin` at most."""
        self._check_asked("confusion_matrix")
        return self.statistics["confusion_matrix"]

    def margin(self, level=0.95):
        """How far a single count is from the true one with probability
        `level`, at most."""
        checks.number("level", level, above=0, below=1)
        return self._law.margin(level)

    def reliability(self, *, of="records", level=0.95):
        """The table of a reliability diagram, a row for each bin.

        Args:
            of, level: see `mean`.

        Returns:
            list of dicts: `confidence` (low and high end of the bin),
            `records` (noisy count), `accuracy` (an `Interval`).
        """
        self._check_asked("calibration")
        edges = np.linspace(0.0, 1.0, self._query.bins + 1)
        return [
            {
                "confidence": (float(low), float(high)),
                "records": float(right + wrong),
                # The records of one bin: their number is never known.
                "accuracy": intervals.share(
                    self._law, right, wrong, level=level, of=of
                ),
            }
            for low, high, (right, wrong) in zip(
                edges, edges[1:], self.statistics["calibration"]
            )
        ]

    def calibration_error(self, *, level=0.95):
        """Expected calibration error on these records: the mean distance of
        a bin's accuracy from the confidence at its middle.

        With the bins' mean confidence, as it is usually computed, it differs
        by half a bin's width at most. Noise enlarges `value`, most of all
        with many bins; the interval holds.

        Returns:
            An `Interval`, of these records.
        """
        self._check_asked("calibration")
        bins = self._query.bins
        right, wrong = self.statistics["calibration"].T
        return intervals.absolute_sum(
            self._law,
            right,
            wrong,
            (np.arange(bins) + 0.5) / bins,
            records=self._query.records,
            level=level,
        )

    def __repr__(self):
        lines = [
            f"Private evaluation ({self._query.metrics}; "
            f"{type(self.mechanism).__name__}, {self.neighbours})"
        ]
        for name in self._query.means:
            for of in intervals.OF:
                lines.append(f"  {name}: {self.mean(name, of=of)}")
        if "calibration" in self._query.tables:
            lines.append(f"  calibration error: {self.calibration_error()}")
        if "confusion_matrix" in self._query.tables:
            lines.append(
                f"  confusion matrix: {self._query.classes} x "
                f"{self._query.classes} counts, each +- {self.margin():.4g} "
                "(95%)"
            )
        if not self.private:
            lines.append("  NOT PRIVATE: the noise is reproducible")
        return "\n".join(lines)

    @property
    def _query(self):
        return self.query

    @property
    def _law(self):
        return intervals.NoiseLaw(self.mechanism, self._query.size)

    def _share(self, right, wrong, of, level):
        return intervals.share(
            self._law,
            right,
            wrong,
            records=self._query.records,
            level=level,
            of=of,
        )

    def _check_asked(self, name):
        if name not in self._query.asked:
            raise ValueError(
                f"`{name}` was not evaluated: it must be in `metrics`. "
                f"Received: metrics={self._query.metrics!r}"
            )
