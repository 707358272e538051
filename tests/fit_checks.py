"""Data of a fit that tell who reads them, for every kind of model."""

import pytest


class Unreadable:
    """Data that must not be touched."""

    def __len__(self):
        pytest.fail("private data was read")

    __getitem__ = __iter__ = __array__ = __call__ = __len__


class Reader:
    """Data that counts its passes and can fail in one of them."""

    def __init__(self, data, fails=None):
        self.data, self.fails, self.passes = data, fails, 0

    def __call__(self):
        self.passes += 1
        x, y = self.data
        first = len(x) // 3
        yield x[:first], y[:first]
        if self.passes == self.fails:
            raise OSError("the disk is gone")
        yield x[first:], y[first:]


def names(private):
    """Of the releases that were charged."""
    return [e.name for e in private.ledger.entries]
