"""Figures as PNG: solid is proven or calculated, dotted only claimed (or no
bound), dashed without privacy."""

import dataclasses

# Letters of a label at the end of a line.
_LONGEST = 34
_MARKERS = "osD^vPX*<>phdH"
_LINES = {
    "claimed": (":", "x"),
    "proven": ("-", "o"),
    "no privacy": ("--", ""),
    "calculated": ("-", "s"),
    "formula": (":", "x"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a figure.

    Attributes:
        label: words for the legend.
        kind: of its `Series`.
        points: tuple of `(x, y, spread)`; x is `None` for a level line.
        style: dict of matplotlib's settings that win over the kind's.
    """

    label: str
    kind: str
    points: tuple
    style: dict = dataclasses.field(default_factory=dict)


def new(panels, size=None):
    """A figure and its panels, side by side."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained", **({"figsize": size} if size else {}))
    axes = figure.subplots(1, panels, squeeze=False, sharey=size is None)[0]
    for ax in axes:
        ax.grid(alpha=0.3)
    return figure, axes


def colors(count):
    """So many colours that words can have, no two alike up to eighteen."""
    import matplotlib

    shades = [
        color
        for name in ("tab10", "Dark2")
        for color in matplotlib.colormaps[name].colors
    ]
    return [shades[i % len(shades)] for i in range(count)]


def markers(count):
    """So many markers, no two alike up to fourteen."""
    return [_MARKERS[i % len(_MARKERS)] for i in range(count)]


def draw(ax, lines, scale=1.0):
    """Lines with error bars; level ones over the whole panel."""
    for line in lines:
        dash, marker = _LINES[line.kind]
        style = {"linestyle": dash, "label": line.label, **line.style}
        if line.points[0][0] is None:
            style.pop("marker", None)
            ax.axhline(line.points[0][1] * scale, linewidth=1, **style)
            continue
        x, y, spread = zip(*sorted(line.points))
        ax.errorbar(
            x,
            [v * scale for v in y],
            yerr=[v * scale for v in spread] if any(spread) else None,
            **{"marker": marker, "markersize": 5, "capsize": 2, **style},
        )


def end_labels(ax, ends, size=8):
    """A word at the end of each line, no two over each other.

    Args:
        ax: a panel whose limits are final.
        ends: list of `(x, y, words, color)`; the x of a level line is `None`.
        size: of the letters, in points.
    """
    height = ax.get_figure().get_size_inches()[1] * 72 * 0.8
    seen = [(_fraction(ax, x, y), *rest) for x, y, *rest in ends]
    seen = [end for end in seen if -1e-9 <= end[0][1] <= 1 + 1e-9]
    places = apart([y for (_, y), *_ in seen], 1.25 * size / height)
    for ((x, y), words, color), place in zip(seen, places):
        ax.annotate(
            words,
            xy=(x, y),
            xytext=(1.03, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            fontsize=size,
            va="center",
            color=color,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),
                "color": color,
                "linewidth": 0.6,
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )


def shortened(label):
    """A label without what the figure itself says."""
    label = label.removesuffix(", as published")
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"


def _fraction(ax, x, y):
    """A point of a panel in shares of its width and height."""
    known = ax.get_xlim()[1] if x is None else x
    point = ax.transData.transform((known, y))
    return tuple(ax.transAxes.inverted().transform(point))


def apart(values, gap):
    """Places in [0, 1] near some values, in their order, `gap` apart as far
    as there is room."""
    order = sorted(range(len(values)), key=values.__getitem__)
    gap = min(gap, 1 / max(1, len(order) - 1))
    found, least = [0.0] * len(values), 0.0
    for index in order:
        found[index] = max(values[index], least)
        least = found[index] + gap
    most = 1.0
    for index in reversed(order):
        found[index] = min(found[index], most)
        most = found[index] - gap
    return found


def window(proven, others=()):
    """Limits of an axis that shows what is proven, and of the rest what is
    near it.

    Args:
        proven: list of (value, half the length of its error bar).
        others: values.
    """
    least, most = min(y for y, _ in proven), max(y for y, _ in proven)
    near = [y for y in others if least <= y <= most + 0.5 * (most - least)]
    low = min(y - error for y, error in proven)
    high = max(y + error for y, error in proven)
    pad = max(0.06 * (high - low), 0.01 * abs(high), 1e-9)
    return low - pad, max([high, *near]) + pad


def category_points(ax, line, places, scale=1.0):
    """Points at words instead of numbers."""
    ax.plot(
        [y * scale for _, y, _ in line.points],
        [places[x] for x, _, _ in line.points],
        **{
            "linestyle": "none",
            "marker": "x" if line.kind == "formula" else "o",
            "markersize": 6,
            "label": line.label,
            **line.style,
        },
    )


def ticks(ax, values):
    """Numbers of their own on the axis of x."""
    values = sorted(values)
    ax.set_xticks(values, [f"{v:g}" for v in values])
    ax.minorticks_off()


def legend(figure, axes, columns):
    """Draws one below all panels; the number of its rows."""
    entries = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    figure.legend(
        entries.values(),
        entries,
        fontsize=8,
        loc="outside lower center",
        ncol=columns,
    )
    return -(-len(entries) // columns)
