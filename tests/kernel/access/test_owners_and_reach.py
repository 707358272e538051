"""Owners of several records, and records that hold other units' data.

The privacy unit is an owner (`grouped=True`) or a row; `reach=r` lets one
unit's data change r other units' records at will. Distances are measured on
what `accumulate` and `pack` make of whole data sets
(docs/proofs/reconstruction.md, propositions 3 and 4).
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from neighbours import NORMS, RELATIONS, SLACK

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import GaussianMechanism, NoiseSource
from keras_fm.kernel.release import calibrate, release
from keras_fm.queries import (
    CrossEntropyQuery,
    ReconstructionQuery,
    SecondMomentQuery,
)

KINDS = ("reconstruction", "moments", "classes", "binary")


def make(kind="reconstruction", m=3, **kwargs):
    shared = {"num_features": m, "feature_bound": 0.8, **kwargs}
    if kind == "reconstruction":
        return ReconstructionQuery(num_visible=2, visible_bound=1.5, **shared)
    if kind == "moments":
        return SecondMomentQuery(**shared)
    return CrossEntropyQuery(
        num_outputs=3 if kind == "classes" else 1, **shared
    )


def vector(objective, units, norm):
    """The released vector of a data set: a list of units' (h, y)."""
    statistics = objective.zero()
    units = [unit for unit in units if len(unit[0])]
    if units:
        h, y = (np.concatenate(parts) for parts in zip(*units))
        owners = np.repeat(np.arange(len(units)), [len(u[0]) for u in units])
        statistics = objective.accumulate(statistics, h, y, owners)
    return objective.pack(statistics, norm)


def distance(objective, units, others, norm):
    move = vector(objective, units, norm) - vector(objective, others, norm)
    return np.linalg.norm(move, NORMS[norm])


def nobody(objective):
    empty = np.zeros((0, objective.num_features))
    return records(objective, empty, np.zeros((0, 1)))


def records(objective, h, raw):
    """Admissible records from any numbers; `raw` decides the labels."""
    h = np.abs(h) if objective.nonnegative else h
    h = h / norms_over(h, objective.feature_bound)
    if isinstance(objective, ReconstructionQuery):
        t = raw / norms_over(raw, objective.visible_bound)
        t = np.resize(t, (len(h), objective.num_visible))
        return h, t + objective.centre
    if isinstance(objective, SecondMomentQuery):
        return h, np.zeros(len(h))
    top = max(objective.num_outputs, 2)
    return h, np.floor(np.abs(raw[:, 0]) * 7).astype(int) % top


def norms_over(rows, bound):
    bound *= 1 - 1e-12
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.maximum(1.0, lengths / bound)


def random_unit(objective, rng, most):
    """A unit of up to `most` records, of like or mixed directions."""
    n = int(rng.integers(1, most + 1))
    size = rng.choice([0.05, 1.0, 1e3])
    h = rng.normal(size=(n, objective.num_features))
    raw = rng.normal(size=(n, 2))
    if rng.random() < 0.5:
        # All alike: sums grow as fast as they can.
        h, raw = np.repeat(h[:1], n, axis=0), np.repeat(raw[:1], n, axis=0)
    return records(objective, size * h, 10 * raw)


def aligned_unit(objective, sign, n=4000, dense=False):
    """Many short features with full targets: S decides, A vanishes
    (the pair of proposition 3)."""
    m, d = objective.num_features, objective.num_visible
    direction, target = np.zeros(m), np.zeros(d)
    direction[0] = target[0] = 1.0
    if dense:
        direction, target = np.full(m, m**-0.5), np.full(d, d**-0.5)
    norm = "l1" if dense else "l2"
    limit = one_record_bound(objective, norm)
    weight = math.sqrt(m * d) if dense else 1.0
    eta = 1.01 * limit / (n * objective.visible_bound * weight)
    h = np.repeat(eta * direction[None], n, axis=0)
    t = np.repeat(sign * objective.visible_bound * target[None], n, axis=0)
    return h, t * (1 - 1e-12) + objective.centre


# Owners -------------------------------------------------------------------


def one_record_bound(objective, norm):
    single = dataclasses.replace(objective, grouped=False, reach=0)
    return single.sensitivity(norm, neighbours="add_remove")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_bounds_of_owners(kind, norm):
    objective = make(kind, grouped=True)
    single = one_record_bound(objective, norm)
    assert objective.sensitivity(norm, neighbours="add_remove") == single
    twice = objective.sensitivity(norm, neighbours="replace_one")
    # Sums of squares alone have nonnegative inner products.
    factor = math.sqrt(2) if (kind, norm) == ("moments", "l2") else 2
    assert twice == pytest.approx(factor * single, rel=1e-15)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("kind", KINDS)
def test_no_owner_exceeds_a_bound(kind, alpha):
    objective = make(kind, grouped=True, quadratic_scale=alpha)
    rng = np.random.default_rng([int(alpha * 10), KINDS.index(kind)])
    limits = {
        (n, r): objective.sensitivity(n, neighbours=r)
        for n, r in itertools.product(NORMS, RELATIONS)
    }
    background = [random_unit(objective, rng, 5) for _ in range(2)]
    longest = dict.fromkeys(NORMS, 0.0)
    for _ in range(60):
        # An owner's whole set is replaced, its size too.
        owner, other = (random_unit(objective, rng, 60) for _ in range(2))
        for norm in NORMS:
            present = [*background, owner]
            moves = {
                "add_remove": distance(objective, present, background, norm),
                "replace_one": distance(
                    objective, present, [*background, other], norm
                ),
            }
            for relation, value in moves.items():
                assert value <= limits[norm, relation] * SLACK
            share = moves["add_remove"] / limits[norm, "add_remove"]
            longest[norm] = max(longest[norm], share)
    # Both norms are at work: some owner fills one of the balls.
    assert max(longest.values()) > 0.999


def ungrouped(objective, h, y, norm):
    single = dataclasses.replace(objective, grouped=False)
    return single.pack(single.accumulate(single.zero(), h, y), norm)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_owner_adds_its_scaled_sum(kind, norm):
    """One record is as it is; one factor serves the mechanism of either
    norm."""
    objective = make(kind, grouped=True, quadratic_scale=0.5)
    rng = np.random.default_rng(5)
    sizes = (1, 1, 1, 20, 20, 20, 80, 80, 80)
    units = [random_unit(objective, rng, most) for most in sizes]
    total = 0.0
    for h, y in units:
        own = {n: ungrouped(objective, h, y, n) for n in NORMS}
        scale = min(
            1.0,
            *(
                one_record_bound(objective, n) / np.linalg.norm(own[n], order)
                for n, order in NORMS.items()
            ),
        )
        total = total + scale * own[norm]
    made = vector(objective, units, norm)
    np.testing.assert_allclose(made, total, atol=1e-10)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_replacing_an_owner_comes_near_twice_the_bound(alpha):
    objective = make(grouped=True, quadratic_scale=alpha)
    pair = [[aligned_unit(objective, sign)] for sign in (1, -1)]
    limit = objective.sensitivity("l2", neighbours="replace_one")
    reached = distance(objective, *pair, "l2")
    assert 0.999 * limit <= reached <= limit * SLACK
    # More than single records can: the factor two is needed.
    single = dataclasses.replace(objective, grouped=False)
    assert reached > single.sensitivity("l2", neighbours="replace_one") * (
        1.001 if alpha < 5 else 0.0
    )


def test_replacing_an_owner_comes_near_twice_the_bound_in_l1():
    objective = make(grouped=True, quadratic_scale=0.1)
    m, d = objective.num_features, objective.num_visible
    one, two = (one_record_bound(objective, n) for n in NORMS)
    assert one <= math.sqrt(m * d) * two  # the condition of the proof
    pair = [
        [aligned_unit(objective, s, n=100_000, dense=True)] for s in (1, -1)
    ]
    limit = objective.sensitivity("l1", neighbours="replace_one")
    reached = distance(objective, *pair, "l1")
    assert 0.999 * limit <= reached <= limit * SLACK


def test_owners_of_moments_are_within_root_two():
    """Sums of two owners are positive semidefinite: sqrt(2) is enough in L2,
    the bound in use is 2."""
    objective = make("moments", grouped=True)
    rng = np.random.default_rng(6)
    limit = one_record_bound(objective, "l2")
    best = 0.0
    for _ in range(200):
        pair = [[random_unit(objective, rng, 40)] for _ in range(2)]
        best = max(best, distance(objective, *pair, "l2"))
    assert best <= math.sqrt(2) * limit * SLACK
    assert best >= 1.3 * limit


@pytest.mark.parametrize(
    "owners, message",
    [
        (None, "one owner id for each record"),
        ([0, 1], "one owner id for each record"),
        ([[0], [1], [1]], "one owner id for each record"),
        ([0, 1, 0], "next to each other"),
        (["a", "b", "a"], "next to each other"),
        ([math.nan, math.nan, 1.0], "none missing"),
    ],
)
def test_owners_must_be_given_and_contiguous(owners, message):
    objective = make("moments", grouped=True)
    statistics = objective.zero()
    with pytest.raises(ValueError, match=message):
        objective.accumulate(statistics, np.full((3, 3), 0.1), None, owners)
    assert not statistics[0].any()


# Reach --------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_grows_by_a_replacement_for_each_unit_reached(kind, grouped):
    for norm, relation in itertools.product(NORMS, RELATIONS):
        alone = make(kind, grouped=grouped)
        own = alone.sensitivity(norm, neighbours=relation)
        replaced = alone.sensitivity(norm, neighbours="replace_one")
        for reach in (1, 4):
            objective = make(kind, grouped=grouped, reach=reach)
            made = objective.sensitivity(norm, neighbours=relation)
            assert made == pytest.approx(own + reach * replaced, rel=1e-14)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_unit_exceeds_a_bound_through_others(kind, grouped):
    reach = 3
    objective = make(kind, grouped=grouped, reach=reach, quadratic_scale=0.7)
    rng = np.random.default_rng([KINDS.index(kind), grouped])
    most = 20 if grouped else 1
    for _ in range(60):

        def unit():
            return random_unit(objective, rng, most)

        own, replaced, unaffected = unit(), unit(), [unit(), unit()]
        friends = [unit() for _ in range(reach)]
        changed = [unit() for _ in range(reach)]
        if rng.random() < 0.3:
            # A friend's record may also vanish.
            changed[0] = nobody(objective)
        before = [own, *friends, *unaffected]
        for norm in NORMS:
            for relation, after in (
                ("add_remove", [*changed, *unaffected]),
                ("replace_one", [replaced, *changed, *unaffected]),
            ):
                value = distance(objective, before, after, norm)
                limit = objective.sensitivity(norm, neighbours=relation)
                assert value <= limit * SLACK


@pytest.mark.parametrize("kind", KINDS)
def test_a_vanishing_record_costs_no_more_than_a_changed_one(kind):
    for m in (1, 2, 9):
        objective = make(kind, m=m)
        for norm in NORMS:
            gone, changed = (
                objective.sensitivity(norm, neighbours=r) for r in RELATIONS
            )
            assert gone <= changed * SLACK


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("reach", [1, 4])
def test_owners_reached_make_the_bound_near_tight(reach, relation):
    """The own records go or change, the others' all turn around."""
    objective = make(grouped=True, reach=reach)
    up, down = (aligned_unit(objective, sign) for sign in (1, -1))
    before = [up] * (1 + reach)
    after = [down] * reach + ([down] if relation == "replace_one" else [])
    limit = objective.sensitivity("l2", neighbours=relation)
    reached = distance(objective, before, after, "l2")
    assert 0.999 * limit <= reached <= limit * SLACK
    # One unit more than `reach` would exceed it.
    more = distance(objective, [*before, up], [*after, down], "l2")
    assert more > limit


@pytest.mark.parametrize("reach", [1, 4])
def test_rows_reached_attain_the_bound_of_a_replacement(reach):
    objective = make(reach=reach, quadratic_scale=1.0)
    c, t = objective.feature_bound, objective.visible_bound
    # The extremal pair of proposition 1, made by all of them.
    share = min(t**2 / 2 / c**2, 1.0)
    across = math.sqrt(1 - share**2)
    h = c * np.array([[1.0, 0, 0], [share, across, 0]]) * (1 - 1e-12)
    v = 0.5 + t * np.array([[1.0, 0], [-1.0, 0]]) * (1 - 1e-12)
    before = [(h[:1], v[:1])] * (1 + reach)
    after = [(h[1:], v[1:])] * (1 + reach)
    limit = objective.sensitivity("l2", neighbours="replace_one")
    reached = distance(objective, before, after, "l2")
    assert reached == pytest.approx(limit, rel=1e-9)


def test_rows_reached_come_near_the_bound_of_a_removal():
    """Where S decides (a large alpha)."""
    objective = make(reach=2, quadratic_scale=40.0)
    c, t = objective.feature_bound, objective.visible_bound
    h = np.array([[c, 0.0, 0.0]]) * (1 - 1e-12)
    v = t * np.array([[1.0, 0.0]]) * (1 - 1e-12)
    up, down = (h, 0.5 + v), (h, 0.5 - v)
    limit = objective.sensitivity("l2", neighbours="add_remove")
    reached = distance(objective, [up] * 3, [down] * 2, "l2")
    assert 0.999 * limit <= reached <= limit * SLACK


# In a release -------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_is_calibrated_to_the_unit_and_its_reach(kind):
    rng = np.random.default_rng(9)
    budget = PrivacyBudget(1.0, 1e-5)
    objective = make(kind, grouped=True, reach=2)
    h, y = random_unit(objective, rng, 30)
    ledger = Ledger(budget, neighbours="replace_one", unit="one user")
    keywords = {
        "ledger": ledger,
        "name": "layer",
        "noise": NoiseSource(1),
    }
    needed = objective.sensitivity("l2", neighbours="replace_one")
    # Noise for fewer units than the objective reaches is refused.
    small = GaussianMechanism(sensitivity=needed * 0.99, noise_multiplier=4.0)
    owners = np.zeros(len(h))
    with pytest.raises(ValueError, match="below the query's"):
        release(objective, [(h, y, owners)], mechanism=small, **keywords)
    mechanism = calibrate(objective, budget, neighbours="replace_one")
    assert mechanism.sensitivity == needed
    # Missing owners: refused before anything is charged.
    with pytest.raises(ValueError, match="owner id"):
        release(objective, [(h, y)], mechanism=mechanism, **keywords)
    assert ledger.entries == ()
    release(objective, [(h, y, owners)], mechanism=mechanism, **keywords)
    assert "at most 2 other units" in ledger.statement()
    assert "unit:       one user" in ledger.statement()
