"""Clips from a released noisy histogram of the records' norms."""

import numpy as np

from keras_fm.kernel.access import fixed_rows
from keras_fm.per_example.released_first import ReleasedFirst
from keras_fm.preprocessing.column_histogram import ColumnHistogramQuery

# Rows of a batch, in which each record has its own place.
_PLACES = 64
# Bins of equal ratios between public norms; norms outside count as the ends.
_LOW, _HIGH, _BINS = 1e-4, 1e3, 70


class LearnedClips(ReleasedFirst):
    """One release of the distribution of the records' coefficient norms; its
    medians are the clips.

    Args:
        network: has `coefficient_norms`, `learn_thresholds` and
            `partitions`.
        ledger, spends: see `ReleasedFirst`.
    """

    def __init__(self, network, ledger, spends):
        if network.rows_per_owner is not None:
            raise ValueError(
                'clip="histogram" counts records one by one, so it is not '
                "supported for `owners`. Give thresholds."
            )
        self._network = network
        query = ColumnHistogramQuery(
            num_columns=len(network.partitions), num_bins=_BINS
        )
        name = f"{network.model.name} (thresholds)"
        super().__init__(query, name, ledger, spends)

    def learn(self, given, noise):
        found = self.released(self._places(given), noise)
        _, ends = found.range_of(0.0, 0.5)
        if np.any(ends == 1):
            raise ValueError(
                "The noise hides the histogram: no count stands out. Give "
                "thresholds as numbers, or fit on more records."
            )
        self._network.learn_thresholds(norms(ends))

    def _places(self, given):
        batches = fixed_rows.placed([(given.x, given.y)], _PLACES)
        for x, y, rows in batches:
            yield (places(self._network.coefficient_norms(x, y)[rows]),)


def places(lengths):
    """Maps norms to [-1, 1], so that bins of equal ratios have equal width."""
    # A record with a NaN norm contributes nothing to a step; here it is in the
    # last bin.
    lengths = np.where(lengths >= 0, np.clip(lengths, _LOW, _HIGH), _HIGH)
    return 2 * np.log(lengths / _LOW) / np.log(_HIGH / _LOW) - 1


def norms(found):
    """The inverse of `places`."""
    return _LOW * (_HIGH / _LOW) ** ((np.asarray(found) + 1) / 2)
