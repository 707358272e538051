"""One ledger, one state: what its copies in a process share.

A budget that could be copied would be two. Every ledger has an id, and all
objects of one id in this process look at one `State`, however they came to be
(`from_json`, `load`, `open`, a pickle). A ledger that was charged here is
remembered until the process ends: to forget it would be to forget a spend.
"""

import contextlib
import dataclasses
import os
import secrets
import threading
import weakref

from keras_fm.kernel.ledger import ledger_text

# One change at a time in this process: to check and to charge are one step.
# Taken before the lock of a file.
LOCK = threading.RLock()
# Which process this is, told to those that get a pickle.
PROCESS = secrets.token_hex(16)
# By id. What nothing was spent from here may go with its last object.
_known: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
_spent: dict = {}

_CHANGED = (
    "A text of a ledger that this process knows lost or changed entries that "
    "were in it: it was edited, or two copies of it were charged."
)


class State:
    """What a ledger holds, where it lives, and what this process may use.

    Its methods are called with `LOCK` held, and those that write in `locked`.

    Args:
        contents: a `ledger_text.Contents`.
        file: the `LockedFile` it lives in, or `None`.
    """

    def __init__(self, contents, file=None):
        self.contents = dataclasses.replace(contents, is_old=False)
        self.file = file
        # By kind of steps: sizes of reservations that nobody confirmed yet.
        self._reserved = {}
        # Outside a file: numbers of the entries that were charged here. Of
        # the others, all steps count as used.
        self._own = set()
        # By kind: steps that count as used and may not be.
        self._unknown = {}
        # Whether it came with a fork or a pickle out of another process'
        # memory.
        self._elsewhere = False
        _known[contents.id] = self

    @contextlib.contextmanager
    def locked(self):
        """Holds the ledger against threads and processes, read anew."""
        with LOCK:
            if self.file is None:
                yield
                return
            with self.file.lock():
                self._refresh()
                yield

    def write(self, contents):
        """Takes `contents`, on disk first; what could not be read again is
        not written."""
        if self.file is not None:
            text = contents.text()
            contents = parse_file(self.file, text)
            self.file.write(text)
        self.contents = contents

    def charge(self, entries):
        """Appends entries, which are never forgotten."""
        first = len(self.contents.entries)
        _spent[self.contents.id] = self
        self.write(
            dataclasses.replace(
                self.contents, entries=(*self.contents.entries, *entries)
            )
        )
        if self.file is None:
            self._own.update(range(first, first + len(entries)))

    def check_own(self):
        """Refuses what a fork or a pickle made a second one of.

        Raises:
            ValueError: saying what to write instead.
        """
        if self._elsewhere and self.file is None:
            raise ValueError(
                "This ledger was in the memory of another process (this one "
                "was forked from it, or got a pickle): here it would be a "
                "second budget for the same records. Give it a file there, "
                "`Ledger.open(path, budget=..., neighbours=...)`, which all "
                "processes share; if that process has ended, `save` it to a "
                "file and `Ledger.open` that."
            )

    # Steps ---------------------------------------------------------------

    def steps(self, kind):
        """How many steps of a kind are paid for, and count as used."""
        contents = self.contents
        return contents.paid.get(kind, 0), contents.used.get(kind, 0)

    def shown_used(self, kind):
        """How many of the steps are used, as the last text said."""
        return self.steps(kind)[1] - self._unknown.get(kind, 0)

    def reserve(self, kind, steps):
        """Uses up steps, until they are given back."""
        used = self.contents.used
        total = used.get(kind, 0) + steps
        _spent[self.contents.id] = self
        self.write(
            dataclasses.replace(self.contents, used={**used, kind: total})
        )
        self._reserved.setdefault(kind, []).append(steps)

    def holds(self, kind, steps):
        """Whether this process holds a reservation of that size."""
        return steps in self._reserved.get(kind, ())

    def give_back(self, kind, steps, unused):
        """Ends the latest reservation of `steps`, of which some are left."""
        sizes = self._reserved[kind]
        # First: what is given back twice would be used twice.
        del sizes[len(sizes) - 1 - sizes[::-1].index(steps)]
        if not unused:
            return
        contents = self.contents
        used, returned = dict(contents.used), dict(contents.returned)
        used[kind] -= unused
        returned[kind] = returned.get(kind, 0) + unused
        self.write(dataclasses.replace(contents, used=used, returned=returned))

    def disown(self):
        """Leaves what is reserved, and steps that are in memory only, to
        another process."""
        self._reserved = {}
        if self.file is None:
            self._close()

    def _close(self):
        """Counts all steps as used: others may use them."""
        self._own = set()
        paid, used = self.contents.paid, self.contents.used
        for kind, count in paid.items():
            unused = count - used.get(kind, 0)
            self._unknown[kind] = self._unknown.get(kind, 0) + unused
        self.contents = dataclasses.replace(self.contents, used=dict(paid))

    # Other texts of it ---------------------------------------------------

    def take_text(self, found):
        """Takes in a text that nobody may know to be the newest.

        Raises:
            ValueError: if one of the two is not the beginning of the other,
                or the text has more than the file that the ledger lives in.
        """
        mine = self.contents
        mine.check_terms(
            self._where(), found.budget, found.neighbours, found.unit
        )
        if mine.begins_with(found.entries):
            return
        if self.file is not None:
            with self.locked():
                self._check_in_file(found)
            return
        if not found.begins_with(mine.entries):
            raise ValueError(_CHANGED)
        # Who charged the entries that are new here may use their steps.
        used, before = dict(mine.used), mine.paid
        for kind, count in found.paid.items():
            more = count - before.get(kind, 0)
            if more:
                used[kind] = used.get(kind, 0) + more
        self.contents = dataclasses.replace(
            mine,
            entries=found.entries,
            audits=_joined(mine.audits, found.audits),
            used=used,
        )

    def _check_in_file(self, found):
        if self.contents.begins_with(found.entries):
            return
        if found.begins_with(self.contents.entries):
            raise ValueError(_not_in(self.file))
        raise ValueError(_CHANGED)

    def take_file(self, found, file):
        """Takes in what the file of the ledger holds now.

        Raises:
            ValueError: if anything is lost that was in it.
        """
        mine = self.contents
        found.check_terms(
            f" at {file.path!r}", mine.budget, mine.neighbours, mine.unit
        )
        if found.is_old:
            # Written again by a version that counts no steps: all are used.
            found = dataclasses.replace(
                found, id=mine.id, returned=mine.returned, is_old=False
            )
        if (
            found.id != mine.id
            or not found.begins_with(mine.entries)
            or _counts_fell(mine, found)
        ):
            raise ValueError(_lost(f"The ledger {file.path!r}"))
        self.contents, self.file = found, file

    def move(self, found, file):
        """Goes on in a file that holds a copy of it; not yet written.

        Raises:
            ValueError: if neither is the beginning of the other, or the file
                lacks what others charged.
        """
        mine = self.contents
        found.check_terms(
            f" at {file.path!r}", mine.budget, mine.neighbours, mine.unit
        )
        entries, length = found.entries, len(found.entries)
        if mine.begins_with(entries):
            entries = mine.entries
            if not self._own.issuperset(range(length, len(entries))):
                raise ValueError(_not_in(file))
        elif not found.begins_with(mine.entries):
            raise ValueError(_lost(f"The ledger {file.path!r}"))
        used = {
            kind: self._used_in(found, kind)
            for kind in dataclasses.replace(mine, entries=entries).paid
        }
        self.contents = dataclasses.replace(
            mine,
            entries=entries,
            audits=_joined(found.audits, mine.audits),
            used=used,
            returned=found.with_counts_of(mine).returned,
        )
        self.file, self._own, self._unknown = file, set(), {}

    def _used_in(self, found, kind):
        """Steps that are used, of those in a file and those charged here."""
        mine, length = self.contents, len(found.entries)
        elsewhere = sum(
            entry.steps
            for number, entry in enumerate(mine.entries)
            if mine.kinds[number] == kind and number not in self._own
        )
        known = found.used.get(kind, 0)
        if any(mine.kinds[n] == kind for n in self._own if n < length):
            # The file has an older count of what was used here, or a newer
            # one.
            return max(known, mine.used.get(kind, 0))
        return known + max(0, mine.used.get(kind, 0) - elsewhere)

    # ---------------------------------------------------------------------

    def _refresh(self):
        found = read_file(self.file)
        if found is None:
            raise ValueError(_gone(self.file))
        self.take_file(found, self.file)

    def _where(self):
        return f" at {self.file.path!r}" if self.file else ""


def of_text(found):
    """The state of a ledger whose text was found, somewhere.

    Raises:
        ValueError: if this process knows more, or something else.
    """
    with LOCK:
        state = _known.get(found.id)
        if state is None:
            state = State(found)
            state.disown()
        else:
            state.take_text(found)
        return state


def of_pickle(found, process):
    """The state of a ledger that a process had in its memory."""
    with LOCK:
        is_known = found.id in _known
        state = of_text(found)
        if not is_known and process != PROCESS:
            state._elsewhere = True
        return state


def of_file(found, file):
    """The state of a ledger that lives in `file`, which the caller locked.

    Raises:
        ValueError: if something was lost, or it lives in another file.
    """
    state = _known.get(found.id)
    if state is None:
        state = State(found, file)
    elif state.file is None:
        state.move(found, file)
    elif state.file.is_same(file) or not state.file.exists():
        state.take_file(found, file)
    else:
        raise ValueError(
            f"The ledger in {file.path!r} is the one that this process has "
            f"open in {state.file.path!r}: one of the files is a copy, and "
            "both together would be two budgets. Open the other one, and "
            "remove the copy."
        )
    if state.contents != found:
        state.write(state.contents)
    return state


def read_file(file):
    """The contents of a locked file, or `None` if there is none.

    Raises:
        ValueError: if it is no ledger, has another name (a hard link), or is
            gone and this process charged it.
    """
    file.check_one_name()
    try:
        text = file.read()
    except ValueError as e:
        raise ValueError(f"{file.path!r} is not a keras_fm ledger: {e}") from e
    if text is not None:
        return parse_file(file, text)
    if any(s.file and s.file.path == file.path for s in _spent.values()):
        raise ValueError(_gone(file))
    return None


def parse_file(file, text):
    """The contents of what is in `file`, or will be."""
    try:
        return ledger_text.parse(text)
    except ValueError as e:
        raise ValueError(
            f"{file.path!r} cannot be continued: {e}. If it was damaged, put "
            "its newest copy back; do not begin a new one over it."
        ) from e


def _joined(lines, more):
    """Lines of audits, each once."""
    return (*lines, *(line for line in more if line not in lines))


def _counts_fell(before, after):
    """Whether steps are used no more that nobody gave back."""
    for kind in {**before.used, **before.returned}:
        given = after.returned.get(kind, 0), before.returned.get(kind, 0)
        if given[0] < given[1] or (
            after.used.get(kind, 0) + given[0]
            < before.used.get(kind, 0) + given[1]
        ):
            return True
    return False


def _lost(what):
    return (
        f"{what} lost or changed entries that were in it (an older copy was "
        "put in its place, or it was edited). Put the newest copy back."
    )


def _gone(file):
    return (
        f"The ledger {file.path!r} is gone, and what was spent with it. Put "
        "it back before anything else is released."
    )


def _not_in(file):
    return (
        f"A text of the ledger in {file.path!r} holds entries that the file "
        "does not: an older copy was put in its place, or a copy of the "
        "ledger was charged. Put the newest file back; or, in a process that "
        "has not opened the file, `save` the copy over it."
    )


def _after_fork():
    """In a forked process: what its parent may use is not to be used twice."""
    global LOCK, PROCESS
    LOCK, PROCESS = threading.RLock(), secrets.token_hex(16)
    for state in list(_known.values()):
        state.disown()
        state._elsewhere = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
