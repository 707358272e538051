"""Views (changed copies) of a record, made from that record alone."""

import keras
import numpy as np

from keras_fm.lab.baselines.dp_sgd_config import LARGEST


class Views:
    """Changed copies of records, each made from one record and random numbers.

    The function is called on one record at a time, with a generator for that
    record, and Keras keeps no state from a call.

    Args:
        augment: function of one record and a `numpy.random.Generator` to a
            record of the same shape.
        count: int, copies of a record.
        shape: of a record.
        seed: a `np.random.SeedSequence`.

    Raises:
        ValueError: if the function, tried on a made-up record, returns
            another shape or kind of numbers.
    """

    def __init__(self, augment, count, shape, seed):
        self._augment, self.count, self._shape = augment, count, shape
        self._rng = np.random.default_rng(seed)
        self._view(np.zeros(shape, "float32"), _generator(0, 0))

    def __call__(self, records, size):
        """`(size, count, ...)`: the views of records, then zeros."""
        found = np.zeros((size, self.count, *self._shape), "float32")
        key = int.from_bytes(self._rng.bytes(16), "little")
        for i, record in enumerate(records):
            rng = _generator(key, i)
            for j in range(self.count):
                found[i, j] = self._of_record(record, rng)
        # Views keep to the range that `check_records` enforces for records.
        found = np.nan_to_num(found, posinf=LARGEST, neginf=-LARGEST)
        return np.clip(found, -LARGEST, LARGEST)

    def _of_record(self, record, rng):
        try:
            return self._view(record, rng)
        except Exception:
            pass
        # Not inside `except`: the function's own error may hold values.
        raise ValueError(
            "`augment` failed on a record, or returned another shape or kind "
            "of numbers for it. Its message is left out, because it may show "
            "the record: try it on records of your own."
        )

    def _view(self, record, rng):
        record = record.view()
        record.flags.writeable = False
        # No call changes a variable or the seed of a layer.
        with keras.StatelessScope():
            view = np.asarray(self._augment(record, rng))
        if view.shape != self._shape or view.dtype.kind not in "biuf":
            raise ValueError(
                "`augment` must return a record of the shape and kind of "
                f"numbers that it was given. Received: {view.dtype} of shape "
                f"{view.shape} for a record of shape {self._shape}"
            )
        return view


def _generator(key, place):
    return np.random.Generator(np.random.Philox(key=key, counter=place << 128))


def told(function):
    """A function in words for errors: the `repr` of a `functools.partial` holds
    its arguments, which may be records."""
    return None if function is None else type(function).__name__
