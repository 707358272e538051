"""What is measured: a line of a figure, one training of it, what it gave."""

import collections.abc
import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a figure.

    Attributes:
        name, label: short name, and words for the legend.
        kind: `"claimed"` (an epsilon that the paper asserts), `"proven"`,
            `"no privacy"`; where nothing is trained, `"calculated"` (exact
            or a proven bound) or `"formula"` (as printed, not a bound).
        beside: systems of the paper whose numbers stand beside this line.
        is_random: whether repetitions differ.
        needs_dp_sgd: whether tensorflow-privacy trains it.
    """

    name: str
    label: str
    kind: str
    beside: tuple = ()
    is_random: bool = True
    needs_dp_sgd: bool = False

    @property
    def is_private(self):
        """Whether an epsilon belongs to it."""
        return self.kind in ("claimed", "proven")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One training, or one calculation.

    Attributes:
        series: name; of a comparison, that of the method.
        epsilon: budget or claim; `None` without privacy.
        seed: of initial weights; the noise is always fresh.
        at: value of the swept setting, or `None`.
    """

    series: str
    epsilon: float | None = None
    seed: int = 0
    at: float | None = None

    @property
    def method(self):
        """The series, as a comparison calls it."""
        return self.series


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What a job gave.

    Attributes:
        curve: tuple of `(x, y)`; x is `None` where the x axis is epsilon and
            nothing is private. Or a function that gives it, whose seconds
            are not those of the training.
        ledger: a `keras_fm.Ledger`, or `None` if no noise was drawn.
        notes: dict of further public facts of the run (a chosen rate).
        statement: str, more than the ledger's statement.
    """

    curve: tuple | collections.abc.Callable
    ledger: object = None
    notes: dict = dataclasses.field(default_factory=dict)
    statement: str = ""
