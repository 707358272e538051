"""A public bound on the L1 norm of features, beside that on their L2 norm:
what it does to sensitivities, to records outside, and to a pure release
(docs/proofs/cross_entropy.md, propositions 2 and 3)."""

import math

import numpy as np
import pytest
from neighbours import (
    NORMS,
    RELATIONS,
    Domain,
    check_sensitivity,
    contribution,
    labels_alone,
    shares,
    sparse,
    to_ball,
)

from keras_fm.core.second_moment import SecondMomentQuery
from keras_fm.heads.cross_entropy import CrossEntropyQuery
from keras_fm.heads.squared_error import SquaredErrorQuery
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.release import calibrate, release
from keras_fm.papers.dpa.reconstruction import ReconstructionQuery

pytestmark = pytest.mark.full

M, C = 12, 1.7
KINDS = {
    "two classes": lambda **k: CrossEntropyQuery(num_outputs=1, **k),
    "classes": lambda **k: CrossEntropyQuery(
        num_outputs=3, quadratic_scale=0.3, **k
    ),
    "several labels": lambda **k: CrossEntropyQuery(
        num_outputs=3, independent=True, **k
    ),
    "numbers": lambda **k: SquaredErrorQuery(
        num_outputs=2, target_bounds=(-1, 1), **k
    ),
    "labels alone": lambda **k: CrossEntropyQuery(
        num_outputs=3, public_features=True, **k
    ),
    "reconstruction": lambda **k: ReconstructionQuery(
        num_visible=2, visible_bound=math.sqrt(2), **k
    ),
    "second moment": lambda **k: SecondMomentQuery(**k),
}


def made(kind, l1, nonnegative=False, **kwargs):
    fields = {"num_features": M, "feature_bound": C, "nonnegative": nonnegative}
    return KINDS[kind](feature_l1_bound=l1, **(fields | kwargs))


def domain(query):
    """A record is its features, and a number whose sign is all labels."""
    m = query.num_features

    def inside(v):
        h = to_ball(
            v[:m],
            query.feature_bound,
            query.nonnegative,
            query.feature_l1_bound,
        )
        return np.append(h, v[m])

    def arguments(v):
        h, up = v[None, :m], bool(v[m] > 0)
        if isinstance(query, SecondMomentQuery):
            return (h,)
        if isinstance(query, ReconstructionQuery):
            return h, np.full((1, 2), 0.5 + (1 if up else -1))
        if isinstance(query, SquaredErrorQuery):
            return h, np.full((1, 2), 1.0 if up else -1.0)
        if query.independent:
            return h, np.full((1, 3), int(up))
        return h, [int(up)]

    return Domain(query, m + 1, inside, arguments)


def extremal(query):
    limit = query.feature_l1_bound or 1e9
    for pair in sparse(query.num_features, query.feature_bound, limit):
        if not query.nonnegative or min(v.min() for v in pair) >= 0:
            for signs in ((1, 1), (1, -1)):
                yield tuple(np.append(v, s) for v, s in zip(pair, signs))


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("entries", [1.0, 4.6, 9.5, 30.0])
@pytest.mark.parametrize("kind", KINDS)
def test_no_neighbouring_pair_exceeds_a_bound(kind, entries, nonnegative):
    query = made(kind, C * math.sqrt(entries), nonnegative)
    found = domain(query)
    pairs = list(extremal(query))
    check_sensitivity(found, pairs, [int(10 * entries)])
    for key, share in shares(found, pairs).items():
        statistic, norm, relation = key
        # Parts of A and S are at their worst for other pairs.
        joint = statistic == "joint" and relation == "replace_one"
        tight = entries <= M // 2 or relation != "replace_one"
        if norm == "l1" and (statistic == "linear" or tight and not joint):
            assert share >= 0.999, key


def test_the_numbers_of_the_proof():
    query = CrossEntropyQuery(
        num_features=105, num_outputs=1, feature_l1_bound=math.sqrt(14)
    )
    plain = CrossEntropyQuery(num_features=105, num_outputs=1)
    for given, values in ((query, (7.5, 15)), (plain, (53, 75.299))):
        for relation, value in zip(RELATIONS, values):
            assert given.quadratic_sensitivity(
                "l1", neighbours=relation
            ) == pytest.approx(value, rel=1e-5)
    assert query.linear_sensitivity(
        "l1", neighbours="replace_one"
    ) == pytest.approx(math.sqrt(14))


def test_the_search_finds_a_bound_that_is_too_small():
    class Less(CrossEntropyQuery):
        @property
        def _dense_features(self):
            return 0.99 * super()._dense_features

    query = Less(num_features=8, num_outputs=1, feature_l1_bound=2.0)
    with pytest.raises(AssertionError):
        check_sensitivity(domain(query), extremal(query))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grouped", [False, True])
def test_records_outside_are_refused_or_scaled_back(kind, grouped):
    if grouped and kind == "labels alone":
        pytest.skip("one label is the unit")
    query = made(kind, 2.0, grouped=grouped)
    h = np.zeros((1, M))
    # Inside in L2, and outside in L1.
    h[0, :4] = 0.8
    arguments = domain(query).arguments(np.append(h, 1.0))
    owners = {"owners": np.zeros(1)} if grouped else {}
    with pytest.raises(ValueError, match="public L1 bound 2") as caught:
        query.accumulate(query.zero(), *arguments, **owners)
    assert "0.8" not in str(caught.value)
    found = query.accumulate(query.zero(), *arguments, clip=True, **owners)
    inside = (h * (2.0 / 3.2), *arguments[1:])
    expected = query.accumulate(query.zero(), *inside, **owners)
    # Targets are scaled back, too: the record counts less.
    for one, other, share in zip(found, expected, (1, 2.0 / 3.2)):
        other = other * share
        np.testing.assert_allclose(one, other, rtol=1e-9)
    relation = "replace_label" if labels_alone(query) else "add_remove"
    for norm, order in NORMS.items():
        length = np.linalg.norm(query.pack(found, norm), order)
        assert length <= query.sensitivity(norm, neighbours=relation)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("l1", [None, 2.0])
def test_records_that_are_scaled_back_move_sums_no_further(
    kind, l1, nonnegative
):
    """Pairs of records of any length, whose targets are scaled with them."""
    query = made(kind, l1, nonnegative)
    rng = np.random.default_rng(0)

    def added(v):
        record = domain(query).arguments(v)
        sums = query.accumulate(query.zero(), *record, clip=True)
        return [query.pack(sums, norm) for norm in NORMS]

    for _ in range(60):
        first = np.append(rng.normal(size=M) * rng.exponential(2), 1.0)
        second = np.append(rng.normal(size=M) * rng.exponential(2), -1.0)
        if rng.random() < 0.5 or labels_alone(query):
            second[:M] = first[:M]
        if nonnegative:
            first[:M], second[:M] = abs(first[:M]), abs(second[:M])
        relation = "replace_label" if labels_alone(query) else "replace_one"
        pairs = zip(NORMS.items(), added(first), added(second))
        for (norm, order), one, other in pairs:
            found = np.linalg.norm(one - other, order)
            most = query.sensitivity(norm, neighbours=relation)
            assert found <= most * (1 + 1e-12)


def test_cutting_to_a_grid_keeps_the_bound():
    query = made("classes", 2.0)
    h = np.random.default_rng(0).normal(size=(50, M))
    for one in h:
        one = to_ball(one, C, l1_bound=2.0)[None]
        found = query.accumulate(query.zero(), one, [1], exact=True)
        length = np.abs(query.pack(found, "l1")).sum()
        assert length <= query.sensitivity("l1", neighbours="add_remove")


def test_a_pure_release_has_less_noise_and_says_why():
    rng, n, m, s = np.random.default_rng(0), 200, 60, 3
    h = np.zeros((n, m))
    for block in range(s):
        h[np.arange(n), 20 * block + rng.integers(0, 20, n)] = s**-0.5
    y = rng.integers(0, 2, n)
    errors = {}
    for l1 in (None, math.sqrt(s)):
        query = CrossEntropyQuery(
            num_features=m, num_outputs=1, feature_l1_bound=l1
        )
        ledger = Ledger(PrivacyBudget(1.0, 0.0), neighbours="add_remove")
        mechanism = calibrate(query, ledger.budget, neighbours="add_remove")
        found = release(
            query,
            [(h, y)],
            mechanism=mechanism,
            ledger=ledger,
            name="head",
            noise=NoiseSource(1),
        )
        assert mechanism.epsilon == 1.0
        noise = found.quadratic - h.T @ h
        errors[l1] = np.abs(noise).mean()
        scale = query.sensitivity("l1", neighbours="add_remove")
        assert errors[l1] == pytest.approx(scale, rel=0.15)
        (entry,) = ledger.entries
        assert ("||h||_1 <= 1.73205" in entry.uses) == (l1 is not None)
    assert errors[math.sqrt(s)] < errors[None] / 10
    record = h[:1], y[:1]
    one = contribution(query, record, "l1")
    assert np.abs(one).sum() == pytest.approx(2 + math.sqrt(3) / 2)
