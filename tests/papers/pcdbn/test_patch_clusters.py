"""Sums of patches by direction: bounds, shapes, and what a release tells.

Bounds are those of docs/proofs/patch_moments.md, proposition 8; see
`neighbours` for the search.
"""

import numpy as np
import pytest
from hypothesis import strategies as st
from neighbours import (
    RELATIONS,
    Domain,
    check_audit,
    check_generated,
    check_sensitivity,
    shares,
)

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.release import calibrate, release
from keras_fm.papers.pcdbn.patch_clusters import PatchClustersQuery

RNG = np.random.default_rng(0)


def query(k=2, d=3, clip=0.5, **kwargs):
    return PatchClustersQuery(directions=k, components=d, clip=clip, **kwargs)


def domain(k, d, clip, grouped=False):
    made = query(k, d, clip, grouped=grouped)

    def arguments(v):
        if grouped:
            return np.reshape(v, (3, k, d)), np.zeros(3)
        return (np.reshape(v, (1, k, d)),)

    return Domain(made, k * d * (3 if grouped else 1), np.asarray, arguments)


def extremal(k, d, records=1):
    whole = np.full(k * d * records, 10.0)
    yield whole, -whole


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("k, d, clip", [(1, 1, 2.0), (2, 3, 0.07), (5, 2, 1.0)])
def test_no_neighbouring_pair_exceeds_a_bound_and_one_attains_it(
    k, d, clip, grouped
):
    found = domain(k, d, clip, grouped)
    pairs = list(extremal(k, d, 3 if grouped else 1))
    check_sensitivity(found, pairs, seed=k)
    assert min(shares(found, pairs).values()) > 1 - 1e-9


def test_no_generated_pair_exceeds_a_bound():
    check_generated(
        lambda data: domain(
            data.draw(st.integers(1, 3)),
            data.draw(st.integers(1, 3)),
            data.draw(st.sampled_from([1e-3, 0.4, 10.0])),
        ),
        examples=60,
    )


def test_short_records_count_as_they_are_and_long_ones_as_the_bound():
    made = query()
    short, long = RNG.normal(size=(2, 2, 3))
    short *= 0.4 / np.linalg.norm(short)
    long *= 40 / np.linalg.norm(long)
    (found,) = made.accumulate(made.zero(), np.stack([short, long]))
    np.testing.assert_allclose(found, short + long / 80, rtol=1e-9)


@pytest.mark.parametrize("value", [1e200, 1.7e308])
def test_what_overflows_stays_inside(value):
    made = query()
    (found,) = made.accumulate(made.zero(), np.full((1, 2, 3), value))
    assert np.linalg.norm(found) <= 0.5


@pytest.mark.parametrize(
    "sums, words",
    [
        (np.zeros((4, 6)), "shape"),
        (np.zeros((4, 3, 2)), "shape"),
        (np.full((1, 2, 3), np.nan), "not finite"),
        (np.full((1, 2, 3), -np.inf), "not finite"),
    ],
)
def test_other_records_are_refused(sums, words):
    made = query()
    with pytest.raises(ValueError, match=words):
        made.accumulate(made.zero(), sums)


def test_a_release_tells_directions():
    made = query(clip=1.0)
    records = np.zeros((500, 2, 3))
    records[:, 0] = [0.0, 0.6, 0.8]
    ledger = Ledger(PrivacyBudget(1e3, 1e-5), neighbours="add_remove")
    found = release(
        made,
        [(records,)],
        mechanism=calibrate(made, ledger.budget, neighbours=ledger.neighbours),
        ledger=ledger,
        name="clusters",
        noise=NoiseSource(1),
    )
    directions = found.directions(np.eye(3)[:2])
    np.testing.assert_allclose(directions[0], [0, 0.6, 0.8], atol=0.02)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
    assert "each record's scaled back to norm <= 1" in ledger.entries[0].uses


@pytest.mark.parametrize("relation", RELATIONS)
def test_an_audit_of_the_worst_pair_comes_near_the_statement(relation):
    corners = [(np.full((1, 2, 3), v),) for v in (1.0, -1.0)]
    check_audit(query(clip=0.1), corners, relation)
