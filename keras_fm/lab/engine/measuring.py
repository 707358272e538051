"""One job as a row: what it gave, what its ledger says, what it cost."""

import dataclasses
import datetime
import math

import keras

from keras_fm.lab.engine.watch import Watch

_TOLERANCE = 1e-6
# What every row holds; one that lacks a field is not taken up again.
FIELDS = (
    "series",
    "epsilon",
    "seed",
    "at",
    "curve",
    "claimed",
    "proven",
    "delta",
    "neighbours",
    "statement",
    "seconds",
    "cpu_seconds",
    "peak_mib",
    "when",
    "notes",
)


def measure(job, series, work, before=None):
    """Does one job, and checks it against what its series says.

    Args:
        job: a `Job`.
        series: its `Series`.
        work: function from nothing to `Measured`.
        before: `None`, or the `Watch` of a preparation that several jobs
            share; each counts its cost.

    Returns:
        dict with `FIELDS`; `claimed` and `proven` are `None` without noise.

    Raises:
        RuntimeError: if a ledger does not hold what the series says.
    """
    keras.utils.set_random_seed(job.seed)
    with Watch() as watch:
        made = work()
    curve = made.curve() if callable(made.curve) else made.curve
    watches = [w for w in (before, watch) if w]
    row = {
        **dataclasses.asdict(job),
        "curve": [[_plain(v) for v in point] for point in curve],
        **_accounted(made),
        "seconds": sum(w.seconds for w in watches),
        "cpu_seconds": sum(w.cpu_seconds for w in watches),
        "peak_mib": max(w.peak_mib for w in watches),
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(
            timespec="seconds"
        ),
        "notes": made.notes,
    }
    _check(series, row)
    return row


def _accounted(made):
    ledger = made.ledger
    if ledger is None:
        return {
            "claimed": None,
            "proven": None,
            "delta": None,
            "neighbours": "",
            "statement": "",
        }
    return {
        "claimed": ledger.claimed_epsilon(),
        "proven": ledger.epsilon(),
        "delta": ledger.budget.delta,
        "neighbours": str(ledger.neighbours),
        "statement": made.statement or ledger.statement(),
    }


def _check(series, row):
    """What is drawn as proven is proven, and only that."""
    claimed, proven = row["claimed"], row["proven"]
    most = (row["epsilon"] or 0.0) * (1 + _TOLERANCE)
    if series.kind == "proven":
        right = proven is not None and proven <= most
    elif series.kind == "claimed":
        right = proven == math.inf and claimed <= most
    else:
        right = proven is None
    if not right:
        raise RuntimeError(
            f"The series {series.name!r} is {series.kind} at "
            f"{row['epsilon']}, but its ledger says claimed {claimed}, "
            f"proven {proven}."
        )


def _plain(value):
    return value if value is None or isinstance(value, str) else float(value)
