"""What one part of a model read, kept for the parts above it.

Parts are released one after the other, from the records upwards, and each
reads what those below make of all records. What a part read does not change any
more, so the next goes on from there: one pass through the features, not one for
each part.
"""

import keras

from keras_fm.core.record_alone import FeatureMap

# Bytes that are kept at the most; of more records every part begins at them.
MOST = 2**29


class Memo:
    """The features of all records at one tensor of a model, in memory.

    As secret as the records, and never saved.

    Attributes:
        batches: `None`, or list of `(features, ...)`.
    """

    def __init__(self):
        self.forget()

    def forget(self):
        """Keeps nothing any more."""
        self._tensor, self.batches, self._maps = None, None, {}

    def map_to(self, tensor):
        """Function from the features to those at a tensor; `None` if there
        are none, or the tensor is of something beside them."""
        if self._tensor is None:
            return None
        if id(tensor) not in self._maps:
            self._maps[id(tensor)] = (tensor, self._map(tensor))
        return self._maps[id(tensor)][1]

    def _map(self, tensor):
        if tensor is self._tensor:
            return lambda x: x
        try:
            return FeatureMap(keras.Model(self._tensor, tensor))
        except ValueError:
            return None

    def keeping(self, tensor, batches):
        """Batches as they are read, kept if they are read to the end and are
        no more than `MOST`.

        Args:
            tensor: whose features they are.
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
