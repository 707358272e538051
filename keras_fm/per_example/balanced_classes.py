"""Weights of classes that are released: from noisy counts of their labels."""

import numpy as np

from keras_fm.heads.class_weights import NAME, SHARE
from keras_fm.kernel import release
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.planning import calibration
from keras_fm.preprocessing.column_histogram import ColumnHistogramQuery

# A count below so many standard deviations of its noise is taken as that.
_FLOOR = 4.0


def query(classes, grouped, reach=0):
    """How often each of `classes` occurs."""
    return ColumnHistogramQuery(
        num_columns=1, num_bins=classes, grouped=grouped, reach=reach
    )


def places(labels, classes):
    """What the query reads of labels, whole numbers `(n,)`: `(n, 1)`."""
    return (labels[:, None] + 0.5) * (2 / classes) - 1


def weights(found):
    """Weights of classes, the largest 1, of released counts."""
    variance = found.mechanism.coordinate_variance(found.query.size)
    least = max(_FLOOR * variance**0.5, 1.0)
    counts = np.maximum(found.statistics["counts"][0], least)
    return tuple((counts.min() / counts).tolist())


class BalancedClasses:
    """One release of how often each class occurs.

    Args:
        classes: int K >= 2, how many there are.
        grouped: whether the privacy unit is an owner of several rows.
        ledger: the `Ledger` that is charged.
        spends: share of its budget that the fit has.
    """

    def __init__(self, classes, grouped, ledger, spends):
        self._query = query(classes, grouped)
        self._classes, self._ledger = classes, ledger
        self.mechanism = calibration.calibrate(
            self._query,
            ledger.budget,
            neighbours=ledger.neighbours,
            share=SHARE * spends,
        )
        self._terms = {"name": NAME, "ledger": ledger}

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
        values = places(labels, self._classes)
        partial = PartialStatistics(self._query)
        if owners is None:
            partial.add(values)
        else:
            order = np.argsort(owners, kind="stable")
            partial.add(values[order], owners=owners[order])
        found = release.release_statistics(
            partial, mechanism=self.mechanism, noise=noise, **self._terms
        )
        return dict(enumerate(weights(found)))
