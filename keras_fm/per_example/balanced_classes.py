"""Weights of classes that are released: from noisy counts of their labels."""

import numpy as np

from keras_fm.heads.class_weights import NAME
from keras_fm.per_example.released_first import ReleasedFirst
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


class BalancedClasses(ReleasedFirst):
    """One release of how often each class occurs.

    Args:
        classes: int K >= 2, how many there are.
        owners: `None`, or `(n,)` ids of the owners that are protected.
        ledger, spends: see `ReleasedFirst`.
    """

    def __init__(self, classes, owners, ledger, spends):
        self._classes, self._owners = classes, owners
        super().__init__(
            query(classes, owners is not None), NAME, ledger, spends
        )

    def learn(self, given, noise):
        given.weigh(self.weights(given.labels, noise))

    def weights(self, labels, noise):
        """Releases the weights.

        Args:
            labels: `(n,)` whole numbers below K.
            noise: a `NoiseSource`.

        Returns:
            dict from classes to weights, of which the largest is 1.
        """
        values, owners = places(labels, self._classes), self._owners
        batch = (values,)
        if owners is not None:
            order = np.argsort(owners, kind="stable")
            batch = values[order], None, np.asarray(owners)[order]
        return dict(enumerate(weights(self.released([batch], noise))))
