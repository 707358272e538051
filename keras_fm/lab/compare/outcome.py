"""What runs found, and the table of it."""

import dataclasses
import itertools
import math

from keras_fm.lab.compare.methods import METHODS
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


_HEAD = (
    "method, epsilon, accuracy %, claimed, proven, delta, neighbours, "
    "seconds, CPU s, MiB"
).split(", ")


def table(outcomes):
    """The comparison as text, one line per method and epsilon."""
    rows = [
        [
            r["label"],
            _number(r["epsilon"]),
            f"{100 * r['accuracy']:.1f} +- {100 * r['spread']:.1f}",
            _number(r["claimed"]),
            _number(r["proven"]),
            _number(r["delta"]),
            r["neighbours"] or "-",
            f"{r['seconds']:.1f}",
            f"{r['cpu_seconds']:.1f}",
            f"{r['peak_mib']:.0f}",
        ]
        for r in summarise(outcomes)
    ]
    return "\n".join(text_table(_HEAD, rows, left=("method",)))


def _number(value):
    return "-" if value is None else f"{value:.3g}"
