"""The record of everything that was learned from the private records.

Append-only. Every entry is either *proven* (a mechanism whose proof is in
docs/proofs) or *claimed* (an epsilon a paper asserts; it composes to infinity
on the proven side). Check, charge, then release, in that order: an entry that
was charged and whose release then failed stays charged.
"""

import copy
import dataclasses
import datetime
import json
import math
import os
import re
import tempfile

from keras_fm import budget as budget_lib
from keras_fm import mechanisms as mechanisms_lib

_FORMAT = 1
ONE_RECORD = "one record (one row of the data given)"


class BudgetExceededError(ValueError):
    """A release would cost more than what is left of the budget."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One access to private records.

    Attributes:
        name: which layer or objective it served.
        guarantee: `"proven"` or `"claimed"`.
        neighbours: the relation the numbers refer to.
        mechanism: dict, the mechanism's name and public parameters
            (proven), or `{"claimed_epsilon": ...}`.
        reads: what was read, in words.
        proof: where the proof is, or why there is none.
        private: `False` when the noise was reproducible, which voids it.
        notes: further public facts (n declared public, public data used).
        when: UTC time, ISO 8601.
    """

    name: str
    guarantee: str
    neighbours: str
    mechanism: dict
    reads: str
    proof: str
    private: bool = True
    notes: tuple = ()
    when: str = ""

    def __post_init__(self):
        if self.guarantee not in ("proven", "claimed"):
            raise ValueError(
                '`guarantee` of a ledger entry must be "proven" or '
                f'"claimed". Received: guarantee={self.guarantee!r}'
            )
        if not isinstance(self.private, bool):
            raise ValueError(
                "`private` of a ledger entry must be True or False. "
                f"Received: private={self.private!r}"
            )
        if self.guarantee == "claimed":
            claim = self.mechanism.get("claimed_epsilon")
            if claim is None or not claim > 0:
                raise ValueError(
                    "A claimed entry needs a positive `claimed_epsilon`. "
                    f"Received: mechanism={self.mechanism}"
                )
        elif getattr(self.build_mechanism(), "sampling_rate", 1) < 1 and (
            self.neighbours != str(budget_lib.Neighbours.ADD_REMOVE)
        ):
            raise ValueError(
                "A proven entry of a sampled mechanism must refer to "
                '"add_remove", the relation its analysis is for. Received: '
                f"neighbours={self.neighbours!r}"
            )

    def build_mechanism(self):
        """The `Mechanism` of a proven entry."""
        config = dict(self.mechanism)
        name = config.pop("mechanism", None)
        if name not in mechanisms_lib.MECHANISMS:
            raise ValueError(
                "A proven entry needs one of the mechanisms "
                f"{sorted(mechanisms_lib.MECHANISMS)}. Received: {name!r}"
            )
        return mechanisms_lib.MECHANISMS[name](**config)


class Ledger:
    """Composes what was spent and refuses what would exceed the budget.

    Args:
        budget: a `PrivacyBudget`.
        neighbours: `"add_remove"` or `"replace_one"`; required, every
            number of this ledger refers to it.
        unit: the privacy unit in words: what is added, removed or replaced.

    Example:

    >>> ledger = Ledger(PrivacyBudget(1.0, 1e-5), neighbours="add_remove")
    >>> ledger.epsilon()
    0.0
    """

    def __init__(self, budget, *, neighbours, unit=ONE_RECORD):
        if not isinstance(budget, budget_lib.PrivacyBudget):
            raise ValueError(
                "`budget` must be a keras_fm.PrivacyBudget. "
                f"Received: budget={budget!r}"
            )
        self._budget = budget
        self._neighbours = budget_lib.Neighbours.of(neighbours)
        if not isinstance(unit, str) or not unit:
            raise ValueError(
                "`unit` must say in words what the privacy unit is. "
                f"Received: unit={unit!r}"
            )
        self._unit = unit
        self._entries = []

    @property
    def budget(self):
        return self._budget

    @property
    def neighbours(self):
        return self._neighbours

    @property
    def unit(self):
        return self._unit

    @property
    def entries(self):
        """A copy: changing it cannot change what was spent."""
        return tuple(copy.deepcopy(self._entries))

    # Composition ---------------------------------------------------------

    def epsilon(self, planned=()):
        """Proven epsilon at the budget's delta; infinite if any access to
        the records has no valid proof.

        Args:
            planned: entries that are not charged yet, composed with those
                that are.
        """
        return self._compose([*self._entries, *planned])

    def claimed_epsilon(self):
        """The sum of all claims and of the proven epsilon of the rest.

        This is what the papers would report. It is not a guarantee.
        """
        claims = [e for e in self._entries if e.guarantee == "claimed"]
        proven = [e for e in self._entries if e.guarantee == "proven"]
        total = math.fsum(e.mechanism["claimed_epsilon"] for e in claims)
        return total + self._compose(proven)

    def remaining(self):
        """Epsilon not yet spent, at least 0; 0 if nothing is proven."""
        return max(0.0, self._budget.epsilon - self.epsilon())

    def _compose(self, entries):
        if any(e.guarantee != "proven" or not e.private for e in entries):
            return math.inf
        return self._compose_mechanisms(e.build_mechanism() for e in entries)

    def _compose_mechanisms(self, mechanisms):
        return mechanisms_lib.compose_epsilon(
            mechanisms, self._budget.delta, scale=self._budget.epsilon
        )

    # Spending ------------------------------------------------------------

    def check(self, entries):
        """Raises if `entries` would exceed the budget; changes nothing.

        A reproducible run is checked as if its noise were secret, so that
        a study meets the same refusals as the real run.

        Raises:
            BudgetExceededError: what is asked, spent and left.
            ValueError: if an entry refers to another relation.
        """
        entries = list(entries)
        for entry in entries:
            self._check_relation(entry)
        after = self._entries + entries
        proven = [e.build_mechanism() for e in after if e.guarantee == "proven"]
        claimed = math.fsum(
            e.mechanism["claimed_epsilon"]
            for e in after
            if e.guarantee == "claimed"
        )
        total = self._compose_mechanisms(proven) + claimed
        # One part in 1e9 is the rounding of sums, not a tolerance.
        if total > self._budget.epsilon * (1 + 1e-9):
            raise BudgetExceededError(
                "This release would exceed the privacy budget: epsilon "
                f"{total:.6g} at delta {self._budget.delta:g}, of "
                f"{self._budget.epsilon:g} allowed. Nothing was read. "
                "Reuse the release that exists (fits on it are free), or "
                "plan several releases from the start with "
                "`PrivateModel(..., planned_releases=k)`."
            )

    def _check_relation(self, entry):
        if entry.neighbours != str(self._neighbours):
            raise ValueError(
                "An entry must refer to the ledger's neighbouring "
                f"relation {str(self._neighbours)!r}. Received: "
                f"neighbours={entry.neighbours!r}"
            )

    def charge(self, entries):
        """Checks, stamps and appends `entries`."""
        entries = list(entries)
        self.check(entries)
        now = datetime.datetime.now(datetime.timezone.utc)
        stamp = now.isoformat(timespec="seconds")
        self._entries.extend(
            dataclasses.replace(copy.deepcopy(e), when=stamp) for e in entries
        )

    # Persistence ---------------------------------------------------------

    def to_json(self):
        """The ledger as a JSON string (no noise, no statistic)."""
        return json.dumps(
            {
                "format": _FORMAT,
                "budget": dataclasses.asdict(self._budget),
                "neighbours": str(self._neighbours),
                "unit": self._unit,
                "entries": [dataclasses.asdict(e) for e in self._entries],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text):
        """Rebuilds a ledger; composition is redone, never read from it.

        Raises:
            ValueError: if the text is not a ledger of a known format.
        """
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT:
                raise ValueError(f"unknown format {data['format']!r}")
            ledger = cls(
                budget_lib.PrivacyBudget(**data["budget"]),
                neighbours=data["neighbours"],
                unit=data.get("unit", ONE_RECORD),
            )
            for entry in data["entries"]:
                entry["notes"] = tuple(entry["notes"])
                entry = LedgerEntry(**entry)
                ledger._check_relation(entry)
                ledger._entries.append(entry)
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise ValueError(f"This is not a keras_fm ledger: {e}") from e
        return ledger

    def save(self, path):
        """Writes the ledger as JSON; the old file stays until the new one
        is on disk."""
        folder = os.path.dirname(os.path.abspath(path))
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".ledger")
        try:
            with os.fdopen(handle, "w") as f:
                f.write(self.to_json())
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    @classmethod
    def load(cls, path):
        with open(path) as f:
            return cls.from_json(f.read())

    # Statement -----------------------------------------------------------

    def statement(self):
        """The privacy statement: what is proven, claimed, read, and when."""
        delta = self._budget.delta
        lines = ["Privacy statement", "=" * 17]
        proven, claimed = self.epsilon(), self.claimed_epsilon()
        lines.append(
            f"proven:     {_pair(proven, delta)}"
            + ("" if math.isfinite(proven) else "   (no valid proof)")
        )
        reasons = [e.proof for e in self._entries if e.guarantee == "claimed"]
        if reasons:
            lines += [
                f"claimed:    {_pair(claimed, delta)}   (by the paper; not "
                "a guarantee)",
                f"why:        {re.sub('^none[.:] ', '', reasons[0])}",
            ]
        lines += [
            f"budget:     {_pair(self._budget.epsilon, delta)}",
            f"neighbours: {self._neighbours}",
            f"unit:       {self._unit}",
        ]
        if math.isfinite(proven):
            lines += [
                "covered:    weights, all checkpoints and everything "
                "computed from the releases below",
                "uncovered:  metrics on private records, choices made by "
                "looking at them, the number of records where public, "
                "refusals of invalid records, the low-order bits of "
                "floating-point noise, side channels",
            ]
        if any(not e.private for e in self._entries):
            lines.append(
                "NOT PRIVATE: the noise is reproducible from a seed "
                "(`reproducible_noise`); use it for tests and studies only"
            )
        if not self._entries:
            lines.append("reads:      none; no private record was read")
        for number, e in enumerate(self._entries, start=1):
            lines += [
                f"[{number}] {e.when}  {e.name}: {e.guarantee}",
                f"    read:      {e.reads}",
                f"    mechanism: {_describe(e.mechanism)}",
                f"    proof:     {e.proof}",
            ]
            lines += [f"    note:      {note}" for note in e.notes]
        return "\n".join(lines)

    def __repr__(self):
        return (
            f"<Ledger of {len(self._entries)} entries, proven epsilon "
            f"{self.epsilon():.6g} at delta {self._budget.delta:g}, "
            f"{self._neighbours}>"
        )


def _pair(epsilon, delta):
    return f"(epsilon = {epsilon:.6g}, delta = {delta:g})"


def _describe(mechanism):
    return ", ".join(
        str(value)
        if key == "mechanism"
        else f"{key} {value:.6g}"
        if isinstance(value, float)
        else f"{key} {value}"
        for key, value in mechanism.items()
        if isinstance(value, (int, float, str))
    )
