"""Whether a later fit is given the records of the first."""

import hashlib
import secrets

import numpy as np

from keras_fm.kernel.reads import columns
from keras_fm.parts import model_inputs


class Fingerprint:
    """Remembers arrays by a keyed hash that lives in this process only.

    It is never written anywhere: a hash of few records could be searched.
    Data that are read in a stream are not remembered.
    """

    def __init__(self):
        self._key = secrets.token_bytes(32)
        self._digest = None

    def take(self, data, model):
        """Remembers these records of a model."""
        self._digest = self._of(data, model)

    def differs(self, data, model):
        """Whether these are other records than those remembered; `False`
        if none are."""
        return (
            self._digest is not None and self._of(data, model) != self._digest
        )

    def check(self, data, arguments, model):
        """Refuses a fit on other data than the release was of.

        Args:
            data: the callback's.
            arguments: dict, those of `fit`.
            model: what the records go through.
        """
        given = [data]
        x, y = arguments.get("x"), arguments.get("y")
        if _are_arrays(x) and isinstance(y, np.ndarray):
            given.append((x, y))
        if _are_arrays(x) and columns.are_inputs(data):
            given.append(x)
        if any(self.differs(one, model) for one in given):
            raise ValueError(
                "The data changed since the release that this model trains "
                "on. Fit with the same data (free), fit without this "
                "callback (free: the release stays in force), or draw a new "
                "release with `PrivateModel(..., guarantee=Proven(releases="
                "k))` and `private.new_release = True`, which is charged."
            )

    def _of(self, data, model):
        if columns.are_inputs(data):
            data = (data,)
        if not isinstance(data, (tuple, list)):
            return None
        x, *labels = data
        x = model_inputs.arranged(model, x) if columns.are_several(x) else x
        digest = hashlib.blake2b(key=self._key)
        for part in (x, *labels):
            for _, array in columns.flatten(part):
                array = columns.one_array(array)
                digest.update(f"{array.shape}{array.dtype}".encode())
                digest.update(columns.row_bytes(array))
        return digest.digest()


def _are_arrays(x):
    return x is not None and all(
        isinstance(array, np.ndarray) for _, array in columns.flatten(x)
    )
