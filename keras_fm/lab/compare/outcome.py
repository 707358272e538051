"""What runs found, and the table of it."""

import dataclasses
import itertools
import math
import statistics

from keras_fm.lab.compare.methods import METHODS
from keras_fm.lab.engine import grid, rival
from keras_fm.lab.engine.files import text_table
from keras_fm.lab.engine.means import mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One training run.

    Attributes:
        method, epsilon, seed: see `Comparison`.
        accuracy: float, on the test part.
        claimed: epsilon that the method's paper asserts; `None` without.
        proven: epsilon composed from the ledger; infinite without proof.
        delta, neighbours: what both refer to; `None` and "" without.
        seconds, cpu_seconds: of the training, without features and tuning;
            the second adds up all cores.
        peak_mib: peak memory above the start of the training. In a process
            that trained before, memory kept from then hides some of it.
        settings: what was chosen for this run (DP-SGD's tuned values).
        statement: the privacy statement.
    """

    method: str
    epsilon: float | None
    seed: int
    accuracy: float
    claimed: float | None
    proven: float
    delta: float | None
    neighbours: str
    seconds: float
    cpu_seconds: float
    peak_mib: float
    settings: dict = dataclasses.field(default_factory=dict)
    statement: str = ""

    @classmethod
    def of(cls, row):
        """The run that a row of the engine is."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(
            method=row["series"],
            accuracy=row["curve"][-1][1],
            proven=math.inf if row["proven"] is None else row["proven"],
            settings=row["notes"],
            **{k: row[k] for k in names - {"proven"} if k in row},
        )


class Outcomes(list):
    """Several `Outcome`s; printed as the table of them.

    Attributes:
        notes: list of str, which methods did not run and why.
    """

    notes: list = []

    def __str__(self):
        return table(self)


def summarise(outcomes):
    """Means and spreads over seeds, one dict per method and epsilon."""
    order = list(METHODS)
    rows = []
    key = lambda o: (order.index(o.method), o.epsilon or 0.0)  # noqa: E731
    for _, group in itertools.groupby(sorted(outcomes, key=key), key=key):
        group = sorted(group, key=lambda o: o.seed)
        found = mean(
            [dataclasses.asdict(o) for o in group], [o.accuracy for o in group]
        )
        rows.append(
            {
                "method": group[0].method,
                "label": METHODS[group[0].method].label,
                "epsilon": group[0].epsilon,
                "accuracy": found.pop("y"),
                "seeds": found.pop("runs"),
                **found,
                "peak_mib": max(o.peak_mib for o in group),
                "settings": group[0].settings,
            }
        )
    return rows


def standing(row):
    """What the epsilon of a row of `summarise` is worth."""
    if row["epsilon"] is None:
        return "no privacy"
    return "proven" if math.isfinite(row["proven"]) else "claimed"


def grid_of(rows):
    """The `Grid` of rows of `summarise`."""
    return grid.of(
        grid.Place(
            name=r["method"],
            epsilon=r["epsilon"],
            value=r["accuracy"],
            kind=standing(r),
            relation=r["neighbours"],
        )
        for r in rows
    )


def table(outcomes, whole=None):
    """The comparison as text: accuracies first, methods down and epsilons
    across, then what each number refers to and what it cost.

    Args:
        outcomes: list of `Outcome`.
        whole: `None`, or where the whole table stands: of many methods the
            second part then has the marked ones alone.
    """
    rows = summarise(outcomes)
    by_method = {}
    for row in rows:
        by_method.setdefault(row["method"], {})[row["epsilon"]] = row
    found = grid_of(rows)
    return "\n".join(
        [
            *_accuracies(found, by_method),
            "",
            *_long_form(found, by_method, whole),
            *getattr(outcomes, "notes", ()),
        ]
    )


_GROUPS = {
    "proven": "proven",
    "claimed": "claimed: no valid proof",
    "no privacy": "no privacy",
}


def _accuracies(found, by_method):
    epsilons = found.epsilons or [None]
    head = ["test accuracy, %", *map(_column, epsilons)]
    lines = []
    for kind, names in found.names.items():
        lines.append([_GROUPS[kind]] + [""] * len(epsilons))
        for name in names:
            rows = by_method[name]
            cells = ["  " + next(iter(rows.values()))["label"]]
            for epsilon in epsilons:
                # Without privacy the number is the same at every budget.
                row = rows.get(epsilon, rows.get(None))
                cells.append(_accuracy(row, (name, epsilon) in found.best))
            lines.append(cells)
    made = text_table(head, lines, left=(head[0],))
    runs = max(
        row["seeds"] for rows in by_method.values() for row in rows.values()
    )
    note = "* best proven of its column and relation. " * bool(found.best)
    note += (
        f"Mean +- standard deviation, {runs} runs."
        if runs > 1
        else "One run each."
    )
    tuned = any(METHODS[name].tuned for name in by_method)
    return [*made, note, *([rival.UNCHARGED] if tuned else [])]


def _column(epsilon):
    return "no epsilon" if epsilon is None else f"epsilon {epsilon:g} "


def _accuracy(row, is_best):
    if row is None:
        return "- "
    text = f"{100 * row['accuracy']:.1f}"
    if row["seeds"] > 1:
        text += f" +- {100 * row['spread']:.1f}"
    return text + ("*" if is_best else " ")


_HEAD = (
    "method, claimed, proven, delta, neighbours, seconds, CPU s, MiB"
).split(", ")


# Two tables of so many lines fit a screen.
_MOST_UNFOLDED = 8


def _long_form(found, by_method, whole):
    """A line for each method: what its epsilons are, and its costs."""
    ranked = [n for names in found.names.values() for n in names]
    shown, best = ranked, {name for name, _ in found.best}
    if whole and len(ranked) > _MOST_UNFOLDED:
        shown = [n for n in ranked if n in best] or ranked[:_MOST_UNFOLDED]
    lines = []
    for name in shown:
        rows = sorted(
            by_method[name].values(), key=lambda r: r["epsilon"] or 0.0
        )
        first = rows[0]
        lines.append(
            [
                first["label"],
                _numbers(
                    r["claimed"] if standing(r) == "claimed" else None
                    for r in rows
                ),
                _numbers(r["proven"] for r in rows),
                _number(first["delta"]),
                first["neighbours"] or "-",
                f"{statistics.median(r['seconds'] for r in rows):.1f}",
                f"{statistics.median(r['cpu_seconds'] for r in rows):.1f}",
                f"{max(r['peak_mib'] for r in rows):.0f}",
            ]
        )
    made = text_table(_HEAD, lines, left=("method",))
    folded = len(ranked) - len(shown)
    return [*made, *([f"The other {folded}: {whole}"] if folded else [])]


def _number(value):
    return "-" if value is None else f"{value:.3g}"


def _numbers(values):
    """One for each budget, once where they are the same."""
    return " ".join(dict.fromkeys(map(_number, values)))
