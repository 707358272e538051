"""A release that fails anywhere: nothing is forgotten, nothing spent twice.

The large form of these tests is benchmarks/faults.py.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import faulty_releases
import pytest

pytestmark = [
    pytest.mark.skipif(
        not hasattr(os, "fork"), reason="faults are made in forked processes"
    ),
    pytest.mark.full,
    pytest.mark.backend,
    pytest.mark.optimised,
]
# Coprime to the length of every loop on the way.
STRIDE = 23


@pytest.fixture(scope="module")
def release():
    with faulty_releases.Releases() as found:
        yield found


@pytest.fixture
def folder(tmp_path):
    """In memory where that can be had: a killed process loses nothing that
    it gave to the kernel, and synchronising a disk takes most of the time."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as found:
        yield Path(found)


@pytest.fixture(scope="module")
def lines(release, tmp_path_factory):
    """How many lines a whole release executes."""
    path = tmp_path_factory.mktemp("whole") / "privacy.json"
    (found,) = release(path)
    assert found["released"] == 1 and found["drawn"] and not found["error"]
    return found["lines"]


def check_after(path, found, release):
    """What must hold after a fault, and after the restart that follows."""
    spent = faulty_releases.state(path)
    # No noise without an entry, and one entry at most.
    assert spent in ((1,) if found["drawn"] else (0, 1)), found
    (again,) = release(path)
    assert faulty_releases.state(path) == 1
    if spent:
        assert again["error"] == "BudgetExceededError" and not again["drawn"]
        assert "Charged before" in again["text"]
    else:
        assert again["released"] == 1
    return spent


@pytest.mark.parametrize("fault", ["kill", "interrupt"])
def test_a_fault_between_any_two_lines(release, lines, folder, fault):
    seen = set()
    for line in range(1, lines + 1, STRIDE):
        path = folder / f"{line}.json"
        (found,) = release(path, line=line, fault=fault)
        if fault == "kill":
            assert found["signal"] == 9
        else:
            assert found["error"] == "KeyboardInterrupt"
        seen.add((check_after(path, found, release), found["drawn"]))
    # Before the charge, between charge and noise, and after it.
    assert {(0, False), (1, True)} <= seen


def test_a_kill_at_every_line_about_the_charge(release, lines, folder):
    """Every line from the last without an entry to the first with noise."""

    def entry_at(line):
        path = folder / f"search {line}.json"
        release(path, line=line, fault="kill")
        return faulty_releases.state(path)

    low, high = lines // 2, lines
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if entry_at(middle) else (middle, high)
    drawn = []
    for line in range(max(1, high - 12), high + 13):
        path = folder / f"{line}.json"
        (found,) = release(path, line=line, fault="kill")
        assert check_after(path, found, release) == (line >= high)
        drawn.append(found["drawn"])
    assert not drawn[0]


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO", "EROFS"])
def test_a_failing_disk(release, folder, fault):
    """Every call in turn fails: an error, and no noise without an entry."""
    for call in range(1, 50):
        path = folder / f"{call}.json"
        (found,) = release(path, call=call, fault=fault)
        if found["released"]:
            break
        assert found["error"] in ("OSError", "PermissionError"), found
        assert not found["drawn"]
        check_after(path, found, release)
    assert call > 15


@pytest.mark.parametrize("size", [0, 10, 150, 400])
def test_a_limit_on_what_can_be_written(release, folder, size):
    path = folder / "privacy.json"
    (found,) = release(path, file_size=size)
    assert found["error"] == "OSError" and not found["drawn"]
    assert check_after(path, found, release) == 0


def test_a_disk_that_is_full(release):
    """A file system of its own, of a few pages; needs rights to mount."""
    mounted = tempfile.mkdtemp()
    script = (
        'mount -t tmpfs -o size=16k tmpfs "$0" && '
        '(dd if=/dev/zero of="$0/fill" bs=1k count=64; "$@")'
    )
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import faulty_releases as f\n"
        "with f.Releases() as release:\n"
        "    (found,) = release(sys.argv[2])\n"
        "print('FOUND', found['error'], found['drawn'], found['text'])\n"
    )
    try:
        done = subprocess.run(
            [
                *("unshare", "-m", "sh", "-c", script, mounted),
                *(faulty_releases.sys.executable, "-c", code),
                os.path.dirname(faulty_releases.__file__),
                os.path.join(mounted, "privacy.json"),
            ],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("no `unshare` here")
    finally:
        shutil.rmtree(mounted)
    if "FOUND" not in done.stdout:
        pytest.skip("mounting is not allowed here")
    assert "FOUND OSError False" in done.stdout, done.stdout
    assert "No space left" in done.stdout


@pytest.fixture
def read_only():
    """A folder with a ledger that its reader cannot write."""
    folder = tempfile.mkdtemp()
    yield folder
    os.chmod(folder, 0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("begun", [False, True])
def test_a_folder_that_cannot_be_written(release, read_only, begun):
    path = os.path.join(read_only, "privacy.json")
    if begun:
        release(path, count=0)
        os.chmod(path, 0o644)
    os.chmod(read_only, 0o555)
    user = faulty_releases.NOBODY if os.getuid() == 0 else None
    (found,) = release(path, user=user)
    assert found["error"] == "PermissionError" and not found["drawn"]
    assert faulty_releases.state(path) == 0


def test_processes_on_one_file_take_turns(release, folder):
    """Eight want eleven shares of one tenth each: ten are had, no more."""
    path = folder / "privacy.json"
    found = release(path, processes=8, count=11, epsilon=0.1)
    assert sum(f["released"] for f in found) == 10
    assert faulty_releases.state(path) == 10
    assert all(f["error"] == "BudgetExceededError" for f in found)


def test_a_killed_process_leaves_the_lock_to_the_others(release, lines, folder):
    path = folder / "privacy.json"
    for line in (lines // 4, lines // 2, 3 * lines // 4, 7 * lines // 8):
        before = faulty_releases.state(path)
        found = release(
            path, processes=3, line=line, fault="kill", epsilon=0.05
        )
        assert all(f["signal"] == 9 for f in found)
        after = faulty_releases.state(path)
        assert sum(f["drawn"] for f in found) <= after - before <= 3
    before = faulty_releases.state(path)
    (found,) = release(path, epsilon=0.05)
    assert found["released"] == 1
    assert faulty_releases.state(path) == before + 1
