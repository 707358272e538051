"""Rows of a comparison or a reproduction: one training, how it is shown."""

import math

from keras_fm.lab.report import checked, parts
from keras_fm.lab.report.content import NO_PROOF, Cell, Standing, standing_of

_KINDS = {
    "claimed": Standing.CLAIMED,
    "proven": Standing.PROVEN,
    "no privacy": Standing.NO_PRIVACY,
    "calculated": Standing.CALCULATED,
    "formula": Standing.AS_PRINTED,
}
TUNED = (
    "Settings of DP-SGD were chosen for each epsilon on a validation split of "
    "the training part. The privacy cost of that choice is not charged to it: "
    "its proven epsilon covers the final training only."
)
_RIVALS = ("dp_sgd", "dp_adam", "jax_privacy")


def have_rival(rows):
    """Whether DP-SGD is among them, which was tuned."""
    return any(row.name.startswith(_RIVALS) for row in rows)


def standing_of_kind(kind):
    """What a file says of a line, `None` if it is unknown."""
    return _KINDS.get(kind)


class Training:
    """One method or series at one budget, every number checked.

    Args:
        fields: `Fields` of the row.
        name: of the method or series.
        label: str.
        value, runs: names of the fields that hold the result and its number
            of runs.
        scale: what results are multiplied by when shown.
    """

    # How a mean and a spread are written.
    specs = ".4g", ".2g"

    def __init__(self, fields, name, label, value, runs, scale=1.0):
        self.name, self.label, self.scale = name, label, scale
        found = fields.numbers(
            epsilon=0,
            spread=0,
            claimed=0,
            proven=0,
            delta=0,
            seconds=None,
            cpu_seconds=None,
            peak_mib=None,
        )
        self.__dict__.update(vars(found))
        self.y, self.runs = fields.number(value), fields.number(runs, 0)
        self.neighbours = fields.text("neighbours")
        self.standing = standing_of(self.proven, self.claimed)

    def stand(self, kind):
        """Takes the kind that a file states, as far as the numbers bear it:
        it may call proven what has no valid proof; a page does not."""
        stated = _KINDS.get(kind, Standing.UNKNOWN)
        if stated is Standing.PROVEN and not checked.finite(self.proven):
            claimed = checked.finite(self.claimed)
            stated = Standing.CLAIMED if claimed else Standing.UNKNOWN
        self.standing = stated

    @property
    def is_private(self):
        return self.standing in (Standing.PROVEN, Standing.CLAIMED)

    @property
    def is_repeated(self):
        return checked.finite(self.runs) and self.runs > 1

    @property
    def relation(self):
        """Delta and neighbours that the epsilon refers to."""
        if not (self.is_private and self.neighbours):
            return ""
        if self.delta is None:
            return self.neighbours
        return f"{self.delta:g}, {self.neighbours}"

    def mean(self):
        """In words, "" without."""
        if self.y is None or self.y != self.y:
            return ""
        return f"{self.y * self.scale:{self.specs[0]}}"

    def around(self):
        """The spread in words, "" without."""
        if not (self.mean() and self.is_repeated):
            return ""
        if not checked.finite(self.spread):
            return ""
        return f" ± {self.spread * self.scale:{self.specs[1]}}"

    def result(self):
        """Mean and spread in words, "" without."""
        return self.mean() + self.around()

    def result_cell(self):
        text = self.result()
        key = self.y * self.scale if text else None
        return Cell(text=text or parts.NOTHING, key=key, is_quiet=not text)

    def proven_cell(self):
        if self.standing is Standing.PROVEN:
            return parts.number(self.proven)
        if self.standing in (Standing.CLAIMED, Standing.NO_PRIVACY):
            return Cell(text=NO_PROOF, key=math.inf, is_quiet=True)
        return parts.number(None)

    def claimed_cell(self):
        claimed = self.standing is Standing.CLAIMED
        return parts.number(self.claimed if claimed else None)


def first_columns(title):
    """What it is, what its number is worth, its budget."""
    return (
        parts.text_column(title, lambda row: Cell(text=row.label)),
        parts.text_column("standing", lambda row: parts.standing(row.standing)),
        parts.column("budget ε", lambda row: parts.number(row.epsilon)),
    )


def privacy_columns(hints=()):
    """What is proven, what is claimed, and what both refer to."""
    hints = dict(hints)
    return tuple(
        make(title, cell, hints.get(title, ""))
        for make, title, cell in (
            (parts.column, "ε proven", Training.proven_cell),
            (parts.column, "ε claimed", Training.claimed_cell),
            (
                parts.text_column,
                "δ, relation",
                lambda row: parts.words(row.relation),
            ),
        )
    )


def cost_columns(hints=()):
    """Seconds and memory of one training."""
    hints = dict(hints)
    return tuple(
        parts.column(title, cell, hints.get(title, ""))
        for title, cell in (
            ("seconds", lambda row: parts.number(row.seconds, ".3g")),
            ("CPU seconds", lambda row: parts.number(row.cpu_seconds, ".3g")),
            ("memory, MiB", lambda row: parts.number(row.peak_mib, ".0f")),
        )
    )
