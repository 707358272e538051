"""The promise of an epsilon in one sentence."""

import math

import pytest

from keras_fm.kernel import statement
from keras_fm.kernel.budget import Neighbours


def test_a_sentence_says_factor_chance_and_relation():
    found = statement.sentence(2.0, 1e-5, "add_remove")
    assert found.startswith("Whether any one record was used for training or")
    assert "more than 7.39 times as probable" in found
    assert found.endswith("a probability of at most 1 in 100,000.")
    pure = statement.sentence(0.5, 0.0, Neighbours.REPLACE_ONE, unit="user")
    assert pure.endswith("1.65 times as probable in one case as in the other.")
    assert "any one user or another in its place" in pure
    assert "label any one record had" in statement.sentence(
        1.0, 0.0, "replace_label"
    )


def test_nothing_is_promised_without_a_proof():
    for epsilon in (math.inf, math.nan):
        with pytest.raises(ValueError, match="`epsilon` must be finite"):
            statement.sentence(epsilon, 0.0, "add_remove")
    # Whatever is finite has a sentence.
    assert "times" in statement.sentence(1e6, 1e-300, "add_remove")
