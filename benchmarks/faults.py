"""How many faults a release survives: kills at every line, failing calls,
kills at random times of a fit, and processes that share a ledger.

    python benchmarks/faults.py --fits 300

After each fault the ledger must be whole, hold an entry for all noise that
was asked for and no entry twice; the run that follows must be refused, go on
from a backup without a new draw, or (nothing spent) release.
"""

import argparse
import collections
import contextlib
import json
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from results_file import ResultsFile

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "trust"))
import faulty_releases  # noqa: E402

ERRNOS = ("ENOSPC", "EIO", "EDQUOT", "EROFS")


class Counter:
    """Counts faults and what came of them; anything lost ends the run."""

    def __init__(self):
        self.outcomes = collections.Counter()

    def add(self, drawn, before, spent, after, again):
        """Checks one fault.

        Args:
            drawn: whether noise was asked for in the run with the fault.
            before, spent, after: entries before it, after it, and after the
                run that followed.
            again: what that run did.
        """
        ok = {
            "refused": spent > before and after == spent,
            "went on": spent > before and after == spent,
            "released": spent == before and after == spent + 1,
        }[again]
        if not ok or spent - before not in ((1,) if drawn else (0, 1)):
            raise AssertionError((drawn, before, spent, after, again))
        where = (
            "after noise"
            if drawn
            else "between charge and noise"
            if spent > before
            else "before the charge"
        )
        self.outcomes[f"{where}, then {again}"] += 1


def releases(folder, every):
    """Kills and interruptions before every line, failing system calls."""
    found = {}
    with faulty_releases.Releases() as release:

        def follow(counter, path, first):
            spent = faulty_releases.state(path)
            (again,) = release(path)
            counter.add(
                first["drawn"],
                0,
                spent,
                faulty_releases.state(path),
                "released" if again["released"] else "refused",
            )

        (whole,) = release(folder / "whole.json")
        for fault in ("kill", "interrupt"):
            counter = found[f"{fault} before a line"] = Counter()
            for line in range(1, whole["lines"] + 1, every):
                path = folder / f"{fault} {line}.json"
                (first,) = release(path, line=line, fault=fault)
                follow(counter, path, first)
        for name in ERRNOS:
            counter = found[f"{name} at a call"] = Counter()
            for call in range(1, 100):
                path = folder / f"{name} {call}.json"
                (first,) = release(path, call=call, fault=name)
                if first["released"]:
                    break
                follow(counter, path, first)
        counter = found["write limit"] = Counter()
        for size in range(0, 600, 20):
            path = folder / f"size {size}.json"
            (first,) = release(path, file_size=size)
            if not first["released"]:
                follow(counter, path, first)
    return found


def shared(folder, rounds):
    """Eight processes on one file, some killed; returns charges."""
    wanted = 0
    with faulty_releases.Releases() as release:
        (whole,) = release(folder / "once.json", epsilon=0.001)
        for number in range(rounds):
            path = folder / f"shared {number}.json"
            drawn = 0
            for line in random.sample(range(1, whole["lines"]), 4):
                ended = release(
                    path, processes=8, line=line, fault="kill", epsilon=0.001
                )
                drawn += sum(e["drawn"] for e in ended)
            spent = faulty_releases.state(path)
            assert drawn <= spent <= 32, (drawn, spent)
            ended = release(path, processes=8, count=2000, epsilon=0.01)
            had = sum(e["released"] for e in ended)
            # All that is left was had, and no more.
            left = int((1 - 0.001 * spent) / 0.01 + 1e-9)
            assert had == left and all(
                e["error"] == "BudgetExceededError" for e in ended
            ), (had, left)
            assert faulty_releases.state(path) == spent + had
            wanted += spent + had
    return wanted


# Fits ------------------------------------------------------------------------


def fit(folder, mark):
    """A small fit with a ledger file, a backup and checkpoints."""
    import keras
    import numpy as np

    import keras_fm as fm
    from keras_fm.kernel import mechanisms

    original = mechanisms.Mechanism.perturb

    def perturb(self, *arguments, **keywords):
        mark[0] = 1
        return original(self, *arguments, **keywords)

    mechanisms.Mechanism.perturb = perturb
    y = np.arange(300) % 3
    x = np.random.default_rng(0).random((300, 8)).astype("float32")
    inputs = keras.Input((8,))
    h = fm.layers.NormalizationLayer()(inputs)
    model = keras.Model(inputs, fm.layers.PrivateDense(3, name="head")(h))
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(
        epsilon=1.0,
        delta=1e-5,
        data=(x, y),
        ledger=folder / "privacy.json",
    )
    model.fit(
        x,
        y,
        epochs=4,
        verbose=0,
        callbacks=[
            keras.callbacks.BackupAndRestore(str(folder / "backup")),
            private,
            keras.callbacks.ModelCheckpoint(str(folder / "model.keras")),
        ],
    )


def run(folder, mark):
    """Starts a fit in a process of its own."""
    process = os.fork()
    if process:
        return process
    code = 1
    with contextlib.suppress(BaseException):
        with open(folder / "errors", "a") as f:
            os.dup2(f.fileno(), 1)
            os.dup2(f.fileno(), 2)
        try:
            fit(folder, mark)
            code = 0
        except Exception as e:
            if type(e).__name__ == "BudgetExceededError":
                code = 3
            elif (
                isinstance(e, (OSError, json.JSONDecodeError))
                and (folder / "backup").exists()
            ):
                # A backup that was cut off while Keras wrote it.
                code = 4
            else:
                import traceback

                traceback.print_exc()
    os._exit(code)


def fits(folder, count, minutes):
    """Fits that are killed at random times, and the runs that follow."""
    import keras
    import numpy  # noqa: F401

    import keras_fm  # noqa: F401

    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)
    mark = mmap.mmap(-1, 1)
    counter = Counter()

    def begin(name):
        made = folder / name
        made.mkdir()
        mark[0] = 0
        return made, time.monotonic()

    durations = []
    for number in range(3):
        made, start = begin(f"whole {number}")
        assert os.waitpid(run(made, mark), 0)[1] == 0, (
            made / "errors"
        ).read_text()
        durations.append(time.monotonic() - start)
    whole = min(durations)
    killed, end = 0, time.monotonic() + 60 * minutes
    for number in range(count):
        if time.monotonic() > end:
            break
        made, _ = begin(f"fit {number}")
        process = run(made, mark)
        time.sleep(random.uniform(0, whole))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if not os.WIFSIGNALED(status):
            continue  # it was over
        killed += 1
        drawn = bool(mark[0])
        spent = faulty_releases.state(made / "privacy.json")
        mark[0] = 0
        _, ended = os.waitpid(run(made, mark), 0)
        code = os.waitstatus_to_exitcode(ended)
        broken = code == 4
        if broken:
            shutil.rmtree(made / "backup")
            _, ended = os.waitpid(run(made, mark), 0)
            code = os.waitstatus_to_exitcode(ended)
        after = faulty_releases.state(made / "privacy.json")
        again = {0: "went on", 3: "refused"}.get(code)
        if again is None:
            raise AssertionError((made / "errors").read_text())
        if mark[0]:
            again = "released"
        counter.add(drawn, 0, spent, after, again)
        counter.outcomes["of these, backups that Keras cut off"] += broken
    return counter, killed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=int, default=300)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only-fits", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="docs/results")
    options = parser.parse_args()
    random.seed(options.seed)
    results = ResultsFile(options.out, "trust", ("what",))

    def add(what, **row):
        results.rows = [r for r in results.rows if r["what"] != what]
        results.add((what,), None, **row)

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        if not options.only_fits:
            for what, counter in releases(folder, options.every).items():
                add(
                    what,
                    faults=sum(counter.outcomes.values()),
                    lost=0,
                    outcomes=dict(counter.outcomes),
                )
            charges = shared(folder, options.rounds)
            add(
                "eight processes on one ledger, four times all killed",
                faults=32 * options.rounds,
                lost=0,
                outcomes={"charges": charges},
            )
        if options.fits:
            counter, killed = fits(folder, options.fits, options.minutes)
            add(
                "kill at a random time of a fit",
                faults=killed,
                lost=0,
                outcomes=dict(counter.outcomes),
            )
    print(json.dumps(results.rows, indent=1))


if __name__ == "__main__":
    main()
