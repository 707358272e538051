"""Whatever is done with a ledger in a file, in whatever order, by two
processes and on a disk that fails: what was spent is not forgotten, and not
more than there is."""

import contextlib
import copy
import json
import os
import pickle
import tempfile
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from ledger_entries import entry

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger import ledger as ledger_lib
from keras_fm.kernel.ledger import locked_file
from keras_fm.kernel.ledger.ledger import BudgetExceededError, Ledger

TENTHS = 10
# Laplace noise is pure: tenths add up to the budget, exactly enough.
PROCESSES = st.sampled_from([0, 1])


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "privacy.json"
        # What each process knows, and its object.
        self.known, self.held = [({}, {}), ({}, {})], [None, None]
        # Tenths.
        self.spent = 0
        self.texts, self.hidden = [], None

    def teardown(self):
        self.folder.cleanup()

    @contextlib.contextmanager
    def process(self, number):
        names, old = ("_known", "_charged"), None
        old = [getattr(ledger_lib, name) for name in names]
        for name, value in zip(names, self.known[number]):
            setattr(ledger_lib, name, value)
        try:
            yield
        finally:
            for name, value in zip(names, old):
                setattr(ledger_lib, name, value)

    @initialize()
    def begin(self):
        with self.process(0):
            self.held[0] = Ledger.open(
                self.path,
                budget=PrivacyBudget(TENTHS / 10, 0.0),
                neighbours="add_remove",
            )
        self.texts.append(self.path.read_text())

    @rule(number=PROCESSES)
    @precondition(lambda self: self.hidden is None)
    def open(self, number):
        with self.process(number):
            opened = Ledger.open(self.path)
            assert self.held[number] in (None, opened)
            self.held[number] = opened

    @rule(number=PROCESSES, way=st.sampled_from(["copy", "deep", "pickle"]))
    @precondition(lambda self: self.hidden is None)
    def copy(self, number, way):
        held = self.held[number]
        with self.process(number):
            if held is None:
                return
            if way == "copy":
                assert copy.copy(held) is held
            elif way == "deep":
                assert copy.deepcopy([held])[0] is held
            else:
                assert pickle.loads(pickle.dumps(held)) is held

    @rule(number=PROCESSES, older=st.integers(0, 100))
    @precondition(lambda self: self.hidden is None)
    def read_a_text(self, number, older):
        with self.process(number):
            found = Ledger.from_json(self.texts[older % len(self.texts)])
            if self.held[number] is not None:
                assert found is self.held[number]
                return
            for spend in (found.check, found.charge):
                with pytest.raises(ValueError, match="second budget"):
                    spend([entry(0.1)])
        self.known[number] = ({}, {})

    @rule(
        number=PROCESSES,
        tenths=st.integers(1, 4),
        fails_at=st.none() | st.integers(1, 9),
    )
    def charge(self, number, tenths, fails_at):
        self.change(
            number,
            lambda held: held.charge([entry(0.1) for _ in range(tenths)]),
            fails_at,
            spent=tenths,
        )

    def change(self, number, change, fails_at, spent):
        held, sure = self.held[number], True
        if held is None:
            return
        with self.process(number), failing(fails_at):
            if self.hidden is not None:
                with pytest.raises((ValueError, OSError)):
                    change(held)
                return
            try:
                change(held)
            except BudgetExceededError:
                assert self.spent + spent > TENTHS
                spent = 0
            except OSError:
                sure = False
        # What may be on disk is, or is not, from here on: all of it.
        found = json.loads(self.path.read_text())["entries"]
        now, after = len(found), self.spent + spent
        assert now == after or (not sure and now == self.spent)
        self.spent = now
        self.texts.append(self.path.read_text())

    @rule(number=PROCESSES)
    def end_of_a_process(self, number):
        """What is on disk is all that is left of it; the other goes on."""
        self.known[number], self.held[number] = ({}, {}), None

    @rule(older=st.integers(0, 100), gone=st.booleans())
    @precondition(lambda self: self.hidden is None)
    def put_an_old_one_back(self, older, gone):
        text = self.path.read_text()
        old = self.texts[older % len(self.texts)]
        # Who has it open knows more.
        if old == text or not any(self.held):
            return
        for number, held in enumerate(self.held):
            with self.process(number):
                _ = held is None or held.reload()
        self.hidden = text
        self.path.unlink() if gone else self.path.write_text(old)

    @rule()
    @precondition(lambda self: self.hidden is not None)
    def put_the_newest_back(self):
        self.path.write_text(self.hidden)
        self.hidden = None

    @invariant()
    @precondition(lambda self: self.held[0] or self.held[1])
    def all_that_is_open_agrees(self):
        for number, held in enumerate(self.held):
            if held is None:
                continue
            with self.process(number):
                if self.hidden is not None:
                    with pytest.raises(ValueError, match="lost or|is gone"):
                        held.reload()
                    continue
                held.reload()
                assert len(held.entries) == self.spent <= TENTHS


@contextlib.contextmanager
def failing(number):
    """Makes a call to the operating system fail, as a full disk does."""
    calls = ("open", "fdopen", "chmod", "fsync", "replace")
    fake, left = types.SimpleNamespace(**vars(os)), [number]

    def wrapped(call):
        def function(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                raise OSError(28, "No space left on device")
            return call(*args, **kwargs)

        return function

    if number is not None:
        for name in calls:
            setattr(fake, name, wrapped(getattr(os, name)))
        locked_file.os = fake
    try:
        yield
    finally:
        locked_file.os = os


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLedgerMachine.pytestmark = [
    pytest.mark.filterwarnings("ignore:.*in addition to:UserWarning")
]
