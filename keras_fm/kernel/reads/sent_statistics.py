"""Partial statistics as bytes, for another process that merges them."""

import io
import json

import numpy as np

from keras_fm.kernel import sums as summation
from keras_fm.kernel.ledger import stored_arrays, strict_json


class SentStatistics:
    """What `PartialStatistics` are in bytes, which is the only copy."""

    def to_bytes(self):
        """For a process that merges: as secret as the records."""
        self._flush()
        public = {
            "kind": type(self.objective).__name__,
            "objective": self.objective.config(),
            "clip": self.clip,
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

    @classmethod
    def from_bytes(cls, data, objective, clip=False):
        """What `to_bytes` told of; executes no code from it.

        Args:
            data: bytes.
            objective, clip: those of the process that receives them.

        Raises:
            ValueError: if it is something else, or about another objective.
        """
        made = cls(objective, clip)
        expected = json.loads(json.dumps(objective.config()))
        try:
            with stored_arrays.unpacked(data) as stored:
                public = json.loads(bytes(stored.read("public")))
                if (
                    public["kind"] != type(objective).__name__
                    or public["objective"] != expected
                    or public["clip"] != clip
                ):
                    raise ValueError("they are of another objective")
                made._records = int(public["records"])
                summation.check_count(made._records)
                made._parts = frozenset(map(_id, public["parts"]))
                if bool(made._parts) != (made._records > 0):
                    raise ValueError("it is not said whose sums they are")
                made._sums = [
                    summation.FixedPointSum.of(
                        bound,
                        zero.shape,
                        stored.read(f"sum_{i}", (2, zero.size)),
                    )
                    for i, (bound, zero) in enumerate(
                        zip(objective.entry_bounds, made._running)
                    )
                ]
        except strict_json.MALFORMED as e:
            raise ValueError(f"These are no partial statistics: {e}") from e
        return made

    def __reduce__(self):
        raise TypeError(
            "Partial statistics hold sums of private records, so they are "
            "not pickled. Use `to_bytes` and `from_bytes` where they must "
            "reach another process."
        )


def _id(value):
    if not isinstance(value, str) or len(value) != 32:
        raise ValueError("they have other ids")
    return value
