"""Sums over some of the records, which add up to the sums over all.

A release is a noisy sum over records. Here sums are kept as integers. Neither
the order of the records nor the number of processes or the machines makes a
difference: the same records give the same bits. For queries that are
quadratic in their weights not even the batches matter. Other sums depend on
which records share a batch, but not on the order of the batches.

Nothing here is private yet. `release.release_statistics` charges a ledger and
adds the noise.

Example:

>>> import numpy as np
>>> from keras_fm.queries import SecondMomentQuery
>>> query = SecondMomentQuery(num_features=2)
>>> one, other = PartialStatistics(query), PartialStatistics(query)
>>> one.add(np.array([[0.6, 0.8]]))
>>> other.add(np.array([[0.8, 0.6], [1.0, 0.0]]))
>>> one.merge(other)
>>> one
<PartialStatistics of SecondMomentQuery>
"""

import io
import json
import secrets

import numpy as np

from keras_fm.kernel import sums as summation
from keras_fm.kernel.ledger import stored_arrays, strict_json


class PartialStatistics:
    """Sums of a query over the records that you add.

    Args:
        query: a query of `keras_fm.queries` (it defines the sum) that is
            released in one round, or `GradientQuery.at(weights)`.
        clip: whether records outside their bounds are scaled back instead of
            refused.

    Raises:
        ValueError: if the query takes several rounds (`rounds`), and no
            weights are given.

    Example:

    >>> query = layer.objective()  # of a built PrivateDense
    >>> here, there = (PartialStatistics(query) for _ in range(2))
    >>> here.add(layer.augment(h[:500]), y[:500])
    >>> there.add(layer.augment(h[500:]), y[500:])
    >>> here.merge(PartialStatistics.from_bytes(there.to_bytes(), query))
    """

    def __init__(self, query, clip=False):
        if not hasattr(query, "entry_bounds"):
            raise ValueError(
                "Partial statistics need a query that is released once. In "
                "rounds, give the query at the weights of this round, "
                "`query.at(weights)`. Received: "
                f"{type(query).__name__}"
            )
        self.query, self.clip = query, clip
        self._running = query.zero()
        self._sums = [
            summation.FixedPointSum(bound, zero.shape)
            for bound, zero in zip(query.entry_bounds, self._running)
        ]
        # Batches are summed together while that is exact.
        self._most = getattr(query, "exact_rows", 0)
        self._options = {"clip": clip}
        if self._most:
            self._options["exact"] = True
        # Rows in the running sum, and the number of all records.
        self._rows = self._records = 0
        # Ids of itself and of what was merged, set at the first record: a
        # process that is forked before has its own.
        self._parts = frozenset()

    def add(self, *batch, owners=None):
        """Adds a batch of records.

        Args:
            *batch: what the query accumulates, such as `features,
                labels`.
            owners: ids of the records' owners, if the query is `grouped`. All
                records of an owner must be in one batch, and in no other
                batch of any statistics that are merged with these.

        Raises:
            ValueError: if a record is invalid, or there are more records
                than a release may use.
        """
        records = self.query.num_records(*batch)
        summation.check_count(self._records + records)
        grouped = getattr(self.query, "grouped", False)
        if 0 < self._most < records and not grouped:
            # If a later record is invalid, nothing of a batch is added.
            whole = type(self)(self.query, self.clip)
            for part in summation.chunks(records, self._most):
                whole.add(*(v if v is None else v[part] for v in batch))
            self._begin(records)
            self._merge(whole)
            return
        if self._rows + records > self._most:
            self._flush()
        self._running = self.query.accumulate(
            self._running,
            *batch,
            **self._options,
            **({} if owners is None else {"owners": owners}),
        )
        self._begin(records)
        self._rows += records
        self._records += records

    def add_exact(self, records, *sums):
        """Adds exact sums over `records` records that were formed and checked
        elsewhere. Of a symmetric matrix, pass the upper triangle."""
        summation.check_count(self._records + records)
        for one, terms in zip(self._sums, sums, strict=True):
            one.add(terms)
        self._begin(records)
        self._records += records

    def _begin(self, records):
        if records and not self._records:
            self._parts = frozenset([secrets.token_hex(16)])

    def merge(self, other):
        """Adds the sums of another `PartialStatistics`.

        Raises:
            ValueError: if its query is another, or if some of its records
                are here already, such as after an earlier merge.
        """
        if other.query != self.query or other.clip != self.clip:
            raise ValueError(
                "Only statistics of the same query can be merged. "
                f"Received: {self.query} and {other.query}"
            )
        if self._parts & other._parts:
            raise ValueError(
                "Both statistics hold some of the same records, which would "
                "count twice. Merge every share once."
            )
        self._merge(other)
        self._parts |= other._parts

    def _merge(self, other):
        summation.check_count(self._records + other._records)
        self._flush()
        other._flush()
        for mine, more in zip(self._sums, other._sums):
            mine.merge(more)
        self._records += other._records

    def statistics(self):
        """The arrays that `query.pack` takes, float64. They are as secret as
        the records."""
        self._flush()
        return tuple(one.value() for one in self._sums)

    def _flush(self):
        if not self._rows:
            return
        for one, terms in zip(self._sums, self._running):
            one.add(terms)
            # Memory is used again: new pages cost as much as the sum.
            terms.fill(0.0)
        self._rows = 0

    # For another process ------------------------------------------------

    def to_bytes(self):
        """Bytes for another process to merge: as secret as the records."""
        self._flush()
        public = {
            **self._facts(),
            "records": self._records,
            "parts": sorted(self._parts),
        }
        stream = io.BytesIO()
        arrays = {
            f"sum_{i}": one.integers() for i, one in enumerate(self._sums)
        }
        public = np.frombuffer(json.dumps(public).encode(), np.uint8)
        np.savez(stream, public=public, **arrays)
        return stream.getvalue()

    def _facts(self):
        return {
            "kind": type(self.query).__name__,
            "query": self.query.config(),
            "clip": self.clip,
        }

    @classmethod
    def from_bytes(cls, data, query, clip=False):
        """Statistics from bytes of `to_bytes`; executes no code from them.

        Args:
            data: bytes.
            query, clip: those of the process that receives them.

        Raises:
            ValueError: if the bytes are invalid, or of another query.
        """
        made = cls(query, clip)
        expected = json.loads(json.dumps(made._facts()))
        try:
            with stored_arrays.unpacked(data) as stored:
                public = json.loads(bytes(stored.read("public")))
                if [public[name] for name in expected] != [*expected.values()]:
                    raise ValueError("they are of another query")
                made._records = int(public["records"])
                summation.check_count(made._records)
                made._parts = frozenset(map(str, public["parts"]))
                made._sums = [
                    summation.FixedPointSum.of(
                        bound,
                        zero.shape,
                        stored.read(f"sum_{i}", (2, zero.size)),
                    )
                    for i, (bound, zero) in enumerate(
                        zip(query.entry_bounds, made._running)
                    )
                ]
        except strict_json.MALFORMED as e:
            raise ValueError(f"These are not partial statistics: {e}") from e
        return made

    def __reduce__(self):
        raise TypeError(
            "Partial statistics hold sums of private records, so they are "
            "not pickled. Use `to_bytes` and `from_bytes` where they must "
            "reach another process."
        )

    def __repr__(self):
        return f"<PartialStatistics of {type(self.query).__name__}>"
