"""The search finds a bound that is too small."""

import dataclasses

import numpy as np
import pytest
from neighbours import (
    Domain,
    bounds,
    check_generated,
    check_sensitivity,
    halves,
    shares,
    to_ball,
)

from keras_fm.core.second_moment import SecondMomentQuery


@dataclasses.dataclass(frozen=True)
class Wishful(SecondMomentQuery):
    """States a part of its sensitivity."""

    part: float = 1.0
    only: str = "replace_one"

    def sensitivity(self, norm, *, neighbours):
        found = super().sensitivity(norm, neighbours=neighbours)
        return found * (self.part if neighbours == self.only else 1.0)


def domain(m=2, **kwargs):
    query = Wishful(num_features=m, **kwargs)
    return Domain(query, m, lambda v: to_ball(v, 1.0), lambda v: (v[None],))


def test_it_accepts_what_is_right():
    check_sensitivity(domain(), halves(2, 1.0))
    check_generated(lambda data: domain())


@pytest.mark.parametrize("only", ["add_remove", "replace_one"])
def test_a_proofs_pair_shows_a_hundredth(only):
    wrong = domain(part=0.99, only=only)
    with pytest.raises(AssertionError, match=only):
        check_sensitivity(wrong, halves(2, 1.0), tries=0)
    assert shares(wrong, halves(2, 1.0))["joint", "l1", only] > 1


@pytest.mark.parametrize("only", ["add_remove", "replace_one"])
def test_random_pairs_and_climbing_show_a_fiftieth(only):
    with pytest.raises(AssertionError, match=only):
        check_sensitivity(domain(m=3, part=0.98, only=only), ())


def test_generated_pairs_show_a_tenth():
    with pytest.raises(AssertionError, match="replace_one"):
        check_generated(lambda data: domain(part=0.9))


def test_distances_are_those_of_the_parts():
    found = domain(quadratic_scale=0.5)
    pair = np.array([[1.0, 0.0], [0.0, 1.0]])
    made = found.distances(pair)
    assert made.keys() == bounds(found.query).keys()
    assert made["joint", "l1", "replace_one"] == pytest.approx(4.0)
    assert made["quadratic", "l1", "replace_one"] == pytest.approx(2.0)
    assert made["linear", "l1", "replace_one"] == 0.0
