"""Figures as SVG that takes its colours from the page.

Matplotlib draws with colours that stand for names; they are replaced by the
page's own, so that one drawing serves light and dark. Text stays text. No
word of a file gets to Matplotlib: it draws places for labels, which are put
there as text of XML.
"""

import contextlib
import dataclasses
import io
import re
import xml.etree.ElementTree as ElementTree

from keras_fm.lab.engine import plot
from keras_fm.lab.report.checked import finite
from keras_fm.lab.report.content import Standing

# What `render` replaces to keep the ids of one page apart.
ID_PREFIX = "drawn-"
_INK, _FAINT, _SURFACE = "#000000", "#010201", "#010202"
_SERIES = tuple(f"#0103{index:02x}" for index in range(8))
_CSS = {
    _INK: "currentColor",
    _FAINT: "var(--grid)",
    _SURFACE: "var(--surface)",
    **{color: f"var(--series-{i})" for i, color in enumerate(_SERIES)},
}
_MARKERS = "osD^vPX*"
_STYLES = {
    Standing.PROVEN: "-",
    Standing.BOUND: "-",
    Standing.CLAIMED: ":",
    Standing.NO_PRIVACY: "--",
}
_RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "keras_fm",
    "text.parse_math": False,
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
}
# What a logarithmic axis can carry.
_SMALLEST, _LARGEST = 1e-9, 1e12
_MOST_TICKS = 8
_LETTERS = 9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a figure.

    Attributes:
        points: tuple of (x, y, half the length of the error bar), sorted;
            a line over all x where x is `None`.
        standing: its `Standing`: solid and filled where proven, dotted and
            hollow where claimed, dashed without privacy.
        index: int, chooses colour and marker.
        label: str, at the line's end.
        is_dashed: dashed whatever the standing.
    """

    points: tuple
    standing: Standing
    index: int
    label: str
    is_dashed: bool = False

    def end(self):
        """Where its label begins."""
        return self.points[-1][:2]

    def style(self):
        color = _SERIES[self.index % len(_SERIES)]
        filled = self.standing in (Standing.PROVEN, Standing.BOUND)
        line = "--" if self.is_dashed else _STYLES.get(self.standing, ":")
        turn = self.index + self.index // len(_SERIES)
        return {
            "color": color,
            "linestyle": line,
            "linewidth": 1.6,
            "marker": _MARKERS[turn % len(_MARKERS)],
            "markersize": 5,
            "markerfacecolor": color if filled else _SURFACE,
        }


def drawable(lines, log_y=False):
    """The lines with only such points as the axes can carry."""
    low = _SMALLEST if log_y else -_LARGEST
    made = []
    for line in lines:
        points = tuple(
            (x, y, error if finite(error) else 0.0)
            for x, y, error in line.points
            if finite(y)
            and low <= y <= _LARGEST
            and (x is None or (finite(x) and _SMALLEST <= x <= _LARGEST))
        )
        if points:
            made.append(dataclasses.replace(line, points=points))
    return made


def draw_lines(
    lines, *, x_label, y_label, log_y=False, decimal_x=False, window=None
):
    """Lines over a logarithmic axis, a label at the end of each.

    Args:
        lines: `Line`s, made by `drawable`.
        x_label, y_label: str, of this package.
        log_y: whether y is logarithmic too.
        decimal_x: whether x goes in powers of ten, not of two.
        window: `None`, or the limits of y.

    Returns:
        SVG as a string.
    """
    with _drawing() as (figure, axes):
        ticks = sorted({x for line in lines for x, _, _ in line.points if x})
        for line in lines:
            style = line.style()
            if line.points[0][0] is None:
                style = {k: v for k, v in style.items() if "marker" not in k}
                axes.axhline(line.points[0][1], **style)
                continue
            x, y, error = zip(*line.points)
            shown = error if any(error) else None
            axes.errorbar(x, y, yerr=shown, capsize=2.5, **style)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if ticks:
            axes.set_xscale("log", base=10 if decimal_x else 2)
            if not decimal_x and len(ticks) <= _MOST_TICKS:
                axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
                axes.minorticks_off()
            else:
                axes.xaxis.set_major_formatter(_plain)
                axes.xaxis.set_minor_formatter("")
                plot.plain_ticks(axes.xaxis, ticks)
        if log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(_plain)
        if window:
            axes.set_ylim(window)
        places = {}
        for number, line in enumerate(lines):
            # As wide as the label will be.
            words = plot.shortened(line.label)
            places[f"{number:03d}".ljust(len(words), "n")] = words
        plot.end_labels(
            axes,
            [
                (*line.end(), place, line.style()["color"])
                for line, place in zip(lines, places)
            ],
            _LETTERS,
        )
        return _svg(figure, places=places)


def _plain(value, _):
    return f"{value:,.0f}" if 1 <= value < 1e6 else f"{value:g}"


def draw_bars(groups, names, marks):
    """Groups of two bars, and lines over all of them.

    Args:
        groups: list of pairs of heights.
        names: list of str, of this package, below the groups.
        marks: list of (height, index of colour, line style).

    Returns:
        SVG as a string.
    """
    with _drawing() as (figure, axes):
        for side, color in ((0, _SERIES[7]), (1, _SERIES[0])):
            axes.bar(
                [place + 0.4 * side - 0.2 for place in range(len(groups))],
                [pair[side] for pair in groups],
                width=0.36,
                color=color,
            )
        for height, index, style in marks:
            axes.axhline(height, color=_SERIES[index], linestyle=style)
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel("lower bound on epsilon")
        return _svg(figure)


def block(index):
    """A bar's piece of the legend, as SVG."""
    return (
        '<svg class="swatch" viewBox="0 0 30 11" aria-hidden="true">'
        f'<path d="M8 1h14v9H8z" fill="var(--series-{index})" /></svg>'
    )


def rule(index, dashes=""):
    """A line over all bars, its piece of the legend, as SVG."""
    dashes = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        '<svg class="swatch" viewBox="0 0 30 11" aria-hidden="true">'
        f'<path d="M1 5.5h28" stroke="var(--series-{index})" fill="none" '
        f'stroke-width="1.6"{dashes} /></svg>'
    )


# Matplotlib's SVG, made part of a page ----------------------------------------


@contextlib.contextmanager
def _drawing():
    """A figure and its axes, in the style of a page."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(5.2, 4.2), layout="constrained")
        axes = figure.subplots()
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        yield figure, axes


def _svg(figure, places=()):
    """The figure as an `svg` element without anything foreign.

    Args:
        figure: of Matplotlib.
        places: dict from texts that it drew to what stands there instead.
    """
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(k): v for k, v in element.attrib.items()}
        for name in ("metadata", "style"):
            for child in [c for c in element if _local(c.tag) == name]:
                element.remove(child)
    used = set(re.findall(r"#([\w-]+)", _references(root)))
    for element in root.iter():
        _adopt(element, used)
        if _local(element.tag) == "text" and element.text in places:
            element.text = places[element.text]
    root.attrib = {"class": "drawing", "viewBox": root.get("viewBox")}
    root.set("aria-hidden", "true")
    return ElementTree.tostring(root, encoding="unicode").strip()


def _local(name):
    return name.rpartition("}")[2]


def _references(root):
    return " ".join(
        value
        for element in root.iter()
        for name, value in element.attrib.items()
        if name in ("href", "clip-path")
    )


def _adopt(element, used):
    """Ids of its own, colours of the page, no fonts."""
    found = element.attrib.pop("id", None)
    if found in used:
        element.set("id", ID_PREFIX + found)
    for name in ("href", "clip-path"):
        if name in element.attrib:
            value = element.attrib[name].replace("#", "#" + ID_PREFIX)
            element.set(name, value)
    kept = []
    for part in element.attrib.pop("style", "").split(";"):
        if part.strip() and not part.strip().startswith("font-family"):
            kept.append(re.sub(r"#[0-9a-f]{6}", _color, part.strip()))
    if kept:
        element.set("style", "; ".join(kept))
    element.tail = None
    if element.text and not element.text.strip():
        element.text = None


def _color(match):
    return _CSS[match.group()]
