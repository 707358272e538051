"""How records become a release: plan, check, read, charge, noise.

`release` makes one streaming pass, charges the ledger and returns a
`Release`: statistics with their noise already added, safe to save, publish
and train on for ever.
"""

import numpy as np

from keras_fm.kernel import records
from keras_fm.kernel.ledger.ledger_entry import LATTICE, LedgerEntry
from keras_fm.kernel.ledger.noisy_statistics import RELEASES
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.planning.calibration import calibrate as calibrate


def planned_entry(
    objective,
    mechanism,
    *,
    ledger,
    name,
    noise,
    notes=(),
):
    """The `LedgerEntry` a release of `objective` is charged with.

    Args:
        objective, mechanism, ledger, name, noise, notes: see `release`.
    """
    return LedgerEntry(
        name=name,
        guarantee="proven",
        neighbours=str(ledger.neighbours),
        mechanism=mechanism.config(),
        reads=objective.reads,
        proof=objective.proof,
        private=not noise.reproducible,
        noise=LATTICE,
        notes=tuple(notes),
        # Taken here and now: nobody may go on with them.
        used=getattr(mechanism, "steps", 0),
    )


def release(
    objective, batches, *, mechanism, ledger, name, noise, clip=False, notes=()
):
    """Reads the records once and returns their perturbed statistics.

    The order is: check the ledger (a refusal reads nothing), accumulate in
    float64, charge the ledger, draw the noise. Memory does not depend on
    the number of records. The noise covers what rounding may do to their
    sum (docs/proofs/lattice_noise.md).

    Args:
        objective: an objective of `keras_fm.queries`.
        batches: iterable of what the objective accumulates, such as
            `(features, labels)`; consumed once, by the calling thread, while
            another one sums what was read before.
        mechanism: from `calibrate`.
        ledger: the `Ledger` to charge; its relation is the one the
            mechanism's sensitivity must refer to.
        name: what the release is for.
        noise: a `NoiseSource`.
        clip: whether records outside the bounds are scaled back instead of
            refused.
        notes: public facts for the ledger entry.

    Returns:
        A `Release`.

    Raises:
        BudgetExceededError: before anything is read.
        ValueError: if a record is invalid, or there are more than 2^30;
            nothing was charged then.
    """
    entry = checked_entry(objective, mechanism, ledger, name, noise, notes)
    partial = _summed(objective, batches, clip)
    try:
        return _perturbed(partial, mechanism, ledger, entry, noise)
    finally:
        # A crash report that holds local variables must not hold these.
        del partial


def release_statistics(partial, *, mechanism, ledger, name, noise, notes=()):
    """Charges for statistics that were read elsewhere, and perturbs them.

    What several processes or a data engine have read and merged: in one
    process, once. The result is, bit for bit before the noise, that of
    `release` on the same records (see `PartialStatistics`).

    Args:
        partial: a `PartialStatistics` of all records. Forget it afterwards:
            it is not private.
        mechanism, ledger, name, noise, notes: see `release`.

    Returns:
        A `Release`.

    Raises:
        BudgetExceededError: if the ledger has too little left.
    """
    if type(partial.objective) not in RELEASES:
        raise ValueError(
            "Statistics at given weights are one read of several, which are "
            "paid for together: `keras_fm.gathered_reads.GatheredReads`. "
            f"Received: {partial!r}"
        )
    entry = checked_entry(
        partial.objective, mechanism, ledger, name, noise, notes
    )
    return _perturbed(partial, mechanism, ledger, entry, noise)


def _summed(objective, batches, clip):
    partial = PartialStatistics(objective, clip)
    records.take_while_reading(batches, partial.add)
    return partial


def _perturbed(partial, mechanism, ledger, entry, noise):
    objective = partial.objective
    statistics = partial.statistics()
    # Of no record's secret part under the ledger's relation, which
    # `checked_entry` compared with the objective's.
    public = getattr(objective, "public_part", lambda _: {})(statistics)
    exact = objective.pack(statistics, mechanism.norm)
    if not np.all(np.isfinite(exact)):
        raise ValueError("The statistics overflowed; nothing was released.")
    try:
        ledger.charge([entry])
        noisy = mechanism.perturb(
            exact, noise, error=objective.rounding_error(mechanism.norm)
        )
    finally:
        del exact, statistics, partial
    return unpacked(noisy, objective, mechanism, ledger, noise, public)


def unpacked(noisy, objective, mechanism, ledger, noise, public=None):
    """The `Release` of a noisy vector, beside what is public."""
    arrays = objective.unpack(noisy, mechanism.norm)
    statistics = {**dict(zip(objective.names, arrays)), **(public or {})}
    return as_release(statistics, objective, mechanism, ledger, noise)


def as_release(statistics, objective, mechanism, ledger, noise):
    """The `Release` of noisy statistics by name."""
    return RELEASES[type(objective)](
        statistics=statistics,
        objective=objective,
        mechanism=mechanism,
        neighbours=str(ledger.neighbours),
        private=not noise.reproducible,
    )


def checked_entry(objective, mechanism, ledger, name, noise, notes):
    """The entry of a release that the ledger allows.

    Raises:
        BudgetExceededError: if it does not.
        ValueError: if the mechanism has less noise than its entry says, or
            no lattice holds its noise.
    """
    needed = objective.sensitivity(mechanism.norm, neighbours=ledger.neighbours)
    if mechanism.sensitivity < needed * (1 - 1e-12):
        raise ValueError(
            f"The mechanism's sensitivity {mechanism.sensitivity:g} is below "
            f"the objective's {needed:g} under {ledger.neighbours}."
        )
    entry = planned_entry(
        objective,
        mechanism,
        ledger=ledger,
        name=name,
        noise=noise,
        notes=notes,
    )
    ledger.check([entry])
    # Fails now, not after the charge.
    mechanism.lattice_release(
        objective.size, objective.rounding_error(mechanism.norm)
    )
    return entry
