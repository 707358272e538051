"""Which steps of a ledger are left: paid for, reserved, taken.

An entry may pay for many steps that run later, in several processes. What is
not given back stays used. Steps that were paid for with one noise and one
sampling rate are not those that were paid for with another, whatever their
name.
"""

from keras_fm.kernel import checks

_SOME = "an integer of at least 1"


class BudgetExceededError(ValueError):
    """A release would cost more than what is left of the budget."""


class StepLedger:
    """The steps that the entries of a ledger paid for; `_state` is its
    `ledger_state.State`."""

    def steps_left(self, name):
        """Steps that entries of this name paid for and that nobody used, as
        far as this process may use them.

        The steps of a ledger that came from a text (`from_json`, `load`, a
        pickle of another process) and lives in no file all count as used:
        nothing here can tell what others do with them. The process that
        charged them may use the rest, and everybody `open`s a file.

        Args:
            name: str, of entries whose mechanism has `steps`, or one of
                these entries: steps like its own only.

        Returns:
            int, 0 for other names.

        Raises:
            ValueError: see `reload`.
        """
        with self._state.locked():
            kinds = self._state.contents.kinds_of(name)
            counts = [self._state.steps(kind) for kind in kinds]
        return sum(paid - used for paid, used in counts)

    def steps_used(self, name):
        """Steps of this name that are used or reserved, as the statement
        prints it.

        Of a ledger that came from a text it is what the text says, although
        all of them count as used here.
        """
        kinds = self._state.contents.kinds_of(name)
        return sum(map(self._state.shown_used, kinds))

    def _kind(self, name):
        kinds = self._state.contents.kinds_of(name)
        if len(kinds) > 1:
            raise ValueError(
                f"Steps of {name!r} were paid for with different noise or "
                "samples: say which are meant, by one of the entries in the "
                "place of the name."
            )
        return kinds[0] if kinds else None

    def reserve(self, name, steps):
        """Takes steps that were paid for, before they run.

        As with `charge`, a ledger in a file has it on disk when this returns,
        with all other processes locked out: no step runs twice for one
        payment. What is not given back with `confirm`, as after a crash,
        stays used.

        Args:
            name: str, of entries whose mechanism has `steps`; where these
                differ in noise or samples, one of the entries.
            steps: int >= 1.

        Returns:
            int, how many of these steps were used or reserved before.

        Raises:
            BudgetExceededError: if fewer steps are left; nothing changes.
            ValueError: if `steps` is no positive integer, it is not clear
                which are meant, or see `reload`.
            OSError: if the file cannot be written. They may be reserved in
                it, and then stay used.

        Example:

        ```python
        ledger.reserve("encoder", 100)
        taken = train(steps=100)
        ledger.confirm("encoder", 100, taken)
        ```
        """
        checks.integer("steps", steps, at_least=1, wanted=_SOME)
        with self._state.locked():
            kind = self._kind(name)
            paid, used = self._state.steps(kind)
            if steps > paid - used:
                raise BudgetExceededError(
                    f"{steps} steps of {_named(name)} are asked for and "
                    f"{paid - used} are left: {paid} were paid for, and "
                    f"{used} are used or reserved. Counted as used are those "
                    "that ran, that were reserved and not given back (after "
                    "a crash, for one), that were charged before steps were "
                    "counted, and that are known from a text only "
                    "(`Ledger.open` the file that the ledger lives in)."
                )
            self._state.reserve(kind, int(steps))
        return used

    def confirm(self, name, reserved, taken):
        """Says how many steps of a reservation ran; the rest are given back.

        Args:
            name: see `reserve`.
            reserved: int, what `reserve` of this process was asked for; of
                several such reservations the latest is meant.
            taken: int from 0 to `reserved`.

        Raises:
            ValueError: if this process holds no such reservation, `taken` is
                out of range, or see `reload`.
            OSError: if the file cannot be written; they stay used then.
        """
        checks.integer("reserved", reserved, at_least=1, wanted=_SOME)
        checks.integer("taken", taken, at_least=0)
        # What an interrupted write left in the file is known before a refusal.
        with self._state.locked():
            kind = self._kind(name)
            if not self._state.holds(kind, reserved):
                raise ValueError(
                    "`reserved` must be a reservation of this process that "
                    "was not confirmed before. Received: "
                    f"name={_named(name)}, reserved={reserved}"
                )
            if taken > reserved:
                raise ValueError(
                    f"`taken` must be at most the {reserved} steps that were "
                    f"reserved. Received: taken={taken}"
                )
            self._state.give_back(kind, int(reserved), reserved - taken)

    def used_of_entries(self):
        """Of each entry how many of its steps are used or reserved: of those
        with such steps the first are used first."""
        contents = self._state.contents
        left = {k: self._state.shown_used(k) for k in contents.paid}
        found = []
        for kind, entry in zip(contents.kinds, contents.entries):
            own = min(entry.steps, left.get(kind, 0))
            if own:
                left[kind] -= own
            found.append(own)
        return found


def _named(name):
    return repr(getattr(name, "name", name))
