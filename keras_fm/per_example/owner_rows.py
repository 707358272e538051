"""Owners (people) of several rows: an owner with some of its rows is one
record.

A record is then a pair of `(k, ...)` rows and `(k,)` weights. Its loss is the
weighted mean over the rows, whose gradient is clipped once.
"""

import keras
import numpy as np
from keras import ops

from keras_fm.kernel.access import columns


def check_ids(ids, n):
    """Refuses ids that do not match the n rows."""
    if len(ids) != n:
        raise ValueError(
            "`owners` must hold one id for each row, or k ids, `(n, k)`. "
            f"Received: owners.shape={ids.shape}, {n} rows"
        )


class OwnerRows:
    """The rows of each owner, and random choices of them.

    Args:
        owners: `(n,)` ids.
        most: int k, public: the most rows of an owner in a step.
        n: int, number of rows.

    Attributes:
        n: int, number of owners.
        most: int.

    Raises:
        ValueError: if there is not one id for each row.
    """

    def __init__(self, owners, most, n):
        ids = np.array(columns.owner_ids(owners))
        check_ids(ids, n)
        _, codes, self._counts = np.unique(
            ids, return_inverse=True, return_counts=True
        )
        self._order = np.argsort(codes.reshape(-1), kind="stable")
        self._starts = np.cumsum(self._counts) - self._counts
        self.n, self.most = len(self._counts), most

    def drawn(self, owners, weights, rng):
        """Draws some rows of each of some owners.

        Args:
            owners: int array, numbers below `n`.
            weights: `None`, or `(rows,)` numbers from 0 to 1.
            rng: a `numpy.random.Generator`.

        Returns:
            `(len(owners), most)` numbers of rows and their weights in the
            mean of the owner, times `most`; and `(len(owners),)` factors of
            the owners, the means of the given weights. Unused places repeat
            rows of the owner, with weight 0.
        """
        shape = (len(owners), self.most)
        rows, shares = np.zeros(shape, "int64"), np.zeros(shape, "float64")
        for at, owner in enumerate(owners):
            start, count = self._starts[owner], self._counts[owner]
            own = self._order[start : start + count]
            if count > self.most:
                own = rng.permutation(own)
            rows[at] = own[np.arange(self.most) % count]
            kept = min(count, self.most)
            shares[at, :kept] = (
                1.0 if weights is None else weights[rows[at, :kept]]
            ) / kept
        factors = shares.sum(axis=1)
        shares *= self.most / np.maximum(factors, 1e-30)[:, None]
        return rows, shares.astype("float32"), factors.astype("float32")


class OwnerLoss:
    """The loss of an owner, which replaces that of a row.

    Args:
        trainer: a `PrivateNetwork`.
    """

    def __init__(self, trainer):
        self._trainer = trainer
        self.model = _OwnerModel(trainer.model)

    def __getattr__(self, name):
        return getattr(self._trainer, name)

    def loss_of_records(self, y, outputs):
        """The weighted mean of the losses of one owner's rows."""
        y_pred, weights = outputs
        y = keras.tree.map_structure(lambda v: v[0], y)
        return self._trainer.loss_of_records(y, y_pred, weights)


class _OwnerModel:
    """The model, called on the rows of one owner."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def __call__(self, record, training=None):
        rows, weights = keras.tree.map_structure(
            lambda v: ops.convert_to_tensor(v)[0], record
        )
        return self._model(rows, training=training), weights
