"""Keeps the features that one part of a model computed for the parts above.

Parts are released one after the other, from the input upwards. Each needs the
features of all records from the parts below. These features do not change any
more, so the next part starts from them instead of computing them again.
"""

import functools

import keras

from keras_fm.core.record_alone import FeatureMap

# Largest number of bytes kept; with more, every part starts from the records.
MOST = 2**29


class Memo:
    """Features of all records at one tensor of a model, in memory.

    They are as private as the records and are never saved.

    Attributes:
        batches: `None`, or list of `(features, ...)`.
    """

    def __init__(self):
        self.forget()

    def forget(self):
        """Deletes the features and keeps no more."""
        self._tensor = self.batches = None
        self.map_to = functools.cache(self._map_to)

    def _map_to(self, tensor):
        """Function from the features to those at a tensor. `None` without
        features, or if the tensor depends on other inputs, too."""
        if self._tensor is None:
            return None
        if tensor is self._tensor:
            return lambda x: x
        try:
            return FeatureMap(keras.Model(self._tensor, tensor))
        except ValueError:
            return None

    def keeping(self, tensor, batches):
        """Yields batches, and keeps them if all are used and they have at most
        `MOST` bytes.

        Args:
            tensor: the tensor whose features they are.
            batches: `(features, ...)`.
        """
        if tensor is self._tensor:
            yield from batches
            return
        kept, size = [], 0
        for batch in batches:
            size += batch[0].nbytes
            if size <= MOST:
                kept.append(batch)
            else:
                kept.clear()
            yield batch
        if size <= MOST:
            self.forget()
            self._tensor, self.batches = tensor, kept
