"""Audits the release of an objective on a pair of its worst records."""

import dataclasses
import itertools

import numpy as np

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import mechanisms as mechanisms_lib
from keras_fm.lab.auditing.bounds import CoinRunBound
from keras_fm.lab.auditing.white_box import (
    bound_of_ratios,
    record_difference,
    release_epsilon,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveAudit:
    """The result of auditing one release on a pair of records.

    Attributes:
        epsilon, delta: the stated cost of the release.
        bound: the `CoinRunBound`.
        reach: distance of the two statistics over the mechanism's sensitivity:
            1 for a worst pair. Above 1 the sensitivity is wrong.
    """

    epsilon: float
    delta: float
    bound: CoinRunBound
    reach: float

    @property
    def share(self):
        """The lower bound over epsilon."""
        return self.bound.epsilon / self.epsilon

    @classmethod
    def of_ratios(cls, ledger, ratios, coins, *, reach):
        """The audit of all releases of fits with a coin for each canary.

        Args:
            ledger: of one of the fits.
            ratios, coins: lists of arrays, see
                `white_box.bound_of_ratios`.
            reach: float.
        """
        delta = ledger.budget.delta
        return cls(
            epsilon=composed(ledger),
            delta=delta,
            bound=bound_of_ratios(
                np.concatenate(ratios), np.concatenate(coins), delta=delta
            ),
            reach=reach,
        )


def composed(ledger):
    """The epsilon of a ledger's entries, also for reproducible noise, for which
    the ledger itself states none.

    Args:
        ledger: a `Ledger` whose entries are all proven.
    """
    return mechanisms_lib.compose_epsilon(
        [entry.build_mechanism() for entry in ledger.entries],
        ledger.budget.delta,
        scale=ledger.budget.epsilon,
    )


def worst_pair(objective, mechanism, records, *, neighbours):
    """The candidates with the largest distance between neighbouring data sets.

    Args:
        objective, mechanism: see `audit_objective`.
        records: list of batches of one record.
        neighbours: `"add_remove"`: a record is there or not; `"replace_one"`:
            it is replaced by another; `"replace_label"`: by another that
            differs only in its labels, the last array.

    Returns:
        tuple `(record, other)`; `other` is `None` for add_remove.

    Raises:
        ValueError: if no two data sets differ.
    """
    relation = budget_lib.Neighbours.of(neighbours)
    pairs = [(record, None) for record in records]
    if relation.replaces:
        pairs = list(itertools.combinations(records, 2))
    if relation is budget_lib.Neighbours.REPLACE_LABEL:
        pairs = [pair for pair in pairs if _same_features(*pair)]
    far, worst = 0.0, None
    for record, other in pairs:
        try:
            difference = record_difference(objective, mechanism, record, other)
        except ValueError:
            # The same statistics.
            continue
        length = _length(difference, mechanism)
        if length > far:
            far, worst = length, (record, other)
    if worst is None:
        raise ValueError("No two of these data sets can be told apart.")
    return worst


def _same_features(record, other):
    return all(map(np.array_equal, record[:-1], other[:-1]))


def _length(difference, mechanism):
    return float(np.linalg.norm(difference, 1 if mechanism.norm == "l1" else 2))


def audit_objective(
    objective,
    mechanism,
    budget,
    record,
    other=None,
    *,
    noise,
    runs=None,
    confidence=0.99,
):
    """Lower bound on the epsilon of one release of an objective, by attack.

    Args:
        objective: see `keras_fm.kernel.release.release`.
        mechanism: what `keras_fm.kernel.release.calibrate(objective, budget,
            neighbours=...)` returns.
        budget: the `PrivacyBudget` that it spends.
        record: a batch of one record as the objective accumulates it. The
            neighbouring data set has `other` instead (replace_one), or nothing
            (`None`, add_remove).
        noise, runs, confidence: see `release_epsilon`.

    Returns:
        An `ObjectiveAudit`.

    Raises:
        ValueError: if both data sets have the same statistics.
    """
    difference = record_difference(objective, mechanism, record, other)
    return ObjectiveAudit(
        epsilon=budget.epsilon,
        delta=budget.delta,
        bound=release_epsilon(
            mechanism,
            difference,
            noise=noise,
            delta=budget.delta,
            runs=runs,
            confidence=confidence,
        ),
        reach=_length(difference, mechanism) / mechanism.sensitivity,
    )
