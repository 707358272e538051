"""Several rows of one point as one."""

import statistics


def mean(rows, values):
    """Mean and spread of some values, and what their rows say together.

    Args:
        rows: dicts with the fields of `measuring.FIELDS`.
        values: their numbers.
    """
    first = rows[0]
    return {
        "y": statistics.fmean(values),
        "spread": statistics.stdev(values) if values[1:] else 0.0,
        "runs": len(values),
        "claimed": first["claimed"],
        "proven": most(row["proven"] for row in rows),
        "delta": first["delta"],
        "neighbours": first["neighbours"],
        "seconds": statistics.median(row["seconds"] for row in rows),
        "cpu_seconds": statistics.median(row["cpu_seconds"] for row in rows),
    }


def most(values):
    """The largest, `None` where there is none."""
    return max((v for v in values if v is not None), default=None)
