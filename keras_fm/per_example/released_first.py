"""What noisy steps release before them, for a part of their fit's budget."""

from keras_fm.heads.class_weights import SHARE
from keras_fm.kernel import release
from keras_fm.kernel.planning import calibration


class ReleasedFirst:
    """One release before the steps of a fit.

    Args:
        query: what is read of the records.
        name: str, of the ledger's entry.
        ledger: the `Ledger` that is charged.
        spends: share of its budget that the fit has.
    """

    def __init__(self, query, name, ledger, spends):
        self._query = query
        self._terms = {"name": name, "ledger": ledger}
        self.mechanism = calibration.calibrate(
            query,
            ledger.budget,
            neighbours=ledger.neighbours,
            share=SHARE * spends,
        )

    def entry(self, noise):
        """What it is charged as."""
        return release.planned_entry(
            self._query, self.mechanism, noise=noise, **self._terms
        )

    def released(self, batches, noise):
        """Charges; the `Release` of batches of the records."""
        return release.release(
            self._query,
            batches,
            mechanism=self.mechanism,
            noise=noise,
            **self._terms,
        )

    def learn(self, given, noise):
        """Releases, and uses what was released.

        Args:
            given: the `GivenRecords` of a fit.
            noise: a `NoiseSource`.
        """
        raise NotImplementedError
