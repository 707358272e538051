"""Samples follow their law, buffers hold them, and noise meets its budget.

Statistical tests use fixed seeds; each states how often a fresh one fails.
"""

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from ledger_entries import entry
from scipy import optimize, stats

from keras_fm.kernel import mechanisms
from keras_fm.kernel.access import sampling
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import (
    GaussianMechanism,
    LaplaceMechanism,
    compose_epsilon,
    gaussian_multiplier,
)
from keras_fm.lab.baselines.dp_sgd_config import DPSGDPlan
from keras_fm.lab.composition import side_by_side

DELTA = 1e-5
N = 60


def plan(n=N, **changes):
    return sampling.plan(
        n, **{"batch_size": 20, "steps": 3, "delta": DELTA, **changes}
    )


def drawn(made, rng):
    return sampling.poisson_sample(
        made.n, made.sampling_rate, made.capacity, rng
    )


def gaussian(multiplier):
    return GaussianMechanism(sensitivity=1.0, noise_multiplier=multiplier)


# Samples --------------------------------------------------------------------


def test_poisson_samples_are_independent_draws_of_independent_records():
    steps = 4000
    samples = plan(steps=steps, epsilon=math.inf)
    rng = np.random.default_rng(0)
    member = np.zeros((steps, N))
    for row in member:
        records = drawn(samples, rng)
        assert np.all(np.diff(records) > 0)
        row[records] = 1
    rate = 1 / 3
    # Each of 60 counts and 1,770 + 1,770 sums of products below is normal
    # to good approximation; 6 standard deviations: one seed in 10^5 fails.
    counts = member.sum(axis=0)
    assert np.abs(counts - steps * rate).max() < 6 * math.sqrt(steps * 2 / 9)
    centred = (member - rate) / math.sqrt(rate * (1 - rate))
    between = centred.T @ centred / math.sqrt(steps)
    assert np.abs(between[np.triu_indices(N, 1)]).max() < 6
    # A sample tells nothing of the next.
    lagged = centred[1:].T @ centred[:-1] / math.sqrt(steps)
    assert np.abs(lagged).max() < 6
    # Sizes are Binomial(60, 1/3).
    sizes = member.sum(axis=1)
    bins = np.arange(12, 29)
    law = stats.binom(N, rate)
    observed = np.histogram(sizes, [-1, *bins + 0.5, N + 1])[0]
    cdf = np.concatenate([[0], law.cdf(bins), [1]])
    expected = steps * np.diff(cdf)
    # One seed in 10^4 fails.
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    fixed = np.diff(np.concatenate([[0], stats.binom(N, 0.34).cdf(bins), [1]]))
    assert stats.chisquare(observed, steps * fixed).pvalue < 1e-4


def test_full_and_shuffled_batches():
    def batches(made):
        made = DPSGDPlan(**vars(made), noise_multiplier=1.0)
        return list(made.batches(np.random.default_rng(0)))

    full = plan(sampling="full", batch_size=None)
    assert full.sampling_rate == 1 and full.capacity == N
    assert full.overflow_probability == 0
    for records in batches(full):
        np.testing.assert_array_equal(records, np.arange(N))
    shuffled = plan(sampling="shuffled", batch_size=25, steps=4)
    assert shuffled.overflow_probability == 0 and shuffled.capacity == 25
    found = batches(shuffled)
    for first in (0, 2):
        records = np.concatenate(found[first : first + 2])
        assert len(np.unique(records)) == len(records) == 50
    assert not np.array_equal(found[0], found[2])


def test_a_sample_beyond_the_capacity_stops_the_run():
    tight = dataclasses.replace(plan(), capacity=2)
    with pytest.raises(RuntimeError, match="exceeded its capacity of 2") as e:
        drawn(tight, np.random.default_rng(0))
    size = len(drawn(plan(), np.random.default_rng(0)))
    assert str(size) not in str(e.value)


# Capacity -------------------------------------------------------------------

SIZES = [(60, 20), (1437, 256), (5000, 250), (60000, 1000), (60000, 3)]


@pytest.mark.parametrize("n, batch", SIZES)
@pytest.mark.parametrize("epsilon", [0.1, 8.0, 30.0, math.inf, None])
def test_capacity_bounds_the_overflow_of_the_run(n, batch, epsilon):
    steps = 500
    made = plan(n, batch_size=batch, steps=steps, epsilon=epsilon)
    most = 1e-12
    if epsilon != math.inf:
        at = 20.0 if epsilon is None else epsilon
        most = min(most, 1e-3 * DELTA / (1 + math.exp(at)))
    assert made.overflow_probability <= most
    # One record more than planned for, as a neighbour may have.
    exact = stats.binom.sf(made.capacity, n + 1, batch / n)
    assert steps * exact <= made.overflow_probability
    # The smallest that the bound allows, and not far from the true quantile.
    less = sampling.overflow_bound(n, batch / n, made.capacity - 1)
    assert steps * less > most
    quantile = stats.binom.isf(most / steps, n, batch / n)
    assert made.capacity <= quantile + 3 + 0.1 * (quantile - batch)


@pytest.mark.parametrize("n, rate", [(60, 1 / 3), (60, 0.9), (5000, 0.1)])
def test_the_overflow_bound_is_above_the_tail(n, rate):
    capacities = np.arange(math.ceil(n * rate), n + 1)
    bounds = [sampling.overflow_bound(n, rate, int(c)) for c in capacities]
    tails = stats.binom.sf(capacities, n + 1, rate)
    assert np.all(tails <= np.array(bounds) * (1 + 1e-9))
    assert np.all(np.diff(bounds) <= 0)
    assert sampling.overflow_bound(n, rate, n + 1) == 0
    assert sampling.overflow_bound(n, rate, n) == pytest.approx(rate ** (n + 1))
    assert sampling.overflow_bound(n, rate, 0) == 1


def test_a_vanishing_probability_needs_room_for_every_record():
    assert plan(batch_size=59, epsilon=8.0).capacity == 61
    huge = plan(n=100000, batch_size=1000, epsilon=1e5)
    assert huge.capacity == 100001 and huge.overflow_probability == 0
    everything = plan(batch_size=N, epsilon=1.0)
    assert everything.capacity == N and everything.overflow_probability == 0
    assert len(drawn(everything, np.random.default_rng(0))) == N


# Golden epsilons ------------------------------------------------------------

MNIST, USPS = 60000, 5000


def rounds(n, batch, epochs, multiplier):
    made = plan(n, batch_size=batch, steps=round(epochs * n / batch))
    return made.mechanism(multiplier)


# DP-MAC's settings: batch, epochs, noise, then the PCA's noise multiplier
# (relative to the L2 sensitivity of the second moment under add_remove; the
# PCA uses every record once).
GOLDEN = [
    # (records, setting, PCA), PLD, RDP
    ((MNIST, (1000, 30, 1.0), None), 4.32, 4.75),
    ((MNIST, (1000, 30, 1.0), 4.0), 4.47, 4.90),
    ((MNIST, (1000, 30, 2.8), None), 0.99, 1.08),
    ((MNIST, (1000, 30, 2.8), 8.0), 1.10, 1.20),
    ((MNIST, (1000, 10, 8.0), 16.0), 0.273, 0.299),
    ((USPS, (500, 50, 1.8), None), 6.42, None),
    ((USPS, (500, 50, 3.1), None), 3.18, None),
    ((USPS, (250, 50, 4.1), None), 1.54, None),
    ((USPS, (250, 50, 7.8), None), 0.75, None),
]


@pytest.mark.parametrize("case, golden, renyi", GOLDEN)
def test_golden_epsilons(case, golden, renyi):
    n, setting, pca = case
    parts = [rounds(n, *setting)] + ([gaussian(pca)] if pca else [])
    made = compose_epsilon(parts, DELTA, scale=golden)
    assert made == pytest.approx(golden, rel=0.01)
    moments = side_by_side.rdp_epsilon(parts, DELTA)
    assert moments > made
    if renyi is not None:
        assert moments == pytest.approx(renyi, rel=0.01)


def test_golden_epsilon_below_the_grid_it_was_measured_on():
    """0.169 was composed on losses rounded to 1e-3, which is coarse here."""
    part = rounds(MNIST, 1000, 10, 8.0)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(
            part.sampling_rate, dp_accounting.GaussianDpEvent(8.0)
        ),
        part.steps,
    )
    assert accountant.get_epsilon(DELTA) == pytest.approx(0.169, rel=0.01)
    made = compose_epsilon([part], DELTA, scale=0.1)
    assert made == pytest.approx(0.1658, rel=0.001)
    assert side_by_side.rdp_epsilon([part], DELTA) == pytest.approx(
        0.184, rel=0.01
    )


def test_renyi_epsilon_of_what_has_a_formula():
    # Gaussian: min over orders of a / (2 m^2) + log terms, by scipy.
    def bound(a):
        conversion = math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1)
        return a / 8 + conversion

    exact = optimize.minimize_scalar(bound, bounds=(1.1, 60), method="bounded")
    made = side_by_side.rdp_epsilon([gaussian(2.0)], DELTA)
    assert made == pytest.approx(exact.fun, rel=1e-3)
    full = plan(sampling="full", batch_size=None, steps=9).mechanism(6.0)
    assert side_by_side.rdp_epsilon([full], DELTA) == pytest.approx(made)
    assert side_by_side.rdp_epsilon([], DELTA) == 0
    # A pure mechanism costs something, at most slightly its epsilon.
    pure = LaplaceMechanism(sensitivity=3.0, epsilon=0.5)
    assert 0 < side_by_side.rdp_epsilon([pure], DELTA) < 0.51
    both = side_by_side.rdp_epsilon([pure, gaussian(2.0)], DELTA)
    assert made < both <= made + 0.5 + 1e-9


def test_renyi_epsilon_of_any_pure_mechanism_is_a_bound():
    """Vectors of noise lose more than a number with Laplace noise."""
    for epsilon, count in (
        (0.0824, 4),
        (0.5, 3),
        (2.0, 2),
        (18.0, 1),
        (20.0, 3),
    ):
        parts = [LaplaceMechanism(sensitivity=1.0, epsilon=epsilon)] * count
        exact = mechanisms.compose_epsilon(parts, 1e-3)
        assert side_by_side.rdp_epsilon(parts, 1e-3) > exact * (1 - 1e-3)


def test_renyi_epsilon_pays_for_overflows():
    part = plan(1000, batch_size=20, steps=50).mechanism(1.0)
    paid = [
        side_by_side.rdp_epsilon(
            [dataclasses.replace(part, overflow_probability=p)], DELTA
        )
        for p in (0.0, 1e-9, 1e-6, 1e-5)
    ]
    assert paid[0] < paid[1] < paid[2] < paid[3] == math.inf


# Noise ----------------------------------------------------------------------

CASES = {
    "usual": (MNIST, 1000, 600, 1.0, ()),
    "little noise": (1437, 359, 30, 8.0, ()),
    "small epsilon": (USPS, 250, 100, 0.05, ()),
    "with a PCA": (USPS, 500, 200, 2.0, (gaussian(4.0),)),
    "with a pure one": (
        USPS,
        500,
        100,
        1.0,
        (LaplaceMechanism(sensitivity=1.0, epsilon=0.3),),
    ),
    "all of them": (N, N, 10, 1.0, (gaussian(8.0),)),
}


@pytest.mark.full
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_noise_just_meets_the_budget_of_the_ledger(case):
    n, batch, steps, epsilon, others = case
    made = plan(n, batch_size=batch, steps=steps, epsilon=epsilon)
    budget = PrivacyBudget(epsilon, DELTA)
    multiplier = sampling.noise_multiplier(
        made, budget, neighbours="add_remove", others=others
    )
    ledger = Ledger(budget, neighbours="add_remove")
    parts = [*others, made.mechanism(multiplier, 0.3)]
    ledger.charge(map(entry, parts))
    assert ledger.epsilon() <= epsilon
    assert Ledger.from_json(ledger.to_json()).epsilon() == ledger.epsilon()
    # The smallest: 1e-4 less noise and a hair exceeds it, as does 1 %.
    for less in (1 - 1.1e-4, 0.99):
        parts[-1] = made.mechanism(less * multiplier)
        assert compose_epsilon(parts, DELTA, scale=epsilon) > epsilon


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_full_rounds_compose_as_gaussians(neighbours):
    budget = PrivacyBudget(1.0, DELTA)
    full = plan(sampling="full", batch_size=None, steps=40, epsilon=1.0)
    made = sampling.noise_multiplier(full, budget, neighbours=neighbours)
    one = gaussian_multiplier(1.0, DELTA)
    # Relative to the sensitivity of the relation: the same number.
    assert made == pytest.approx(one * math.sqrt(40), rel=1e-4)
    half = sampling.noise_multiplier(
        full,
        budget,
        neighbours=neighbours,
        others=[gaussian(one * math.sqrt(2))],
    )
    assert half == pytest.approx(one * math.sqrt(80), rel=2e-4)


@pytest.mark.parametrize(
    "made",
    [plan(), plan(sampling="shuffled"), (0.3, 5)],
    ids=["poisson", "shuffled", "pair"],
)
def test_replace_one_refuses_amplification(made):
    with pytest.raises(ValueError, match='use sampling="full"'):
        sampling.noise_multiplier(
            made, PrivacyBudget(1.0, DELTA), neighbours="replace_one"
        )


def test_what_no_noise_meets():
    budget = PrivacyBudget(1.0, DELTA)
    spent = gaussian(0.99 * gaussian_multiplier(1.0, DELTA))
    pure = LaplaceMechanism(sensitivity=1.0, epsilon=1.1)
    for others in ([spent], [pure], [pure, spent]):
        with pytest.raises(ValueError, match="nothing is left"):
            sampling.noise_multiplier(
                plan(), budget, neighbours="add_remove", others=others
            )
    greedy = dataclasses.replace(plan(), overflow_probability=DELTA)
    with pytest.raises(ValueError, match="overflows"):
        sampling.noise_multiplier(greedy, budget, neighbours="add_remove")
    with pytest.raises(ValueError, match="needs delta"):
        sampling.noise_multiplier(
            plan(), PrivacyBudget(1.0, 0.0), neighbours="add_remove"
        )


# Arguments ------------------------------------------------------------------
