"""Every record in one step of an epoch, by chance.

The bound is compared with draws of the pair that it dominates; the noise and
the steps that are drawn, with the ledger's entry, in whole fits.
"""

import math

import keras
import layer_moves
import numpy as np
import pytest
from layer_moves import N, network, nothing
from scipy import integrate, stats

import keras_fm as fm
from keras_fm.accounting import balls_in_bins
from keras_fm.kernel import compose
from keras_fm.kernel.access import sampling
from keras_fm.kernel.mechanisms import (
    GaussianMechanism,
    NoiseSource,
    compose_epsilon,
)
from keras_fm.kernel.noise_mechanisms import (
    BallsInBinsMechanism,
    SampledGaussianMechanism,
)
from keras_fm.lab.auditing import white_box
from keras_fm.per_example.given_records import GivenRecords
from keras_fm.per_example.poisson_samples import RECORDS, BinnedSamples

pytestmark = [
    pytest.mark.full,
    pytest.mark.backend,
    pytest.mark.usefixtures("forgetful"),
]

BACKEND = keras.backend.backend()


def mechanism(bins=5, epochs=1, noise=1.0, **arguments):
    return BallsInBinsMechanism(
        sensitivity=1.0,
        noise_multiplier=noise,
        sampling_rate=1 / bins,
        steps=bins * epochs,
        **arguments,
    )


# What it costs ---------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize(
    "bins, noise, epsilon",
    [(2, 1.0, 0.5), (5, 0.7, 1.0), (20, 1.0, 0.3), (100, 2.0, 0.0)],
)
def test_deltas_are_those_of_draws(bins, noise, epsilon):
    """Means of 100,000 draws of both hockey sticks: the bound is above them,
    and not by much. Each comparison is off by chance once in 30 million."""
    found = balls_in_bins.loss_distribution(bins, noise, 1e-3)
    x = np.random.default_rng(0).normal(0, noise, (100_000, bins))
    without = np.exp((x - 0.5) / noise**2).mean(axis=1)
    x[:, 0] += 1
    there = np.exp((x - 0.5) / noise**2).mean(axis=1)
    for law, draws in (
        (found._pmf_remove, 1 - math.exp(epsilon) / there),
        (found._pmf_add, 1 - math.exp(epsilon) * without),
    ):
        draws = np.maximum(draws, 0)
        error = 5.4 * draws.std() / math.sqrt(len(draws))
        delta = law.get_delta_for_epsilon(epsilon)
        assert abs(delta - draws.mean()) <= error + 1e-3 * delta
        assert error < 0.1 * delta


@pytest.mark.once
@pytest.mark.parametrize("noise", [0.4, 1.0, 5.0])
def test_points_are_no_less_spread(noise):
    """Prices of options under the law on points are those of the lognormal
    at the points, and above them between; the mean stays."""
    points = np.linspace(0, math.exp(0.5 / noise**2 + 3 / noise), 40)
    law, beyond, moved = balls_in_bins.on_points(points, noise)
    assert law.min() >= 0 and moved < 1e-14
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert law @ points + beyond == pytest.approx(1, abs=1e-12)
    for strike in (points[3], 1.0, 1.05, points[-2]):
        above = np.maximum(points - strike, 0) @ law + beyond
        exact = stats.lognorm(1 / noise, scale=math.exp(-0.5 / noise**2))
        # The mean of what is above is the area below its survival.
        ends = [strike, points[-1], 1e3 * points[-1]]
        exact = sum(
            integrate.quad(exact.sf, *part, epsabs=1e-12)[0]
            for part in zip(ends, ends[1:])
        )
        assert above > exact - 1e-8
        assert (above < exact + 1e-8) == (strike in points)


@pytest.mark.once
def test_one_step_is_a_plain_gaussian():
    one = compose_epsilon([mechanism(1, 4, noise=3.0)], 1e-5)
    plain = GaussianMechanism(sensitivity=1.0, noise_multiplier=1.5)
    assert one == pytest.approx(compose_epsilon([plain], 1e-5), rel=1e-6)
    # So it is below the least noise that a grid holds.
    known = compose_epsilon([mechanism(9, 1, 0.44)], 1e-5, scale=10.0)
    plain = GaussianMechanism(sensitivity=1.0, noise_multiplier=0.44)
    plain = compose_epsilon([plain], 1e-5, scale=10.0)
    assert known == pytest.approx(plain, rel=1e-4)


@pytest.mark.once
def test_more_bins_more_noise_and_fewer_epochs_cost_less():
    costs = [
        compose_epsilon([mechanism(*given)], 1e-5)
        for given in ((1, 2), (4, 2), (20, 2), (20, 1, 2.0))
    ]
    assert costs == sorted(costs, reverse=True) and costs[2] < costs[0] / 2
    many = mechanism(20, 10, 1e9)
    assert compose_epsilon([many], 1e-5, scale=0.1) < 2e-3


@pytest.mark.once
def test_steps_are_of_whole_epochs():
    assert mechanism(5).steps == 5
    parts = BallsInBinsMechanism(
        sensitivity=1.0, noise_multiplier=1.0, sampling_rate=0.2, steps=7
    )
    assert parts.steps == 10 and parts.bins == 5
    twice = compose_epsilon([parts, parts], 1e-5)
    assert twice == pytest.approx(
        compose_epsilon([mechanism(epochs=4)], 1e-5), rel=1e-6
    )
    for bins in range(1, 3000):
        assert mechanism(bins).bins == bins
    with pytest.raises(ValueError, match="steps"):
        mechanism(10**15)
    # More than anybody composes, as a file may name it.
    many = BallsInBinsMechanism(
        sensitivity=1.0, noise_multiplier=1.0, sampling_rate=1e-9, steps=1
    )
    assert compose_epsilon([many], 1e-5) == math.inf


@pytest.mark.once
def test_what_is_sampled_in_other_ways_is_not_merged(monkeypatch):
    """Few stand for many only among their kind: and then cost more."""
    poisson = SampledGaussianMechanism(
        sensitivity=1.0, noise_multiplier=1.0, sampling_rate=0.2, steps=5
    )
    own = mechanism()
    both = compose_epsilon([poisson, own], 1e-5)
    assert both > max(compose_epsilon([m], 1e-5) for m in (poisson, own))
    several = [poisson, own, mechanism(4, 1, 1.1), mechanism(7, 1, 1.2)]
    exact = compose_epsilon(several, 2e-5)
    monkeypatch.setattr(compose, "_MOST_SAMPLED", 2)
    assert exact < compose_epsilon(several, 2.001e-5) < math.inf


@pytest.mark.once
def test_an_audit_finds_no_more_than_was_charged():
    """The best test of two epochs; one that took the step of the record for
    known would claim more than can be found."""
    own, delta = mechanism(4, 2, 0.8), 1e-2
    paid = compose_epsilon([own], delta)
    found = white_box.release_epsilon(
        own, np.ones(1), noise=NoiseSource(1), delta=delta, runs=200_000
    ).epsilon
    known = compose_epsilon([mechanism(1, 2, 0.8)], delta)
    assert 0.6 * paid < found < paid < 0.7 * known


@pytest.mark.once
def test_a_ledger_composes_it_anew():
    ledger = fm.Ledger(fm.PrivacyBudget(8.0, 1e-5), neighbours="add_remove")
    entry = fm.LedgerEntry(
        name="steps",
        guarantee="proven",
        neighbours="add_remove",
        mechanism=mechanism(20, 3).config(),
        uses="gradients",
        proof="docs/proofs/balls_in_bins.md",
    )
    ledger.charge([entry])
    text = ledger.to_json()
    assert '"BallsInBinsMechanism"' in text
    (again,) = fm.Ledger.from_json(text).entries
    assert again.build_mechanism() == mechanism(20, 3)
    with pytest.raises(ValueError, match="sampled mechanism"):
        fm.LedgerEntry(
            name="steps",
            guarantee="proven",
            neighbours="replace_one",
            mechanism=mechanism().config(),
            uses="gradients",
            proof="docs/proofs/balls_in_bins.md",
        )


# Batches ---------------------------------------------------------------------


def binned(n=N, per_epoch=4, capacity=None):
    plan = sampling.plan(
        n, batch_size=-(-n // per_epoch), steps=8, delta=1e-5, epsilon=1.0
    )
    if capacity is not None:
        object.__setattr__(plan, "capacity", capacity)
    taken = [0]
    given = GivenRecords(np.arange(float(n))[:, None], batch_size=6)
    samples = BinnedSamples(
        given,
        plan,
        plan.capacity,
        (2, 2),
        "int64",
        per_epoch=per_epoch,
        taken=lambda: taken[0],
    )
    return samples, taken


def records(batch):
    (x,) = batch
    return np.array(x[RECORDS])[np.array(x["factors"]) > 0, 0].tolist()


@pytest.mark.once
def test_every_record_is_in_one_step_of_an_epoch():
    samples, taken = binned()
    epochs = []
    for _ in range(3):
        # Before an epoch Keras may ask, and say that it ended.
        samples[0]
        samples.on_epoch_end()
        steps = []
        for index in range(4):
            steps.append(records(samples[index]))
            assert records(samples[index]) == steps[-1]
            taken[0] += 1
        assert sorted(sum(steps, [])) == list(range(N))
        epochs.append(steps)
    # Two epochs of 22 records are the same once in 4^22.
    assert epochs[0] != epochs[1] != epochs[2]
    taken[0] = 6
    with pytest.raises(RuntimeError, match="an earlier step again"):
        samples[1]


@pytest.mark.once
def test_steps_are_drawn_evenly_and_independently():
    """Two records in 4 steps over 2,000 epochs: each pair of steps alike, by
    a test that fails by chance once in a million."""
    samples, taken = binned()
    counts = np.zeros((4, 4))
    for epoch in range(2000):
        taken[0] = 4 * epoch
        samples._joined(0, samples._generator())
        first, second = samples._bins[epoch][:2]
        counts[first, second] += 1
    assert stats.chisquare(counts.ravel()).pvalue > 1e-6


@pytest.mark.once
def test_a_step_that_is_too_full_ends_the_run():
    samples, _ = binned(capacity=0)
    with pytest.raises(RuntimeError, match="exceeded its capacity"):
        for index in range(4):
            samples[index]


# Whole fits ------------------------------------------------------------------


def fitted(x, y, owned=None, batch_size=6, budget=None, **given):
    """What the steps of a fit took off the weights, in clips, and the
    budget."""
    budget = budget or fm.callbacks.PrivateModel(2.0, 1e-5)
    given["participation"] = fm.BallsInBins()
    found = layer_moves.moves(
        network(owned), x, y, budget, batch_size, owned, **given
    )
    return found, budget


@pytest.mark.parametrize("owned", [None, 2])
def test_the_noise_is_that_of_the_entry(owned):
    """Steps of a gradient of zero are independent noise of the deviation that
    was charged."""
    moves, budget = fitted(*nothing(N * (owned or 1)), owned)
    (entry,) = budget.ledger.entries
    charged = entry.build_mechanism()
    assert charged == BallsInBinsMechanism(
        sensitivity=1.0,
        noise_multiplier=charged.noise_multiplier,
        sampling_rate=0.25,
        steps=8,
        overflow_probability=charged.overflow_probability,
    )
    assert 1.98 < budget.ledger.epsilon() <= 2.0
    assert len(moves) == 8
    assert layer_moves.are_independent(moves / charged.stddev)


@pytest.mark.usefixtures("without_noise")
def test_a_record_moves_one_step_of_an_epoch():
    """By no more than the sensitivity that was charged."""
    x, y = nothing()
    x[0], y[0] = 1e3, 1e7
    moves, budget = fitted(x, y)
    (entry,) = budget.ledger.entries
    lengths = np.linalg.norm(moves, axis=1).reshape(2, 4)
    lengths /= entry.build_mechanism().sensitivity
    assert np.sum(lengths > 0, axis=1).tolist() == [1, 1]
    assert 0.999 < lengths.max() <= 1 + 1e-5


@pytest.mark.once
def test_the_statement_says_how_records_are_taken():
    _, budget = fitted(*nothing())
    (entry,) = budget.ledger.entries
    assert "each record in one step of 4, drawn anew" in entry.uses
    assert "balls_in_bins.md" in entry.proof
    # All records in every step: nothing is by chance.
    _, budget = fitted(*nothing(), batch_size=N)
    assert budget.ledger.entries[0].build_mechanism().sampling_rate == 1
    assert "drawn anew" not in budget.ledger.entries[0].uses


@pytest.mark.once
@pytest.mark.parametrize(
    "neighbours, given, words",
    [
        ("replace_one", {}, r"participation=keras_fm\.Participation"),
        ("add_remove", {"steps_per_epoch": 3}, "uses every record once"),
    ],
)
def test_what_is_refused_charges_nothing(neighbours, given, words):
    budget = fm.callbacks.PrivateModel(
        8.0, 1e-5, guarantee=fm.Proven(neighbours=neighbours)
    )
    with pytest.raises(ValueError, match=words):
        fitted(*nothing(), budget=budget, **given)
    assert not budget.ledger.entries
