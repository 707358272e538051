"""Releases in processes of their own that are made to fail on the way.

Run as a script it reads orders, JSON objects on lines, and answers each: it
forks, so that only the first release pays for imports. The core is imported
without the package's layers: no release needs Keras.
"""

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Where a fault can strike: between any two lines of these.
FILES = (
    "ledger.py",
    "ledger_text.py",
    "locked_file.py",
    "release.py",
    "compose.py",
    "known_mechanisms.py",
    "noise_mechanisms.py",
)
NOBODY = 65534
_CALLS = ("open", "fdopen", "chmod", "fsync", "replace", "unlink")


class Releases:
    """The script as a context manager: `with Releases() as release`."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *error):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __call__(self, path, **order):
        """One release that is charged to the ledger file at `path`.

        Args:
            path: the file.
            epsilon, budget: floats, what it costs and what there is.
            count: int, so many releases, one after the other.
            line: `None`, or which executed line of `FILES` the fault strikes
                before.
            fault: `"kill"`, `"interrupt"`; or with `call`, the name of an
                `errno`.
            call: `None`, or which call to the operating system, of those of
                `_CALLS`, fails.
            file_size: `None`, or a limit on what can be written, in bytes.
            user: `None`, or the id of the user that releases.
            processes: int, so many at the same time.

        Returns:
            list of dicts: `signal` that ended the process or 0, `drawn`
            whether noise was asked for, `released` how many, `lines`
            executed, `error` and `text` of what was raised.
        """
        self._process.stdin.write(json.dumps({"path": str(path), **order}))
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def state(path):
    """Number of entries in a ledger file that must be whole, or 0."""
    with contextlib.suppress(FileNotFoundError):
        with open(path) as f:
            return len(json.load(f)["entries"])
    return 0


# In the process of the release ----------------------------------------------


def import_core():
    """Imports `keras_fm` without its `__init__`, which imports Keras."""
    package = types.ModuleType("keras_fm")
    package.__path__ = [str(ROOT / "keras_fm")]
    sys.modules["keras_fm"] = package


class _Tracer:
    """Strikes before a line, and counts lines."""

    def __init__(self, line, fault):
        self.left, self.count, self.fault = line, 0, fault

    def __call__(self, frame, event, argument):
        path = frame.f_code.co_filename
        if not path.startswith(f"{ROOT}/keras_fm/"):
            return None
        if os.path.basename(path) not in FILES:
            return None
        if event == "line":
            self.count += 1
            if self.count == self.left:
                if self.fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


class _Calls:
    """Makes one call to the operating system fail."""

    def __init__(self, which, fault):
        self.left, self.number = which, getattr(errno, fault)

    def wrap(self, original):
        def call(*arguments, **keywords):
            self.left -= 1
            if self.left == 0:
                raise OSError(self.number, os.strerror(self.number))
            return original(*arguments, **keywords)

        return call


def _release(order, tell):
    """A release under the faults of an order."""
    from keras_fm.kernel import mechanisms
    from keras_fm.kernel.ledger import locked_file

    original = mechanisms.Mechanism.perturb

    def perturb(self, *arguments, **keywords):
        tell("drawn", True)
        return original(self, *arguments, **keywords)

    mechanisms.Mechanism.perturb = perturb
    if order.get("user") is not None:
        os.setuid(order["user"])
    if order.get("file_size") is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_size"],) * 2)
    if order.get("call"):
        calls = _Calls(order["call"], order["fault"])
        fake = types.SimpleNamespace(**vars(os))
        for name in _CALLS:
            setattr(fake, name, calls.wrap(getattr(os, name)))
        locked_file.os = fake
        _releases(order, tell)
        return
    tracer = _Tracer(order.get("line"), order.get("fault"))
    sys.settrace(tracer)
    try:
        _releases(order, tell)
    finally:
        sys.settrace(None)
        tell("lines", tracer.count)


def _releases(order, tell):
    import numpy as np

    from keras_fm.kernel import budget, mechanisms, release
    from keras_fm.kernel.ledger import ledger
    from keras_fm.queries import SecondMomentQuery

    opened = ledger.Ledger.open(
        order["path"],
        budget=budget.PrivacyBudget(order.get("budget", 1.0), 0.0),
        neighbours="add_remove",
    )
    objective = SecondMomentQuery(num_features=2)
    mechanism = mechanisms.LaplaceMechanism(
        sensitivity=objective.sensitivity("l1", neighbours="add_remove"),
        epsilon=order.get("epsilon", 1.0),
    )
    for _ in range(order.get("count", 1)):
        release.release(
            objective,
            [(np.full((3, 2), 0.5),)],
            mechanism=mechanism,
            ledger=opened,
            name="moments",
            noise=mechanisms.NoiseSource(),
        )
        tell("released", 1)


def _run(order, pipe):
    def tell(name, value):
        os.write(pipe, (json.dumps([name, value]) + "\n").encode())

    try:
        _release(order, tell)
    except BaseException as e:
        tell("error", type(e).__name__)
        tell("text", str(e))
        if not isinstance(e, (ValueError, OSError, KeyboardInterrupt)):
            traceback.print_exc()
    os._exit(0)


def _start(order):
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(read)
        _run(order, write)
    os.close(write)
    return process, read


def _end(process, pipe):
    with os.fdopen(pipe) as f:
        told = [json.loads(line) for line in f]
    found = {"drawn": False, "released": 0, "error": None, "text": ""}
    for name, value in told:
        if name == "released":
            found[name] += value
        else:
            found[name] = value
    _, status = os.waitpid(process, 0)
    return {**found, "signal": os.WTERMSIG(status)}


def main():
    import_core()
    # Once without a fault: what is only made the first time is there for all.
    with tempfile.TemporaryDirectory() as folder:
        _releases({"path": f"{folder}/privacy.json"}, lambda *told: None)
    for line in sys.stdin:
        order = json.loads(line)
        started = [_start(order) for _ in range(order.get("processes", 1))]
        found = [_end(*one) for one in started]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
