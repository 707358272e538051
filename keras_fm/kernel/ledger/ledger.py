"""The record of every use of the private records.

Entries are only ever added. An entry is *proven* (a mechanism whose proof is
in docs/proofs) or *claimed* (an epsilon that a paper asserts; on the proven
side it composes to infinity). The order is: check, charge, then release. If a
release fails after its charge, the charge stays.

A ledger is a file (`Ledger.open`), or one object without copies. In a file the
entry is on disk before `charge` returns, so a crash cannot forget a charge
whose noise was drawn. You can read the text of a ledger (`from_json`, `load`);
only the ledger itself can be charged.
"""

import contextlib
import copy
import dataclasses
import datetime
import math
import os
import threading
import warnings
import weakref

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks
from keras_fm.kernel.compose import compose_epsilon
from keras_fm.kernel.ledger import ledger_text, locked_file
from keras_fm.kernel.ledger import statement as privacy_statement
from keras_fm.kernel.ledger.ledger_text import ONE_RECORD

_MOST_LISTED = 5
# Ledgers of this process by id. A charged ledger is never forgotten.
_known: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
_charged: dict = {}


class BudgetExceededError(ValueError):
    """Raised if a release would cost more than the budget has left.

    Nothing is charged then, and no private record is used.

    Example:

    ```python
    try:
        model.fit(x, y, callbacks=[private])
    except keras_fm.BudgetExceededError as error:
        print(error)
    ```
    """


class Ledger:
    """Records what releases spend, and refuses those that exceed the budget.

    `copy.copy`, `copy.deepcopy` and scikit-learn's `clone` return the same
    object, so all copies of a model share one budget. A ledger in memory
    cannot be pickled, and a forked process cannot charge it. A ledger in a
    file is pickled as its path.

    Args:
        budget: a `PrivacyBudget`.
        neighbours: `"add_remove"` (one record more or less), `"replace_one"`
            (one record differs) or `"replace_label"` (one label differs).
            Required: every number of this ledger refers to it.
        unit: the privacy unit in words: what is added, removed or replaced.

    Example:

    >>> ledger = Ledger(PrivacyBudget(1.0, 1e-5), neighbours="add_remove")
    >>> ledger.epsilon()
    0.0
    """

    def __init__(self, budget, *, neighbours, unit=ONE_RECORD):
        check_budget(budget)
        neighbours = budget_lib.Neighbours.of(neighbours)
        self._begin(
            ledger_text.Contents(
                budget=budget, neighbours=neighbours, unit=unit
            )
        )

    def _begin(self, contents, file=None, is_text=False):
        self._contents, self._file, self._is_text = contents, file, is_text
        # In memory: owned by this process, changed by one thread at a time.
        self._process, self._lock = os.getpid(), threading.RLock()
        # Names of entries that this object charged itself.
        self._own = set()
        _known[contents.id] = self

    @classmethod
    def _of(cls, contents, **arguments):
        ledger = cls.__new__(cls)
        ledger._begin(contents, **arguments)
        return ledger

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        if self._file is None:
            raise TypeError(
                "A ledger in memory cannot be pickled. Give it a file to "
                'share it between processes: `ledger.save("privacy.json")`, '
                'or `Ledger.open("privacy.json", ...)` from the start.'
            )
        return type(self).open, (self.path,)

    @property
    def id(self):
        """The random, public id of this ledger."""
        return self._contents.id

    @property
    def budget(self):
        return self._contents.budget

    @property
    def neighbours(self):
        return self._contents.neighbours

    @property
    def unit(self):
        return self._contents.unit

    @property
    def entries(self):
        """A copy of the entries: changing it cannot change what was spent."""
        return tuple(copy.deepcopy(self._entries))

    @property
    def audits(self):
        """Lines of audits that were noted, each `(when, line)`."""
        return self._contents.audits

    @property
    def _entries(self):
        return self._contents.entries

    # Composition ---------------------------------------------------------

    def epsilon(self, planned=(), *, delta=None):
        """Proven epsilon at `delta`, composed from the entries alone.

        It is infinite if any access to the records has no valid proof, or if
        no epsilon holds at this delta.

        Args:
            planned: entries that are not charged yet; they are composed with
                the charged ones.
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
        """The sum of all claims and of the proven epsilon of other entries.

        The papers would report this number. It is not a guarantee.
        """
        claims = [e for e in self._entries if e.guarantee == "claimed"]
        proven = [e for e in self._entries if e.guarantee == "proven"]
        total = math.fsum(e.mechanism["claimed_epsilon"] for e in claims)
        return total + self._compose(proven)

    def remaining(self):
        """Epsilon that is left, at least 0; 0 if any entry is not proven."""
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

        A reproducible run is checked as if its noise were secret. A study
        then meets the same refusals as the real run.

        Raises:
            BudgetExceededError: if they would; it names the epsilon that is
                asked for, spent and left.
            ValueError: if an entry refers to another relation, the ledger's
                file lost entries, or the ledger is in another process.
        """
        entries = list(entries)
        with self._locked():
            self._check(entries)

    def _check(self, entries):
        self._check_place()
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
        # One part in 1e9 covers the rounding of sums; it is not a tolerance.
        if total > self.budget.epsilon * (1 + 1e-9):
            raise BudgetExceededError(
                "This release would exceed the privacy budget: epsilon "
                f"{total:.6g} at delta {self.budget.delta:g}, of "
                f"{self.budget.epsilon:g} allowed. No record was used. Use "
                "the release that you have: fits on it are free. To release k "
                "times, plan it from the start: `Proven(releases=k)`."
                + self._spent()
            )

    def _spent(self):
        """The end of a refusal: what was spent, for what and when."""
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
                "If a run crashed after its charge, the charge stays. Load "
                "the model or backup that holds its release, if one was "
                "saved. To spend more, begin a new ledger. The two budgets "
                "then add up.",
            ]
        )

    def charge(self, entries):
        """Checks, stamps and appends `entries`.

        A ledger in a file is first loaded again, with all other processes
        locked out. It is on disk when this returns. After an `OSError` the
        charge may or may not be in the file: draw no noise then. What is in
        the file counts as spent.

        Raises:
            BudgetExceededError, ValueError: see `check`.
            OSError: if the file cannot be written.
        """
        entries = list(entries)
        with self._locked():
            self._check(entries)
            self._warn_of_repeats(entries)
            stamp = _now()
            stamped = [dataclasses.replace(e, when=stamp) for e in entries]
            _charged[self.id] = self
            self._write(entries=(*self._entries, *stamped))
            self._own.update(e.name for e in stamped)

    def note_audit(self, line):
        """Adds the result of an audit to the statement.

        It changes nothing that is composed. An audit gives a lower bound on
        what was revealed: it can refute a statement but never prove one. A
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
        with self._locked():
            self._write(audits=(*self.audits, (_now(), line)))

    # In a file -----------------------------------------------------------

    @classmethod
    def open(cls, path, *, budget=None, neighbours=None, unit=None):
        """Opens the ledger in a file, or makes it if there is no file.

        Every `charge` locks the file, loads it again (another process may
        have charged), checks the budget and puts the new text on disk
        (written, synchronised, renamed) before it returns. Two processes
        never spend the same budget. A process that is killed at any point
        leaves the old text or the new one: spending is never forgotten, and
        no budget is spent twice unseen.

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
        with file.lock():
            found = _read(file)
            if found is None:
                return cls._made(file, budget, neighbours, unit)
            found.check_terms(
                file.path, budget=budget, neighbours=neighbours, unit=unit
            )
            ledger = _known.get(found.id)
            if ledger is None:
                return cls._of(found, file=file)
            path = ledger.path
            if path not in (None, file.path) and os.path.exists(path):
                raise ValueError(
                    f"The ledger in {file.path!r} is open in this process as "
                    f"{path!r}: one of the files is a copy, and two files "
                    "would be two budgets. Use the file that is open, and "
                    "remove the other."
                )
            ledger._take(found, file)
            # Opening a ledger begins a run.
            ledger._own = set()
            return ledger

    @classmethod
    def _made(cls, file, budget, neighbours, unit):
        if any(ledger.path == file.path for ledger in _charged.values()):
            raise ValueError(_gone(file))
        if budget is None or neighbours is None:
            raise ValueError(
                f"There is no ledger at {file.path!r} yet: pass `budget` and "
                "`neighbours` to begin one."
            )
        ledger = cls(budget, neighbours=neighbours, unit=unit or ONE_RECORD)
        ledger._file = file
        ledger._write()
        return ledger

    @property
    def path(self):
        """The file that this ledger lives in, or `None`."""
        return None if self._file is None else self._file.path

    def reload(self):
        """Loads what other processes charged to the file.

        Raises:
            ValueError: if the file is gone, is not a ledger, has other names
                (hard links), or lost entries.
        """
        with self._locked():
            pass

    @contextlib.contextmanager
    def _locked(self):
        """Locks the ledger against threads and processes; loads it again."""
        if self._file is None:
            # No lock in a forked process: nobody could release it there.
            with contextlib.ExitStack() as stack:
                if self._process == os.getpid():
                    stack.enter_context(self._lock)
                yield
            return
        with self._file.lock():
            found = _read(self._file)
            if found is None:
                raise ValueError(_gone(self._file))
            self._take(found, self._file)
            yield

    def _take(self, found, file):
        if not found.holds(self._contents):
            raise ValueError(
                f"The ledger {file.path!r} lost or changed entries that were "
                "in it (an older copy was put in its place, or it was "
                "edited). Put the newest copy back."
            )
        self._contents, self._file, self._is_text = found, file, False

    def _write(self, **changes):
        """Takes changed contents, on disk first. Contents that could not be
        loaded again are not written."""
        text = dataclasses.replace(self._contents, **changes).text()
        contents = ledger_text.parse(text)
        if self._file is not None:
            self._file.write(text)
        self._contents = contents

    def _check_place(self):
        """Refuses places that would hold a second budget for the records."""
        if self._file is not None or not (
            self._is_text or self._process != os.getpid()
        ):
            return
        raise ValueError(
            "This ledger comes from another process, or from a text of it (a "
            "saved model, `Ledger.load`). A charge here would be a second "
            "budget for the same records. Use a file that all processes "
            "share, `Ledger.open(path, ...)`. To continue from a text, `save` "
            "it to a new file."
        )

    def _warn_of_repeats(self, entries):
        """Warns if an earlier run charged the same entries."""
        if self.path is None:
            return
        asked = {e.name for e in entries} - self._own
        before = [e for e in self._entries if e.name in asked]
        if before:
            warnings.warn(
                f"{before[-1].name!r} is charged to {self.path!r} in addition "
                f"to {len(before)} charge(s) of this name by an earlier run, "
                f"the last at {before[-1].when}. If that run ended before its "
                "release was saved, both charges stay.",
                stacklevel=4,
            )

    # Texts ---------------------------------------------------------------

    def to_json(self):
        """The ledger as a JSON string. It has no noise and no statistic."""
        return self._contents.text()

    @classmethod
    def from_json(cls, text):
        """The ledger of a text. Epsilon is composed anew, not taken from it.

        If this process knows the ledger, you get that object. Otherwise you
        can read the ledger but not charge it, see `save`.

        Raises:
            ValueError: if the text is not a ledger, or differs from what this
                process knows of that ledger.
        """
        found = ledger_text.parse(text)
        ledger = _known.get(found.id)
        if ledger is None:
            return cls._of(found, is_text=True)
        if ledger._is_text and found.holds(ledger._contents):
            ledger._contents = found
        if ledger._file is not None:
            ledger.reload()
        if not ledger._contents.holds(found):
            raise ValueError(
                "This text of a ledger lost or changed entries that this "
                "process knows: it was edited, or a copy of it was charged."
            )
        return ledger

    def save(self, path):
        """Moves a ledger in memory, or of a text, to a file. It lives there
        from now on, as if you had opened it.

        Raises:
            ValueError: if it lives in a file already, or `path` exists.
            OSError: if the file cannot be written.
        """
        file = locked_file.LockedFile(path)
        with file.lock():
            if self._file is not None or os.path.exists(file.path):
                raise ValueError(
                    "`save` needs a ledger in memory and a path that does not "
                    f"exist yet. Received: path={file.path!r}; the ledger's "
                    f"file: {self.path!r}. To copy a file, use `cp`."
                )
            self._file = file
            try:
                self._write()
            except BaseException:
                self._file = None
                raise
            self._is_text = False

    @classmethod
    def load(cls, path):
        """Loads a file as `from_json` does, without its lock. To charge the
        ledger, `open` it.

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
        """The privacy statement: what is proven, claimed and used, and when."""
        return privacy_statement.text(self)

    def __repr__(self):
        return (
            f"<Ledger of {len(self._entries)} entries, proven epsilon "
            f"{privacy_statement.rounded_up(self.epsilon())} at delta "
            f"{self.budget.delta:g}, {self.neighbours}>"
        )


def check_budget(budget):
    """Refuses anything but a `PrivacyBudget`, such as an epsilon alone."""
    kind = budget_lib.PrivacyBudget
    wanted = "a keras_fm.PrivacyBudget(epsilon, delta)"
    checks.instance("budget", budget, kind, wanted)


def _read(file):
    """The contents of a locked file, or `None` if there is none."""
    try:
        text = file.read()
        return None if text is None else ledger_text.parse(text)
    except ValueError as e:
        raise ValueError(
            f"{file.path!r} is not a keras_fm ledger that can be continued: "
            f"{e}. If it was damaged, put its newest copy back; do not begin "
            "a new one over it."
        ) from e


def _gone(file):
    return (
        f"The ledger {file.path!r} is gone, and with it the record of what "
        "was spent. Put it back before you release anything."
    )


def _now():
    """UTC, ISO 8601."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return now.isoformat(timespec="seconds")
