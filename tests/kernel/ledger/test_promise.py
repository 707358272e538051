"""The promise of an epsilon in one sentence."""

import math
import re

import pytest

from keras_fm.kernel.budget import Neighbours
from keras_fm.kernel.ledger.statement import promise, rounded_up


def test_a_sentence_says_factor_chance_and_relation():
    found = promise(2.0, 1e-5, "add_remove")
    assert found.startswith("Adding or removing any one record makes")
    assert "at most 7.39 times as probable" in found
    assert found.endswith("a probability of at most 1 in 100,000.")
    pure = promise(0.5, 0.0, Neighbours.REPLACE_ONE, unit="user")
    assert pure.endswith("at most 1.65 times as probable.")
    assert pure.startswith("Replacing any one user by another")
    label = promise(1.0, 0.0, "replace_label")
    assert label.startswith("Changing the label of any one record")


def test_nothing_is_promised_without_a_proof():
    for epsilon in (math.inf, math.nan):
        with pytest.raises(ValueError, match="`epsilon` must be finite"):
            promise(epsilon, 0.0, "add_remove")
    # Whatever is finite has a sentence.
    assert "10^434,295 times" in promise(1e6, 1e-300, "add_remove")


@pytest.mark.parametrize(
    "epsilon", [1e-4, 0.01, 0.1, 1.0, 3.001, 6.9, 12.3, 30]
)
def test_what_is_promised_is_not_rounded_down(epsilon):
    """Of epsilon = 0.0001 the sentence once said "more than 1 times as
    probable", and an epsilon of 1.0000004 was a proven 1."""
    found = promise(epsilon, 0.0, "add_remove")
    times = float(re.search("at most (.*) times", found)[1].replace(",", ""))
    assert math.exp(epsilon) <= times < 1.02 * math.exp(epsilon)
    assert float(rounded_up(epsilon * 1.0000004)) > epsilon
    assert float(rounded_up(epsilon * 1.004, 2)) > epsilon


@pytest.mark.parametrize("delta", [1.5e-5, 1e-5, 0.27, 3e-9, 0.9])
def test_a_chance_is_not_rounded_down(delta):
    found = promise(1.0, delta, "add_remove")
    chance = int(re.search("1 in (.*)[.]", found)[1].replace(",", ""))
    assert 1 / chance >= delta * (1 - 1e-9)


def test_numbers_that_are_not_rounded():
    for value, words in (
        (1.0, "1"),
        (0.1 + 0.2, "0.3"),
        (0.0, "0"),
        (1e-300, "1e-300"),
        (math.inf, "inf"),
        (999999.5, "1e+06"),
    ):
        assert rounded_up(value) == words
