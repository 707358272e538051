"""A ledger is a file, or one object: one budget, however it is copied."""

import contextlib
import copy
import gc
import os
import pickle
import shutil
import threading
import time

import core_process
import pytest
from ledger_entries import entry
from sklearn.base import clone

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger import locked_file
from keras_fm.kernel.ledger.ledger import BudgetExceededError, Ledger


def new(epsilon=1.0, delta=0.0):
    return Ledger(PrivacyBudget(epsilon, delta), neighbours="add_remove")


def begin(path, epsilon=1.0, delta=0.0):
    return Ledger.open(
        path, budget=PrivacyBudget(epsilon, delta), neighbours="add_remove"
    )


# Copies ----------------------------------------------------------------------

SAME = {
    "copy": copy.copy,
    "deepcopy": lambda ledger: copy.deepcopy({"a": [ledger]})["a"][0],
    "clone": lambda ledger: clone(ledger, safe=False),
    "from_json": lambda ledger: Ledger.from_json(ledger.to_json()),
}
OF_FILES = {
    "pickle": lambda ledger: pickle.loads(pickle.dumps(ledger)),
    "open": lambda ledger: Ledger.open(ledger.path),
    "load": lambda ledger: Ledger.load(ledger.path),
}


@pytest.mark.parametrize("way", SAME)
def test_a_copy_is_the_same_ledger(tmp_path, way):
    for ledger in (new(), begin(tmp_path / "privacy.json")):
        ledger.charge([entry(0.5)])
        assert SAME[way](ledger) is ledger


@pytest.mark.parametrize("way", OF_FILES)
def test_a_file_is_one_ledger_in_a_process(tmp_path, way):
    ledger = begin(tmp_path / "privacy.json")
    ledger.charge([entry(0.5)])
    assert OF_FILES[way](ledger) is ledger
    # Also after the last object of it is gone.
    path = ledger.path
    del ledger
    gc.collect()
    assert Ledger.open(path).epsilon() == 0.5


def test_a_ledger_in_memory_is_not_pickled(tmp_path):
    ledger = new()
    with pytest.raises(TypeError, match="A ledger in memory cannot be pickled"):
        pickle.dumps(ledger)
    ledger.charge([entry(0.5)])
    ledger.save(tmp_path / "privacy.json")
    assert pickle.loads(pickle.dumps(ledger)) is ledger
    ledger.charge([entry(0.5)])
    assert Ledger.load(tmp_path / "privacy.json").remaining() == 0.0


def test_a_text_is_for_reading(tmp_path):
    """`Ledger.load` of a file, charged, was a second budget beside it."""
    path = tmp_path / "privacy.json"
    core_process.run(
        "ledger = Ledger.open(arguments[0], neighbours='add_remove',\n"
        "                     budget=PrivacyBudget(5.0, 1e-5))\n"
        "ledger.charge([entry(0.25)])\n",
        path,
    )
    ledger = Ledger.load(path)
    assert "proven" in ledger.statement()
    for spend in (ledger.check, ledger.charge):
        with pytest.raises(ValueError, match="comes from another process"):
            spend([entry()])
    # Opened, or in a file of its own, it is charged again.
    assert Ledger.open(path) is ledger
    ledger.charge([entry()])


def test_a_text_goes_on_in_a_file_of_its_own(tmp_path):
    ledger = new()
    ledger.charge([entry()])
    (tmp_path / "text").write_text(ledger.to_json())
    ((told, entries),) = core_process.run(
        "ledger, told = Ledger.load(arguments[0]), None\n"
        "try:\n"
        "    ledger.charge([entry()])\n"
        "except ValueError as e:\n"
        "    told = str(e)\n"
        "ledger.save(arguments[1])\n"
        "ledger.charge([entry()])\n"
        "say(told, len(Ledger.open(arguments[1]).entries))",
        tmp_path / "text",
        tmp_path / "new.json",
    )
    assert "`save` it to a new file" in told and entries == 2


def test_a_text_that_differs_is_refused(tmp_path):
    ledger = new()
    older = ledger.to_json()
    ledger.charge([entry(0.25)])
    assert Ledger.from_json(older) is ledger
    with pytest.raises(ValueError, match="lost or changed"):
        Ledger.from_json(ledger.to_json().replace("0.25", "0.125"))
    # Of two texts of a ledger that nobody has here the longer one holds.
    text = ledger.to_json().replace(ledger.id, "1" * 32)
    first = Ledger.from_json(older.replace(ledger.id, "1" * 32))
    assert Ledger.from_json(text) is first and len(first.entries) == 1


def test_a_ledger_is_saved_once(tmp_path):
    ledger = new()
    ledger.save(tmp_path / "a.json")
    for other in (ledger, new()):
        with pytest.raises(ValueError, match="`save` needs a ledger in memory"):
            other.save(tmp_path / "a.json")
    with pytest.raises(ValueError, match="`save` needs a ledger in memory"):
        ledger.save(tmp_path / "b.json")


# Threads ---------------------------------------------------------------------


@pytest.mark.parametrize("in_file", [False, True])
def test_threads_take_turns(tmp_path, in_file):
    """Four threads want twenty shares of one tenth of a budget."""
    ledger, had = new(), []
    if in_file:
        ledger = begin(tmp_path / "privacy.json")

    def take():
        for _ in range(20):
            with contextlib.suppress(BudgetExceededError):
                ledger.charge([entry(0.1)])
                had.append(1)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(had) == len(ledger.entries) == 10


# Files -----------------------------------------------------------------------


def test_two_files_of_one_ledger_are_refused(tmp_path):
    """`cp a.json b.json`, and both opened, were two budgets."""
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    ledger = begin(first)
    ledger.charge([entry(0.5)])
    shutil.copy(first, second)
    with pytest.raises(ValueError, match="two budgets") as e:
        Ledger.open(second)
    assert str(first) in str(e.value) and str(second) in str(e.value)
    # Moved, it is the same.
    second.unlink()
    first.rename(second)
    assert Ledger.open(second) is ledger and ledger.path == str(second)


def test_a_file_with_two_names_is_refused(tmp_path):
    """A hard link: a write replaced one of the two names, so the other kept
    the old text, and each was a budget of its own."""
    path, link = tmp_path / "privacy.json", tmp_path / "link.json"
    ledger = begin(path)
    ledger.charge([entry(0.25)])
    os.link(path, link)
    for spend in (
        lambda: Ledger.open(link),
        lambda: ledger.charge([entry()]),
        lambda: ledger.check([entry()]),
        lambda: ledger.note_audit("audit: not refuted"),
        ledger.reload,
    ):
        with pytest.raises(ValueError, match="a budget of its own"):
            spend()
    link.unlink()
    ledger.charge([entry(0.25)])
    assert Ledger.open(path).epsilon() == 0.5


def test_a_symbolic_link_is_the_file(tmp_path):
    path, link = tmp_path / "privacy.json", tmp_path / "link.json"
    ledger = begin(os.fsencode(path))
    link.symlink_to(path)
    Ledger.open(link).charge([entry(0.25)])
    assert ledger.epsilon() == 0.25 and link.is_symlink()


def test_no_new_ledger_begins_where_one_was_charged(tmp_path):
    """A cell that makes its ledger anew got a second budget, if the file had
    been deleted since it ran first."""
    path = tmp_path / "privacy.json"
    begin(path).charge([entry(0.5)])
    gc.collect()
    text = path.read_text()
    path.unlink()
    with pytest.raises(ValueError, match="is gone.*Put it back"):
        begin(path)
    path.write_text(text)
    assert begin(path).epsilon() == 0.5
    # Nothing was spent from this one.
    begin(tmp_path / "other.json")
    (tmp_path / "other.json").unlink()
    begin(tmp_path / "other.json")


def test_a_lock_that_was_removed_locks_nobody_out(tmp_path):
    """Who cleaned up `*.lock` while a process charged let a second one in
    beside it: both charged, and the file forgot one of the two."""
    path = tmp_path / "privacy.json"
    begin(path)
    file, other = locked_file.LockedFile(path), locked_file.LockedFile(path)
    with file.lock():
        os.unlink(f"{path}.lock")
        with other.lock():
            other.write("what the other one charged")
        with pytest.raises(OSError, match="removed while it was held"):
            file.write("what forgets it")
    assert path.read_text() == "what the other one charged"
    # Who waits for a lock that is removed meanwhile takes the next one.
    found = []

    def wait():
        with other.lock():
            found.append(other._is_lock(other._handle))

    with file.lock():
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        os.unlink(f"{path}.lock")
    thread.join()
    assert found == [True]


# Processes -------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_no_second_budget(tmp_path):
    """Each worker of a pool had the whole of a ledger in memory, and the
    process that began it knew of none of their charges."""
    said = core_process.run(
        "given = {'budget': PrivacyBudget(1, 0), 'neighbours': 'add_remove'}\n"
        "memory, file = Ledger(**given), Ledger.open(arguments[0], **given)\n"
        "if not (child := os.fork()):\n"
        "    copied = Ledger.from_json(memory.to_json())\n"
        "    for ledger in (memory, copied):\n"
        "        for spend in (ledger.check, ledger.charge):\n"
        "            try:\n"
        "                spend([entry()])\n"
        "            except ValueError as e:\n"
        "                say(str(e))\n"
        "    file.charge([entry()])\n"
        "    own = Ledger(**given)\n"
        "    own.charge([entry()])\n"
        "    os._exit(0)\n"
        "say(os.waitpid(child, 0)[1])\n"
        "memory.charge([entry()])\n"
        "file.reload()\n"
        "say(memory.epsilon(), file.epsilon())\n",
        tmp_path / "privacy.json",
    )
    assert all("comes from another process" in text for (text,) in said[:4])
    assert said[4:] == [[0], [0.25, 0.25]]
