"""Many rounds over the same records that are charged together."""

import numpy as np

from keras_fm.kernel import sums as summation
from keras_fm.kernel.access import exact_draws
from keras_fm.kernel.noise_mechanisms import SampledGaussianMechanism
from keras_fm.kernel.records import Passes
from keras_fm.kernel.release import as_release, checked_entry


class PaidRounds:
    """Rounds that were charged together, counted down."""

    def __init__(self, query, mechanism, ledger, noise, rounds):
        self._query, self._mechanism = query, mechanism
        self._ledger, self._noise = ledger, noise
        self._rounds = self._left = rounds

    def __reduce__(self):
        raise TypeError(
            "Rounds that were charged cannot be copied or pickled: a copy "
            "would use the records again for one charge."
        )

    def _take(self):
        """Uses up one round, before its noise is drawn."""
        self._check_left()
        self._left -= 1

    def _check_left(self):
        if not self._left:
            raise RuntimeError(
                f"All {self._rounds} rounds that were charged are used up."
            )

    def finish(self, weights):
        """The weights that the rounds led to, as a `Release`."""
        return as_release(
            {"weights": np.array(weights, np.float64)},
            self._query,
            self._mechanism,
            self._ledger,
            self._noise,
        )


class _Kept:
    """Checked records, kept for all rounds in few long blocks."""

    def __init__(self, query, hold):
        self._query, self._hold, self._blocks = query, hold, []
        self._parts, self._rows = [], 0

    def add(self, rows, targets, *counts):
        """Takes what `check_records` returned for a batch."""
        lengths = self._query.lengths(rows)
        if counts:
            self._blocks.append((rows, targets, *counts, lengths))
            return
        self._parts.append((rows, targets, lengths))
        self._rows += len(rows)
        # 64 MiB at the most: joining takes a block's memory once more.
        if self._rows >= min(summation.EXACT_ROWS, 2**25 // rows.shape[1]):
            self._join()

    def _join(self):
        parts, self._parts, self._rows = self._parts, [], 0
        if parts:
            rows, *more = map(np.concatenate, zip(*parts))
            if self._hold is not None and len(rows) <= 2 * summation.EXACT_ROWS:
                rows = self._hold(rows, *more)
            self._blocks.append((rows, *more))

    def blocks(self):
        """The added tuples, a list, each with the lengths of its rows."""
        self._join()
        return self._blocks


class GradientRounds(PaidRounds):
    """R rounds of first-order coefficients, charged together.

    The constructor checks the ledger (a refusal uses no record). Then it checks
    every record once; if one is invalid, nothing is charged. Then it charges
    all R rounds: a later error leaves them charged. Each call is one round.
    The words of the noise's source decide which records are in a sample,
    exactly at the sampling rate.

    Args:
        query: a `GradientQuery`.
        batches: function from nothing to an iterable of `(features, labels)`,
            or `(features, labels, owners)` of a `grouped` query; consumed
            once for each round, or once in total with `keep`.
        keep: whether checked features are kept in memory for all rounds,
            int16 `(n, m)`.
        hold: `None`, or with `keep` a function of a block of these, targets
            and lengths, to what `query.total` takes as rows, as on a device.
        mechanism: a `SampledGaussianMechanism` whose `steps` is R. At a
            `sampling_rate` below 1 each record joins each round by itself
            with that probability (a Poisson sample of any size).
        ledger, name, noise, clip, notes: see `keras_fm.kernel.release.release`.

    With owners, a unit that joins a sample is an owner with all its records.

    Raises:
        BudgetExceededError: before anything is read.
        ValueError: if a record is invalid; nothing was charged then.
    """

    def __init__(
        self,
        query,
        batches,
        *,
        mechanism,
        ledger,
        name,
        noise,
        clip=False,
        notes=(),
        keep=False,
        hold=None,
    ):
        if not isinstance(mechanism, SampledGaussianMechanism):
            raise ValueError(
                "Several rounds are accounted as a SampledGaussianMechanism. "
                f"Received: {type(mechanism).__name__}"
            )
        entry = checked_entry(query, mechanism, ledger, name, noise, notes)

        self._error = query.rounding_error(mechanism.norm)

        passes = Passes()

        def checked():
            count = 0
            for h, y, *owners in passes.over(batches()):
                count += len(h)
                summation.check_count(count)
                yield query.check_records(h, y, clip, *owners)

        kept = _Kept(query, hold)
        for found in checked():
            if keep:
                kept.add(*found)
        # Nothing is charged unless all records are held.
        kept.blocks()
        ledger.charge([entry])
        super().__init__(query, mechanism, ledger, noise, mechanism.steps)
        self._checked = kept.blocks if keep else checked
        self._summed = query
        # Names of the arrays beside rows and targets.
        self._names = ["counts"] * query.grouped + ["lengths"] * keep

    def choose(self, loss):
        """Lets the remaining rounds use this loss, see
        `GradientQuery.with_loss`.

        Args:
            loss: public, or made from noisy sums of earlier rounds.
        """
        self._summed = self._query.with_loss(loss)

    def __call__(self, weights):
        """The noisy sum of one round at `weights`, `(m, M)`.

        Raises:
            RuntimeError: after the last round that was charged.
            ValueError: if a weight is not finite.
        """
        self._check_left()
        # Public numbers only: an error that depends on records would leak.
        if not np.all(np.isfinite(weights)):
            raise ValueError("The weights overflowed; lower `learning_rate`.")
        self._take()
        rate = self._mechanism.sampling_rate
        # As in `PartialStatistics`: the same bits in one process as in many.
        total = summation.FixedPointSum(self._query.clip, self._query.shapes[0])
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
        return noisy.reshape(self._query.shapes[0])
