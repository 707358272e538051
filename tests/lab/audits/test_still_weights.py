"""Moves of weights that shared noise cannot make (docs/proofs/audit.md,
proposition 7): none without a record, some with it, and some either way where
every sum of gradients has noise of its own."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.lab import audits
from keras_fm.lab.audits import still_weights, whole_trainings

pytestmark = [pytest.mark.once, pytest.mark.full, pytest.mark.tensorflow]

# One form for each of the moves.
MOVES = {
    "ILM, no normalisation",
    "ILM, min-max normalisation",
    "AdLM, the authors' code, dense",
}


@pytest.fixture(scope="module")
def digits():
    x, y, classes = audits.load("digits")
    return (x, y), classes


@pytest.mark.parametrize("name", still_weights.FORMS)
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_without_the_record_no_weight_moves(name, epsilon, digits):
    """By the proposition, for every draw of the noise: what rounding left in
    some fifty fits was below a hundredth of the threshold, in one of many more
    a fifth."""
    found = still_weights.score(name, epsilon, *digits, there=False)
    assert found < 0.5 * still_weights.FORMS[name].over


@pytest.mark.parametrize("name", still_weights.FORMS)
def test_with_the_record_they_move(name, digits):
    """None of four fits would with a probability below 1e-6, if one fit in
    thirty does not; of some fifty tried all did. The first that does ends
    the search."""
    assert any(
        still_weights.score(name, 0.3, *digits, there=True)
        > still_weights.FORMS[name].over
        for _ in range(4)
    )


@pytest.mark.parametrize("name", sorted(MOVES))
def test_control_moves_either_way(name, digits):
    """Steps with a proof: the same move says nothing."""
    for there in (False, True):
        found = still_weights.control_score(name, 0.3, *digits, there=there)
        assert found > 1e6 * still_weights.FORMS[name].over


def test_pairs_are_neighbours(digits):
    (x, y), _ = digits
    assert not x[:, still_weights.PIXEL].any()
    for pair in (still_weights.lit, still_weights.alike):
        (one, its), (other, others) = pair(x, y)
        assert len(one) == len(other) == len(x)
        differ = (one != other).any(axis=1) | (its != others)
        assert differ.sum() == 1
        assert other.min() >= 0 and other.max() <= 1


def test_noise_of_its_own_for_every_record_would_hide_it():
    """The argument needs one vector for all: a row moves off the bias, and
    off zero, if records have noise of their own."""
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(50, 4))
    shared = np.outer(np.full(50, rng.laplace()), np.ones(4)) * slopes
    own = rng.laplace(size=(50, 1)) * slopes
    for rows, least in ((shared, 0.0), (own, 1e-3)):
        moves = [rows.sum(axis=0)[None], slopes.sum(axis=0)]
        found = still_weights.along_bias(moves)
        assert (found < 1e-12) == (least == 0.0)


def test_the_noise_is_in_the_network(digits):
    """Other rows feel it: what stays does not stay for want of noise."""
    (x, y), classes = digits
    ends = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        model = still_weights.FORMS["ILM, no normalisation"].network(x, classes)
        private = fm.callbacks.PrivateModel(
            0.3, 0.0, guarantee=fm.Published(lot=len(x))
        )
        model.compile(
            keras.optimizers.SGD(1e-3), fm.losses.TaylorCrossEntropy()
        )
        model.fit(x, y, batch_size=len(x), callbacks=[private], verbose=0)
        ends.append(np.array(model.get_layer("affine").kernel))
    assert np.abs(ends[0] - ends[1]).max() > 1e-6


def test_columns_of_whole_trainings_give_their_coins_away(digits):
    """Adam, float32, a fifth of the steps of the table; five trainings, of
    which each alone was between 0.7 and 0.93. Fair coins give 0.7 on average
    with a probability below 1e-6."""
    right = []
    for _ in range(5):
        scores, coins = whole_trainings.lit_columns(
            "minmax", 0.3, *digits, columns=60, seed=0, epochs=220
        )
        surest = np.argsort(-np.abs(scores))[:30]
        right.append(np.mean((scores[surest] > 0) == coins[surest]))
    assert np.mean(right) > 0.7


def test_control_columns_do_not(digits):
    """Noise on every sum hides them: fair coins give 49 of 60 with a
    probability below 1e-6."""
    scores, coins = whole_trainings.control_columns(
        0.3, *digits, columns=60, seed=0
    )
    assert np.sum((scores > 0) == coins) < 49
