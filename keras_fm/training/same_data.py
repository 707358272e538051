"""Whether a later fit is given the records of the first."""

import hashlib
import secrets

import numpy as np


class Fingerprint:
    """Remembers arrays by a keyed hash that lives in this process only.

    It is never written anywhere: a hash of few records could be searched.
    Data that are read in a stream are not remembered.
    """

    def __init__(self):
        self._key = secrets.token_bytes(32)
        self._digest = None

    def take(self, data):
        """Remembers these records."""
        self._digest = self._of(data)

    def differs(self, data):
        """Whether these are other records than those remembered; `False`
        if none are."""
        return self._digest is not None and self._of(data) != self._digest

    def check(self, data, arguments):
        """Refuses a fit on other data than the release was of.

        Args:
            data: the callback's.
            arguments: dict, those of `fit`.
        """
        given = [data]
        x, y = arguments.get("x"), arguments.get("y")
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            given.append((x, y))
        if isinstance(x, np.ndarray) and isinstance(data, np.ndarray):
            given.append(x)
        if any(map(self.differs, given)):
            raise ValueError(
                "The data changed since the release that this model trains "
                "on. Fit with the same data (free), fit without this "
                "callback (free: the release stays in force), or draw a new "
                "release with `PrivateModel(..., guarantee=Proven(releases="
                "k))` and `private.new_release = True`, which is charged."
            )

    def _of(self, data):
        if isinstance(data, np.ndarray):
            data = (data,)
        if not isinstance(data, (tuple, list)):
            return None
        digest = hashlib.blake2b(key=self._key)
        for array in data:
            array = np.ascontiguousarray(array)
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(array.view(np.uint8).data if array.size else b"")
        return digest.digest()
