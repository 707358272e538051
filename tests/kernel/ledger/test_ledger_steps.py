"""Steps that were paid for run once: reserved before, confirmed after."""

import contextlib
import copy
import json
import pickle
import threading

import core_process
import pytest
from ledger_entries import entry, old, steps, unknown

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger import locked_file
from keras_fm.kernel.ledger.ledger import BudgetExceededError, Ledger

BUDGET = PrivacyBudget(5.0, 1e-5)


def claimed(count, name="net"):
    mechanism = {**steps(count).mechanism, "claimed_epsilon": 0.1}
    return steps(count, name, guarantee="claimed", mechanism=mechanism)


def once():
    return entry(0.1)


def new(*entries):
    ledger = Ledger(BUDGET, neighbours="add_remove")
    ledger.charge(entries)
    return ledger


def begin(path, *entries):
    ledger = Ledger.open(path, budget=BUDGET, neighbours="add_remove")
    ledger.charge(entries)
    return ledger


def progress(path):
    data = json.loads(path.read_text())
    return data.get("progress", {})


@pytest.fixture(params=["memory", "file"])
def make(request, tmp_path):
    """Makes a ledger with entries, in memory and in a file."""
    if request.param == "memory":
        return new
    return lambda *entries: begin(tmp_path / "privacy.json", *entries)


# Reserving -------------------------------------------------------------------


def test_steps_are_used_in_turn(make):
    ledger = make(steps(10), once(), steps(5), steps(7, "other"))
    assert ledger.steps_left("net") == 15 and ledger.steps_used("net") == 0
    assert ledger.reserve("net", 4) == 0
    assert ledger.reserve("net", 4) == 4
    assert ledger.steps_left("net") == 7 and ledger.steps_used("net") == 8
    ledger.confirm("net", 4, 4)
    assert ledger.steps_left("net") == 7
    ledger.confirm("net", 4, 1)
    assert ledger.steps_left("net") == 10
    assert ledger.reserve("net", 10) == 5
    assert ledger.steps_left("net") == 0 and ledger.steps_left("other") == 7
    assert json.loads(ledger.to_json())["progress"] == {"net": 15}


def test_a_run_that_ended_early_can_be_gone_on_with(make):
    ledger = make(steps(10))
    ledger.reserve("net", 10)
    ledger.confirm("net", 10, 0)
    assert ledger.steps_left("net") == 10
    assert "progress" not in json.loads(ledger.to_json())
    assert ledger.reserve("net", 10) == 0


def test_more_than_was_paid_for_is_refused(make):
    ledger = make(steps(10))
    ledger.reserve("net", 7)
    before = ledger.to_json()
    with pytest.raises(BudgetExceededError) as e:
        ledger.reserve("net", 4)
    for part in ("4 steps of 'net' are asked", "3 are left", "10 were paid"):
        assert part in str(e.value)
    assert "7 are used or reserved" in str(e.value)
    assert ledger.to_json() == before and ledger.steps_left("net") == 3
    ledger.reserve("net", 3)
    with pytest.raises(BudgetExceededError, match="0 are left"):
        ledger.reserve("net", 1)


@pytest.mark.parametrize("name", ["head", "unknown"])
def test_an_entry_without_steps_has_none(make, name):
    ledger = make(once(), steps(3))
    assert ledger.steps_left(name) == ledger.steps_used(name) == 0
    with pytest.raises(BudgetExceededError, match="0 were paid for"):
        ledger.reserve(name, 1)


def test_claimed_steps_are_counted_too(make):
    ledger = make(claimed(6), claimed(2))
    assert ledger.steps_left("net") == 8
    assert ledger.reserve("net", 8) == 0


@pytest.mark.parametrize("count", [True, 2.5, -3, 10**13, "3", None, [3]])
def test_a_claim_with_other_steps_has_none(make, count):
    """What a claim says of itself is not checked as a mechanism is."""
    entry = claimed(6)
    entry.mechanism["steps"] = count
    ledger = make(entry)
    assert ledger.steps_left("net") == 0
    assert "used or reserved" not in ledger.statement()


@pytest.mark.parametrize("count", [0, -1, True, 1.5, 3.0, "3", None])
def test_steps_are_counted_in_whole_numbers(make, count):
    ledger = make(steps(10))
    with pytest.raises(ValueError, match="`steps` must be an integer"):
        ledger.reserve("net", count)
    ledger.reserve("net", 3)
    with pytest.raises(ValueError, match="`reserved` must be an integer"):
        ledger.confirm("net", count, 0)
    if count != 0 or isinstance(count, bool):
        with pytest.raises(ValueError, match="`taken` must be an integer"):
            ledger.confirm("net", 3, count)
    assert ledger.steps_left("net") == 7


def test_what_was_not_reserved_is_not_given_back(make):
    ledger = make(steps(10), steps(10, "other"))
    ledger.reserve("net", 4)
    for name, reserved in (("net", 3), ("net", 5), ("other", 4), ("x", 4)):
        with pytest.raises(ValueError, match="a reservation of this process"):
            ledger.confirm(name, reserved, 0)
    with pytest.raises(ValueError, match="`taken` must be at most the 4"):
        ledger.confirm("net", 4, 5)
    assert ledger.steps_left("net") == 6
    ledger.confirm("net", 4, 3)
    # Once.
    with pytest.raises(ValueError, match="a reservation of this process"):
        ledger.confirm("net", 4, 3)
    assert ledger.steps_left("net") == 7


def test_reservations_of_one_size_end_one_by_one(make):
    ledger = make(steps(20))
    for _ in range(3):
        ledger.reserve("net", 5)
    ledger.reserve("net", 2)
    for taken in (1, 5, 0):
        ledger.confirm("net", 5, taken)
    ledger.confirm("net", 2, 2)
    assert ledger.steps_used("net") == 8


def test_more_steps_may_be_charged(make):
    ledger = make(steps(4))
    assert ledger.reserve("net", 4) == 0
    ledger.charge([steps(3)])
    assert ledger.reserve("net", 3) == 4


def test_threads_reserve_what_there_is(make):
    """Eight threads want 30 steps of 100, one by one, and run half.

    A thread is refused only while 100 are out, of which the seven others
    give back one each: 93 stay taken, whoever comes first.
    """
    ledger = make(steps(100))
    had = []

    def take():
        for number in range(30):
            with contextlib.suppress(BudgetExceededError):
                had.append(ledger.reserve("net", 1))
                if number % 2:
                    had.pop()
                    ledger.confirm("net", 1, 0)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = ledger.steps_used("net")
    assert len(had) == used
    assert 93 <= used <= 100
    for taken in range(used, 100):
        assert ledger.reserve("net", 1) == taken
    with pytest.raises(BudgetExceededError):
        ledger.reserve("net", 1)


# Copies ----------------------------------------------------------------------


def test_a_copy_has_the_same_steps(make):
    """Steps of one payment ran once for each copy of the ledger."""
    ledger = make(steps(10))
    ledger.reserve("net", 6)
    for other in (
        copy.copy(ledger),
        copy.deepcopy(ledger),
        pickle.loads(pickle.dumps(ledger)),
        Ledger.from_json(ledger.to_json()),
    ):
        assert other.steps_left("net") == ledger.steps_left("net") == 4
        with pytest.raises(BudgetExceededError):
            other.reserve("net", 5)
    # The process made the reservation, whichever object did.
    Ledger.from_json(ledger.to_json()).confirm("net", 6, 1)
    assert ledger.steps_left("net") == 9


def test_an_older_text_gives_no_steps_back():
    ledger = new(steps(10))
    before = ledger.to_json()
    ledger.reserve("net", 10)
    assert Ledger.from_json(before).steps_left("net") == 0


WAYS = {
    "from_json": "Ledger.from_json(open(arguments[0]).read())",
    "load": "Ledger.load(arguments[0])",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_text_in_another_process_has_no_steps(tmp_path, way):
    """It cannot know what the process that charged them does with them."""
    path = tmp_path / "copy.json"
    ledger = new(steps(10))
    ledger.reserve("net", 4)
    ledger.save(path)
    said = core_process.run(
        f"ledger = {WAYS[way]}\n"
        "say(ledger.steps_left('net'), ledger.steps_used('net'))\n"
        "try:\n"
        "    ledger.reserve('net', 1)\n"
        "except BudgetExceededError as e:\n"
        "    say(str(e))\n"
        # What it charges itself it may use.
        "ledger.charge([steps(5)])\n"
        "say(ledger.steps_left('net'), ledger.reserve('net', 2))\n"
        "ledger.confirm('net', 2, 1)\n"
        "say(ledger.steps_left('net'), ledger.steps_used('net'))\n"
        "say(json.loads(ledger.to_json())['progress'])",
        path,
    )
    assert said[0] == [0, 4]
    assert "known from a text only" in said[1][0]
    assert said[2:] == [[5, 10], [4, 5], [{"net": 11}]]


def test_a_text_that_comes_back_brings_no_steps():
    """The other process charged them, and may use them."""
    ledger = new(steps(10))
    ledger.reserve("net", 2)
    ((text,),) = core_process.run(
        "ledger = Ledger.from_json(arguments[0])\n"
        "ledger.charge([steps(5)])\n"
        "say(ledger.to_json())",
        ledger.to_json(),
    )
    found = Ledger.from_json(text)
    assert found.steps_left("net") == ledger.steps_left("net") == 8
    assert ledger.reserve("net", 8) == 7
    with pytest.raises(BudgetExceededError):
        ledger.reserve("net", 1)


def test_a_forked_process_leaves_the_steps_to_its_parent(tmp_path):
    """A fork copies what is in memory; a file is one for both."""
    said = core_process.run(
        "budget = PrivacyBudget(5.0, 1e-5)\n"
        "new = {'neighbours': 'add_remove'}\n"
        "memory = Ledger(budget, **new)\n"
        "file = Ledger.open(arguments[0], budget=budget, **new)\n"
        "for ledger in (memory, file):\n"
        "    ledger.charge([steps(10)])\n"
        "    ledger.reserve('net', 4)\n"
        "if not (child := os.fork()):\n"
        "    say(memory.steps_left('net'), file.steps_left('net'))\n"
        "    for ledger in (memory, file):\n"
        "        try:\n"
        "            ledger.confirm('net', 4, 0)\n"
        "        except ValueError as e:\n"
        "            say(str(e))\n"
        "    say(file.reserve('net', 3))\n"
        "    file.confirm('net', 3, 1)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "for ledger in (memory, file):\n"
        "    ledger.confirm('net', 4, 3)\n"
        "say(memory.steps_left('net'), file.steps_left('net'))\n",
        tmp_path / "privacy.json",
    )
    assert said[0] == [0, 6]
    assert all("a reservation of this process" in s for (s,) in said[1:3])
    assert said[3:] == [[4], [7, 6]]


# In a file -------------------------------------------------------------------


def test_a_file_is_gone_on_with_by_whoever_opens_it(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = begin(path, steps(10))
    ledger.reserve("net", 4)
    said = core_process.run(
        "ledger = Ledger.open(arguments[0])\n"
        "say(ledger.steps_left('net'), ledger.reserve('net', 5))\n"
        "ledger.confirm('net', 5, 2)\n"
        "say(ledger.steps_left('net'))",
        path,
    )
    assert said == [[6, 4], [4]]
    # What another gave back is no loss.
    assert ledger.steps_left("net") == 4
    ledger.confirm("net", 4, 1)
    assert ledger.steps_left("net") == 7 and progress(path) == {"net": 3}


def test_a_crash_leaves_the_reserved_steps_used(tmp_path):
    path = tmp_path / "privacy.json"
    core_process.run(
        "ledger = Ledger.open(arguments[0], budget=PrivacyBudget(5.0, 1e-5),\n"
        "                     neighbours='add_remove')\n"
        "ledger.charge([steps(10)])\n"
        "ledger.reserve('net', 6)\n"
        "os._exit(0)",
        path,
    )
    ledger = Ledger.open(path)
    assert ledger.steps_left("net") == 4
    with pytest.raises(ValueError, match="a reservation of this process"):
        ledger.confirm("net", 6, 0)
    assert ledger.reserve("net", 4) == 6


def test_processes_reserve_what_there_is(tmp_path):
    """Three processes want 25 steps each, of 60, and run what they get."""
    path = tmp_path / "privacy.json"
    begin(path, steps(60))
    code = (
        "ledger, ran = Ledger.open(arguments[0]), 0\n"
        "for _ in range(5):\n"
        "    try:\n"
        "        ledger.reserve('net', 5)\n"
        "        ledger.confirm('net', 5, 4)\n"
        "        ran += 4\n"
        "    except BudgetExceededError:\n"
        "        pass\n"
        "say(ran)"
    )
    said = core_process.run_all(code, path, count=3)
    ran = sum(count for ((count,),) in said)
    assert ran == 60 - Ledger.open(path).steps_left("net") >= 56


@pytest.mark.parametrize("turned", ["reserved", "given back"])
def test_an_older_copy_with_less_progress_is_refused(tmp_path, turned):
    """A file that was turned back gave its steps a second run."""
    path = tmp_path / "privacy.json"
    ledger = begin(path, steps(10))
    ledger.reserve("net", 4)
    older = path.read_text()
    if turned == "reserved":
        ledger.reserve("net", 3)
    else:
        ledger.confirm("net", 4, 1)
    newest = path.read_text()
    path.write_text(older)
    for use in (
        ledger.reload,
        lambda: ledger.steps_left("net"),
        lambda: ledger.reserve("net", 1),
        lambda: ledger.charge([once()]),
        lambda: Ledger.open(path),
    ):
        with pytest.raises(ValueError, match="lost or changed"):
            use()
    assert path.read_text() == older
    path.write_text(newest)
    assert ledger.steps_left("net") == (3 if turned == "reserved" else 9)


def test_progress_falls_by_nothing_but_what_is_given_back(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = begin(path, steps(10))
    ledger.reserve("net", 6)
    data = json.loads(path.read_text())
    for change in ({"progress": {"net": 5}}, {"progress": {}}):
        path.write_text(json.dumps({**data, **change}))
        with pytest.raises(ValueError, match="lost or changed"):
            ledger.reload()
    # As if another process had reserved four and given back six.
    path.write_text(
        json.dumps({**data, "progress": {"net": 4}, "given_back": {"net": 6}})
    )
    assert ledger.steps_left("net") == 6


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_what_was_not_written_was_not_reserved(tmp_path, monkeypatch, step):
    path = tmp_path / "privacy.json"
    ledger = begin(path, steps(10))

    def fail(*args):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(locked_file.os, step, fail)
        with pytest.raises(OSError, match="full"):
            ledger.reserve("net", 4)
    assert ledger.steps_left("net") == 10 and progress(path) == {}
    with pytest.raises(ValueError, match="a reservation of this process"):
        ledger.confirm("net", 4, 0)


@pytest.mark.parametrize("use", ["reserve", "confirm"])
def test_what_may_be_on_disk_is_not_given_back_twice(
    tmp_path, monkeypatch, use
):
    """Renamed, then the folder could not be synchronised."""
    path = tmp_path / "privacy.json"
    ledger = begin(path, steps(10))
    ledger.reserve("net", 3)

    def fail(folder):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(locked_file, "_sync_folder", fail)
        with pytest.raises(OSError, match="gone"):
            if use == "reserve":
                ledger.reserve("net", 4)
            else:
                ledger.confirm("net", 3, 1)
    left = 3 if use == "reserve" else 9
    assert ledger.steps_left("net") == left
    with pytest.raises(ValueError, match="a reservation of this process"):
        ledger.confirm("net", 4 if use == "reserve" else 3, 1)
    assert ledger.steps_left("net") == left


FAULT = """
import signal, sys
path, number, fault, use = arguments
ledger = Ledger.open(path)
ledger.reserve("net", 3)
left = int(number)

def trace(frame, event, argument):
    global left
    if "/keras_fm/" not in frame.f_code.co_filename:
        return None
    if event == "line":
        left -= 1
        if not left:
            sys.settrace(None)
            if fault == "kill":
                os._exit(0)
            raise KeyboardInterrupt
    return trace

def do():
    if use == "reserve":
        ledger.reserve("net", 4)
    else:
        ledger.confirm("net", 3, 1)

done = False
sys.settrace(trace)
try:
    do()
    done = True
except KeyboardInterrupt:
    pass
sys.settrace(None)
say("done", done, left)
# Once more, as a caller would that was interrupted.
again = False
try:
    do()
    again = True
except ValueError:
    pass
say("again", again, ledger.steps_used("net"))
"""


@pytest.mark.parametrize("fault", ["kill", "interrupt"])
@pytest.mark.parametrize("use", ["reserve", "confirm"])
def test_a_fault_between_any_two_lines(tmp_path, use, fault):
    """Steps that may run are reserved on disk, and what is given back is
    given back once."""
    path, seen = tmp_path / "privacy.json", set()
    for number in range(1, 10_000, 11):
        for name in ("privacy.json", "privacy.json.lock"):
            (tmp_path / name).unlink(missing_ok=True)
        path.write_text(unknown(new(steps(20)).to_json(), number))
        said = core_process.run(FAULT, path, str(number), fault, use)
        used = progress(path)["net"]
        seen.add((used, bool(said and said[0][1])))
        if fault == "kill" and not said:
            assert used in ((3, 7) if use == "reserve" else (3, 1))
        elif use == "reserve":
            (_, done, _), (_, again, known) = said
            # Each that returned, and perhaps one that was interrupted.
            assert again and 7 + 4 * done <= used == known <= 11
        else:
            (_, done, _), (_, again, known) = said
            assert not (done and again) and used == known
            assert used == 1 if done or again else used in (1, 3)
        if said and said[0][2] > 0:
            break
    assert len(seen) > 1


def test_a_ledger_takes_its_steps_into_a_file(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = new(steps(10))
    ledger.reserve("net", 4)
    ledger.save(path)
    ledger.reserve("net", 3)
    opened = Ledger.open(path)
    assert opened.steps_left("net") == 3 and progress(path) == {"net": 7}
    ledger.confirm("net", 3, 0)
    ledger.confirm("net", 4, 4)
    assert opened.steps_left("net") == 6 and progress(path) == {"net": 4}


def test_a_text_becomes_the_file_when_it_is_opened(tmp_path):
    """A model carries an older text of the ledger: its steps count as used
    until the file, which knows better, is opened."""
    path = tmp_path / "privacy.json"
    begin(path, steps(10)).reserve("net", 4)
    said = core_process.run(
        "text = open(arguments[0]).read()\n"
        "ledger = Ledger.from_json(text)\n"
        "say(ledger.steps_left('net'))\n"
        "say(Ledger.open(arguments[0]).steps_left('net'), ledger.path)\n"
        "say(ledger.reserve('net', 6))",
        path,
    )
    assert said == [[0], [6, str(path)], [4]]


def test_what_a_copy_charged_and_used_stays_used_in_the_file(tmp_path):
    """In memory, on top of a text; then the file of the ledger is opened."""
    path = tmp_path / "privacy.json"
    begin(path, steps(10)).reserve("net", 4)
    code = (
        "ledger = Ledger.from_json(open(arguments[0]).read())\n"
        "ledger.charge([steps(5)])\n"
        "ledger.reserve('net', 3)\n"
        "{}"
        "opened = Ledger.open(arguments[0])\n"
        "say(opened.steps_left('net'), opened.steps_used('net'))"
    )
    # Of the file's 10 steps 6 are left, of the 5 charged here 2.
    assert core_process.run(code.format(""), path) == [[8, 7]]
    # Saved in between, nothing tells whose steps the file counts.
    other = tmp_path / "other.json"
    begin(other, steps(10)).reserve("net", 4)
    saved = "ledger.save(arguments[0])\n"
    assert core_process.run(code.format(saved), other) == [[2, 13]]


def test_a_copy_that_is_saved_has_no_steps_to_give(tmp_path):
    """A text, saved again where it lives in no file, was a way to all of the
    steps."""
    path = tmp_path / "copy.json"
    ledger = new(steps(10))
    said = core_process.run(
        "ledger = Ledger.from_json(arguments[0])\n"
        "ledger.save(arguments[1])\n"
        "say(Ledger.load(arguments[1]).steps_left('net'))",
        ledger.to_json(),
        path,
    )
    assert said == [[0]] and progress(path) == {"net": 10}
    code = "say(Ledger.open(arguments[0]).steps_left('net'))"
    assert core_process.run(code, path) == [[0]]


def test_a_copy_saved_over_the_file_keeps_its_progress(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = begin(path, steps(10))
    ledger.reserve("net", 6)
    ledger.confirm("net", 6, 4)
    text = ledger.to_json()
    core_process.run(
        "ledger = Ledger.from_json(arguments[0])\n"
        "ledger.charge([entry()])\n"
        "ledger.save(arguments[1])",
        text,
        path,
    )
    ledger.reload()
    assert len(ledger.entries) == 2 and ledger.steps_left("net") == 0
    # The ledger itself saves where it lives, and loses nothing either.
    ledger.save(path)
    assert ledger.steps_left("net") == 0


# Files of before -------------------------------------------------------------


def test_steps_of_an_old_file_are_used(tmp_path):
    """It does not say how many of them ran."""
    path = tmp_path / "privacy.json"
    path.write_text(old(new(steps(10), once())))
    ledger = Ledger.open(path)
    assert ledger.steps_left("net") == 0 and progress(path) == {"net": 10}
    with pytest.raises(BudgetExceededError, match="before steps were counted"):
        ledger.reserve("net", 1)
    assert "steps:     10 paid, 10 used or reserved" in ledger.statement()
    ledger.charge([steps(3)])
    assert ledger.reserve("net", 3) == 10
    # It is no old file any more.
    said = core_process.run(
        "say(Ledger.open(arguments[0]).steps_left('net'))", path
    )
    assert said == [[0]]
    assert Ledger.from_json(old(new(steps(10)))).steps_left("net") == 0


def test_an_older_version_that_writes_the_file_uses_the_steps(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = begin(path, steps(10))
    ledger.reserve("net", 6)
    ledger.confirm("net", 6, 4)
    path.write_text(old(ledger))
    assert ledger.steps_left("net") == 0
    ledger.charge([steps(2)])
    assert progress(path) == {"net": 10} and ledger.steps_left("net") == 2


def test_a_ledger_without_steps_reads_and_writes_no_progress(make):
    ledger = make(once())
    assert not {"progress", "given_back"} & set(json.loads(ledger.to_json()))
    assert "steps:" not in ledger.statement()


@pytest.mark.parametrize("key", ["progress", "given_back"])
@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        7,
        {"net": -1},
        {"net": 1.0},
        {"net": True},
        {"net": "1"},
        {"net": 10**400},
        {"head": 1},
        {"unknown": 1},
    ],
)
def test_progress_that_is_none_is_refused(key, value):
    text = new(steps(10), once()).to_json()
    data = {**json.loads(text), "id": "2" * 32, key: value}
    with pytest.raises(ValueError, match="not a keras_fm ledger"):
        Ledger.from_json(json.dumps(data))


def test_progress_beyond_what_was_paid_is_refused():
    data = {**json.loads(new(steps(10)).to_json()), "id": "3" * 32}
    with pytest.raises(ValueError, match="11 steps of 10"):
        Ledger.from_json(json.dumps({**data, "progress": {"net": 11}}))


# Statement -------------------------------------------------------------------


def test_the_statement_says_what_became_of_the_steps(make):
    ledger = make(steps(10), once(), steps(5), claimed(4), steps(7, "other"))
    ledger.reserve(steps(1), 12)
    ledger.reserve(claimed(1), 1)
    lines = [line for line in ledger.statement().splitlines() if "paid" in line]
    # Of entries whose steps are the same the first are used first.
    assert lines == [
        "    steps:     10 paid, 10 used or reserved",
        "    steps:     5 paid, 2 used or reserved",
        "    steps:     4 paid, 1 used or reserved",
        "    steps:     7 paid, 0 used or reserved",
    ]


def test_the_statement_of_a_copy_says_what_its_text_says(tmp_path):
    """All steps count as used there, and no line claims that they are."""
    path = tmp_path / "privacy.json"
    begin(path, steps(10)).reserve("net", 4)
    ((text, left),) = core_process.run(
        "ledger = Ledger.load(arguments[0])\n"
        "say(ledger.statement(), ledger.steps_left('net'))",
        path,
    )
    assert "10 paid, 4 used or reserved" in text and left == 0


# Of one name, with other noise or samples ------------------------------------


def unlike(count, name="net", **changes):
    mechanism = {**steps(count).mechanism, "noise_multiplier": 40.0, **changes}
    return steps(count, name, mechanism=mechanism)


OTHERS = {
    "noise": unlike(3),
    "rate": unlike(3, noise_multiplier=50.0, sampling_rate=0.001),
    "sensitivity": unlike(3, noise_multiplier=50.0, sensitivity=0.5),
    "samples that are known": steps(3, private=False),
    "claimed": claimed(3),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_steps_are_not_taken_for_others_of_their_name(make, kind):
    other = OTHERS[kind]
    ledger = make(steps(100), other)
    assert ledger.steps_left("net") == 103
    assert ledger.steps_left(other) == 3
    with pytest.raises(BudgetExceededError, match="3 are left"):
        ledger.reserve(other, 4)
    # Which are meant is not guessed.
    with pytest.raises(ValueError, match="say which are meant"):
        ledger.reserve("net", 1)
    ledger.reserve(other, 3)
    with pytest.raises(ValueError, match="say which are meant"):
        ledger.confirm("net", 3, 1)
    # What is given back is of its own kind.
    ledger.reserve(steps(1), 3)
    ledger.confirm(other, 3, 0)
    assert ledger.steps_left(other) == 3
    assert ledger.steps_left(steps(1)) == 97


def test_steps_that_were_never_paid_for_are_not_left(make):
    ledger = make(steps(100))
    assert ledger.steps_left(unlike(1)) == 0
    with pytest.raises(BudgetExceededError, match="0 are left"):
        ledger.reserve(unlike(1), 1)
    assert ledger.steps_left("net") == 100


def test_a_bound_on_overflows_makes_no_other_steps(make):
    """It grows with the number of steps, so entries hold different ones."""
    spread = unlike(5, noise_multiplier=50.0, overflow_probability=1e-9)
    ledger = make(steps(100), spread)
    ledger.reserve("net", 105)
    assert ledger.steps_left(spread) == 0


def test_a_file_knows_which_steps_are_used(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = begin(path, steps(100), unlike(10))
    assert json.loads(path.read_text())["format"] == 2
    ledger.reserve(unlike(1), 7)
    left = core_process.run(
        "from keras_fm.kernel.ledger.ledger_entry import LedgerEntry\n"
        "ledger = Ledger.open(arguments[0])\n"
        "say(*(ledger.steps_left(e) for e in ledger.entries))",
        path,
    )
    assert left == [[100, 3]]


def test_one_kind_of_steps_is_what_older_versions_read(tmp_path):
    path = tmp_path / "privacy.json"
    begin(path, steps(100), unlike(10, "other")).reserve("other", 2)
    data = json.loads(path.read_text())
    assert data["format"] == 1 and data["progress"] == {"other": 2}


def test_of_an_older_file_steps_of_several_kinds_are_used(tmp_path):
    """They were counted by name, whatever their noise."""
    path = tmp_path / "privacy.json"
    begin(path, steps(100), unlike(10), steps(4, "other"))
    data = json.loads(path.read_text())
    data |= {"format": 1, "progress": {"net": 105}, "given_back": {"net": 2}}
    path.write_text(json.dumps(data))
    left = core_process.run(
        "ledger = Ledger.open(arguments[0])\n"
        "say(*(ledger.steps_left(e) for e in ledger.entries))",
        path,
    )
    assert left == [[0, 0, 4]]
