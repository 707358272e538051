"""Every method on one plan: rows, series, table, CSV and plot."""

import dataclasses
import functools
import math
import os

from keras_fm.kernel import checks
from keras_fm.lab.composition import accountants, survey, theorems
from keras_fm.lab.composition.composed import Composed, none
from keras_fm.lab.composition.plan import Plan
from keras_fm.lab.composition.steps import has_gaussian
from keras_fm.lab.engine import files

_sampled = functools.partial(functools.partial, sampled=True)

METHODS = {
    "basic": theorems.basic,
    "advanced": theorems.advanced,
    "kairouz": theorems.kairouz,
    "optimal": theorems.optimal,
    "sampled_basic": _sampled(theorems.basic),
    "sampled_advanced": _sampled(theorems.advanced),
    "sampled_kairouz": _sampled(theorems.kairouz),
    "sampled_optimal": _sampled(theorems.optimal),
    "moments": accountants.moments,
    "renyi": accountants.renyi,
    "pld": accountants.pld,
    "survey_basic": survey.survey_basic,
    "survey_advanced": survey.survey_advanced,
    "survey_sampling": survey.survey_sampling,
    "survey_accountant": survey.survey_accountant,
}


def compose(plan, delta, methods=None):
    """Every method's epsilon for one plan.

    Args:
        plan: a `Plan`.
        delta: float in [0, 1), the total delta that bounds may use.
        methods: sequence of names in `METHODS`; all by default.

    Returns:
        list of `Composed`, in the order of `methods`.

    Raises:
        ValueError: if delta is out of range, or 0 with Gaussian or
            approximate stages; if a method is unknown.

    Example:

    >>> plan = Plan([Stage(mechanism="pure", epsilon=0.1, count=1000)])
    >>> for row in compose(plan, 1e-5, ["basic", "optimal"]):
    ...     print(row.method, round(row.epsilon, 2))
    basic 100.0
    optimal 17.79
    """
    methods = check_methods(methods)
    delta = checks.number(
        "delta", delta, at_least=0, below=1, wanted="a number in [0, 1)"
    )
    if delta == 0 and (
        has_gaussian(plan) or any(s.delta is not None for s in plan.stages)
    ):
        raise ValueError(
            "Gaussian and approximate stages need `delta` > 0. Received: "
            f"delta={delta}"
        )
    return [_paying_for_overflow(METHODS[m], plan, delta) for m in methods]


def rdp_epsilon(mechanisms, delta):
    """Epsilon at `delta` by Renyi divergences (moments), for comparison.

    An upper bound, as `mechanisms.compose_epsilon` is, and in general a
    larger one; most published numbers are of this kind.

    Args:
        mechanisms: sequence of `Mechanism`.
        delta: float in (0, 1).

    Returns:
        float, infinite if no epsilon is met at this delta.

    Example:

    >>> samples = sampling.plan(60000, batch_size=1000, steps=1800, delta=1e-5)
    >>> round(rdp_epsilon([samples.mechanism(1.0)], 1e-5), 2)
    4.75
    """
    if not mechanisms:
        return 0.0
    (row,) = compose(Plan.of_mechanisms(mechanisms), delta, ["renyi"])
    return math.inf if row.epsilon is None else row.epsilon


def check_methods(methods):
    """Returns the names as a tuple; raises `ValueError` for unknown ones."""
    methods = tuple(METHODS) if methods is None else tuple(methods)
    unknown = [m for m in methods if m not in METHODS]
    if unknown or not methods:
        raise ValueError(
            f"`methods` must be among {', '.join(METHODS)}. Received: "
            f"{', '.join(map(repr, unknown)) or 'none'}"
        )
    return methods


def _paying_for_overflow(method, plan, delta):
    """The method's result with overflow paid for at its own epsilon.

    The real run differs from the ideal one with probability p. If the ideal run
    is (x, d)-DP, the real one is (x, d + (1 + exp(x)) p)-DP:
    docs/proofs/mechanisms.md.
    """
    result = method(plan, delta)
    p = plan.overflow_probability
    if p == 0 or not result.is_bound():
        return result
    reason = f"an overflow (probability {p:.2g}) cannot be paid for"
    for _ in range(20):
        x = result.epsilon
        cost = (1 + math.exp(x)) * p if x < 700 else math.inf
        if cost >= delta:
            break
        paid = method(plan, delta - cost)
        if not paid.is_bound():
            break
        if paid.epsilon <= x:
            return dataclasses.replace(result, delta=paid.delta + cost)
        result = dataclasses.replace(paid, epsilon=paid.epsilon * (1 + 1e-6))
    return none(result.method, reason)


def automatic_counts(plan):
    """1, 2, 5, 10, ... up to and with the runs of a plan of one stage; 1 to 100
    for a longer plan.

    Example:

    >>> automatic_counts(Plan([Stage(mechanism="pure", epsilon=1, count=30)]))
    [1, 2, 5, 10, 20, 30]
    """
    single = len(plan.stages) == 1
    last = plan.stages[0].count if single else 100
    counts = {
        m * 10**k for k in range(8) for m in (1, 2, 5) if m * 10**k < last
    }
    return [*sorted(counts), last]


def series(plan, delta, counts=None, methods=None):
    """`compose` for a growing number of runs (see `Plan.at`).

    Args:
        plan: a `Plan`.
        delta: float in [0, 1), the same for every count.
        counts: sequence of ints; automatic by default.
        methods: sequence of names in `METHODS`; all by default.

    Returns:
        dict from count to a list of `Composed`.
    """
    counts = automatic_counts(plan) if counts is None else counts
    # Check all counts before composing the first, which may take long.
    plans = {count: plan.at(count) for count in sorted(set(counts))}
    return {n: compose(p, delta, methods) for n, p in plans.items()}


def table(composed):
    """The rows of `compose` as text."""
    head = f"{'method':17} {'epsilon':>10} {'delta':>9}  {'kind':10}  note"
    lines = [head, "-" * 79]
    for row in composed:
        lines.append(
            f"{row.method:17} {_number(row.epsilon):>10} "
            f"{_number(row.delta):>9}  {row.kind:10}  {row.note}".rstrip()
        )
    return "\n".join(lines)


def _number(value):
    return "-" if value is None else f"{value:.4g}"


def title(plan, delta):
    """One line that describes the plan."""
    parts = []
    for s in plan.stages[:3]:
        text = f"{s.count:,} x {s.mechanism}"
        for name in ("noise_multiplier", "epsilon", "delta"):
            value = getattr(s, name)
            if value is not None:
                text += f" {name.replace('_', ' ')} {value:g}"
        if s.sampling_rate < 1:
            text += f" on samples of rate {s.sampling_rate:g}"
        parts.append(text)
    if len(plan.stages) > 3:
        parts.append(f"{len(plan.stages) - 3} more stages")
    return f"{'; '.join(parts)}; delta {delta:g}, {plan.neighbours}"


def write(plan, delta, composed, by_count, out):
    """Writes table.txt, composition.csv and composition.png to `out`."""
    text = f"{title(plan, delta)}\n\n{table(composed)}"
    files.write_text(out, "table.txt", text)
    names = [f.name for f in dataclasses.fields(Composed)]
    rows = [
        {"count": count, **dataclasses.asdict(row)}
        for count, rows in by_count.items()
        for row in rows
    ]
    files.write_csv(out, "composition.csv", ["count", *names], rows)
    plot(plan, delta, by_count, os.path.join(out, "composition.png"))


# Composition theorems share a colour with and without sampling.
_COLORS = {
    "basic": "C7",
    "advanced": "C1",
    "kairouz": "C4",
    "optimal": "C0",
    "moments": "C2",
    "renyi": "C8",
    "pld": "C3",
}


def plot(plan, delta, by_count, path):
    """Epsilon against the number of runs as PNG, both axes logarithmic.

    Solid lines use sampling or the kind of noise, dashed ones neither. Formulas
    that are not bounds are left out.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.5), layout="constrained")
    axes = figure.subplots()
    counts = list(by_count)
    lines = {}
    for count, rows in by_count.items():
        for row in rows:
            # A logarithmic axis has no zero.
            if row.is_bound() and row.epsilon > 0:
                lines.setdefault(row.method, []).append((count, row.epsilon))
    # The legend has the order of the lines at the right end.
    for method in sorted(lines, key=lambda m: -lines[m][-1][1]):
        x, y = zip(*lines[method])
        family = method.removeprefix("sampled_")
        unsampled = plan.is_sampled and f"sampled_{method}" in METHODS
        axes.plot(
            x,
            y,
            color=_COLORS[family],
            linestyle="--" if unsampled else "-",
            linewidth=2.5 if method == "pld" else 1.5,
            marker="o",
            markersize=3,
            label=f"{method}  {y[-1]:.3g}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    single = len(plan.stages) == 1
    axes.set_xlabel("runs T" if single else "runs of the whole plan")
    axes.set_ylabel(f"epsilon at delta = {delta:g}")
    axes.set_title(title(plan, delta), fontsize=9, wrap=True)
    axes.grid(alpha=0.3)
    if lines:
        note = "dashed: without sampling\n" if plan.is_sampled else ""
        figure.legend(
            fontsize=9,
            loc="outside right upper",
            title=f"{note}epsilon at {max(counts):,}",
            title_fontsize=9,
        )
    figure.savefig(path, dpi=150)
