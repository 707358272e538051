"""What was asked first: methods down, epsilons across, the best marked."""

import dataclasses
import math
import statistics

_ORDER = ("proven", "claimed", "no privacy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """One method at one budget.

    Attributes:
        name: of the method.
        epsilon: float, or `None` without privacy.
        value: float; the larger, the better.
        kind: `"proven"`, `"claimed"` or `"no privacy"`.
        relation: what the epsilon refers to; only equal ones compare.
    """

    name: str
    epsilon: float | None
    value: float
    kind: str
    relation: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """Methods by rank.

    Attributes:
        names: dict from each kind to the names of its methods, by their mean
            over the budgets.
        epsilons: list of float.
        best: set of `(name, epsilon)`: what is proven, and no other proven
            one of the same relation is better.
    """

    names: dict
    epsilons: list
    best: set


def of(places):
    """The `Grid` of some `Place`s; those without a value are left out."""
    places = [p for p in places if math.isfinite(p.value)]
    names = {}
    for kind in _ORDER:
        values = {}
        for p in places:
            if p.kind == kind:
                values.setdefault(p.name, []).append(p.value)
        means = {name: statistics.fmean(v) for name, v in values.items()}
        if means:
            names[kind] = sorted(means, key=means.get, reverse=True)
    top = {}
    proven = [p for p in places if p.kind == "proven"]
    for p in proven:
        key = p.epsilon, p.relation
        top[key] = max(p.value, top.get(key, p.value))
    return Grid(
        names=names,
        epsilons=sorted({p.epsilon for p in places if p.epsilon is not None}),
        best={
            (p.name, p.epsilon)
            for p in proven
            if p.value == top[p.epsilon, p.relation]
        },
    )
