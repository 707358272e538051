"""What queries of a sum over records have in common.

A query says what one record adds; who a privacy unit is, and how the sum is
laid out for a mechanism, is the same for many of them.
"""

import abc
import dataclasses
import math

import numpy as np

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation

NORMS = ("l1", "l2")


class SumQuery(abc.ABC):
    """A sum of arrays of known `shapes`, one array after the other."""

    # Whether the privacy unit is an owner, whose sum is scaled back.
    grouped = False

    @property
    @abc.abstractmethod
    def shapes(self):
        """Shapes of the statistics by `names`."""

    @abc.abstractmethod
    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of the vector that `pack` gives, in `norm`."""

    def num_records(self, batch, *_, **__):
        """How many records a batch holds."""
        return len(batch)

    def zero(self):
        """Statistics of no record, float64."""
        return tuple(np.zeros(shape) for shape in self.shapes)

    @property
    def size(self):
        """Length of the released vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def pack(self, statistics, norm):
        """The vector that is perturbed."""
        return np.concatenate(
            [np.array(s, dtype=np.float64).ravel() for s in statistics]
        )

    def unpack(self, vector, norm):
        """The inverse of `pack`."""
        found, start = [], 0
        for shape in self.shapes:
            stop = start + math.prod(shape)
            part = np.array(vector[start:stop], dtype=np.float64)
            found.append(part.reshape(shape))
            start = stop
        return tuple(found)

    def public_part(self, statistics):
        """Statistics by name that hold nothing secret under the relation of
        the query: a release has them as they are, and `unpack` has not."""
        return {}

    def rounding_error(self, norm):
        """How far the computed vector may be from that of real numbers, see
        `summation.error_bound`."""
        return summation.error_bound(
            self.sensitivity(norm, neighbours="add_remove"),
            grouped=self.grouped,
        )

    def expected_squared_error(self, mechanism):
        """Expected squared L2 norm of the noise on the vector."""
        return self.size * mechanism.coordinate_variance(self.size)

    def config(self):
        return dataclasses.asdict(self)


class OwnedSumQuery(SumQuery):
    """A `SumQuery` whose privacy unit may be an owner of several records.

    Fields of the dataclass that derives from it: `grouped`, whether an
    owner's records are summed and scaled back to the norms that one record
    may have, and `reach`, how many other units' records may depend on one
    unit's data.
    """

    grouped: bool
    reach: int

    proof_of_one_record: str
    proof_of_owners = "docs/proofs/reconstruction.md"

    @abc.abstractmethod
    def _record(self, norm, replace):
        """Sensitivity of the vector for one record."""

    def _unit(self, norm, replace):
        """What one privacy unit's own records may change."""
        if self.grouped and replace:
            return 2 * self._record(norm, replace=False)
        return self._record(norm, replace)

    def sensitivity(self, norm, *, neighbours):
        """Sensitivity of the vector that `pack` gives.

        Of one record: see `proof`. An owner of several (`grouped`): the same
        for add_remove, twice that for replace_one, or less where the query
        says why. Each of `reach` other units adds the larger of the two.
        docs/proofs/reconstruction.md, propositions 3 and 4.

        Args:
            norm: `"l1"` or `"l2"`.
            neighbours: `"add_remove"` or `"replace_one"`.
        """
        replace = is_replaced(norm, neighbours)
        total = self._unit(norm, replace)
        if self.reach:
            # A record reached may change, or appear and vanish: where a
            # record's largest part is constant the second is more.
            total += self.reach * max(
                self._unit(norm, replace=True), self._unit(norm, replace=False)
            )
        return total

    @property
    def proof(self):
        """Where the sensitivity is proved, for the ledger."""
        own, other = self.proof_of_one_record, self.proof_of_owners
        if (self.grouped or self.reach) and other not in own:
            return f"{own}, {other}"
        return own

    def _unit_in_words(self):
        words = ""
        if self.grouped:
            words += "; each owner's sum scaled back to one record's norm"
        return words + reach_in_words(self.reach)

    def _scaled(self, own):
        """An owner's sums, scaled back."""
        shrink = self._owner_scale(own)
        return tuple(shrink * part for part in own)

    def _owner_scale(self, own):
        """Brings an owner's sum to the norms that one record may have."""
        scale = 1.0
        for norm in NORMS:
            length = summation.lengths(self.pack(own, norm)[None], norm)[0]
            # Inside by more than the length is wrong; no jump at the bound.
            bound = self._record(norm, replace=False) * (1 - 1e-12)
            if length > bound:
                scale = min(scale, bound / length)
        return scale

    def rounding_error(self, norm):
        """How far the computed vector may be from that of real numbers, see
        `summation.error_bound`."""
        return summation.error_bound(
            self._record(norm, replace=False),
            reach=self.reach,
            grouped=self.grouped,
        )


# What an entry says of which other units' records depend on one unit.
REACHES = "one unit's data enters the records of at most"


def reach_in_words(reach):
    """For the ledger; nothing where each unit has records of its own."""
    return f"; {REACHES} {reach} other units" if reach else ""


def is_replaced(norm, neighbours):
    """Whether a record is replaced, rather than added or removed, after a
    check of the norm in which the change is measured."""
    checks.either("norm", norm, NORMS)
    return budget_lib.Neighbours.of(neighbours).replaces


def clipped_sensitivity(bound, norm, neighbours):
    """L2 sensitivity of a sum of vectors of norm at most `bound`: `bound`
    (add_remove), `2 bound` (replace_one).

    docs/proofs/gradient.md, propositions 1 and 3.

    Raises:
        ValueError: for another norm.
    """
    if norm != "l2":
        raise ValueError(
            'Clipped coefficients have an "l2" sensitivity only. '
            f"Received: norm={norm!r}"
        )
    replaces = budget_lib.Neighbours.of(neighbours).replaces
    return 2 * bound if replaces else bound
