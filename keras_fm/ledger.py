"""The record of everything that was learned from the private records.

Append-only. Every entry is either *proven* (a mechanism whose proof is in
docs/proofs) or *claimed* (an epsilon a paper asserts; it composes to infinity
on the proven side). Check, charge, then release, in that order: an entry that
was charged and whose release then failed stays charged. A ledger that lives in
a file (`Ledger.open`) has the entry on disk before `charge` returns, so no
noise is drawn for a spend that a crash could forget.
"""

import contextlib
import copy
import dataclasses
import datetime
import json
import math
import threading
import warnings

from keras_fm import budget as budget_lib
from keras_fm import ledger_entry, locked_file, privacy_statement, settings_file
from keras_fm import mechanisms as mechanisms_lib
from keras_fm.ledger_entry import LedgerEntry

_FORMAT = 1
_MOST_LISTED = 5
# One charge at a time in this process: check and charge are one step.
_CHARGING = threading.RLock()
ONE_RECORD = "one record (one row of the data given)"


class BudgetExceededError(ValueError):
    """A release would cost more than what is left of the budget."""


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
        ledger_entry.check_line("`unit`", unit)
        self._unit = unit
        self._entries = []
        # Lines about this ledger; no part of what is composed.
        self._audits = []
        self._file = None
        # Names of entries that this object charged itself.
        self._own = set()

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

    @property
    def audits(self):
        """Lines of audits that were noted, `(when, line)` each."""
        return tuple(self._audits)

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
            ValueError: if an entry refers to another relation, or the file
                of the ledger lost what it held.
        """
        entries = list(entries)
        self.reload()
        self._check(entries)

    def _check(self, entries):
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
                "`PrivateModel(..., planned_releases=k)`." + self._spent()
            )

    def _spent(self):
        """What was spent, for whom and when, as the end of a refusal."""
        if not self._entries:
            return ""
        lines = [
            f"  {e.when}  {e.name} ({e.describe()})"
            for e in self._entries[-_MOST_LISTED:]
        ]
        if len(self._entries) > _MOST_LISTED:
            lines.insert(
                0, f"  {len(self._entries) - _MOST_LISTED} before these"
            )
        where = f" in {self._file.path}" if self._file else ""
        return "\n".join(
            [
                f"\nCharged before{where}:",
                *lines,
                "If a run ended between a charge and its release (a crash), "
                "that release is lost and stays paid for: load the model or "
                "the backup that carries it, if one was saved. More can only "
                "be spent by deciding on a larger budget, in a new ledger "
                "that adds to this one.",
            ]
        )

    def _check_relation(self, entry):
        if entry.neighbours != str(self._neighbours):
            raise ValueError(
                "An entry must refer to the ledger's neighbouring "
                f"relation {str(self._neighbours)!r}. Received: "
                f"neighbours={entry.neighbours!r}"
            )

    def charge(self, entries):
        """Checks, stamps and appends `entries`.

        A ledger in a file is read again first, with all other processes
        locked out, and is on disk when this returns. If it raises an
        `OSError`, the charge may or may not be in the file: no noise may be
        drawn, and what is in the file counts as spent.

        Raises:
            BudgetExceededError, ValueError: see `check`.
            OSError: if the file cannot be written.
        """
        entries = list(entries)
        with _CHARGING, self._locked():
            self._refresh()
            self._check(entries)
            self._warn_of_repeats(entries)
            stamp = _now()
            stamped = [
                dataclasses.replace(copy.deepcopy(e), when=stamp)
                for e in entries
            ]
            charged = [*self._entries, *stamped]
            if self._file is not None:
                text = self._text(charged, self._audits)
                # What could not be read again is not written.
                charged = _parsed(type(self), self._file, text)._entries
                self._file.write(text)
            self._entries = charged
            self._own.update(e.name for e in stamped)

    def note_audit(self, line):
        """Writes down what an audit measured, under the statement.

        Nothing that is composed changes: an audit gives a lower bound on
        what was revealed. It can refute a statement and never prove one. A
        ledger in a file is on disk when this returns, as after `charge`.

        Args:
            line: str, one line, such as `keras_fm.auditing.AuditReport.line`
                gives.

        Raises:
            ValueError: if it is empty or not one line of printable text.
            OSError: if the file cannot be written.

        Example:

        ```python
        report = fm.audit(fit, (x, y), private.ledger, control=control)
        private.ledger.note_audit(report.line())
        print(private.ledger.statement())
        ```
        """
        _check_audit(line)
        with _CHARGING, self._locked():
            self._refresh()
            audits = [*self._audits, (_now(), line)]
            if self._file is not None:
                self._file.write(self._text(self._entries, audits))
            self._audits = audits

    # In a file -----------------------------------------------------------

    @classmethod
    def open(cls, path, *, budget=None, neighbours=None, unit=None):
        """A ledger that lives in a file: made if there is none, else
        continued.

        Every `charge` takes the lock of the file, reads it again (another
        process may have charged), checks the budget and has the new text on
        disk (written, synchronised, renamed) before it returns. Two processes
        never spend the same budget, and one that is killed at any point
        leaves the old text or the new one: what was spent is never
        forgotten, and never spent twice unseen.

        An empty file `path` + ".lock" stays beside it.

        Args:
            path: of a JSON file in a folder that exists and is writable.
            budget: a `PrivacyBudget` or an epsilon; optional if the file
                exists.
            neighbours: the relation; optional if the file exists.
            unit: the privacy unit in words; default: the file's, or one
                record.

        Returns:
            `Ledger`.

        Raises:
            ValueError: if the file is not a ledger (an empty one included),
                or has another budget, relation or unit.
            OSError: if the folder cannot be written.

        Example:

        ```python
        ledger = Ledger.open(
            "privacy.json",
            budget=PrivacyBudget(1.0, 1e-5),
            neighbours="add_remove",
        )
        model.fit(x, y, callbacks=[PrivateModel(ledger, data=(x, y))])
        ```
        """
        file = locked_file.LockedFile(path)
        if budget is not None and not isinstance(
            budget, budget_lib.PrivacyBudget
        ):
            budget = budget_lib.PrivacyBudget(budget)
        with file.lock():
            text = _read(file)
            if text is None:
                if budget is None or neighbours is None:
                    raise ValueError(
                        f"There is no ledger at {file.path!r} yet: pass "
                        "`budget` and `neighbours` to begin one."
                    )
                ledger = cls(
                    budget, neighbours=neighbours, unit=unit or ONE_RECORD
                )
                file.write(ledger.to_json())
            else:
                ledger = _parsed(cls, file, text)
                ledger._check_same(file.path, budget, neighbours, unit)
        ledger._file = file
        return ledger

    @property
    def path(self):
        """The file that this ledger lives in, or `None`."""
        return None if self._file is None else self._file.path

    def reload(self):
        """Takes in what other processes charged to the file.

        Raises:
            ValueError: if the file is gone, is no ledger, or lost entries.
        """
        with _CHARGING, self._locked():
            self._refresh()

    def _locked(self):
        if self._file is None:
            return contextlib.nullcontext()
        return self._file.lock()

    def _refresh(self):
        if self._file is None:
            return
        text = _read(self._file)
        if text is None:
            raise ValueError(
                f"The ledger {self.path!r} is gone, and what was spent with "
                "it. Put it back before anything else is released."
            )
        found = _parsed(type(self), self._file, text)
        found._check_same(self.path, self._budget, self._neighbours, self._unit)
        if found._entries[: len(self._entries)] != self._entries:
            raise ValueError(
                f"The ledger {self.path!r} lost or changed entries that were "
                "in it (an older copy was put in its place, or it was "
                "edited). Put the newest copy back."
            )
        self._entries, self._audits = found._entries, found._audits

    def _check_same(self, path, budget, neighbours, unit):
        for name, given, own in (
            ("budget", budget, self._budget),
            ("neighbours", neighbours, self._neighbours),
            ("unit", unit, self._unit),
        ):
            if given is not None and given != own:
                own = str(own) if name == "neighbours" else own
                raise ValueError(
                    f"`{name}` of the ledger at {path!r} is {own!r} and "
                    f"cannot be changed. Received: {name}={given!r}"
                )

    def _warn_of_repeats(self, entries):
        """Says it if what is charged was charged by an earlier run."""
        if self._file is None:
            return
        asked = {e.name for e in entries} - self._own
        before = [e for e in self._entries if e.name in asked]
        if before:
            warnings.warn(
                f"{before[-1].name!r} is charged to {self.path!r} in addition "
                f"to {len(before)} charge(s) of this name by an earlier "
                f"run, the last at {before[-1].when}. If that run ended "
                "before its release was saved, both stay paid for.",
                stacklevel=4,
            )

    # Persistence ---------------------------------------------------------

    def to_json(self):
        """The ledger as a JSON string (no noise, no statistic)."""
        return self._text(self._entries, self._audits)

    def _text(self, entries, audits):
        data = {
            "format": _FORMAT,
            "budget": dataclasses.asdict(self._budget),
            "neighbours": str(self._neighbours),
            "unit": self._unit,
            "entries": [dataclasses.asdict(e) for e in entries],
        }
        if audits:
            data["audits"] = [[when, line] for when, line in audits]
        return json.dumps(data, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text):
        """Rebuilds a ledger; composition is redone, never read from it.

        Raises:
            ValueError: if the text is not a ledger of a known format.
        """
        try:
            data = settings_file.parse_json(text)
            if data["format"] != _FORMAT:
                raise ValueError(f"unknown format {data['format']!r}")
            for name, value in data["budget"].items():
                if isinstance(value, str):
                    raise ValueError(f"`{name}` must be a number: {value!r}")
            ledger = cls(
                budget_lib.PrivacyBudget(**data["budget"]),
                neighbours=data["neighbours"],
                unit=data.get("unit", ONE_RECORD),
            )
            if not isinstance(data["entries"], list):
                raise ValueError("`entries` must be a list")
            for entry in data["entries"]:
                if not isinstance(entry["notes"], list):
                    raise ValueError("`notes` must be a list")
                entry["notes"] = tuple(entry["notes"])
                entry = LedgerEntry(**entry)
                ledger._check_relation(entry)
                ledger._entries.append(entry)
            for when, line in data.get("audits", []):
                ledger_entry.check_line("The time of an audit", when)
                _check_audit(line)
                ledger._audits.append((when, line))
        except (
            AttributeError,
            KeyError,
            OverflowError,
            RecursionError,
            TypeError,
            ValueError,
        ) as e:
            raise ValueError(f"This is not a keras_fm ledger: {e}") from e
        return ledger

    def save(self, path):
        """Writes a copy as JSON; the old file stays until the new one is on
        disk. Charges go on where they went before: see `open`.

        Raises:
            ValueError: if a ledger lives in that file (`open`) whose entries
                this one does not hold: they would be forgotten.
            OSError: if the file cannot be written.
        """
        file = locked_file.LockedFile(path)
        if not file.has_lock():
            locked_file.write_text(path, self.to_json())
            return
        with file.lock():
            text = _read(file)
            if text is not None:
                held = _parsed(type(self), file, text)._entries
                if self._entries[: len(held)] != held:
                    raise ValueError(
                        f"A ledger lives in {file.path!r} with entries that "
                        "this one does not hold; they would be forgotten. "
                        "Save under another name."
                    )
            file.write(self.to_json())

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote; charges do not reach the file: see
        `open`.

        Raises:
            ValueError: if the file is not a ledger.
            OSError: if it cannot be read.
        """
        try:
            text = locked_file.read_text(path)
        except ValueError as e:
            raise ValueError(f"This is not a keras_fm ledger: {e}") from e
        return cls.from_json(text)

    # Statement -----------------------------------------------------------

    def statement(self):
        """The privacy statement: what is proven, claimed, read, and when."""
        return privacy_statement.text(self)

    def __repr__(self):
        return (
            f"<Ledger of {len(self._entries)} entries, proven epsilon "
            f"{self.epsilon():.6g} at delta {self._budget.delta:g}, "
            f"{self._neighbours}>"
        )


def _now():
    """UTC, ISO 8601."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return now.isoformat(timespec="seconds")


def _read(file):
    try:
        return file.read()
    except ValueError as e:
        raise ValueError(f"{file.path!r} is not a keras_fm ledger: {e}") from e


def _parsed(cls, file, text):
    try:
        return cls.from_json(text)
    except ValueError as e:
        raise ValueError(
            f"{file.path!r} cannot be continued: {e}. If it was damaged, put "
            "its newest copy back; do not begin a new one over it."
        ) from e


def _check_audit(line):
    ledger_entry.check_line("The line of an audit", line)
    if not line:
        raise ValueError("The line of an audit must not be empty.")
