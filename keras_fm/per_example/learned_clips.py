"""Clips that are released: from a noisy histogram of the records' norms."""

import numpy as np

from keras_fm.kernel import release
from keras_fm.kernel.planning import calibration
from keras_fm.kernel.reads import fixed_rows
from keras_fm.per_example.norm_histogram import NormHistogramQuery

# Of the budget of a fit, for the histogram.
SHARE = 0.05
# Rows of a batch, in which a record has a place of its own.
_PLACES = 64


class LearnedClips:
    """One release of how long the coefficients of records are.

    Args:
        network: has `coefficient_norms`, `learn_thresholds`, `partitions` and
            `clip_quantile`.
        ledger: the `Ledger` that is charged.
        spends: share of its budget that the fit has.
    """

    def __init__(self, network, ledger, spends):
        self._network = network
        self._query = NormHistogramQuery(num_columns=len(network.partitions))
        self.mechanism = calibration.calibrate(
            self._query,
            ledger.budget,
            neighbours=ledger.neighbours,
            share=SHARE * spends,
        )
        name = f"{network.model.name} (thresholds)"
        self._terms = {"name": name, "ledger": ledger}

    def entry(self, noise):
        """What it is charged as."""
        return release.planned_entry(
            self._query, self.mechanism, noise=noise, **self._terms
        )

    def learn(self, given, noise):
        """Charges, and gives the network its thresholds.

        Args:
            given: the `GivenRecords` of a fit.
            noise: a `NoiseSource`.
        """
        if given.owners is not None:
            raise ValueError(
                'clip="histogram" counts records one by one, so it is not '
                "supported for `owners`. Give thresholds."
            )
        found = release.release(
            self._query,
            self._norms(given),
            mechanism=self.mechanism,
            noise=noise,
            **self._terms,
        )
        network = self._network
        network.learn_thresholds(found.quantiles(network.clip_quantile))

    def _norms(self, given):
        batches = fixed_rows.placed([(given.x, given.y)], _PLACES)
        for x, y, rows in batches:
            norms = self._network.coefficient_norms(x, y)[rows]
            # A record without a norm counts for nothing in a step, and is in
            # the last bin here.
            yield (np.where(norms >= 0, norms, np.inf),)
