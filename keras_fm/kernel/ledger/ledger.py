"""The record of everything that was learned from the private records.

Append-only. Every entry is either *proven* (a mechanism whose proof is in
docs/proofs) or *claimed* (an epsilon a paper asserts; it composes to infinity
on the proven side). Check, charge, then release, in that order: an entry that
was charged and whose release then failed stays charged. A ledger that lives in
a file (`Ledger.open`) has the entry on disk before `charge` returns, so no
noise is drawn for a spend that a crash could forget. All copies of a ledger
in a process are one ledger: see `ledger_state`.
"""

import copy
import dataclasses
import datetime
import math
import warnings

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks
from keras_fm.kernel.compose import compose_epsilon
from keras_fm.kernel.ledger import ledger_state, ledger_text, locked_file
from keras_fm.kernel.ledger import statement as privacy_statement
from keras_fm.kernel.ledger.ledger_steps import BudgetExceededError, StepLedger
from keras_fm.kernel.ledger.ledger_text import ONE_RECORD

_MOST_LISTED = 5


class Ledger(StepLedger):
    """Composes what was spent and refuses what would exceed the budget.

    A copy is the same ledger: `copy.copy` and `copy.deepcopy` return it, and
    what `from_json`, `load`, `open` or a pickle makes of its text shares its
    entries, for as long as the process lives. In another process a text is a
    budget of its own; only a file (`open`) is one budget for all. A process
    that is forked, or gets a pickle, does not charge a ledger that is in the
    memory of the other.

    Args:
        budget: a `PrivacyBudget`.
        neighbours: `"add_remove"`, `"replace_one"` or `"replace_label"`;
            required, every number of this ledger refers to it.
        unit: the privacy unit in words: what is added, removed or replaced.

    Example:

    >>> ledger = Ledger(PrivacyBudget(1.0, 1e-5), neighbours="add_remove")
    >>> ledger.epsilon()
    0.0
    """

    def __init__(self, budget, *, neighbours, unit=ONE_RECORD):
        check_budget(budget)
        contents = ledger_text.Contents(
            id=ledger_text.new_id(),
            budget=budget,
            neighbours=budget_lib.Neighbours.of(neighbours),
            unit=ledger_text.checked_unit(unit),
        )
        self._state = ledger_state.State(contents)
        # Names of entries that this object charged itself.
        self._own = set()

    @classmethod
    def _of(cls, state):
        """A ledger that shares a state."""
        found = state.contents
        ledger = cls(found.budget, neighbours=found.neighbours, unit=found.unit)
        ledger._state = state
        return ledger

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        if self.path is not None:
            return type(self).open, (self.path,)
        return _unpickled, (self.to_json(), ledger_state.PROCESS)

    @property
    def id(self):
        """Random and public: which ledger it is, in every copy."""
        return self._state.contents.id

    @property
    def budget(self):
        return self._state.contents.budget

    @property
    def neighbours(self):
        return self._state.contents.neighbours

    @property
    def unit(self):
        return self._state.contents.unit

    @property
    def entries(self):
        """A copy: changing it cannot change what was spent."""
        return tuple(copy.deepcopy(self._entries))

    @property
    def audits(self):
        """Lines of audits that were noted, `(when, line)` each."""
        return self._state.contents.audits

    @property
    def _entries(self):
        return self._state.contents.entries

    # Composition ---------------------------------------------------------

    def epsilon(self, planned=(), *, delta=None):
        """Proven epsilon at `delta`; infinite if any access to the records
        has no valid proof, or no epsilon is met at this delta.

        It is composed from the entries alone, for any delta.

        Args:
            planned: entries that are not charged yet, composed with those
                that are.
            delta: number in [0, 1), or `None` for the budget's.

        Raises:
            ValueError: if `delta` is outside its range.
        """
        if delta is not None:
            delta = checks.number(
                "delta", delta, at_least=0, below=1, wanted="a number in [0, 1)"
            )
        return self._compose([*self._entries, *planned], delta)

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
        return max(0.0, self.budget.epsilon - self.epsilon())

    def _compose(self, entries, delta=None):
        if any(e.guarantee != "proven" or not e.private for e in entries):
            return math.inf
        mechanisms = [e.build_mechanism() for e in entries]
        return self._compose_mechanisms(mechanisms, delta)

    def _compose_mechanisms(self, mechanisms, delta=None):
        delta = self.budget.delta if delta is None else delta
        return compose_epsilon(mechanisms, delta, scale=self.budget.epsilon)

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
        self._state.check_own()
        for entry in entries:
            ledger_text.check_relation(entry, self.neighbours)
        after = [*self._entries, *entries]
        proven = [e.build_mechanism() for e in after if e.guarantee == "proven"]
        claimed = math.fsum(
            e.mechanism["claimed_epsilon"]
            for e in after
            if e.guarantee == "claimed"
        )
        total = self._compose_mechanisms(proven) + claimed
        # One part in 1e9 is the rounding of sums, not a tolerance.
        if total > self.budget.epsilon * (1 + 1e-9):
            raise BudgetExceededError(
                "This release would exceed the privacy budget: epsilon "
                f"{total:.6g} at delta {self.budget.delta:g}, of "
                f"{self.budget.epsilon:g} allowed. Nothing was read. "
                "Reuse the release that exists (fits on it are free), or "
                "plan several releases from the start with "
                "`Proven(releases=k)`." + self._spent()
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
        where = f" in {self.path}" if self.path else ""
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
        with self._state.locked():
            self._check(entries)
            self._warn_of_repeats(entries)
            stamp = _now()
            stamped = [
                dataclasses.replace(copy.deepcopy(e), when=stamp)
                for e in entries
            ]
            self._state.charge(stamped)
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
        ledger_text.check_audit(line)
        state = self._state
        with state.locked():
            audits = (*state.contents.audits, (_now(), line))
            state.write(dataclasses.replace(state.contents, audits=audits))

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
            budget: a `PrivacyBudget`; optional if the file exists.
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
        if budget is not None:
            check_budget(budget)
        with ledger_state.LOCK, file.lock():
            found = ledger_state.read_file(file)
            if found is not None:
                found.check_terms(
                    f" at {file.path!r}", budget, neighbours, unit
                )
                return cls._of(ledger_state.of_file(found, file))
            if budget is None or neighbours is None:
                raise ValueError(
                    f"There is no ledger at {file.path!r} yet: pass "
                    "`budget` and `neighbours` to begin one."
                )
            ledger = cls(budget, neighbours=neighbours, unit=unit or ONE_RECORD)
            file.write(ledger.to_json())
            ledger._state.file = file
        return ledger

    @property
    def path(self):
        """The file that this ledger lives in, or `None`."""
        file = self._state.file
        return None if file is None else file.path

    def reload(self):
        """Takes in what other processes charged to the file.

        Raises:
            ValueError: if the file is gone, is no ledger, has other names
                (hard links), or lost entries.
        """
        with self._state.locked():
            pass

    def _warn_of_repeats(self, entries):
        """Says it if what is charged was charged by an earlier run."""
        if self.path is None:
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
        return self._state.contents.text()

    @classmethod
    def from_json(cls, text):
        """Rebuilds a ledger; composition is redone, never read from it.

        If this process knows the ledger, it is that one, and the longer list
        of entries holds. Else its steps count as used: see `steps_left`.

        Raises:
            ValueError: if the text is not a ledger of a known format, or
                differs from what this process knows of that ledger.
        """
        return cls._of(ledger_state.of_text(ledger_text.parse(text)))

    def save(self, path):
        """Writes a copy as JSON; the old file stays until the new one is on
        disk. Charges go on where they went before: see `open`.

        Raises:
            ValueError: if a ledger lives in that file (`open`; its ".lock" is
                beside it) whose entries this one does not hold: they would be
                forgotten.
            OSError: if the file cannot be written.
        """
        file, state = locked_file.LockedFile(path), self._state
        if not file.has_lock():
            locked_file.write_text(path, self.to_json())
            return
        if state.file is not None and state.file.is_same(file):
            with state.locked():
                state.write(state.contents)
            return
        with ledger_state.LOCK, file.lock():
            held, mine = ledger_state.read_file(file), state.contents
            if held is not None and not mine.holds(held):
                raise ValueError(
                    f"A ledger lives in {file.path!r} with entries that "
                    "this one does not hold; they would be forgotten. "
                    "Save under another name."
                )
            file.write((mine.with_counts_of(held) if held else mine).text())

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote, as `from_json` does; charges do not reach
        the file: see `open`.

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
            f"{privacy_statement.rounded_up(self.epsilon())} at delta "
            f"{self.budget.delta:g}, {self.neighbours}>"
        )


def check_budget(budget):
    """Refuses what is not a `PrivacyBudget`, such as an epsilon alone."""
    kind = budget_lib.PrivacyBudget
    wanted = "a keras_fm.PrivacyBudget(epsilon, delta)"
    checks.instance("budget", budget, kind, wanted)


def _unpickled(text, process):
    state = ledger_state.of_pickle(ledger_text.parse(text), process)
    return Ledger._of(state)


def _now():
    """UTC, ISO 8601."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return now.isoformat(timespec="seconds")
