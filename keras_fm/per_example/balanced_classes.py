"""Class weights from released noisy counts of the labels."""

import numpy as np

from keras_fm.heads.class_weights import NAME
from keras_fm.per_example.released_first import ReleasedFirst
from keras_fm.preprocessing.column_histogram import ColumnHistogramQuery

# Counts below this many standard deviations of the noise are raised to it.
_FLOOR = 4.0


def query(classes, grouped, reach=0):
    """The query that counts each of `classes`."""
    return ColumnHistogramQuery(
        num_columns=1, num_bins=classes, grouped=grouped, reach=reach
    )


def places(labels, classes):
    """Labels, whole numbers `(n,)`, as the query's input `(n, 1)`."""
    return (labels[:, None] + 0.5) * (2 / classes) - 1


def weights(found):
    """Weights of classes from released counts; the largest is 1."""
    variance = found.mechanism.coordinate_variance(found.query.size)
    least = max(_FLOOR * variance**0.5, 1.0)
    counts = np.maximum(found.statistics["counts"][0], least)
    return tuple((counts.min() / counts).tolist())


class BalancedClasses(ReleasedFirst):
    """One release of noisy class counts.

    Args:
        classes: int K >= 2, the number of classes.
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
