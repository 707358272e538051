"""However a ledger is copied, in one process it stays one budget."""

import copy
import dataclasses
import gc
import json
import os
import pickle
import shutil
import stat
import threading
import time
import weakref

import core_process
import pytest
from ledger_entries import entry, old, unknown

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger import ledger_state, locked_file
from keras_fm.kernel.ledger.ledger import BudgetExceededError, Ledger


def new(epsilon=1.0):
    return Ledger(PrivacyBudget(epsilon, 0.0), neighbours="add_remove")


def begin(path, epsilon=1.0):
    return Ledger.open(
        path, budget=PrivacyBudget(epsilon, 0.0), neighbours="add_remove"
    )


def saved_and_loaded(ledger, folder):
    ledger.save(folder / "copy.json")
    return Ledger.load(folder / "copy.json")


def saved_and_opened(ledger, folder):
    ledger.save(folder / "copy.json")
    return Ledger.open(folder / "copy.json")


COPIES = {
    "copy": lambda ledger, folder: copy.copy(ledger),
    "deepcopy": lambda ledger, folder: copy.deepcopy({"a": [ledger]})["a"][0],
    "pickle": lambda ledger, folder: pickle.loads(pickle.dumps(ledger)),
    "from_json": lambda ledger, folder: Ledger.from_json(ledger.to_json()),
    "load": saved_and_loaded,
    "open": saved_and_opened,
}


# Copies ----------------------------------------------------------------------


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_is_the_same_budget(tmp_path, way, in_file):
    """A copied ledger was a second budget: both halves of a copy could be
    charged in full, and each said that epsilon was kept."""
    if in_file and way == "open":
        pytest.skip("refused: see the test of two files")
    ledger = begin(tmp_path / "a.json") if in_file else new()
    ledger.charge([entry(0.5)])
    other = COPIES[way](ledger, tmp_path)
    other.charge([entry(0.5, name="other")])
    assert ledger.epsilon() == other.epsilon() == 1.0
    assert ledger.entries == other.entries and ledger.id == other.id
    for one in (ledger, other):
        with pytest.raises(BudgetExceededError):
            one.charge([entry(0.1)])
    other.note_audit("audit: not refuted")
    assert ledger.audits == other.audits != ()
    assert ledger.path == other.path
    if in_file:
        assert json.loads((tmp_path / "a.json").read_text())["audits"]


def test_a_copy_returns_the_object():
    ledger = new()
    assert copy.copy(ledger) is ledger and copy.deepcopy(ledger) is ledger


def test_an_older_text_is_the_ledger_as_it_is_now():
    """A model carries the text of its ledger as it was when it was released;
    what was charged since stays charged."""
    ledger = new()
    texts = [ledger.to_json()]
    for _ in range(3):
        ledger.charge([entry()])
        texts.append(ledger.to_json())
    for text in texts:
        found = Ledger.from_json(text)
        assert found.entries == ledger.entries and found.epsilon() == 0.75


def test_a_forgotten_ledger_is_remembered():
    """Its last object may go, as when a function returns: its text, in a
    model, must not be a fresh budget then."""
    ledger = new()
    before = ledger.to_json()
    ledger.charge([entry(0.75)])
    del ledger
    gc.collect()
    again = Ledger.from_json(before)
    assert again.epsilon() == 0.75
    with pytest.raises(BudgetExceededError):
        again.charge([entry(0.5)])


def test_what_was_never_charged_here_takes_no_memory():
    known = weakref.WeakSet()
    spent = len(ledger_state._spent)
    charged = new()
    charged.charge([entry()])
    for number in range(50):
        known.add(new()._state)
        text = unknown(charged.to_json(), number)
        known.add(Ledger.from_json(text)._state)
    gc.collect()
    assert not known and len(ledger_state._spent) == spent + 1


def test_a_longer_text_is_taken_in():
    """Another process went on with it, and sent it back."""
    ledger = new()
    ledger.charge([entry()])
    ledger.note_audit("audit: here")
    ((text,),) = core_process.run(
        "ledger = Ledger.from_json(arguments[0])\n"
        "ledger.charge([entry(name='there')])\n"
        "ledger.note_audit('audit: there')\n"
        "say(ledger.to_json())",
        ledger.to_json(),
    )
    found = Ledger.from_json(text)
    assert [e.name for e in ledger.entries] == ["head", "there"]
    assert ledger.entries == found.entries and ledger.epsilon() == 0.5
    assert [line for _, line in ledger.audits] == [
        "audit: here",
        "audit: there",
    ]


@pytest.mark.parametrize("spoil", ["other", "changed", "fewer"])
def test_a_text_that_parts_from_the_ledger_is_refused(spoil):
    ledger = new()
    ledger.charge([entry(), entry(name="second")])
    before = ledger.entries
    data = json.loads(ledger.to_json())
    if spoil == "other":
        data["entries"][1]["name"] = "another"
    elif spoil == "changed":
        data["entries"][0]["mechanism"]["epsilon"] = 1e-3
    else:
        del data["entries"][0]
    with pytest.raises(ValueError, match="lost or changed entries"):
        Ledger.from_json(json.dumps(data))
    assert ledger.entries == before


def test_an_id_has_one_budget_relation_and_unit():
    ledger = new()
    for change in (
        {"budget": {"epsilon": 2.0, "delta": 0.0}},
        {"neighbours": "replace_one"},
        {"unit": "one user"},
    ):
        text = json.dumps({**json.loads(ledger.to_json()), **change})
        with pytest.raises(ValueError, match="cannot be changed"):
            Ledger.from_json(text)


@pytest.mark.parametrize("id", ["", "1" * 31, "G" * 32, 7, None, ["1" * 32]])
def test_an_id_is_hexadecimal(id):
    data = {**json.loads(new().to_json()), "id": id}
    with pytest.raises(ValueError, match="not a keras_fm ledger"):
        Ledger.from_json(json.dumps(data))


def test_ids_are_random_and_kept():
    ledger = new()
    assert len(ledger.id) == 32 and ledger.id != new().id
    assert json.loads(ledger.to_json())["id"] == ledger.id
    assert Ledger.from_json(ledger.to_json()).id == ledger.id


def test_what_json_does_not_tell_apart_is_equal():
    """Lists and tuples, whole floats and ints: a text is its ledger."""
    ledger = new()
    claim = entry(
        guarantee="claimed",
        mechanism={"claimed_epsilon": 0.25, "sizes": (3, 4), "order": 2},
    )
    ledger.charge([claim])
    other = Ledger.from_json(ledger.to_json())
    other.charge([entry()])
    assert len(ledger.entries) == 2


def test_threads_share_what_they_copy():
    """Eight threads want twenty tenths each, of copies of one budget."""
    ledger = new()
    ledger.charge([entry(0.1)])
    had, text = [], ledger.to_json()

    def spend():
        for _ in range(20):
            try:
                Ledger.from_json(text).charge([entry(0.1)])
                had.append(1)
            except BudgetExceededError:
                pass

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(had) == 9 and len(ledger.entries) == 10


def test_a_subclass_stays_one():
    class Watched(Ledger):
        pass

    ledger = Watched(PrivacyBudget(1.0, 0.0), neighbours="add_remove")
    ledger.charge([entry()])
    found = Watched.from_json(ledger.to_json())
    assert type(found) is Watched and found.entries == ledger.entries


# Texts without an id ---------------------------------------------------------


def test_copies_of_an_old_text_are_one_ledger():
    ledger = new()
    ledger.charge([entry(name="old", when=""), entry()])
    texts = old(ledger), json.dumps(json.loads(old(ledger)), indent=4)
    one, two = (Ledger.from_json(text) for text in texts)
    assert one.id == two.id != ledger.id
    one.charge([entry(0.5)])
    assert two.epsilon() == 1.0
    # Its id is in what is written from now on.
    assert Ledger.from_json(one.to_json()).epsilon() == 1.0


def test_old_texts_that_began_differently_are_two_ledgers():
    first, second = new(), new()
    first.charge([entry(0.25)])
    second.charge([entry(0.26)])
    ids = {Ledger.from_json(old(ledger)).id for ledger in (first, second)}
    ids |= {Ledger.from_json(old(new())).id for _ in range(2)}
    assert len(ids) == 4


def test_an_old_file_gets_an_id(tmp_path):
    path = tmp_path / "privacy.json"
    for entries in ([], [entry(0.25)]):
        ledger = new()
        ledger.charge(entries)
        path.write_text(old(ledger))
        one = Ledger.open(path)
        assert json.loads(path.read_text())["id"] == one.id
        two = Ledger.open(path)
        two.charge([entry(0.5)])
        assert one.entries == two.entries
        assert len(one.entries) == len(entries) + 1


def test_an_older_version_may_write_the_file(tmp_path):
    """It knows neither ids nor counts, and drops them."""
    path = tmp_path / "privacy.json"
    ledger = begin(path)
    ledger.charge([entry()])
    path.write_text(old(ledger))
    ledger.charge([entry()])
    assert json.loads(path.read_text())["id"] == ledger.id
    assert ledger.epsilon() == 0.5


# Files -----------------------------------------------------------------------


def test_a_ledger_moves_into_a_file(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = new()
    ledger.charge([entry(0.25)])
    ledger.save(path)
    # The file is behind: it is brought up to date.
    ledger.charge([entry(0.25, name="after")])
    opened = Ledger.open(path)
    assert ledger.path == opened.path == str(path)
    assert len(json.loads(path.read_text())["entries"]) == 2
    ledger.charge([entry(0.25, name="in the file")])
    assert opened.epsilon() == 0.75
    assert len(json.loads(path.read_text())["entries"]) == 3


def test_a_ledger_moves_into_a_file_that_is_ahead(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = new()
    ledger.charge([entry(0.25)])
    ledger.save(path)
    core_process.run("Ledger.open(arguments[0]).charge([entry()])", path)
    opened = Ledger.open(path)
    assert ledger.entries == opened.entries and ledger.epsilon() == 0.5


def test_a_file_that_parted_from_the_ledger_is_refused(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = new()
    ledger.charge([entry(0.25)])
    ledger.save(path)
    core_process.run("Ledger.open(arguments[0]).charge([entry()])", path)
    ledger.charge([entry(0.25, name="here")])
    before = path.read_text()
    with pytest.raises(ValueError, match="lost or changed entries"):
        Ledger.open(path)
    assert path.read_text() == before
    assert ledger.path is None and ledger.epsilon() == 0.5


def test_two_files_of_one_ledger_are_refused(tmp_path):
    """`cp a.json b.json`, and both opened, were two budgets."""
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    ledger = begin(first)
    ledger.charge([entry(0.5)])
    shutil.copy(first, second)
    ledger.charge([entry(0.25)])
    with pytest.raises(ValueError, match="two budgets") as e:
        Ledger.open(second)
    assert str(first) in str(e.value) and str(second) in str(e.value)
    # Read as a copy it is the ledger that is open.
    copied = Ledger.load(second)
    assert copied.path == str(first) and copied.epsilon() == 0.75
    # Also after the last object of it is gone.
    del ledger, copied
    gc.collect()
    with pytest.raises(ValueError, match="two budgets"):
        Ledger.open(second)
    assert Ledger.open(first).epsilon() == 0.75


def test_a_file_that_was_moved_is_the_ledger(tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    ledger = begin(first)
    ledger.charge([entry(0.5)])
    older = first.read_text()
    ledger.charge([entry(0.25)])
    os.rename(first, second)
    moved = Ledger.open(second)
    assert moved.epsilon() == 0.75 and ledger.path == str(second)
    # What is put there instead must not be older.
    second.unlink()
    third = tmp_path / "c.json"
    third.write_text(older)
    with pytest.raises(ValueError, match="lost or changed"):
        Ledger.open(third)


def test_another_ledger_in_the_place_of_the_file_is_noticed(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = begin(path)
    new().save(path)
    with pytest.raises(ValueError, match="lost or changed"):
        ledger.charge([entry()])


def test_an_unknown_copy_is_not_taken_for_the_file(tmp_path):
    """What a copy was charged elsewhere is not in the file, and a text must
    not put it there."""
    path = tmp_path / "privacy.json"
    ledger = begin(path)
    ledger.charge([entry()])
    ((text,),) = core_process.run(
        "ledger = Ledger.load(arguments[0])\n"
        "ledger.charge([entry(name='copy')])\n"
        "say(ledger.to_json())",
        path,
    )
    before = path.read_text()
    with pytest.raises(ValueError, match="the file does not"):
        Ledger.from_json(text)
    assert path.read_text() == before and ledger.epsilon() == 0.25
    # Nor when the text was there first.
    open_too = (
        "copy = Ledger.from_json(arguments[0])\n"
        "try:\n"
        "    say(Ledger.open(arguments[1]).path)\n"
        "except ValueError as e:\n"
        "    say(str(e))\n"
        "    copy.save(arguments[1])\n"
        "    say(Ledger.open(arguments[1]) and copy.path)"
    )
    (refusal,), (opened,) = core_process.run(open_too, text, path)
    assert "an older copy was put in its place" in refusal
    assert opened == str(path)
    # Put there on purpose it is spent.
    assert Ledger.from_json(text).epsilon() == ledger.epsilon() == 0.5


def test_a_model_tells_that_a_file_was_turned_back(tmp_path):
    """A new process cannot know what a file held before, but the text of the
    ledger in a saved model does."""
    path = tmp_path / "privacy.json"
    ledger = begin(path)
    older = path.read_text()
    ledger.charge([entry(0.75)])
    path.write_text(older)
    said = core_process.run(
        "model = Ledger.from_json(arguments[0])\n"
        "try:\n"
        "    say(Ledger.open(arguments[1]).remaining())\n"
        "except ValueError as e:\n"
        "    say(str(e))",
        ledger.to_json(),
        path,
    )
    assert "an older copy was put in its place" in said[0][0]


def test_a_text_that_the_file_is_ahead_of_is_read_with_it(tmp_path):
    """Another process charged the file and sent the text: the file is read
    again before the text is doubted."""
    path = tmp_path / "privacy.json"
    ledger = begin(path)
    ((text,),) = core_process.run(
        "ledger = Ledger.open(arguments[0])\n"
        "ledger.charge([entry(name='there')])\n"
        "say(ledger.to_json())",
        path,
    )
    assert Ledger.from_json(text).path == str(path)
    assert [e.name for e in ledger.entries] == ["there"]


def test_a_pickle_of_a_ledger_in_a_file_opens_the_file(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = begin(path)
    ledger.charge([entry(0.5)])
    pickled = pickle.dumps(ledger).hex()
    said = core_process.run(
        "ledger = pickle.loads(bytes.fromhex(arguments[0]))\n"
        "say(ledger.path, ledger.epsilon())\n"
        "ledger.charge([entry()])",
        pickled,
    )
    assert said == [[str(path), 0.5]]
    ledger.reload()
    assert ledger.epsilon() == 0.75
    path.unlink()
    with pytest.raises(ValueError, match="is gone"):
        pickle.loads(bytes.fromhex(pickled))


def test_a_pickle_of_a_ledger_in_memory_is_no_second_budget(tmp_path):
    """As a fork is none: workers that start anew get pickles."""
    ledger = new()
    ledger.charge([entry(0.5)])
    said = core_process.run(
        "ledger = pickle.loads(bytes.fromhex(arguments[0]))\n"
        "say(ledger.path, ledger.epsilon(), ledger.id)\n"
        "again = pickle.loads(pickle.dumps(ledger))\n"
        "for spend in (ledger.check, ledger.charge, again.charge):\n"
        "    try:\n"
        "        spend([entry()])\n"
        "    except ValueError as e:\n"
        "        say(str(e))\n"
        "ledger.save(arguments[1])\n"
        "Ledger.open(arguments[1]).charge([entry()])\n"
        "say(ledger.epsilon())",
        pickle.dumps(ledger).hex(),
        tmp_path / "privacy.json",
    )
    assert said[0] == [None, 0.5, ledger.id]
    assert all("here it would be a second" in text for (text,) in said[1:4])
    assert said[4:] == [[0.75]]


def test_a_pickle_that_comes_back_to_its_process_is_charged():
    pickled = pickle.dumps(new())
    gc.collect()
    ledger = pickle.loads(pickled)
    ledger.charge([entry(0.5)])
    assert pickle.loads(pickled).epsilon() == 0.5


def test_a_copy_is_saved_over_no_other_ledger(tmp_path):
    """Two ledgers may begin alike; one of them is in the file."""
    path = tmp_path / "privacy.json"
    begin(path).charge([entry()])
    before = path.read_text()
    twin = Ledger.from_json(unknown(before))
    twin.charge([entry()])
    with pytest.raises(ValueError, match="would be forgotten"):
        twin.save(path)
    assert path.read_text() == before


# Hard links ------------------------------------------------------------------


def test_a_file_with_two_names_is_refused(tmp_path):
    """A hard link: a write replaced one of the two names, so the other kept
    the old text, and each was a budget of its own."""
    path, link = tmp_path / "privacy.json", tmp_path / "link.json"
    ledger = begin(path)
    ledger.charge([entry(0.25)])
    before = path.read_text()
    os.link(path, link)
    for spend in (
        lambda: Ledger.open(path),
        lambda: Ledger.open(link),
        lambda: ledger.charge([entry()]),
        lambda: ledger.check([entry()]),
        lambda: ledger.note_audit("audit: not refuted"),
        ledger.reload,
        lambda: ledger.save(path),
        lambda: ledger.steps_left("head"),
    ):
        with pytest.raises(ValueError, match="a budget of its own"):
            spend()
    assert path.read_text() == link.read_text() == before
    assert os.path.samefile(path, link)
    # A copy may be read from it.
    assert Ledger.load(link).epsilon() == 0.25
    link.unlink()
    ledger.charge([entry(0.25)])
    assert Ledger.open(path).epsilon() == 0.5


def test_a_new_process_refuses_a_file_with_two_names(tmp_path):
    path, link = tmp_path / "privacy.json", tmp_path / "link.json"
    begin(path)
    os.link(path, link)
    said = core_process.run(
        "for path in arguments:\n"
        "    try:\n"
        "        say(Ledger.open(path).path)\n"
        "    except ValueError as e:\n"
        "        say(str(e))",
        path,
        link,
    )
    assert all("hard links" in text for (text,) in said) and len(said) == 2


NO_FILES = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    """A pipe was waited at for ever, its lock held. `/dev/stdout`, the folder
    of the ledger, or a name left by `mkfifo` are mistakes of a shell."""
    path = tmp_path / "privacy.json"
    NO_FILES[kind](path)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    for way in (begin, Ledger.open, Ledger.load, new().save):
        for name in (path, str(link), os.fsencode(path)):
            error = (OSError, ValueError) if way == Ledger.load else ValueError
            with pytest.raises(error, match=f"is {kind}|Is a dir|No such dev"):
                way(name)
    assert {p.name for p in tmp_path.iterdir()} == {"privacy.json", "link.json"}
    with pytest.raises(ValueError, match="`path` must be the path of a file"):
        begin(3)


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["privacy.json", "privacy.json.lock"])
def test_a_ledger_that_becomes_no_file_is_not_charged(tmp_path, kind, name):
    ledger = begin(tmp_path / "privacy.json")
    ledger.charge([entry(0.5)])
    (tmp_path / name).rename(tmp_path / "kept")
    NO_FILES[kind](tmp_path / name)
    with pytest.raises((OSError, ValueError)):
        ledger.charge([entry(0.25)])
    assert ledger.epsilon() == 0.5


def test_a_path_of_bytes_is_the_same_file(tmp_path):
    """Its lock was named after the bytes' `repr`, in the working folder."""
    ledger = begin(os.fsencode(tmp_path / "privacy.json"))
    ledger.charge([entry(0.5)])
    assert Ledger.open(tmp_path / "privacy.json").epsilon() == 0.5
    assert {p.name for p in tmp_path.iterdir()} == {
        "privacy.json",
        "privacy.json.lock",
    }


@pytest.mark.parametrize("keep", [True, False])
def test_no_new_ledger_begins_where_one_was_charged(tmp_path, keep):
    """A cell that makes its ledger anew got a second budget, if the file had
    been deleted since it ran first."""
    path = tmp_path / "privacy.json"
    ledger = begin(path)
    ledger.charge([entry(0.5)])
    text = path.read_text()
    if not keep:
        del ledger
        gc.collect()
    path.unlink()
    with pytest.raises(ValueError, match="is gone.*Put it back"):
        begin(path)
    path.write_text(text)
    assert begin(path).epsilon() == 0.5
    # Nothing was spent from this one.
    begin(tmp_path / "other.json")
    (tmp_path / "other.json").unlink()
    gc.collect()
    begin(tmp_path / "other.json")


def test_a_ledger_needs_its_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder .*Make it first"):
        begin(tmp_path / "none" / "privacy.json")


def test_a_symbolic_link_is_the_file(tmp_path):
    path, link = tmp_path / "privacy.json", tmp_path / "link.json"
    ledger = begin(path)
    link.symlink_to(path)
    linked = Ledger.open(link)
    linked.charge([entry(0.25)])
    assert ledger.epsilon() == 0.25 and linked.path == ledger.path
    assert link.is_symlink()


# Processes -------------------------------------------------------------------


def test_processes_share_a_file(tmp_path):
    """Four processes, each with copies of its own, want ten tenths each."""
    path = tmp_path / "privacy.json"
    begin(path)
    code = (
        "ledger, had = Ledger.open(arguments[0]), 0\n"
        "tenth = mechanisms.LaplaceMechanism(sensitivity=1.0, epsilon=0.1)\n"
        "for _ in range(10):\n"
        "    try:\n"
        "        pickle.loads(pickle.dumps(ledger)).charge([entry(tenth)])\n"
        "        had += 1\n"
        "    except BudgetExceededError:\n"
        "        pass\n"
        "say(had)"
    )
    said = core_process.run_all(code, path, count=4)
    assert (
        sum(had for ((had,),) in said) == 10
        and Ledger.open(path).remaining() < 1e-9
    )


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
    refusals = [text for (text,) in said[:4]]
    assert all("here it would be a second" in t for t in refusals)
    assert said[4:] == [[0], [0.25, 0.25]]


def test_entries_are_equal_in_every_process(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = begin(path)
    ledger.charge([entry(notes=("n is public", "at \u03b5 = 1"))])
    ((text,),) = core_process.run(
        "say(Ledger.open(arguments[0]).to_json())", path
    )
    assert text == path.read_text() == ledger.to_json()
    assert dataclasses.asdict(ledger.entries[0]) == {
        **json.loads(text)["entries"][0],
        "notes": tuple(json.loads(text)["entries"][0]["notes"]),
    }


@pytest.mark.parametrize("when", ["held", "waited for"])
def test_a_lock_that_was_removed_locks_nobody_out(tmp_path, when):
    """Who cleaned up `*.lock` while a process charged let a second one in
    beside it: both charged, and the file forgot one of the two."""
    path = tmp_path / "privacy.json"
    begin(path)
    file = locked_file.LockedFile(path)
    other = locked_file.LockedFile(path)
    if when == "held":
        with file.lock():
            os.unlink(f"{path}.lock")
            with other.lock():
                other.write("what the other one charged")
            with pytest.raises(OSError, match="removed while it was held"):
                file.write("what forgets it")
        assert path.read_text() == "what the other one charged"
        return
    waiting, found = threading.Event(), []

    def wait():
        waiting.set()
        with other.lock():
            # Not that of the file that was removed.
            found.append(other._is_lock(other._handle))

    with file.lock():
        thread = threading.Thread(target=wait)
        thread.start()
        waiting.wait()
        time.sleep(0.1)
        os.unlink(f"{path}.lock")
    thread.join()
    assert found == [True]
    with file.lock():
        file.write("and after it all is well")
