"""Releases before the noisy steps, for a part of the fit's budget."""

from keras_fm.heads.class_weights import SHARE
from keras_fm.kernel import release
from keras_fm.kernel.planning import calibration


class ReleasedFirst:
    """One release before the steps of a fit.

    Args:
        query: the query of the release.
        name: str, of the ledger's entry.
        ledger: the `Ledger` that is charged.
        spends: the fit's share of the ledger's budget.
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
        """The ledger's entry for it."""
        return release.planned_entry(
            self._query, self.mechanism, noise=noise, **self._terms
        )

    def released(self, batches, noise):
        """Charges the ledger and returns the `Release` of batches of
        records."""
        return release.release(
            self._query,
            batches,
            mechanism=self.mechanism,
            noise=noise,
            **self._terms,
        )

    def learn(self, given, noise):
        """Makes the release and uses it.

        Args:
            given: the `GivenRecords` of a fit.
            noise: a `NoiseSource`.
        """
        raise NotImplementedError
