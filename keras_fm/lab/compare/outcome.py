"""What runs found, and the table of it."""

import dataclasses
import itertools
import statistics

from keras_fm.lab.compare.methods import METHODS


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


def summarise(outcomes):
    """Means and spreads over seeds, one dict per method and epsilon."""
    order = list(METHODS)
    rows = []
    key = lambda o: (order.index(o.method), o.epsilon or 0.0)  # noqa: E731
    for _, group in itertools.groupby(sorted(outcomes, key=key), key=key):
        group = sorted(group, key=lambda o: o.seed)
        first = group[0]
        accuracies = [o.accuracy for o in group]
        rows.append(
            {
                "method": first.method,
                "label": METHODS[first.method].label,
                "epsilon": first.epsilon,
                "accuracy": statistics.fmean(accuracies),
                "spread": (
                    statistics.stdev(accuracies) if len(group) > 1 else 0.0
                ),
                "claimed": first.claimed,
                "proven": max(o.proven for o in group),
                "delta": first.delta,
                "neighbours": first.neighbours,
                "seconds": statistics.median(o.seconds for o in group),
                "cpu_seconds": statistics.median(o.cpu_seconds for o in group),
                "peak_mib": max(o.peak_mib for o in group),
                "seeds": len(group),
                "settings": first.settings,
            }
        )
    return rows


def table(outcomes):
    """The comparison as text, one line per method and epsilon."""
    head = (
        f"{'method':35} {'epsilon':>7} {'accuracy %':>13} {'claimed':>8} "
        f"{'proven':>8} {'delta':>7} {'neighbours':>11} {'seconds':>8} "
        f"{'CPU s':>7} {'MiB':>6}"
    )
    lines = [head, "-" * len(head)]
    for r in summarise(outcomes):
        accuracy = f"{100 * r['accuracy']:.1f} +- {100 * r['spread']:.1f}"
        lines.append(
            f"{r['label']:35} {_number(r['epsilon']):>7} "
            f"{accuracy:>13} {_number(r['claimed']):>8} "
            f"{_number(r['proven']):>8} {_number(r['delta']):>7} "
            f"{r['neighbours'] or '-':>11} {r['seconds']:>8.1f} "
            f"{r['cpu_seconds']:>7.1f} {r['peak_mib']:>6.0f}"
        )
    return "\n".join(lines)


def _number(value):
    return "-" if value is None else f"{value:.3g}"
