"""How records become a release: plan, check, read, charge, noise.

`release` makes one streaming pass, charges the ledger and returns a
`Release`: statistics with their noise already added, safe to save, publish
and train on for ever.
"""

import os
import threading

import numpy as np

from keras_fm.kernel import budget_split, exact_draws, records
from keras_fm.kernel import mechanisms as mechanisms_lib
from keras_fm.kernel import sums as summation
from keras_fm.kernel.ledger_entry import LATTICE, LedgerEntry
from keras_fm.kernel.noisy_statistics import RELEASES
from keras_fm.kernel.partial_statistics import PartialStatistics


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
    )


def calibrate(objective, budget, *, neighbours, share=1.0):
    """The mechanism that spends `share` of `budget` on `objective`.

    delta > 0: Gaussian noise. delta = 0: Laplace noise.

    Args:
        objective: what is released (gives sensitivities).
        budget: a `PrivacyBudget`.
        neighbours: the relation.
        share: this release's share in (0, 1]; shares of a plan sum to one.

    Returns:
        A `Mechanism`.
    """
    if budget.delta > 0:
        return mechanisms_lib.GaussianMechanism(
            sensitivity=objective.sensitivity("l2", neighbours=neighbours),
            noise_multiplier=budget_split.gaussian_share(budget, share),
        )
    return mechanisms_lib.LaplaceMechanism(
        sensitivity=objective.sensitivity("l1", neighbours=neighbours),
        epsilon=budget.epsilon * share,
    )


def calibrate_choice(objective, budget, *, neighbours, share=1.0):
    """The choice that spends `share` of `budget` on `objective`.

    Shares of choices and of other releases add up, see
    `budget_split.choice_epsilon`.

    Args, Returns: see `calibrate`.
    """
    return mechanisms_lib.PermuteAndFlip(
        sensitivity=objective.sensitivity("range", neighbours=neighbours),
        epsilon=budget_split.choice_epsilon(budget, share),
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
    if isinstance(mechanism, mechanisms_lib.SampledGaussianMechanism):
        raise ValueError(
            "A release reads every record, so it cannot be accounted as a "
            "sample of them. Use the mechanism of `calibrate`."
        )
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


class PaidReads:
    """Reads that were paid for together, counted down: once, whatever threads
    call, and in the process that pays. There are no copies."""

    def __init__(self, objective, mechanism, ledger, noise, reads):
        self._objective, self._mechanism = objective, mechanism
        self._ledger, self._noise = ledger, noise
        self._reads = self._left = reads
        self._lock, self._process = threading.RLock(), os.getpid()

    def __reduce__(self):
        raise TypeError(
            "Reads that were paid for are not copied or pickled: a copy "
            "would read again for one payment."
        )

    def _take(self):
        """Uses up one read, before its noise is drawn."""
        self._check_left()
        with self._lock:
            self._check_left()
            self._left -= 1

    def _check_left(self):
        # First: a lock that another thread held at a fork is never free.
        if self._process != os.getpid():
            raise RuntimeError(
                "These reads were paid for by another process, which may "
                "use them."
            )
        if not self._left:
            raise RuntimeError(
                f"All {self._reads} reads that were paid for are used up."
            )

    def finish(self, weights):
        """The weights that the reads led to, as a `Release`."""
        return as_release(
            {"weights": np.array(weights, np.float64)},
            self._objective,
            self._mechanism,
            self._ledger,
            self._noise,
        )


class _Kept:
    """Records that were looked at, for all reads, in few long blocks."""

    def __init__(self, objective):
        self._objective, self._blocks = objective, []
        self._parts, self._rows = [], 0

    def add(self, rows, targets, *counts):
        """Takes what `check_records` returned of a batch."""
        lengths = self._objective.lengths(rows)
        if counts:
            self._blocks.append((rows, targets, *counts, lengths))
            return
        self._parts.append((rows, targets, lengths))
        self._rows += len(rows)
        if self._rows >= summation.EXACT_ROWS:
            self._join()

    def _join(self):
        parts, self._parts, self._rows = self._parts, [], 0
        if parts:
            self._blocks.append(tuple(map(np.concatenate, zip(*parts))))

    def blocks(self):
        """List of tuples, those that were added with lengths of rows."""
        self._join()
        return self._blocks


class GradientReads(PaidReads):
    """R reads of first-order coefficients, paid for together.

    Opening it checks the ledger (a refusal reads nothing), looks at every
    record once for what is invalid (nothing is charged then) and charges all
    R reads: an error midway leaves them charged. Each call is one read.
    Who takes part in a sample is decided by the words of the noise's source,
    exactly at the sampling rate.

    Args:
        objective: a `GradientQuery`.
        batches: function from nothing to an iterable of `(features, labels)`,
            or `(features, labels, owners)` of a `grouped` objective; consumed
            once for each read, or once for all with `keep`.
        keep: whether features that were looked at are kept in memory for all
            reads, int16 `(n, m)`.
        mechanism: a `SampledGaussianMechanism`: its `steps` is R, at a
            `sampling_rate` below 1 each record joins each read by itself
            with that probability (a Poisson sample of any size).
        ledger, name, noise, clip, notes: see `release`.

    With owners the unit that joins a sample is an owner with all its records.

    Raises:
        BudgetExceededError: before anything is read.
        ValueError: if a record is invalid; nothing was charged then.
    """

    def __init__(
        self,
        objective,
        batches,
        *,
        mechanism,
        ledger,
        name,
        noise,
        clip=False,
        notes=(),
        keep=False,
    ):
        if not isinstance(mechanism, mechanisms_lib.SampledGaussianMechanism):
            raise ValueError(
                "Several reads are accounted as a SampledGaussianMechanism. "
                f"Received: {type(mechanism).__name__}"
            )
        entry = checked_entry(objective, mechanism, ledger, name, noise, notes)

        self._error = objective.rounding_error(mechanism.norm)

        passes = records.Passes()

        def checked():
            count = 0
            for h, y, *owners in passes.over(batches()):
                count += len(h)
                summation.check_count(count)
                yield objective.check_records(h, y, clip, *owners)

        kept = _Kept(objective)
        for found in checked():
            if keep:
                kept.add(*found)
        ledger.charge([entry])
        # Taken here and now: nobody may go on with them.
        ledger.reserve(entry, mechanism.steps)
        super().__init__(objective, mechanism, ledger, noise, mechanism.steps)
        self._checked = kept.blocks if keep else checked
        self._summed = objective
        # Of what stands beside rows and targets.
        self._names = ["counts"] * objective.grouped + ["lengths"] * keep

    def choose(self, loss):
        """What is left of the reads is of this loss, see
        `GradientQuery.with_loss`.

        Args:
            loss: public, or made from noisy sums of earlier reads.
        """
        self._summed = self._objective.with_loss(loss)

    def __call__(self, weights):
        """The noisy sum of one read at `weights`, `(m, M)`.

        Raises:
            RuntimeError: after the last read that was paid for.
            ValueError: if a weight is not finite.
        """
        self._check_left()
        # Of what is public: an error that depends on records tells of them.
        if not np.all(np.isfinite(weights)):
            raise ValueError("The weights overflowed; lower `learning_rate`.")
        self._take()
        rate = self._mechanism.sampling_rate
        # As in `PartialStatistics`: the same bits in one process as in many.
        total = summation.FixedPointSum(
            self._objective.clip, self._objective.shapes[0]
        )
        for rows, targets, *more in self._checked():
            more = dict(zip(self._names, more))
            if rate < 1:
                counts = more.get("counts")
                units = len(rows) if counts is None else len(counts)
                drawn = kept = exact_draws.bernoulli(rate, units, self._noise)
                if counts is not None:
                    # An owner comes with all its records, or with none.
                    kept = np.repeat(drawn, counts)
                    more["counts"] = counts[drawn]
                rows, targets = rows[kept], targets[kept]
                if "lengths" in more:
                    more["lengths"] = more["lengths"][kept]
            total.add(self._summed.total(rows, targets, weights, **more))
        noisy = self._mechanism.perturb(
            total.value().ravel(), self._noise, error=self._error
        )
        return noisy.reshape(self._objective.shapes[0])
