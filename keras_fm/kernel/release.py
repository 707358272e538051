"""How records become a release: plan, check, read, charge, noise.

`release` uses the records once, charges the ledger and returns a `Release`:
statistics with their noise already added, safe to save, publish and train on
for ever.
"""

import numpy as np

from keras_fm.kernel import records
from keras_fm.kernel.ledger.ledger_entry import LATTICE, LedgerEntry
from keras_fm.kernel.ledger.noisy_statistics import RELEASES
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.planning.calibration import calibrate as calibrate


def planned_entry(
    query,
    mechanism,
    *,
    ledger,
    name,
    noise,
    notes=(),
):
    """The `LedgerEntry` that charges for a release of `query`.

    Args:
        query, mechanism, ledger, name, noise, notes: see `release`.
    """
    return LedgerEntry(
        name=name,
        guarantee="proven",
        neighbours=str(ledger.neighbours),
        mechanism=mechanism.config(),
        uses=query.uses,
        proof=query.proof,
        private=not noise.reproducible,
        noise=LATTICE,
        notes=tuple(notes),
    )


def release(
    query, batches, *, mechanism, ledger, name, noise, clip=False, notes=()
):
    """Reads the records once and returns their statistics with noise.

    The order is: check the ledger (a refusal uses no record), sum in
    float64, charge the ledger, draw the noise. Memory does not depend on
    the number of records. The noise covers the rounding errors of their
    sum (docs/proofs/lattice_noise.md).

    Args:
        query: a query of `keras_fm.queries`.
        batches: iterable of what the query accumulates, such as
            `(features, labels)`; consumed once, by the calling thread, while
            another thread sums the batches before.
        mechanism: from `calibrate`.
        ledger: the `Ledger` to charge. The mechanism's sensitivity must
            refer to the ledger's relation.
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
    entry = checked_entry(query, mechanism, ledger, name, noise, notes)
    partial = PartialStatistics(query, clip)
    try:
        records.prefetch(batches, partial.add)
        return _perturbed(partial, mechanism, ledger, entry, noise)
    finally:
        # A crash report with local variables must not show these.
        del partial


def release_statistics(partial, *, mechanism, ledger, name, noise, notes=()):
    """Charges for statistics that were summed elsewhere, and adds noise.

    Merge the sums of several processes or of a data engine, then call this
    once, in one process. Before the noise, the result equals bit for bit
    that of `release` on the same records (see `PartialStatistics`).

    Args:
        partial: a `PartialStatistics` of all records. Forget it afterwards:
            it is not private.
        mechanism, ledger, name, noise, notes: see `release`.

    Returns:
        A `Release`.

    Raises:
        BudgetExceededError: if the ledger has too little left.
    """
    if type(partial.query) not in RELEASES:
        raise ValueError(
            "Statistics at given weights are one round of several. Charge and "
            "release all rounds together by "
            f"`keras_fm.gathered_rounds.GatheredRounds`. Received: {partial!r}"
        )
    entry = checked_entry(partial.query, mechanism, ledger, name, noise, notes)
    return _perturbed(partial, mechanism, ledger, entry, noise)


def _perturbed(partial, mechanism, ledger, entry, noise):
    query = partial.query
    statistics = partial.statistics()
    # Holds nothing secret under the ledger's relation, which `checked_entry`
    # compared with the query's.
    public = getattr(query, "public_part", lambda _: {})(statistics)
    exact = query.pack(statistics, mechanism.norm)
    if not np.all(np.isfinite(exact)):
        raise ValueError("The statistics overflowed; nothing was released.")
    try:
        ledger.charge([entry])
        noisy = mechanism.perturb(
            exact, noise, error=query.rounding_error(mechanism.norm)
        )
    finally:
        del exact, statistics, partial
    return unpacked(noisy, query, mechanism, ledger, noise, public)


def unpacked(noisy, query, mechanism, ledger, noise, public=None):
    """The `Release` of a noisy vector and of the public part."""
    arrays = query.unpack(noisy, mechanism.norm)
    statistics = {**dict(zip(query.names, arrays)), **(public or {})}
    return as_release(statistics, query, mechanism, ledger, noise)


def as_release(statistics, query, mechanism, ledger, noise):
    """The `Release` of noisy statistics by name."""
    return RELEASES[type(query)](
        statistics=statistics,
        query=query,
        mechanism=mechanism,
        neighbours=str(ledger.neighbours),
        private=not noise.reproducible,
    )


def checked_entry(query, mechanism, ledger, name, noise, notes):
    """The entry of a release that the ledger allows.

    Raises:
        BudgetExceededError: if it does not.
        ValueError: if the mechanism has less noise than its entry states, or
            no lattice holds its noise.
    """
    needed = query.sensitivity(mechanism.norm, neighbours=ledger.neighbours)
    if mechanism.sensitivity < needed * (1 - 1e-12):
        raise ValueError(
            f"The mechanism's sensitivity {mechanism.sensitivity:g} is below "
            f"the query's {needed:g} under {ledger.neighbours}."
        )
    entry = planned_entry(
        query,
        mechanism,
        ledger=ledger,
        name=name,
        noise=noise,
        notes=notes,
    )
    ledger.check([entry])
    # This must fail now, not after the charge.
    mechanism.lattice_release(query.size, query.rounding_error(mechanism.norm))
    return entry
