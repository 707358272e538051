"""Pieces that the pages of several kinds of run share."""

import base64
import re

from keras_fm.lab.report import checked, figures
from keras_fm.lab.report.content import Cell, Column, Figure, Table

NOTHING = "–"
_TIME = re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")


def plain(value, spec=".4g", unit=""):
    """A number as text, "" without one."""
    return "" if value is None else f"{value:{spec}}{unit}"


def number(value, spec=".4g"):
    """A cell with a number, or a dash."""
    if value is None or value != value:
        return Cell(text=NOTHING, is_quiet=True)
    return Cell(text=f"{value:{spec}}", key=value)


def words(text):
    """A cell with text, or a dash."""
    return Cell(text=text or NOTHING, is_quiet=not text)


def standing(value):
    """A cell with a badge."""
    return Cell(text=value.value, standing=value)


def column(title, cell, hint=""):
    """A column of numbers: its head, and what makes a row's cell."""
    return Column(title=title, hint=hint), cell


def text_column(title, cell, hint=""):
    """A column of words."""
    return Column(title=title, is_number=False, hint=hint), cell


def table(caption, columns, rows, keep=()):
    """A table by columns, without those in which nothing stands, but `keep`;
    `None` without rows."""
    if not rows:
        return None
    return Table(
        caption=caption,
        columns=tuple(head for head, _ in columns),
        rows=tuple(tuple(cell(row) for _, cell in columns) for row in rows),
    ).without_empty_columns(keep)


def known(facts):
    """Those (name, value) that say something."""
    return tuple((name, value) for name, value in facts if value)


def some(*values):
    """Those that are there."""
    return tuple(value for value in values if value is not None)


def versions(summary):
    """What the run recorded of its packages, as facts."""
    found = dict(summary.fields("versions").words())
    backend = found.pop("backend", "") or summary.text("backend")
    packages = ", ".join(f"{k} {v}" for k, v in found.items())
    return [("Keras backend", backend), ("versions", packages)]


def when(summary):
    """When the run was made: as recorded, or the earliest time in its
    privacy statements; "" without either."""
    found = summary.text("when")
    if not found:
        times = [
            time
            for _, text in summary.fields("statements").words()
            for time in _TIME.findall(text)
        ]
        found = min(times, default="")
    if _TIME.fullmatch(found):
        found = found.replace("T", " ").removesuffix("+00:00") + " UTC"
    return found


def png_figure(folder, name, *, caption, alt):
    """The picture that a run left, or `None`.

    Raises:
        ValueError: if it is no PNG.
    """
    if not checked.has(folder, name):
        return None
    content = checked.read_bytes(folder, name)
    width, height = checked.png_size(content, name)
    data = base64.b64encode(content).decode("ascii")
    return Figure(
        caption=caption,
        alt=alt,
        png=f"data:image/png;base64,{data}",
        width=width,
        height=height,
    )


def line_figure(folder, fallback, lines, *, caption, alt, **axes):
    """Lines drawn as SVG; the run's own picture where none can be.

    Args:
        folder, fallback: the run, and the name of its picture.
        lines: list of `figures.Line`.
        caption, alt: str.
        **axes: see `figures.draw_lines`.
    """
    shown = figures.drawable(lines, axes.get("log_y", False))
    if not shown:
        return png_figure(folder, fallback, caption=caption, alt=alt)
    svg = figures.draw_lines(shown, **axes)
    return Figure(caption=caption, alt=alt, svg=svg)
