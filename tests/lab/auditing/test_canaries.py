"""Plans plant what they say, coins are fair and decide one record each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from keras_fm.lab.auditing.canaries import (
    CanaryPlan,
    canary_losses,
    include_scores,
    swap_scores,
)
from keras_fm.lab.auditing.one_run import one_run_best

KINDS = {
    "labels": {},
    "noise": {"low": -2.0, "high": 3.0},
    "unit": {"bound": 1.5},
}


def data(n=60, shape=(6,), classes=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (n, *shape)).astype("float32")
    return x, rng.integers(0, classes, n)


def plan(design="swap", kind="labels", canaries=20, seed=1, **options):
    return CanaryPlan(
        design=design,
        kind=kind,
        canaries=canaries,
        seed=seed,
        **{**KINDS[kind], **options},
    )


def records(x, y=None):
    """Rows as a sorted list of tuples: a data set without its order."""
    flat = np.asarray(x, np.float64).reshape(len(x), -1)
    if y is not None:
        flat = np.column_stack([flat, np.asarray(y).reshape(len(x), -1)])
    return sorted(map(tuple, flat))


# Planting --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_swap_keeps_the_number_and_changes_the_canaries_only(kind):
    x, y = data()
    before = x.copy(), y.copy()
    planted = plan("swap", kind).plant(x, y, classes=4)
    assert planted.neighbours == "replace_one"
    assert planted.x.shape == x.shape and planted.x.dtype == x.dtype
    assert planted.y.shape == y.shape and planted.y.dtype == y.dtype
    rest = np.setdiff1d(np.arange(60), planted.rows)
    assert len(rest) == 40
    assert np.array_equal(planted.x[rest], x[rest])
    assert np.array_equal(planted.y[rest], y[rest])
    # The label of each canary is the one that its coin chose.
    m = np.arange(20)
    assert np.array_equal(planted.x[planted.rows], planted.canary_x[:, 0])
    assert np.array_equal(
        planted.y[planted.rows], planted.canary_y[m, planted.coins]
    )
    assert (planted.canary_y[:, 0] != planted.canary_y[:, 1]).all()
    # What was given is left alone.
    assert np.array_equal(before[0], x) and np.array_equal(before[1], y)
    assert "20 of" in repr(planted) and "coins" not in repr(planted)


@pytest.mark.parametrize("kind", KINDS)
def test_include_adds_those_whose_coin_is_one(kind):
    x, y = data()
    planted = plan("include", kind).plant(x, y, classes=4)
    assert planted.neighbours == "add_remove"
    present = planted.coins == 1
    assert 0 < present.sum() < 20
    if kind == "labels":
        kept = np.setdiff1d(np.arange(60), planted.rows)
        assert (planted.canary_y[:, 0] != y[planted.rows]).all()
    else:
        kept = np.arange(60)
        assert planted.rows is None
    expected = records(
        np.concatenate([x[kept], planted.canary_x[present, 0]]),
        np.concatenate([y[kept], planted.canary_y[present, 0]]),
    )
    assert records(planted.x, planted.y) == expected
    assert planted.canary_y.shape == (20, 1)


@pytest.mark.parametrize("design", ["swap", "include"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_coin_decides_one_record_and_its_place(monkeypatch, design, kind):
    x, y = data()
    chosen = plan(design, kind)
    planted = chosen.plant(x, y, classes=4)
    flipped = planted.coins.copy()
    flipped[7] = 1 - flipped[7]

    class Coins:
        """The second generator of the plan, with one coin turned."""

        def __init__(self, sequence):
            self._real = np.random.Generator(np.random.PCG64(sequence))
            self._flips = sequence.spawn_key[-1] == 1

        def __getattr__(self, name):
            if self._flips:
                return lambda *_: flipped
            return getattr(self._real, name)

    monkeypatch.setattr(np.random, "default_rng", Coins)
    other = chosen.plant(x, y, classes=4)
    assert np.array_equal(other.canary_x, planted.canary_x)
    assert np.array_equal(other.canary_y, planted.canary_y)

    def rows(p):
        return np.column_stack([p.x.reshape(len(p.x), -1), p.y])

    a, b = rows(planted), rows(other)
    if design == "swap":
        assert (a != b).any(axis=1).sum() == 1
        return
    longer, shorter = (a, b) if len(a) > len(b) else (b, a)
    assert len(longer) == len(shorter) + 1
    # One record is in between; all others keep their order.
    assert any(
        np.array_equal(np.delete(longer, i, axis=0), shorter)
        for i in range(len(longer))
    )


def test_included_canaries_stand_anywhere():
    x, y = data(400)
    planted = plan("include", "noise", 400).plant(x, y, classes=4)
    outside = (planted.x < 0).any(axis=1) | (planted.x > 1).any(axis=1)
    places = np.flatnonzero(outside) / len(planted.x)
    assert stats.kstest(places, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("design", ["swap", "include"])
@pytest.mark.parametrize("kind", ["noise", "unit"])
def test_without_labels_records_are_the_forms(design, kind):
    x, _ = data(shape=(8, 8))
    planted = plan(design, kind).plant(x)
    assert planted.y is None and planted.canary_y is None
    if design == "include":
        assert planted.canary_x.shape == (20, 1, 8, 8)
        return
    m = np.arange(20)
    assert planted.canary_x.shape == (20, 2, 8, 8)
    assert np.array_equal(
        planted.x[planted.rows], planted.canary_x[m, planted.coins]
    )
    flat = planted.canary_x.reshape(40, -1)
    assert len(np.unique(flat, axis=0)) == 40


# The records of a kind -------------------------------------------------------


def test_noise_is_uniform_within_its_bounds():
    x, y = data(200, shape=(3, 2))
    low = np.array([[0.0, 0.0], [0.0, -5.0], [0.0, 0.0]])
    planted = plan("swap", "noise", 200, low=low, high=low + 2).plant(x, y, 4)
    values = (planted.canary_x[:, 0] - low).ravel() / 2
    assert stats.kstest(values, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("canaries", [20, 64, 65])
def test_unit_canaries_have_the_bound_as_norm(canaries):
    x, y = data(80, shape=(8, 8))
    planted = plan("swap", "unit", canaries).plant(x, y, classes=4)
    flat = planted.canary_x.reshape(canaries, 64).astype(np.float64)
    assert np.allclose(np.linalg.norm(flat, axis=1), 1.5, rtol=1e-6)
    gram = flat @ flat.T - np.diag(np.full(canaries, 2.25))
    if canaries <= 64:
        assert np.array_equal(gram, np.zeros_like(gram))
    else:
        assert 0.01 < np.abs(gram).max() < 2.25 * 0.9


# Coins -----------------------------------------------------------------------


def test_coins_are_fair_and_say_nothing_of_each_other():
    """5 sigma: a fair plan fails once in a million times."""
    x, y = data()
    coins = np.array(
        [plan(seed=s, canaries=40).plant(x, y, 4).coins for s in range(500)]
    )
    signs = 2.0 * coins - 1
    assert abs(signs.mean()) < 5 / np.sqrt(signs.size)
    assert np.abs(signs.mean(axis=0)).max() < 5 / np.sqrt(500)
    correlation = signs.T @ signs / 500 - np.eye(40)
    assert np.abs(correlation).max() < 5 / np.sqrt(500)


def test_coins_say_nothing_of_the_labels_and_a_seed_repeats():
    x, y = data(2000, classes=3)
    planted = plan(canaries=2000).plant(x, y, classes=3)
    larger = planted.canary_y[:, 1] > planted.canary_y[:, 0]
    agree = (larger == (planted.coins == 1)).mean()
    assert abs(agree - 0.5) < 5 * 0.5 / np.sqrt(2000)
    again = plan(canaries=2000).plant(x, y, classes=3)
    assert np.array_equal(again.x, planted.x)
    assert np.array_equal(again.coins, planted.coins)
    other = plan(canaries=2000, seed=2).plant(x, y, classes=3)
    assert not np.array_equal(other.coins, planted.coins)


# Scores ----------------------------------------------------------------------


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 6), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_losses_are_cross_entropies(m, classes, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 20, (m, classes))
    labels = rng.integers(0, classes, (m, 2))
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    share = shifted / shifted.sum(axis=1, keepdims=True)
    rows = np.arange(m)[:, None]
    losses = canary_losses(logits, labels)
    assert np.allclose(np.exp(-losses), share[rows, labels], atol=1e-12)
    # Swap scores are differences of logits: what both forms share cancels.
    assert np.allclose(
        swap_scores(losses),
        logits[rows, labels][:, 1] - logits[rows, labels][:, 0],
    )
    margins = canary_losses(logits, labels, "margin")
    for i in range(m):
        for j in range(2):
            rest = np.delete(logits[i], labels[i, j])
            assert margins[i, j] == rest.max() - logits[i, labels[i, j]]


def test_scores_guess_what_was_seen():
    assert swap_scores([[1.0, 0.0], [0.0, 1.0]]).tolist() == [1.0, -1.0]
    losses = np.array([0.1, 5.0, 0.2, 4.0])
    assert (include_scores(losses) > 0).tolist() == [True, False, True, False]
    assert np.array_equal(
        include_scores(losses[:, None]), include_scores(losses)
    )
    # A canary that is hard by itself is judged by how far its loss fell.
    reference = np.array([0.2, 9.0, 0.3, 4.0])
    assert include_scores(losses, reference).argmax() == 1


# A whole audit ---------------------------------------------------------------


def noisy_sum(planted, epsilon, rng):
    """Sum of the records with Laplace noise: epsilon if one L1 norm is 1."""
    total = planted.x.astype(np.float64).sum(axis=0)
    return total + rng.laplace(0.0, 1 / epsilon, total.shape)


def test_an_include_audit_of_a_noisy_sum():
    """True epsilon 2: not refuted as 2, refuted as 1, in 10 seeds."""
    for seed in range(10):
        chosen = plan("include", "unit", 1000, seed, bound=1.0)
        planted = chosen.plant(np.zeros((3, 1000)))
        released = noisy_sum(planted, 2.0, np.random.default_rng(seed))
        # The loss of a canary is minus what the release holds along it.
        losses = -(planted.canary_x[:, 0] @ released)
        bound = one_run_best(include_scores(losses), planted.coins, delta=0.0)
        assert 1.0 < bound.epsilon <= 2.0


def test_a_swap_audit_of_a_noisy_sum():
    """Noise that is 2-private under add_remove is 4-private here: the two
    forms of a canary are at L1 distance 2."""
    for seed in range(10):
        planted = plan("swap", "unit", 500, seed, bound=1.0).plant(
            np.zeros((500, 1000))
        )
        released = noisy_sum(planted, 2.0, np.random.default_rng(seed))
        losses = -(planted.canary_x @ released)
        bound = one_run_best(swap_scores(losses), planted.coins, delta=0.0)
        assert 2.0 < bound.epsilon <= 4.0
