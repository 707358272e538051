"""An owner's sum is scaled back to what one record may add, in queries that
clip their records already: relevance and networks' expansions."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from neighbours import Domain, check_sensitivity, shares

from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.papers.adlm.relevance_query import RelevanceQuery
from keras_fm.papers.functional_net.expansion_query import (
    NetworkExpansionQuery,
)

MOST = 4
SHAPES = ((3, 2), (2, 1))


@dataclasses.dataclass(frozen=True)
class OneOwner:
    """A query whose record is an owner with some rows."""

    query: Any

    def zero(self):
        return self.query.zero()

    def accumulate(self, statistics, records):
        count = self.query.num_records(records)
        return self.query.accumulate(statistics, records, np.zeros(count))

    def pack(self, statistics, norm):
        return self.query.pack(statistics, norm)

    def sensitivity(self, norm, *, neighbours):
        return self.query.sensitivity(norm, neighbours=neighbours)


def domain(query, width, made):
    """An owner is `MOST` rows of `width` numbers, and how many there are."""

    def arguments(v):
        count = 1 + int(abs(v[-1]) * 7) % MOST
        return (made(v[:-1].reshape(MOST, width)[:count]),)

    return Domain(OneOwner(query), MOST * width + 1, np.array, arguments)


def factors(rows):
    """`(z, delta, b)` of every layer."""
    found, start = [], 0
    for inputs, units in SHAPES:
        parts = []
        for size in (inputs, units, units):
            parts.append(rows[:, start : start + size])
            start += size
        found.append(tuple(parts))
    return found


WIDTH = sum(inputs + 2 * units for inputs, units in SHAPES)


def relevance(ball):
    return domain(
        RelevanceQuery(num_features=5, ball=ball, grouped=True), 5, np.array
    )


def expansion(norm, curvature="majorized"):
    query = NetworkExpansionQuery(
        shapes_of_layers=SHAPES, clip=0.7, norm=norm, curvature=curvature,
        grouped=True,
    )  # fmt: skip
    return domain(query, WIDTH, factors)


def alike(width, *rows):
    """Owners of as many records as can be, all alike."""
    return tuple(np.append(np.tile(row, MOST), 3 / 7 + 1e-3) for row in rows)


KINDS = {
    "relevance, L1": (lambda: relevance("l1"), np.eye(5)[:2]),
    "relevance, L2": (lambda: relevance("l2"), np.eye(5)[:2]),
    **{
        f"expansion, {norm}": (
            lambda norm=norm: expansion(norm),
            # Opposite slopes and no curvature.
            [
                9 * np.eye(WIDTH)[0] + sign * np.eye(WIDTH)[3]
                for sign in (1, -1)
            ],
        )
        for norm in ("l1", "l2")
    },
    "expansion, diagonal": (
        lambda: expansion("l2", "diagonal"),
        [9 * np.eye(WIDTH)[0] + sign * np.eye(WIDTH)[3] for sign in (1, -1)],
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_no_owner_exceeds_a_bound_and_some_attain_it(name):
    make, rows = KINDS[name]
    found = make()
    pairs = [alike(found.width, *rows)]
    check_sensitivity(found, pairs, 1, tries=60)
    reached = shares(found, pairs)
    norm = getattr(found.query.query, "norm", None)
    norm = norm or found.query.query.ball
    for relation in ("add_remove", "replace_one"):
        share = reached["joint", norm, relation]
        assert share == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("name", ["relevance, L2", "expansion, l2"])
def test_records_that_are_not_summed_by_owner_would_be_found(name):
    make, rows = KINDS[name]
    found = make()
    query = dataclasses.replace(found.query.query, grouped=False)
    found = dataclasses.replace(found, query=OneOwner(query))
    with pytest.raises(AssertionError):
        check_sensitivity(found, [alike(found.width, *rows)], tries=5)


@pytest.mark.parametrize("name", KINDS)
def test_owners_of_one_record_are_records(name):
    query = KINDS[name][0]().query.query
    alone = dataclasses.replace(query, grouped=False)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 5 if "relevance" in name else WIDTH))
    records = rows if "relevance" in name else factors(rows)
    for a, b in zip(
        query.accumulate(query.zero(), records, np.arange(30)),
        alone.accumulate(alone.zero(), records),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", KINDS)
def test_batches_of_whole_owners_add_up(name):
    query = KINDS[name][0]().query.query
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 5 if "relevance" in name else WIDTH))
    owners = np.repeat(np.arange(10), 3)

    def made(part):
        return rows[part] if "relevance" in name else factors(rows[part])

    whole, parts = PartialStatistics(query), PartialStatistics(query)
    whole.add(made(slice(None)), owners=owners)
    for part in (slice(0, 12), slice(12, 30)):
        parts.add(made(part), owners=owners[part])
    for a, b in zip(whole.statistics(), parts.statistics(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
    with pytest.raises(ValueError, match="one owner id for each record"):
        query.accumulate(query.zero(), made(slice(None)))
