"""The figure of an experiment: ours as lines, the paper's as open markers.

Solid is proven (or calculated), dotted is only claimed (or no bound), dashed
is without privacy.
"""

import textwrap

from keras_fm.lab.engine import plot
from keras_fm.lab.reproduce import report

_OPEN = "^sDvPh*<>"


def draw(outcome, path):
    """Writes the figure as PNG.

    Args:
        outcome: of `session.run`.
        path: of the file.
    """
    experiment = outcome.experiment
    made = report.points(outcome)
    budgets = [None]
    if experiment.x.name not in ("epsilon", "category"):
        budgets = sorted({p["epsilon"] for p in made if p["epsilon"]}) or [None]
    figure, panels = plot.new(len(budgets))
    for ax, budget in zip(panels, budgets):
        if experiment.x.name == "category":
            _categories(ax, outcome, made)
        else:
            _lines(ax, outcome, made, budget)
        if budget is not None:
            ax.set_title(f"epsilon = {budget:g}", fontsize=10)
    if experiment.x.name != "category":
        panels[0].set_ylabel(experiment.y.label)
    width = 3.6 * len(budgets) + 3.2
    rows = plot.legend(figure, panels, columns=2 if width < 9 else 3)
    figure.set_size_inches(width, 4.4 + 0.19 * rows)
    figure.suptitle(
        _title(outcome, round(12.5 * width)), fontsize=10, parse_math=False
    )
    figure.savefig(path, dpi=100)


def _title(outcome, width):
    words = f"{outcome.experiment.name}, {outcome.form} form: "
    words += outcome.experiment.title
    if "data" in outcome.settings:
        words += f" [data: {outcome.settings['data']}]"
    return "\n".join(textwrap.wrap(words, width))


def _series_lines(outcome, made, budget=None):
    """Ours: one line for each series that has points here."""
    experiment, found = outcome.experiment, []
    shades = plot.colors(len(experiment.series))
    for series, shade in zip(experiment.series, shades):
        label = series.label
        if series.kind in ("claimed", "proven", "no privacy"):
            if series.kind not in label:
                label += f", {series.kind}"
        points = tuple(
            (p["x"], p["y"], p["spread"])
            for p in made
            if p["series"] == series.name
            and (budget is None or p["epsilon"] in (budget, None))
        )
        if points:
            found.append(
                plot.Line(
                    label=label,
                    kind=series.kind,
                    points=points,
                    style={"color": shade},
                )
            )
    return found


def _lines(ax, outcome, made, budget):
    experiment = outcome.experiment
    by_epsilon = experiment.x.name == "epsilon"
    lines = _series_lines(outcome, made, budget)
    plot.draw(ax, lines, experiment.y.scale)
    _facts(ax, outcome, budget)
    if experiment.x.is_log:
        ax.set_xscale("log", base=2 if by_epsilon else 10)
    if experiment.y.is_log:
        ax.set_yscale("log")
    ax.set_xlabel(experiment.x.label)
    if by_epsilon or experiment.sweep:
        values = {p["x"] for p in made if p["x"]}
        if by_epsilon:
            values |= {f.epsilon for f in outcome.facts if f.epsilon}
        plot.ticks(ax, values)


def _facts(ax, outcome, budget):
    """The paper's numbers: an open marker for each system, coloured as the
    series that it stands beside."""
    experiment = outcome.experiment
    colors = {}
    shades = plot.colors(len(experiment.series))
    for series, shade in zip(experiment.series, shades):
        for system in series.beside:
            colors.setdefault(system, shade)
    systems = dict.fromkeys(f.system for f in outcome.facts)
    markers = dict(zip(systems, _OPEN))
    for fact in outcome.facts:
        if fact.value is None:
            continue
        y = fact.value * experiment.y.scale
        style = {
            "color": colors.get(fact.system, "black"),
            "marker": markers[fact.system],
            "label": f"{fact.system}, paper",
            "markerfacecolor": "none",
            "markersize": 9,
            "zorder": 5,
        }
        x = fact.epsilon
        if experiment.x.name != "epsilon":
            is_here = experiment.x.name == "epochs" and x == budget
            if not is_here or fact.epochs is None:
                continue
            x = fact.epochs
        if x is not None:
            ax.plot([x], [y], **style, linestyle="none")
        else:
            _level_fact(ax, fact, y, style)


def _level_fact(ax, fact, y, style):
    """A mean over budgets lies between them; without an epsilon the number is
    level."""
    words = "mean" if fact.id.endswith("-mean") else "no epsilon given"
    line = {"color": style["color"], "linestyle": (0, (1, 3))}
    if fact.epsilon_range:
        low, high = fact.epsilon_range
        ax.plot([low, high], [y, y], **line)
        x, transform = (low * high) ** 0.5, ax.transData
    else:
        ax.axhline(y, **line)
        x, transform = 0.5, ax.get_yaxis_transform()
    style |= {**line, "alpha": 0.6, "label": f"{style['label']} ({words})"}
    ax.plot([x], [y], transform=transform, **style)


def _categories(ax, outcome, made):
    experiment, scale = outcome.experiment, outcome.experiment.y.scale
    known = [f for f in outcome.facts if f.value is not None]
    words = [p["x"] for p in made] + [f.category for f in outcome.facts]
    at = {w: i for i, w in enumerate(reversed(list(dict.fromkeys(words))))}
    for line in _series_lines(outcome, made):
        plot.category_points(ax, line, at, scale)
    if known:
        paper = plot.Line(
            label="paper",
            kind="formula",
            points=tuple((f.category, f.value, 0.0) for f in known),
            style={
                "marker": "D",
                "markersize": 11,
                "markerfacecolor": "none",
                "color": "black",
            },
        )
        plot.category_points(ax, paper, at, scale)
    ax.set_yticks(list(at.values()), list(at))
    ax.set_ylim(-0.6, len(at) - 0.4)
    ax.set_xlabel(experiment.y.label)
    if experiment.y.is_log:
        ax.set_xscale("log")
