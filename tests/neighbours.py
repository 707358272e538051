"""The search for neighbouring data sets that exceed a stated sensitivity.

A query is searched through its `Domain`, which makes records of numbers; a
test adds pairs from the proof. Distances are measured on what `accumulate` and
`pack` make of the records, not on formulas of the proofs: of the whole vector
("joint") and, of a quadratic query, of its two parts.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.release import calibrate
from keras_fm.lab.auditing import audit_objective
from keras_fm.lab.auditing.objective import worst_pair

NORMS = {"l1": 1, "l2": 2}
RELATIONS = ("add_remove", "replace_one")
# What rounding may add, far below any mistake in a formula.
SLACK = 1 + 1e-9


def contribution(query, record, norm):
    """What one record adds to the released vector."""
    made = query.accumulate(query.zero(), *record)
    return query.pack(made, norm)


def residuals(query, h, targets, weights):
    """Derivatives of a `GradientQuery`'s loss by the logits, `(n, M)`."""
    whole, factors = query._grid.weights(weights)
    z = whole @ np.asarray(h, np.float64).T
    return query._residuals(z * factors, targets.T).T


def bounds(query):
    """By statistic, norm and relation."""
    functions = {"joint": query.sensitivity}
    if labels_alone(query):
        return {
            ("joint", norm, "replace_label"): query.sensitivity(
                norm, neighbours="replace_label"
            )
            for norm in NORMS
        }
    if hasattr(query, "quadratic_sensitivity"):
        functions["quadratic"] = query.quadratic_sensitivity
        functions["linear"] = query.linear_sensitivity
    return {
        (statistic, norm, relation): function(norm, neighbours=relation)
        for statistic, function in functions.items()
        for norm, relation in itertools.product(NORMS, RELATIONS)
    }


def labels_alone(query):
    """Whether the query is about labels, and states nothing else."""
    return getattr(query, "public_features", False)


def distances(query, first, second):
    """Every distance of two data sets that differ in one record; of labels
    alone, in its last array."""
    found = {}
    if labels_alone(query):
        second = (*first[:-1], second[-1])
    for norm, order in NORMS.items():
        one, other = (contribution(query, r, norm) for r in (first, second))
        moves = dict(zip(RELATIONS, (one, one - other)))
        if labels_alone(query):
            moves = {"replace_label": one - other}
        for relation, move in moves.items():
            for statistic, part in _parts(query, move):
                key = statistic, norm, relation
                found[key] = float(np.linalg.norm(part, order))
    return found


def _parts(query, move):
    yield "joint", move
    if hasattr(query, "quadratic_sensitivity") and not labels_alone(query):
        m = query.num_features
        cut = m * (m + 1) // 2
        yield "quadratic", query.quadratic_scale * move[:cut]
        yield "linear", move[cut:]


@dataclasses.dataclass(frozen=True)
class Domain:
    """The records of a query, each from `width` numbers.

    `inside` brings any numbers into the public bounds, and `arguments` makes
    of these what `accumulate` takes.
    """

    query: Any
    width: int
    inside: Callable
    arguments: Callable

    def distances(self, pair):
        return distances(
            self.query, *(self.arguments(self.inside(v)) for v in pair)
        )


def check_sensitivity(domain, extremal, seed=0, tries=150):
    """No pair of the proofs, no random one, and none that climbing from the
    farthest of these finds, is farther apart than the bounds."""
    limits, rng = bounds(domain.query), np.random.default_rng(seed)
    best = {key: (0.0, None) for key in limits}
    for pair in itertools.chain(extremal, _random(domain.width, rng, tries)):
        for key, value in domain.distances(pair).items():
            if value > best[key][0]:
                best[key] = value, pair
    for key, (value, pair) in best.items():
        if pair is not None:
            value = climb(domain, key, pair, rng)
        assert value <= limits[key] * SLACK, key


def climb(domain, key, pair, rng, steps=40):
    """The longest distance that a random ascent from a pair finds."""
    pair, size = tuple(map(domain.inside, pair)), 0.5
    best = domain.distances(pair)[key]
    for _ in range(steps):
        trial = tuple(
            domain.inside(v + size * rng.normal(size=domain.width))
            for v in pair
        )
        value = domain.distances(trial)[key]
        if value > best:
            best, pair = value, trial
        else:
            size *= 0.9
    return best


def check_generated(draw, examples=150):
    """The same of pairs in a domain, both of which hypothesis makes:
    `draw(data)` gives the domain."""
    numbers = st.floats(-1.0, 1.0, allow_subnormal=False)

    @settings(derandomize=True, deadline=None, max_examples=examples)
    @given(data=st.data())
    def check(data):
        domain = draw(data)
        record = st.lists(
            numbers, min_size=domain.width, max_size=domain.width
        ).map(np.array)
        found = domain.distances((data.draw(record), data.draw(record)))
        limits = bounds(domain.query)
        for key, value in found.items():
            # Entries cancel, which leaves rounding of their size.
            rounding = 1e-13 * max(limits.values())
            assert value <= limits[key] * SLACK + rounding, key

    check()


def check_audit(query, records, relation):
    """An audit of the worst pair of records comes near its epsilon and stays
    below.

    The bound holds with confidence 0.99: one run in 100 may fail by chance,
    this seed does not.
    """
    budget = PrivacyBudget(1.0, 1e-5)
    mechanism = calibrate(query, budget, neighbours=relation)
    pair = worst_pair(query, mechanism, records, neighbours=relation)
    found = audit_objective(
        query, mechanism, budget, *pair, noise=NoiseSource(0), runs=100_000
    )
    assert found.reach == pytest.approx(1)
    assert 0.5 < found.share <= 1


def check_packing(query, columns):
    """That `pack` keeps the norm of A / 0.4 and S, and `unpack` inverts it.

    Args:
        query: of a `quadratic_scale` of 0.4.
        columns: int, of S.
    """
    m, rng = query.num_features, np.random.default_rng(2)
    a, s = rng.normal(size=(m, m)), rng.normal(size=(m, columns))
    a = a + a.T
    for norm, order in NORMS.items():
        vector = query.pack((a, s), norm)
        assert vector.shape == (query.size,)
        entries = np.triu(a) if norm == "l1" else a
        parts = np.concatenate([entries.ravel() / 0.4, s.ravel()])
        np.testing.assert_allclose(
            np.linalg.norm(vector, order), np.linalg.norm(parts, order), 1e-6
        )
        made_a, made_s = query.unpack(vector, norm)
        np.testing.assert_allclose(made_a, a, rtol=1e-14)
        np.testing.assert_array_equal(made_a, made_a.T)
        np.testing.assert_array_equal(made_s, s)


def shares(domain, extremal):
    """How much of every bound these pairs reach."""
    found = [domain.distances(pair) for pair in extremal]
    return {
        key: max(f[key] for f in found) / limit if limit else 1.0
        for key, limit in bounds(domain.query).items()
    }


def _random(width, rng, count):
    for _ in range(count):
        # A low power makes vectors dense, a high power makes them sparse;
        # some records are well inside their bounds.
        raw = rng.normal(size=(2, width))
        raw = 1e3 * np.sign(raw) * np.abs(raw) ** rng.choice([0.2, 1.0, 4.0])
        yield tuple(raw * rng.choice([1e-4, 1e-3, 1.0], size=(2, 1)))


def to_ball(v, bound, nonnegative=False, l1_bound=None):
    """One part in 1e12 inside, so that no check of the bound is at play."""
    v = np.abs(v) if nonnegative else v
    excess = np.linalg.norm(v) / bound
    if l1_bound is not None:
        excess = max(excess, np.abs(v).sum() / l1_bound)
    return v / max(1.0, excess / (1 - 1e-12))


def sparse(m, bound, l1_bound):
    """Pairs of vectors at both bounds, with common entries and without: the
    L1 extremes where the bound on the L1 norm is the tighter one."""
    l1_bound = min(l1_bound, math.sqrt(m) * bound)
    # Equal entries but for the last one.
    k = math.ceil((l1_bound / bound) ** 2 - 1e-9)
    spread = max(0.0, bound**2 - l1_bound**2 / k)
    step = math.sqrt(spread / (k * (k - 1))) if k > 1 else 0.0
    one = np.zeros(m)
    one[:k] = l1_bound / k + step
    one[k - 1] -= k * step
    return [(one, other) for other in (one, -one, np.roll(one, m // 2))]


def extremal_of_outputs(query):
    """Pairs of features at the norm bound of an output layer's query, each
    with corners of the targets, or with all labels."""
    m, c = query.num_features, query.feature_bound
    ones = np.full(m, c / math.sqrt(m))
    pairs = [(ones, ones), (ones, -ones), (ones, 0 * ones)]
    if m > 1:
        first = np.eye(m)[0] * c
        second = np.roll(first, 1)
        # Corners of the box inside the ball.
        signs = np.where(np.arange(m) % 2, -1.0, 1.0)
        pairs += [(first, -first), (first, second), (ones, ones * signs)]
        for one, other in halves(m, c):
            pairs += [(one, other), (one, np.abs(other))]
        # The overlap at which the joint L2 distance of a pair is largest.
        t2 = query.target_bound**2
        share = min(query.quadratic_scale**2 * t2 / 2 / c**2, 1.0)
        across = math.sqrt(max(0.0, 1 - share**2))
        for sign in (1, -1):
            pairs.append((first, sign * share * first + across * second))
    if query.feature_l1_bound is not None:
        pairs += sparse(m, c, query.feature_l1_bound)
    # One label is a number whose sign it is.
    several = getattr(query, "independent", True)
    corner = np.ones(query.num_outputs if several else 1)
    for pair in pairs:
        if not query.nonnegative or min(v.min() for v in pair) >= 0:
            for signs in itertools.product((-1, 1), repeat=2):
                yield tuple(
                    np.append(v, sign * corner) for v, sign in zip(pair, signs)
                )


def halves(m, bound, step=2.5):
    """Orthogonal vectors, constant on two halves: the L1 extremes of A."""
    half = m // 2
    head = np.where(np.arange(m) < half, bound / max(half, 1) ** 0.5, 0.0)
    tail = np.where(np.arange(m) < half, 0.0, bound / (m - half) ** 0.5)
    for angle in np.radians(np.arange(step, 90, step)) if m > 1 else ():
        cos, sin = np.cos(angle), np.sin(angle)
        yield cos * head + sin * tail, sin * head - cos * tail
