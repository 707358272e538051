"""The figure of an experiment: ours as lines, the paper's as open markers.

Solid is proven (or calculated), dotted is only claimed (or no bound), dashed
is without privacy.
"""

import textwrap

from keras_fm.lab.reproduce import report

_LINES = {
    "claimed": (":", "x"),
    "proven": ("-", "o"),
    "no privacy": ("--", ""),
    "calculated": ("-", "s"),
    "formula": (":", "x"),
}
_OPEN = "^sDvPh*<>"


def draw(outcome, path):
    """Writes the figure as PNG.

    Args:
        outcome: of `session.run`.
        path: of the file.
    """
    from matplotlib.figure import Figure

    experiment = outcome.experiment
    made = report.points(outcome)
    budgets = [None]
    if experiment.x.name not in ("epsilon", "category"):
        budgets = sorted({p["epsilon"] for p in made if p["epsilon"]}) or [None]
    figure = Figure(layout="constrained")
    panels = figure.subplots(1, len(budgets), squeeze=False, sharey=True)[0]
    for ax, budget in zip(panels, budgets):
        if experiment.x.name == "category":
            _categories(ax, outcome, made)
        else:
            _lines(ax, outcome, made, budget)
        if budget is not None:
            ax.set_title(f"epsilon = {budget:g}", fontsize=10)
        ax.grid(alpha=0.3)
    if experiment.x.name != "category":
        panels[0].set_ylabel(experiment.y.label)
    width = 3.6 * len(budgets) + 3.2
    columns = 2 if width < 9 else 3
    rows = _legend(figure, panels, columns)
    figure.set_size_inches(width, 4.4 + 0.19 * rows)
    figure.suptitle(_title(outcome, round(12.5 * width)), fontsize=10)
    figure.savefig(path, dpi=100)


def _title(outcome, width):
    words = f"{outcome.experiment.name}, {outcome.form} form: "
    words += outcome.experiment.title
    if "data" in outcome.settings:
        words += f" [data: {outcome.settings['data']}]"
    return "\n".join(textwrap.wrap(words, width))


def _legend(figure, panels, columns):
    """Draws it below the panels; the number of its rows."""
    entries = {}
    for ax in panels:
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


def _label(series):
    ends = {"claimed": "claimed", "proven": "proven"}
    ends["no privacy"] = "no privacy"
    word = ends.get(series.kind)
    if word is None or word in series.label:
        return series.label
    return f"{series.label}, {word}"


def _markers(facts):
    """An open marker for each system."""
    systems = list(dict.fromkeys(f.system for f in facts))
    return dict(zip(systems, _OPEN))


def _colors(experiment):
    import matplotlib

    count = len(experiment.series)
    shades = matplotlib.colormaps["tab10" if count <= 10 else "tab20"]
    return {s.name: shades(i) for i, s in enumerate(experiment.series)}


def _lines(ax, outcome, made, budget):
    experiment, scale = outcome.experiment, outcome.experiment.y.scale
    by_epsilon = experiment.x.name == "epsilon"
    colors = _colors(experiment)
    for series in experiment.series:
        mine = [
            p
            for p in made
            if p["series"] == series.name
            and (by_epsilon or p["epsilon"] in (budget, None))
        ]
        if not mine:
            continue
        line, marker = _LINES[series.kind]
        style = {
            "color": colors[series.name],
            "linestyle": line,
            "label": _label(series),
        }
        if mine[0]["x"] is None:
            ax.axhline(mine[0]["y"] * scale, linewidth=1, **style)
            continue
        mine.sort(key=lambda p: p["x"])
        ax.errorbar(
            [p["x"] for p in mine],
            [p["y"] * scale for p in mine],
            yerr=[p["spread"] * scale for p in mine]
            if any(p["spread"] for p in mine)
            else None,
            marker=marker,
            markersize=5,
            capsize=2,
            **style,
        )
    _facts(ax, outcome, colors, budget)
    if experiment.x.is_log:
        ax.set_xscale("log", base=2 if by_epsilon else 10)
    if experiment.y.is_log:
        ax.set_yscale("log")
        _plain_ticks(ax.yaxis, [p["y"] for p in made])
    ax.set_xlabel(experiment.x.label)
    if by_epsilon or experiment.sweep:
        ticks = {p["x"] for p in made if p["x"]}
        if by_epsilon:
            ticks |= {f.epsilon for f in outcome.facts if f.epsilon}
        ticks = sorted(ticks)
        ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
        ax.minorticks_off()


def _facts(ax, outcome, colors, budget):
    experiment = outcome.experiment
    by_epsilon = experiment.x.name == "epsilon"
    markers = _markers(outcome.facts)
    for fact in outcome.facts:
        if fact.value is None:
            continue
        y = fact.value * experiment.y.scale
        color = next(
            (
                colors[s.name]
                for s in experiment.series
                if fact.system in s.beside
            ),
            "black",
        )
        style = {"color": color, "marker": markers[fact.system]}
        style |= {"markerfacecolor": "none", "markersize": 9, "zorder": 5}
        label = f"{fact.system}, paper"
        if not by_epsilon:
            if fact.epsilon != budget or fact.epochs is None:
                continue
            if experiment.x.name != "epochs":
                continue
            ax.plot([fact.epochs], [y], linestyle="none", label=label, **style)
        elif fact.epsilon is not None:
            ax.plot([fact.epsilon], [y], linestyle="none", label=label, **style)
        else:
            # A mean over budgets lies between them; without an epsilon the
            # number is level.
            words = "mean" if fact.id.endswith("-mean") else "no epsilon given"
            label = f"{label} ({words})"
            line = {"color": color, "linestyle": (0, (1, 3))}
            if fact.epsilon_range:
                low, high = fact.epsilon_range
                ax.plot([low, high], [y, y], **line)
                x, transform = (low * high) ** 0.5, ax.transData
            else:
                ax.axhline(y, **line)
                x, transform = 0.5, ax.get_yaxis_transform()
            ax.plot(
                [x],
                [y],
                label=label,
                transform=transform,
                **{**style, **line, "alpha": 0.6},
            )


def _categories(ax, outcome, made):
    experiment, scale = outcome.experiment, outcome.experiment.y.scale
    words = list(dict.fromkeys(p["x"] for p in made))
    words += [
        c
        for c in dict.fromkeys(map(report.category, outcome.facts))
        if c not in words
    ]
    at = {word: i for i, word in enumerate(reversed(words))}
    for index, series in enumerate(experiment.series):
        mine = [p for p in made if p["series"] == series.name]
        if not mine:
            continue
        ax.plot(
            [p["y"] * scale for p in mine],
            [at[p["x"]] for p in mine],
            linestyle="none",
            marker={"formula": "x"}.get(series.kind, "o"),
            color=f"C{index}",
            markersize=6,
            label=_label(series),
        )
    known = [f for f in outcome.facts if f.value is not None]
    if known:
        ax.plot(
            [f.value * scale for f in known],
            [at[report.category(f)] for f in known],
            linestyle="none",
            marker="D",
            markersize=11,
            markerfacecolor="none",
            color="black",
            label="paper",
        )
    ax.set_yticks(list(at.values()), list(at))
    ax.set_ylim(-0.6, len(at) - 0.4)
    ax.set_xlabel(experiment.y.label)
    if experiment.y.is_log:
        ax.set_xscale("log")
        _plain_ticks(ax.xaxis, [p["y"] for p in made])


def _plain_ticks(axis, values):
    """Numbers, not powers, on a logarithmic axis of few decades."""
    from matplotlib import ticker

    values = [v for v in values if v > 0]
    if not values or max(values) > 1000 * min(values):
        return
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())
