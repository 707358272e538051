"""Many rounds: what they cost, when they are charged, what they sample, and
the descent that they drive.

Statistical tests have fixed seeds and accept at p > 1e-6 (a fresh seed would
fail by chance once in a million runs) unless they say otherwise.
"""

import math

import neighbours
import numpy as np
import pytest
from linear_records import gradients, objective, records, silent
from scipy import stats

from keras_fm.heads import rounds as rounds_lib
from keras_fm.heads.gradient_query import WeightsRelease
from keras_fm.heads.rounds import Rounds
from keras_fm.kernel import mechanisms
from keras_fm.kernel.access.gradient_rounds import GradientRounds
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.noisy_statistics import Release
from keras_fm.kernel.mechanisms import (
    GaussianMechanism,
    NoiseSource,
    SampledGaussianMechanism,
)
from keras_fm.kernel.release import release
from keras_fm.queries import GradientQuery

DELTA = 1e-5


def mechanism(steps=5, rate=1.0, multiplier=20.0, sensitivity=1.0):
    return SampledGaussianMechanism(
        sensitivity=sensitivity,
        noise_multiplier=multiplier,
        sampling_rate=rate,
        steps=steps,
    )


def ledger(epsilon=1.0, neighbours="add_remove"):
    return Ledger(PrivacyBudget(epsilon, DELTA), neighbours=neighbours)


def opened(data=None, found=None, made=None, to=None, seed=0, **kwargs):
    data = data or records()
    return GradientRounds(
        made or objective(),
        data if callable(data) else lambda: iter([data]),
        mechanism=found or mechanism(),
        ledger=to or ledger(),
        name="output",
        noise=NoiseSource(seed),
        **kwargs,
    )


# What is charged, and when --------------------------------------------------


def test_all_rounds_are_one_entry_of_their_exact_cost():
    to, found = ledger(), mechanism(steps=7, multiplier=15.0)
    opened(found=found, to=to, notes=("n is public",))
    (entry,) = to.entries
    # Taken with the charge: another model of this name cannot take them.
    assert "steps 7" in to.statement()
    assert entry.guarantee == "proven" and entry.name == "output"
    assert "gradient.md" in entry.proof and "n is public" in entry.notes
    assert entry.build_mechanism() == found
    one = GaussianMechanism(
        sensitivity=1.0, noise_multiplier=15.0 / math.sqrt(7)
    )
    wanted = mechanisms.compose_epsilon([one], DELTA)
    assert mechanisms.compose_epsilon([found], DELTA) == pytest.approx(
        wanted, rel=1e-6
    )


def test_a_record_whose_coefficient_overflows_counts_for_nothing():
    """An error would tell one data set from its neighbour."""
    made = objective(loss="squared_hinge")
    weights = np.diag([0.1, 0.2, 0.3, 1e308])[:, [0, 1, 3]]
    h, y = np.eye(4)[:3] * 0.5, np.arange(3)
    loud = np.array([[0.0, 0.0, 0.0, 1.0]])
    paid = opened((np.concatenate([h, loud]), np.append(y, 0)), silent(1), made)
    exact = made.total(*made.check_records(h, y), weights)
    assert np.all(np.isfinite(exact)) and np.any(exact)
    np.testing.assert_array_equal(paid(weights), exact)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_overflowed_are_an_error(bad):
    """They are public, and the read is still there."""
    paid = opened(found=mechanism(steps=1))
    with pytest.raises(ValueError, match="weights overflowed"):
        paid(np.full((4, 3), bad))
    paid(np.zeros((4, 3)))


def test_samples_and_noise_come_from_words_alone():
    """Not from the statistical generator."""

    class Wordy(NoiseSource):
        def generator(self):
            pytest.fail("the statistical generator was asked")

    paid = opened(found=mechanism(rate=0.5), to=(to := ledger(9.0)))
    paid._noise = Wordy()
    assert paid(np.zeros((4, 3))).shape == (4, 3)
    assert to.entries[0].noise == "lattice"


def test_other_mechanisms_are_refused():
    to = ledger()
    with pytest.raises(ValueError, match="SampledGaussianMechanism"):
        opened(
            found=GaussianMechanism(sensitivity=1.0, noise_multiplier=9.0),
            to=to,
        )
    with pytest.raises(ValueError, match="below the query's"):
        opened(made=objective(clip=1.1), to=to)
    with pytest.raises(ValueError, match="below the query's"):
        opened(to=ledger(neighbours="replace_one"))
    with pytest.raises(ValueError, match="add_remove"):
        opened(
            lambda: pytest.fail("the records were read"),
            mechanism(rate=0.5, sensitivity=2.0),
            to=ledger(neighbours="replace_one"),
        )
    with pytest.raises(ValueError, match="released once"):
        release(
            objective(), [], mechanism=mechanism(), ledger=to, name="output",
            noise=NoiseSource(),
        )  # fmt: skip
    assert not to.entries


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loss", rounds_lib.LOSSES[:3])
def test_kept_records_have_the_sums_of_those_read_again(
    dtype, loss, monkeypatch
):
    """Joined in blocks, in whole steps of a grid: with the same bits."""
    monkeypatch.setattr("keras_fm.kernel.sums.EXACT_ROWS", 300)
    rng = np.random.default_rng(3)
    parts = [records(n, seed=n) for n in (7, 290, 40, 1, 500)]
    parts = [((0.9 * h).astype(dtype), y) for h, y in parts]
    made, weights = objective(loss=loss), rng.normal(size=(4, 3))
    asked = []

    def batches():
        asked.append(1)
        yield from parts

    kept = opened(batches, silent(2), made, keep=True)
    blocks = kept._checked()
    assert [len(h) for h, *_ in blocks] == [337, 501]
    assert {h.dtype.name for h, *_ in blocks} == {"int16"}
    found = [kept(weights), kept(weights)]
    np.testing.assert_array_equal(*found)
    assert len(asked) == 1
    again = opened(batches, silent(1), made)(weights)
    np.testing.assert_array_equal(found[0], again)
    h, y = (np.concatenate(v) for v in zip(*parts))
    wanted, checked = np.zeros((4, 3)), made.check_records(h, y)
    for row, residual in zip(
        checked[0], neighbours.residuals(made, *checked, weights)
    ):
        one = np.outer(row / 2**14, residual)
        wanted += one * min(1, 1 / max(np.linalg.norm(one), 1e-9))
    np.testing.assert_allclose(found[0], wanted, rtol=1e-9, atol=838 / 2**24)


def test_samples_of_kept_records_and_owners():
    """The records of the sample, with their own lengths."""
    made, n = objective(60, 1, grouped=True), 60
    h, y = np.eye(n) / 2, np.arange(n) % 2
    paid = opened((h, y, np.arange(n) // 3), silent(40, 0.5), made, keep=True)
    sums = np.stack([paid(np.zeros((n, 1)))[:, 0] for _ in range(40)])
    sums *= 4 * np.where(y == 1, -1, 1)
    assert np.all((sums == 0) | (np.abs(sums - 1) < 1e-9))
    # An owner comes with all three records, or with none.
    assert np.all(sums[:, ::3] == sums[:, 1::3])
    assert 0.4 < np.mean(sums) < 0.6
    alone = objective(n, 1)
    paid = opened((h, y), silent(40, 0.5), alone, keep=True)
    sums = np.stack([paid(np.zeros((n, 1)))[:, 0] for _ in range(40)])
    sums *= 4 * np.where(y == 1, -1, 1)
    assert np.all((sums == 0) | (np.abs(sums - 1) < 1e-9))
    assert np.any(sums[:, ::3] != sums[:, 1::3])


# Noise and samples ----------------------------------------------------------


def test_mean_and_variance_of_the_noise():
    """Kolmogorov-Smirnov at p > 1e-4; 2/3 and 3/2 of the scale are rejected
    at p < 1e-6."""
    made = objective(clip=0.25)
    found = mechanism(steps=400, multiplier=100.0, sensitivity=0.25)
    h, y = records()
    paid = opened((h, y), found, made, seed=1)
    weights = np.ones((4, 3))
    exact = made.total(*made.check_records(h, y), weights)
    noise = np.stack([paid(weights) - exact for _ in range(400)]) / 25.0
    assert noise.shape == (400, 4, 3)
    for scale, wanted in ((1.0, True), (2 / 3, False), (1.5, False)):
        p = stats.kstest(noise.ravel() / scale, "norm").pvalue
        assert p > 1e-4 if wanted else p < 1e-6
    # Independent between rounds and between entries.
    for first, second in (
        (noise[1:], noise[:-1]),
        (noise[:, 1:], noise[:, :-1]),
        (noise[:, :, 1:], noise[:, :, :-1]),
    ):
        z = np.mean(first * second) * math.sqrt(first.size)
        assert abs(z) < 4.9


def inclusions(n, rate, steps, parts=1, seed=0):
    """Who was in which read: every record has an entry of its own."""
    made = objective(n, 1)
    h, y = np.eye(n), np.arange(n) % 2

    def batches():
        for p in np.array_split(np.arange(n), parts):
            yield h[p], y[p]

    paid = opened(batches, silent(steps, rate), made, seed=seed)
    sums = [paid(np.zeros((n, 1)))[:, 0] for _ in range(steps)]
    sums = np.stack(sums) * 2 * np.where(y == 1, -1, 1)
    assert np.all((sums == 0) | (sums == 1))
    return sums


@pytest.mark.parametrize("parts", [1, 7])
def test_every_record_joins_every_round_by_itself(parts):
    n, rate, steps = 150, 0.3, 200
    found = inclusions(n, rate, steps, parts)
    spread = rate * (1 - rate)

    def deviation(values, mean, variance):
        return (values.sum() - values.size * mean) / math.sqrt(
            values.size * variance
        )

    assert abs(deviation(found, rate, spread)) < 4.9
    for axis, size in ((0, steps), (1, n)):
        # Of records over rounds; of sizes of samples (a fixed size, or one
        # sample used twice, would have another variance).
        z = (found.sum(axis) - rate * size) / math.sqrt(spread * size)
        square, degrees = np.sum(z**2), len(z)
        assert 1e-6 < stats.chi2.cdf(square, degrees) < 1 - 1e-6
    both = rate**2
    for first, second in (
        (found[1:], found[:-1]),
        (found[:, 1:], found[:, :-1]),
        (found[:, :75], found[:, 75:]),
    ):
        # Neighbouring products share a factor: their variance is larger.
        variance = both * (1 - both) + 2 * (rate**3 - both**2)
        assert abs(deviation(first * second, both, variance)) < 4.9


def test_full_rounds_hold_every_record_and_samples_may_be_empty():
    assert np.all(inclusions(30, 1.0, 3) == 1)
    assert not np.any(inclusions(30, 1e-9, 3))


def test_a_seed_repeats_everything_and_is_not_private(tmp_path):
    found = mechanism(rate=0.5)
    first, second, other = (
        opened(found=found, seed=seed) for seed in (7, 7, 8)
    )
    weights = np.ones((4, 3))
    made = first(weights)
    np.testing.assert_array_equal(made, second(weights))
    assert np.all(made != first(weights))
    assert np.all(made != other(weights))
    to = ledger()
    released = opened(found=found, to=to).finish(weights)
    assert not released.private and to.epsilon() == math.inf
    to = ledger()
    released = opened(found=found, to=to, seed=None).finish(weights)
    assert released.private and 0 < to.epsilon() <= 1.0


def test_weights_are_saved_and_loaded_without_showing(tmp_path):
    weights = np.random.default_rng(0).normal(size=(4, 3))
    made = objective(loss="squared_hinge", clip=0.25)
    paid = opened(made=made, found=mechanism(rate=0.5), seed=None)
    found = paid.finish(weights)
    weights[0, 0] = 9.0
    assert found.statistics["weights"][0, 0] != 9.0
    assert isinstance(found, WeightsRelease)
    assert not any(f"{abs(w):.3f}" in repr(found) for w in weights.ravel())
    assert "(4, 3)" in repr(found)
    found.save(tmp_path / "weights.npz")
    loaded = Release.load(tmp_path / "weights.npz")
    assert isinstance(loaded, WeightsRelease)
    assert (loaded.query, loaded.mechanism) == (made, mechanism(rate=0.5))
    assert loaded.neighbours == "add_remove" and loaded.private
    np.testing.assert_array_equal(
        loaded.statistics["weights"], found.statistics["weights"]
    )


# Rounds ---------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("averaging", [0.0, 0.25, 0.99])
def test_descent_is_the_plain_loop(momentum, averaging):
    h, y = records()
    start = np.random.default_rng(3).normal(size=(4, 3))
    kept = start.copy()
    rounds = Rounds(
        rounds=20, learning_rate=2.0, momentum=momentum, averaging=averaging
    )
    made = rounds.descend(lambda w: gradients(h, y, w, 0.1), start, 60)
    weights, velocity, path = start.copy(), 0, []
    for _ in range(20):
        velocity = momentum * velocity + gradients(h, y, weights, 0.1) / 60
        weights = weights - 2.0 * velocity
        path.append(weights)
    last = {0.0: 1, 0.25: 5, 0.99: 20}[averaging]
    np.testing.assert_allclose(made, np.mean(path[-last:], 0), rtol=1e-10)
    np.testing.assert_array_equal(start, kept)


@pytest.mark.parametrize(
    "count, averaging, last", [(100, 0.07, 7), (10, 0.01, 1), (10, 0.31, 4)]
)
def test_how_many_weights_are_averaged(count, averaging, last):
    """Weights are 1, 2, 3, ...: their mean tells how many they are."""
    rounds = Rounds(
        rounds=count, learning_rate=1.0, momentum=0.0, averaging=averaging
    )
    made = rounds.descend(lambda w: -np.ones((1, 1)), np.zeros((1, 1)), 1)
    assert made[0, 0] == pytest.approx(count - (last - 1) / 2)


@pytest.mark.parametrize("loss", rounds_lib.LOSSES)
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_the_rule_for_the_learning_rate(momentum, loss):
    """Noise alone gives 2000 weights the stated standard deviation, to 5 %
    (its own error is 1.6 %); momentum lacks a few steps at the end."""
    rng = np.random.default_rng(0)
    rounds = Rounds(rounds=400, momentum=momentum, loss=loss, averaging=0)
    made = rounds.descend(
        lambda w: rng.normal(size=w.shape) * 30.0, np.zeros((40, 50)), 7, 30.0
    )
    wanted = rounds_lib._WEIGHT_NOISE[loss]
    assert np.std(made) == pytest.approx(wanted, rel=0.05)
    assert rounds.rate(30.0, 7, 1e6) == 1e-6
    given = Rounds(rounds=400, learning_rate=3.0)
    assert given.rate(None, 7) == given.rate(30.0, 9) == 3.0
    # The rule with another noise of the weights, which is in proportion.
    one, two = (rounds.rate(30.0, 7, weight_noise=w) for w in (1.0, 2.0))
    assert two == pytest.approx(2 * one)
    assert Rounds.of(rounds.config()) == rounds


@pytest.mark.parametrize("loss", rounds_lib.LOSSES)
def test_losses_with_a_known_curvature_are_whitened(loss):
    rounds = Rounds(rounds=9, loss=loss)
    known = loss in ("cross_entropy", "squared_error")
    assert rounds.whitening == (0.1 if known else 0.0)
    # A threshold by a rule of public numbers, which are not known yet.
    wanted = (None, 0.5) if known else (0.1, 0)
    assert (rounds.clip, rounds.averaging) == wanted
    plain = Rounds(rounds=9, loss=loss, whitening=0)
    assert (plain.clip, plain.averaging) == (0.1, 0)
    with pytest.raises(ValueError, match="`whitening`"):
        Rounds(rounds=9, loss=loss, whitening=0.2 if not known else 1.0)


# The loss that the first read decides on -------------------------------------


def classes(apart, n=4000, m=60, outputs=4):
    """Unit rows that stand on their class' axis, or nearly anywhere."""
    rng = np.random.default_rng(1)
    y = np.arange(n) % outputs
    h = rng.normal(size=(n, m))
    h[np.arange(n), y] += apart
    return h / np.linalg.norm(h, axis=1, keepdims=True), y


def descended(data, loss, **kwargs):
    rounds = Rounds(rounds=6, loss=loss, clip=0.1, whitening=0, **kwargs)
    made = objective(60, 4, loss=loss, clip=0.1)
    found = mechanism(6, multiplier=9.0, sensitivity=0.1)
    paid = opened(data, found, made, ledger(9.0), keep=True)
    asked = []
    total = GradientQuery.total

    def watched(self, *args, **more):
        asked.append(self.loss)
        return total(self, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientQuery, "total", watched)
        weights = rounds.descend(paid, np.zeros((60, 4)), 4000, 0.9)
    assert paid.finish(weights).query == made
    return weights, asked


@pytest.mark.parametrize("apart", [9.0, 0.0])
def test_classes_that_are_apart_have_the_margin_loss(apart):
    data = classes(apart)
    weights, asked = descended(data, "by_first_round")
    follows = "crammer_singer" if apart else "cross_entropy"
    assert asked == ["by_first_round"] + 5 * [follows]
    entropy, _ = descended(data, "cross_entropy")
    # The first read is one of cross-entropy, with the same noise.
    assert np.array_equal(weights, entropy) == (not apart)
    if apart:
        rate = Rounds(rounds=6, clip=0.1).rate(0.9, 4000)
        given, _ = descended(data, "by_first_round", learning_rate=rate)
        np.testing.assert_array_equal(given, weights)


def test_the_first_round_decides_by_its_noisy_sum_alone():
    rounds = Rounds(rounds=2, clip=0.1, loss="by_first_round")
    for m, share, wanted in (
        (800, 0.02, True),
        (800, 0.008, True),
        (800, 0.007, False),
        (4000, 0.007, False),
        (400, 0.014, True),
        (400, 0.011, False),
        (800, -0.1, False),
    ):
        square = max(0.0, share * 80.0**2 + m * 10 * 0.5**2)
        noisy = np.full((m, 10), math.sqrt(square / (m * 10)))
        loss = rounds._chosen(noisy, 800, 0.5)
        assert (loss == "crammer_singer") == wanted


def test_what_cannot_choose_stays_with_cross_entropy():
    """Reads in several processes, and functions."""
    h, y = classes(9.0)

    def weights(loss):
        made = objective(60, 4, loss=loss, clip=0.1)
        found = made.check_records(h, y)
        return Rounds(rounds=4, loss=loss, whitening=0).descend(
            lambda w: made.total(*found, w), np.zeros((60, 4)), 4000, 0.9
        )

    np.testing.assert_array_equal(
        weights("by_first_round"), weights("cross_entropy")
    )
