"""Rounds whose privacy unit is an owner of several records: the sum of an
owner's coefficients is clipped, and a sample takes all of its
records or none (docs/proofs/gradient.md, proposition 6)."""

import dataclasses
import math

import neighbours
import numpy as np
import pytest
from linear_records import silent
from neighbours import Domain, check_sensitivity, shares, to_ball

from keras_fm.kernel.access.gathered_rounds import GatheredRounds
from keras_fm.kernel.access.gradient_rounds import GradientRounds
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.queries import GradientQuery

MOST = 4
LOSSES = ("cross_entropy", "squared_hinge", "crammer_singer")


def make(m=3, outputs=3, clip=0.5, **kwargs):
    return GradientQuery(
        num_features=m, num_outputs=outputs, clip=clip, grouped=True,
        feature_bound=2.0, **kwargs,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class OneOwner:
    """A read at given weights, as a query whose record is an owner."""

    at: object

    def zero(self):
        return self.at.zero()

    def accumulate(self, statistics, h, y):
        return self.at.accumulate(statistics, h, y, np.zeros(len(h)))

    def pack(self, statistics, norm):
        return self.at.vector(statistics)

    def sensitivity(self, norm, *, neighbours):
        if norm == "l1":
            # Nothing is stated of it.
            return np.inf
        return self.at.query.sensitivity(norm, neighbours=neighbours)


def domain(query, weights):
    """An owner is `MOST` records, a label each, and how many there are."""
    m, classes = query.num_features, max(query.num_outputs, 2)
    width = MOST * (m + 1) + 1

    def inside(v):
        v = np.array(v, float)
        for i in range(MOST):
            own = slice(i * (m + 1), i * (m + 1) + m)
            v[own] = to_ball(v[own], query.feature_bound)
        return v

    def arguments(v):
        count = 1 + int(abs(v[-1]) * 7) % MOST
        rows = v[:-1].reshape(MOST, m + 1)[:count]
        return rows[:, :m], (np.abs(rows[:, m]) * 7).astype(int) % classes

    return Domain(OneOwner(query.at(weights)), width, inside, arguments)


def extremal(query):
    """All records of both owners alike; with opposite features."""
    m = query.num_features
    h = np.eye(m)[0] * query.feature_bound
    for sign in (1.0, -1.0):
        one = np.append(np.tile(np.append(h, 0.0), MOST), 3 / 7 + 1e-3)
        other = np.append(np.tile(np.append(sign * h, 0.0), MOST), 3 / 7 + 1e-3)
        yield one, other


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_no_owner_exceeds_the_clip_and_two_attain_it(loss, outputs, spread):
    query = make(outputs=outputs, loss=loss)
    rng = np.random.default_rng(outputs)
    weights = spread * rng.normal(size=(3, outputs))
    found = domain(query, weights)
    check_sensitivity(found, extremal(query), 1, tries=60)
    if spread == 0.0:
        reached = shares(found, list(extremal(query)))
        for relation in ("add_remove", "replace_one"):
            share = reached["joint", "l2", relation]
            assert share == pytest.approx(1.0, rel=1e-9), relation


def test_clipping_records_and_not_owners_would_be_found():
    query = make()
    each = dataclasses.replace(query, grouped=False)

    class Wrong(OneOwner):
        def accumulate(self, statistics, h, y):
            return each.at(np.zeros((3, 3))).accumulate(statistics, h, y)

    found = domain(query, np.zeros((3, 3)))
    found = dataclasses.replace(found, query=Wrong(found.query.at))
    with pytest.raises(AssertionError):
        check_sensitivity(found, extremal(query), tries=5)


def draw(n=60, m=3, seed=0, owners=20):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(n, m))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    return h, rng.integers(0, 3, n), np.sort(rng.integers(0, owners, n))


@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e3])
def test_the_sum_is_that_of_clipped_sums(clip):
    query = make(clip=clip)
    h, y, owners = draw()
    weights = np.random.default_rng(1).normal(size=(3, 3))
    rows, targets, counts = query.check_records(h, y, owners=owners)
    assert counts.sum() == len(h) and len(counts) == len(np.unique(owners))
    residuals = neighbours.residuals(query, rows, targets, weights)
    expected = np.zeros((3, 3))
    for owner in np.unique(owners):
        own = 0
        for i in np.flatnonzero(owners == owner):
            one = np.outer(query._grid.feature_step * rows[i], residuals[i])
            own = own + one * min(1, clip / np.linalg.norm(one))
        expected += own * min(1, clip / np.linalg.norm(own))
    found = query.total(rows, targets, weights, counts)
    np.testing.assert_allclose(
        found, expected, rtol=1e-10, atol=60 * clip / 2**24
    )


@pytest.mark.parametrize("scale", [1e-160, 1e139, 1e141, 1e200, 1e260])
def test_huge_coefficients_stay_inside(scale):
    """Weights of any size: what an owner adds is finite and clipped."""
    query = make(outputs=1, loss="squared_hinge")
    h = np.array([[1.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0]])
    rows = query.check_records(h, np.array([1, 1, 0]), owners=np.zeros(3))
    weights = np.array([[-scale], [scale], [0.0]])
    found = query.total(*rows[:2], weights, rows[2])
    assert np.linalg.norm(found) <= query.clip
    assert np.isfinite(found).all()


def given(query, mechanism):
    return {
        "mechanism": mechanism,
        "ledger": Ledger(PrivacyBudget(1.0, 1e-5), neighbours="add_remove"),
        "name": "output",
        "noise": NoiseSource(0),
    }


def test_a_sample_takes_all_records_of_an_owner_or_none():
    """A false alarm in 1e-6: 4,000 owner draws at rate 0.3."""
    # One class, so that every record pulls the same way; owners do not clip.
    query = make(m=40, outputs=1, clip=100.0)
    h = np.repeat(np.eye(40), 3, axis=0)
    y, owners = np.ones(120, int), np.repeat(np.arange(40), 3)
    batches = [
        (h[:60], y[:60], owners[:60]),
        (h[60:], y[60:], owners[60:]),
    ]
    paid = GradientRounds(
        query, lambda: iter(batches),
        **given(query, silent(100, rate=0.3, sensitivity=100.0)),
    )  # fmt: skip
    taken = []
    for _ in range(100):
        # Three halves for an owner that is in.
        read = -paid(np.zeros((40, 1)))[:, 0] / 1.5
        assert set(np.round(read, 12)) <= {0.0, 1.0}
        taken.append(read.sum())
    width = 4.9 * math.sqrt(0.3 * 0.7 / 4000)
    assert abs(np.sum(taken) / 4000 - 0.3) < width


def test_several_processes_read_the_same_to_the_last_bit():
    query = make()
    h, y, owners = draw()
    cut = np.flatnonzero(owners == owners[30])[0]
    halves = [slice(0, cut), slice(cut, None)]
    weights = np.ones((3, 3))

    def gather(w):
        for half in halves:
            partial = PartialStatistics(query.at(w))
            partial.add(h[half], y[half], owners=owners[half])
            yield partial.to_bytes()

    here = GradientRounds(
        query,
        lambda: ((h[p], y[p], owners[p]) for p in halves),
        **given(query, silent(1, sensitivity=0.5)),
    )
    there = GatheredRounds(
        query, gather, **given(query, silent(1, sensitivity=0.5))
    )
    np.testing.assert_array_equal(here(weights), there(weights))
