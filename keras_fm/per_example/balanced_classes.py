"""Weights of classes that are released: from noisy counts of their labels."""

import numpy as np

from keras_fm.kernel import release
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.planning import calibration
from keras_fm.preprocessing.column_histogram import ColumnHistogramQuery

# Of the budget of a fit, for the counts.
SHARE = 0.05
# A count below so many standard deviations of its noise is taken as that.
_FLOOR = 4.0


class BalancedClasses:
    """One release of how often each class occurs.

    Args:
        classes: int K >= 2, how many there are.
        grouped: whether the privacy unit is an owner of several rows.
        ledger: the `Ledger` that is charged.
        spends: share of its budget that the fit has.
    """

    def __init__(self, classes, grouped, ledger, spends):
        self._query = ColumnHistogramQuery(
            num_columns=1, num_bins=classes, grouped=grouped
        )
        self._classes, self._ledger = classes, ledger
        self.mechanism = calibration.calibrate(
            self._query,
            ledger.budget,
            neighbours=ledger.neighbours,
            share=SHARE * spends,
        )
        self._terms = {"name": "counts of classes", "ledger": ledger}

    def entry(self, noise):
        """What it is charged as."""
        return release.planned_entry(
            self._query, self.mechanism, noise=noise, **self._terms
        )

    def released(self, labels, owners, noise):
        """Charges, and releases the weights.

        Args:
            labels: `(n,)` whole numbers below K.
            owners: `None`, or `(n,)` ids.
            noise: a `NoiseSource`.

        Returns:
            dict from classes to weights, of which the largest is 1.
        """
        values = (labels[:, None] + 0.5) * (2 / self._classes) - 1
        partial = PartialStatistics(self._query)
        if owners is None:
            partial.add(values)
        else:
            order = np.argsort(owners, kind="stable")
            partial.add(values[order], owners=owners[order])
        found = release.release_statistics(
            partial, mechanism=self.mechanism, noise=noise, **self._terms
        )
        least = max(_FLOOR * self.mechanism.stddev, 1.0)
        counts = np.maximum(found.statistics["counts"][0], least)
        return dict(enumerate((counts.min() / counts).tolist()))
