"""Many rounds over records that lie in several processes.

A round is one noisy sum over the records at given public weights, so each
process can sum its own records. The first process sends the weights out, gets
partial statistics back, merges them and adds the noise once. All rounds are
charged together, before the first noise.

Example, in the first process (`ask` sends weights and receives bytes):

```python
gathered = GatheredRounds(query, ask, mechanism=..., ledger=ledger, ...)
weights = rounds.descend(gathered, start, expected=n, stddev=stddev)
release = gathered.finish(weights)
```

In the others, for all weights that arrive:

```python
partial = PartialStatistics(query.at(weights))
for features, labels in my_share_of_the_records:
    partial.add(features, labels)
send(partial.to_bytes())
```
"""

from keras_fm.kernel import checks
from keras_fm.kernel import release as release_lib
from keras_fm.kernel.access.gradient_rounds import PaidRounds
from keras_fm.kernel.noise_mechanisms import SampledGaussianMechanism
from keras_fm.kernel.partial_statistics import PartialStatistics


class GatheredRounds(PaidRounds):
    """R rounds whose sums are formed elsewhere and charged together.

    The constructor checks the ledger; a refusal uses no record. The first
    call gathers, charges all R rounds, and only then draws noise. An invalid
    record in the first round charges nothing. A later error leaves all
    rounds charged. Each call is one round.

    Before the noise, the result equals bit for bit that of one process on the
    same batches, by `keras_fm.kernel.access.gradient_rounds.GradientRounds`
    without `keep`.

    Args:
        query: a `GradientQuery` or a `NetworkExpansionQuery`.
        gather: function from weights to an iterable of each process's sums
            at these weights: `PartialStatistics(query.at(weights))`, or its
            `to_bytes()`. Every record must be in exactly one of them. A
            record in two counts twice, which the sensitivity does not cover.
            Sums that are sent twice are refused.
        mechanism: for a `GradientQuery` a `SampledGaussianMechanism` of
            `sampling_rate` 1 whose `steps` is R (every process would have to
            draw a sample secretly); else the mechanism of one round, such as
            `calibrate(..., share=1 / R)`.
        rounds: int R >= 1; for a `GradientQuery` the mechanism's steps.
        clip: whether records outside their bound were scaled back.
        ledger, name, noise, notes: see `keras_fm.kernel.release.release`.

    Raises:
        BudgetExceededError: before any record is used.
        ValueError: if the mechanism does not fit. A call raises it if sums
            are of other weights or another query, or come twice.

    Example:

    >>> gathered = GatheredRounds(
    ...     query, ask, mechanism=mechanism, ledger=ledger, name="head",
    ...     noise=keras_fm.mechanisms.NoiseSource(),
    ... )
    >>> noisy = gathered(np.zeros(query.shapes[0]))  # one round, by all
    """

    def __init__(
        self,
        query,
        gather,
        *,
        mechanism,
        ledger,
        name,
        noise,
        rounds=1,
        clip=False,
        notes=(),
    ):
        several = isinstance(mechanism, SampledGaussianMechanism)
        if several and mechanism.sampling_rate < 1:
            raise ValueError(
                "Rounds in several processes use all records: "
                "`sampling_rate` must be 1. Received: "
                f"sampling_rate={mechanism.sampling_rate}"
            )
        if several != getattr(query, "paid_for_together", False):
            raise ValueError(
                "The rounds of a GradientQuery are accounted as one "
                "SampledGaussianMechanism, those of others one by one. "
                f"Received: {type(mechanism).__name__} for a "
                f"{type(query).__name__}"
            )
        rounds = mechanism.steps if several else checks.count("rounds", rounds)
        names = [f"{name} (round {r + 1} of {rounds})" for r in range(rounds)]
        self._entries = [
            release_lib.checked_entry(
                query, mechanism, ledger, each, noise, notes
            )
            for each in ([name] if several else names)
        ]
        ledger.check(self._entries)
        super().__init__(query, mechanism, ledger, noise, rounds)
        self._gather, self._clip, self._several = gather, clip, several
        self._charged = False

    def __call__(self, weights):
        """One round at public `weights`.

        Args:
            weights: `(m, M)`, or for an expansion a list of arrays.

        Returns:
            For a `GradientQuery` the noisy sum, `(m, M)`; else a
            `Release`.

        Raises:
            RuntimeError: after the last round that was charged.
            ValueError: see the class; nothing was released then.
        """
        self._check_left()
        here = self._query.at(weights)
        whole = PartialStatistics(here, self._clip)
        for part in self._gather(weights):
            if not isinstance(part, PartialStatistics):
                part = PartialStatistics.from_bytes(part, here, self._clip)
            whole.merge(part)
        exact = here.vector(whole.statistics())
        try:
            self._check_left()
            if not self._charged:
                self._ledger.charge(self._entries)
                self._charged = True
            self._take()
            noisy = self._mechanism.perturb(
                exact,
                self._noise,
                error=self._query.rounding_error(self._mechanism.norm),
            )
        finally:
            # A crash report with local variables must not show these.
            del exact, whole
        if self._several:
            return noisy.reshape(self._query.shapes[0])
        return release_lib.unpacked(
            noisy,
            self._query,
            self._mechanism,
            self._ledger,
            self._noise,
        )
