"""A release of an objective, audited on the worst of some records.

Seeds are fixed; with confidence 99% a bound passes epsilon in at most 1% of
audits with fresh seeds.
"""

import dataclasses

import numpy as np
import pytest

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.release import calibrate
from keras_fm.lab.auditing import audit_objective
from keras_fm.lab.auditing.objective import worst_pair
from keras_fm.queries import CrossEntropyQuery, SecondMomentQuery

OBJECTIVE = CrossEntropyQuery(num_features=2, num_outputs=2)
RECORDS = [
    (np.array([h]), np.array([y]))
    # Equal entries are the longest in L1 (Laplace noise).
    for h in ((0.1, 0.0), (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.7, 0.7))
    for y in (0, 1)
]


def search(neighbours, delta=1e-5):
    budget = PrivacyBudget(1.0, delta)
    mechanism = calibrate(OBJECTIVE, budget, neighbours=neighbours)
    pair = worst_pair(OBJECTIVE, mechanism, RECORDS, neighbours=neighbours)
    return mechanism, pair, budget


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_a_worst_pair_reaches_most_of_the_sensitivity(neighbours, delta):
    mechanism, (record, other), budget = search(neighbours, delta)
    assert (other is None) == (neighbours == "add_remove")
    audit = audit_objective(
        OBJECTIVE,
        mechanism,
        budget,
        record,
        other,
        noise=NoiseSource(reproducible_noise=1),
        runs=4000,
    )
    assert 0.7 < audit.reach <= 1 + 1e-9
    assert audit.bound.epsilon <= budget.epsilon
    assert (audit.epsilon, audit.delta) == (1.0, delta)


def test_a_pure_release_in_one_coordinate_shows_nearly_all():
    objective = SecondMomentQuery(num_features=1, feature_bound=2.0)
    budget = PrivacyBudget(1.0, 0.0)
    mechanism = calibrate(objective, budget, neighbours="add_remove")
    record, other = worst_pair(
        objective,
        mechanism,
        [(np.array([[value]]),) for value in (0.5, 1.0, 2.0)],
        neighbours="add_remove",
    )
    assert record[0] == 2.0 and other is None

    def share(mechanism):
        return audit_objective(
            objective,
            mechanism,
            budget,
            record,
            noise=NoiseSource(reproducible_noise=1),
        ).share

    assert 0.9 < share(mechanism) <= 1
    # Half the noise.
    assert share(dataclasses.replace(mechanism, epsilon=2.0)) > 1.7
