"""Runs as one page of HTML, made by templates that escape everything.

What stands on a page may come from files that anybody wrote: it is text
wherever it stands, and made harmless to read as it is written.
"""

import base64
import dataclasses
import datetime
import functools
import hashlib
import os
import re

import jinja2
import markupsafe

from keras_fm.lab.engine import files
from keras_fm.version import __version__

_LONGEST_TEXT = 100_000
# Control characters, halves of surrogate pairs, and marks that reverse the
# order of what is read ("proven" may be spelt backwards with them).
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
# What a number is worth, as a badge says it.
PROVEN, CLAIMED, NO_PRIVACY = "proven", "claimed, not proven", "no privacy"
STANDINGS = {
    PROVEN: "is-proven",
    CLAIMED: "is-claimed",
    NO_PRIVACY: "is-no-privacy",
    "proven bound": "is-bound",
    "as printed, no bound": "is-as-printed",
    "does not apply": "is-not-applicable",
    "calculated": "is-calculated",
    "the paper's number": "is-paper",
    "not stated": "is-unknown",
    "violated at 95%": "is-violated",
    "not refuted": "is-not-refuted",
    "inconclusive: no power": "is-no-power",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: str, what is shown; "" for a dash.
        key: float or `None`, what a column of numbers is sorted by.
        is_best: whether it is marked as the best of its column.
    """

    text: str = ""
    key: float | None = None
    is_best: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the first cell of every row names the row. A cell whose text
    is one of `STANDINGS` is shown as a badge. One that `wraps` holds words."""

    caption: str
    columns: tuple
    rows: tuple
    wraps: bool = False

    @classmethod
    def of(cls, caption, columns, rows, keep=(), wraps=False):
        """A table of rows.

        Args:
            caption: str.
            columns: dict from titles to functions of a row to a `Cell`.
            rows: list.
            keep: titles of columns that stay where nothing stands in them.
            wraps: whether words go on in the next line.
        """
        made = {t: [cell(row) for row in rows] for t, cell in columns.items()}
        first = next(iter(made))
        shown = {
            title: cells
            for title, cells in made.items()
            if title in (first, *keep) or any(cell.text for cell in cells)
        }
        return cls(
            caption=caption,
            columns=tuple(shown),
            rows=tuple(zip(*shown.values())),
            wraps=wraps,
        )

    def is_number(self, index):
        """Whether a column holds numbers."""
        return any(row[index].key is not None for row in self.rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Everything of one run that a page shows.

    Attributes:
        kind: name of the command that wrote it.
        title, lead: str, a heading and a sentence.
        standing: one of `STANDINGS`, beside the title, or "".
        facts: tuple of (name, value): data, relation, delta, ...
        caveats: tuple of str, what a reader must know first.
        pictures: tuple of (data URI of a PNG, caption).
        tables, tables_after: tuples of `Table`; the second are folded.
        statements: tuple of (title, text), folded.
        command: str, or "" where none was recorded.
        setting: tuple of (name, value): versions, settings, dates.
    """

    kind: str
    title: str
    lead: str
    standing: str = ""
    facts: tuple = ()
    caveats: tuple = ()
    pictures: tuple = ()
    tables: tuple = ()
    tables_after: tuple = ()
    statements: tuple = ()
    command: str = ""
    setting: tuple = ()


def clean(text):
    """Text without characters that mislead or that HTML forbids."""
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + " [cut]"
    return _HARMFUL.sub("\ufffd", text.replace("\r\n", "\n"))


def render(runs):
    """One self-contained page.

    Args:
        runs: sequence of `Run`, at least one.

    Returns:
        str, HTML that loads nothing: style, script and pictures are in it,
        and its content security policy forbids all else.

    Raises:
        ValueError: without a run.
    """
    runs = tuple(runs)
    if not runs:
        raise ValueError("A page needs at least one run.")
    environment = _environment()
    script = _source(environment, "page.js")
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    now = datetime.datetime.now(datetime.timezone.utc)
    return environment.get_template("page.html.j2").render(
        runs=runs,
        standings=STANDINGS,
        style=markupsafe.Markup(_source(environment, "page.css")),
        script=markupsafe.Markup(script),
        script_hash=base64.b64encode(digest).decode("ascii"),
        version=__version__,
        now=now.strftime("%Y-%m-%d %H:%M UTC"),
    )


@functools.cache
def _environment():
    return jinja2.Environment(
        loader=jinja2.PackageLoader("keras_fm.lab.report"),
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalize(value):
    # Pictures are long, and what made them wrote no other character.
    if isinstance(value, markupsafe.Markup) or not isinstance(value, str):
        return value
    return value if value.startswith("data:") else clean(value)


def _source(environment, name):
    return environment.loader.get_source(environment, name)[0]


def write(runs, path):
    """Writes the page.

    Args:
        runs: sequence of `Run`.
        path: str, a file that ends in `.html`.

    Raises:
        ValueError: if the path is no name of a page.
        OSError: if it cannot be written.
    """
    if not str(path).lower().endswith((".html", ".htm")):
        raise ValueError(
            f"The name of a page must end in .html. Received: {path!r}"
        )
    text = render(runs)
    files.write_text(*os.path.split(os.path.abspath(path)), text)
