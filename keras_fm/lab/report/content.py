"""What a page shows, free of HTML: facts, tables, figures, statements.

Every kind of run is told in these words, so that proven and claimed look the
same wherever they stand.
"""

import dataclasses
import enum
import math


class Standing(enum.Enum):
    """What a number is worth; its value is what the badge says."""

    PROVEN = "proven"
    CLAIMED = "claimed, not proven"
    NO_PRIVACY = "no privacy"
    BOUND = "proven bound"
    CALCULATED = "calculated"
    AS_PRINTED = "as printed, no bound"
    NOT_APPLICABLE = "does not apply"
    PAPER = "the paper's number"
    VIOLATED = "violated at 95%"
    NOT_REFUTED = "not refuted"
    NO_POWER = "inconclusive: no power"
    UNKNOWN = "not stated"

    @property
    def css(self):
        """Its name as a CSS class."""
        return "is-" + self.name.lower().replace("_", "-")


NO_PROOF = "no valid proof"


def standing_of(proven, claimed):
    """The standing of a training.

    Args:
        proven: epsilon composed from its ledger; `None` or not finite
            without a valid proof.
        claimed: epsilon that a paper asserts; `None` without.

    Example:

    >>> standing_of(math.inf, 1.0).value
    'claimed, not proven'
    """
    if proven is not None and math.isfinite(proven):
        return Standing.PROVEN
    if claimed is not None and math.isfinite(claimed):
        return Standing.CLAIMED
    return Standing.NO_PRIVACY


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: str, what is shown.
        key: float or `None`, what a column of numbers is sorted by.
        standing: `Standing` or `None`, shown as a badge after the text.
        is_quiet: whether it says that there is nothing to say.
        aside: str, less important, after the text.
        is_best: whether it is marked as the best of its column.
    """

    text: str = ""
    key: float | None = None
    standing: Standing | None = None
    is_quiet: bool = False
    aside: str = ""
    is_best: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """Head of a column; `hint` explains it below the table."""

    title: str
    is_number: bool = True
    hint: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the first cell of every row names the row."""

    caption: str
    columns: tuple
    rows: tuple

    def without_empty_columns(self, keep=()):
        """The same without columns in which nothing stands, but `keep`."""
        kept = [
            index
            for index, column in enumerate(self.columns)
            if index == 0
            or column.title in keep
            or any(not row[index].is_quiet for row in self.rows)
        ]
        return dataclasses.replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a figure's legend.

    Attributes:
        label: str.
        standing: `Standing` or `None`.
        swatch: SVG of the line, made by `figures`.
    """

    label: str
    standing: Standing | None
    swatch: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure: `svg` made by `figures`, or the PNG that the run left.

    Attributes:
        caption, alt: str.
        svg: SVG, or "".
        png: data URI, or "".
        width, height: of the PNG, in pixels.
        legend: tuple of `Entry`.
    """

    caption: str
    alt: str
    svg: str = ""
    png: str = ""
    width: int = 0
    height: int = 0
    legend: tuple = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Detail:
    """What is known of one row: numbers, settings, its privacy statement.

    Attributes:
        title: str.
        standing: `Standing` or `None`.
        summary: str, one line beside the title.
        about: str, one sentence.
        facts: tuple of (name, value).
        statement: str, many lines.
        is_aligned: whether the statement is a table of text, whose lines
            must not be wrapped.
    """

    title: str
    standing: Standing | None = None
    summary: str = ""
    about: str = ""
    facts: tuple = ()
    statement: str = ""
    is_aligned: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Everything of one run that a page shows.

    Attributes:
        kind: name of the command that wrote it.
        title, lead: str, a heading and a sentence.
        standing: `Standing` or `None`, beside the title.
        facts: tuple of (name, value): data, relation, delta, ...
        caveats: tuple of str, what a reader must know first.
        figures: tuple of `Figure`.
        tables: tuple of `Table`.
        details: tuple of `Detail`, folded.
        command: str, or "" where none is known.
        is_recorded: whether the run itself recorded the command.
        setting: tuple of (name, value): versions, seeds, dates.
        settings: tuple of (name, value), all of them, folded.
        tables_after: tuple of `Table`, folded.
    """

    kind: str
    title: str
    lead: str
    standing: Standing | None = None
    facts: tuple = ()
    caveats: tuple = ()
    figures: tuple = ()
    tables: tuple = ()
    details: tuple = ()
    command: str = ""
    is_recorded: bool = False
    setting: tuple = ()
    settings: tuple = ()
    tables_after: tuple = ()
