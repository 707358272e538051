"""Reads of records in several processes: what is merged, paid for and drawn."""

import numpy as np
import pytest

from keras_fm.heads.gradient_query import WeightsRelease
from keras_fm.kernel.access.gathered_rounds import GatheredRounds
from keras_fm.kernel.access.gradient_rounds import GradientRounds
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import BudgetExceededError, Ledger
from keras_fm.kernel.mechanisms import (
    GaussianMechanism,
    NoiseSource,
    SampledGaussianMechanism,
)
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.release import calibrate, release_statistics
from keras_fm.papers.functional_net.expansion_query import (
    NetworkExpansionRelease,
)
from keras_fm.queries import GradientQuery, NetworkExpansionQuery

GRADIENT = GradientQuery(num_features=4, num_outputs=3, clip=0.2)
EXPANSION = NetworkExpansionQuery(shapes_of_layers=((3, 2), (3, 1)))
BUDGET = PrivacyBudget(2.0, 1e-5)
ZERO = np.zeros((4, 3))
POINT = [np.ones((3, 2)), np.ones((3, 1))]


def batches(seed=0):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(30, 4))
    h /= np.linalg.norm(h, axis=1, keepdims=True) * 1.001
    y = rng.integers(3, size=30)
    return [(h[i : i + 10], y[i : i + 10]) for i in (0, 10, 20)]


def factors(n=10, seed=0):
    rng = np.random.default_rng(seed)
    return [
        tuple(rng.normal(size=(n, size)) for size in (inputs, units, units))
        for inputs, units in EXPANSION.shapes_of_layers
    ]


def share(weights, part):
    made = PartialStatistics(GRADIENT.at(weights))
    for batch in part:
        made.add(*batch)
    return made


def gather(weights):
    """One share as it is, one as bytes."""
    one, *others = batches()
    return [share(weights, others), share(weights, [one]).to_bytes()]


def about(weights):
    made = PartialStatistics(EXPANSION.at(weights))
    made.add(factors())
    return [made]


def sampled(sensitivity=0.2, sampling_rate=1.0):
    return SampledGaussianMechanism(
        sensitivity=sensitivity,
        noise_multiplier=6.0,
        sampling_rate=sampling_rate,
        steps=3,
    )


def arguments(objective=GRADIENT, rounds=3, **kwargs):
    mechanism = sampled()
    if objective is EXPANSION:
        mechanism = calibrate(
            objective, BUDGET, neighbours="add_remove", share=1 / rounds
        )
        kwargs.setdefault("rounds", rounds)
    return {
        "mechanism": mechanism,
        "ledger": Ledger(BUDGET, neighbours="add_remove"),
        "name": "head",
        "noise": NoiseSource(0),
    } | kwargs


# One read at given weights ---------------------------------------------------


def test_sums_at_weights_are_those_of_the_objective():
    weights = np.random.default_rng(1).normal(size=(4, 3))
    (found,) = share(weights, batches()).statistics()
    wanted = sum(
        GRADIENT.total(*GRADIENT.check_records(h, y), weights)
        for h, y in batches()
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert np.abs(wanted).max() > 0.1
    # In any order and any number of parts, the same bits.
    parts = [share(weights, [batch]) for batch in batches()[::-1]]
    for part in parts[1:]:
        parts[0].merge(part)
    assert parts[0].statistics()[0].tobytes() == found.tobytes()


@pytest.mark.parametrize("objective", [GRADIENT, EXPANSION])
def test_sums_at_other_weights_are_not_merged(objective):
    here, nearly = (ZERO, ZERO + 1e-300)
    if objective is EXPANSION:
        here, nearly = POINT, [POINT[0], POINT[1] * (1 + 1e-15)]
    one = PartialStatistics(objective.at(here))
    other = PartialStatistics(objective.at(nearly))
    with pytest.raises(ValueError, match="same query"):
        one.merge(other)
    with pytest.raises(ValueError, match="of another query"):
        PartialStatistics.from_bytes(other.to_bytes(), objective.at(here))
    again = PartialStatistics.from_bytes(one.to_bytes(), objective.at(here))
    one.merge(again)
    assert objective.at(here) == objective.at(here) != objective.at(nearly)
    assert hash(objective.at(here)) == hash(objective.at(here))
    # Plain sums of an expansion say nothing of the weights.
    if objective is EXPANSION:
        with pytest.raises(ValueError, match="same query"):
            one.merge(PartialStatistics(objective))


def test_one_round_of_several_is_not_released_alone():
    ledger = Ledger(BUDGET, neighbours="add_remove")
    with pytest.raises(ValueError, match="one round of several"):
        release_statistics(
            share(ZERO, batches()),
            mechanism=GaussianMechanism(sensitivity=0.2, noise_multiplier=9.0),
            ledger=ledger,
            name="head",
            noise=NoiseSource(0),
        )
    assert not ledger.entries


# All rounds -------------------------------------------------------------------


def test_they_are_the_rounds_of_one_process_bit_for_bit():
    alone = GradientRounds(GRADIENT, batches, **arguments())
    together = GatheredRounds(GRADIENT, gather, **arguments())
    weights = ZERO
    for _ in range(3):
        wanted, found = alone(weights), together(weights)
        assert found.tobytes() == wanted.tobytes()
        weights = weights - 0.5 * found
    one, other = alone.finish(weights), together.finish(weights)
    assert type(other) is WeightsRelease and not other.private
    for name in ("query", "mechanism", "neighbours"):
        assert getattr(one, name) == getattr(other, name)
    np.testing.assert_array_equal(other.statistics["weights"], weights)


def test_all_are_charged_at_once_after_the_first_gathering():
    ledger = Ledger(BUDGET, neighbours="add_remove")
    seen = []

    def watched(weights):
        seen.append(len(ledger.entries))
        return gather(weights)

    paid = GatheredRounds(GRADIENT, watched, **arguments(ledger=ledger))
    assert not ledger.entries
    for _ in range(3):
        paid(ZERO)
    assert seen == [0, 1, 1]
    (entry,) = ledger.entries
    assert entry.mechanism["steps"] == 3 and entry.uses == GRADIENT.uses
    with pytest.raises(RuntimeError, match="All 3 rounds"):
        paid(ZERO)
    assert len(seen) == 3


def test_rounds_of_an_expansion_have_an_entry_each():
    passed = arguments(EXPANSION, rounds=2)
    paid = GatheredRounds(EXPANSION, about, **passed)
    made = paid(POINT)
    assert type(made) is NetworkExpansionRelease
    names = [entry.name for entry in passed["ledger"].entries]
    assert names == ["head (round 1 of 2)", "head (round 2 of 2)"]
    # All of the budget.
    with pytest.raises(BudgetExceededError):
        GatheredRounds(EXPANSION, about, **passed)
    other = paid(POINT)
    # The same sums under new noise.
    assert (made.vector() != other.vector()).all()
    with pytest.raises(RuntimeError, match="All 2 rounds"):
        paid(POINT)


def test_a_failure_before_the_first_noise_charges_nothing():
    ledger = Ledger(BUDGET, neighbours="add_remove")
    shares = [
        lambda weights: [share(ZERO + 1, batches())],
        lambda weights: [share(ZERO + 1, batches()).to_bytes()],
        lambda weights: [b"nothing"],
        lambda weights: [share(weights, [(np.full((1, 4), np.nan), [0])])],
    ]
    current = []
    paid = GatheredRounds(
        GRADIENT, lambda w: current[0](w), **arguments(ledger=ledger)
    )
    for current[:] in [[one] for one in shares]:
        with pytest.raises(ValueError):
            paid(ZERO)
    assert not ledger.entries
    # Nothing was released, so all rounds are left.
    current[:] = [gather]
    for _ in range(3):
        paid(ZERO)
    assert len(ledger.entries) == 1


def test_a_refusal_by_budget_gathers_nothing():
    asked = []
    for objective, gather in ((GRADIENT, asked), (EXPANSION, asked)):
        passed = arguments(objective)
        passed["ledger"] = Ledger(
            PrivacyBudget(0.1, 1e-5), neighbours="add_remove"
        )
        with pytest.raises(BudgetExceededError):
            GatheredRounds(objective, gather.append, **passed)
    # Each round alone would fit.
    passed = arguments(EXPANSION, rounds=4)
    passed["mechanism"] = calibrate(
        EXPANSION, BUDGET, neighbours="add_remove", share=0.5
    )
    with pytest.raises(BudgetExceededError):
        GatheredRounds(EXPANSION, asked.append, **passed)
    assert not asked


@pytest.mark.parametrize(
    "objective, kwargs, match",
    [
        (
            GRADIENT,
            {
                "mechanism": GaussianMechanism(
                    sensitivity=0.2, noise_multiplier=9.0
                )
            },
            "one SampledGaussianMechanism",
        ),
        (EXPANSION, {"mechanism": sampled()}, "one by one"),
        (
            GRADIENT,
            {"mechanism": sampled(sampling_rate=0.5)},
            "`sampling_rate` must be 1",
        ),
        (EXPANSION, {"rounds": 0}, "`rounds`"),
        (GRADIENT, {"mechanism": sampled(0.1)}, "below the query's"),
    ],
)
def test_other_mechanisms_are_refused(objective, kwargs, match):
    with pytest.raises(ValueError, match=match):
        GatheredRounds(objective, gather, **(arguments(objective) | kwargs))


def test_a_share_that_is_sent_twice_charges_nothing():
    def twice(weights):
        found = [
            v if isinstance(v, bytes) else v.to_bytes() for v in gather(weights)
        ]
        return [*found, found[0]]

    given = arguments()
    paid = GatheredRounds(GRADIENT, twice, **given)
    with pytest.raises(ValueError, match="would count twice"):
        paid(ZERO)
    assert not given["ledger"].entries
