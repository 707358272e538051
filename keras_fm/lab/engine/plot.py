"""Figures as PNG: solid is proven or calculated, dotted only claimed (or no
bound), dashed without privacy."""

import dataclasses

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
    """So many colours, no two alike up to twenty."""
    import matplotlib

    shades = matplotlib.colormaps["tab10" if count <= 10 else "tab20"]
    return [shades(i % 20) for i in range(count)]


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


def plain_ticks(axis, values):
    """Numbers, not powers, on a logarithmic axis of few decades."""
    from matplotlib import ticker

    values = [v for v in values if v > 0]
    if not values or max(values) > 1000 * min(values):
        return
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


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
