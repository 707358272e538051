"""Code in processes of their own that know the core only, and say JSON.

`Ledger` and `entry` are there, as is `arguments`; what the code gives
to `say` comes back as a list. Run as a script it reads orders, JSON on lines,
and forks for each, so that only the first process pays for imports.
"""

import atexit
import functools
import json
import os
import pickle
import subprocess
import sys
import traceback


def run(code, *arguments):
    """What the code said, in order."""
    (said,) = run_all(code, *arguments, count=1)
    return said


def run_all(code, *arguments, count):
    """What the code said in each of `count` processes at the same time."""
    server = _server()
    order = [code, [os.fspath(a) for a in arguments], count]
    server.stdin.write(json.dumps(order) + "\n")
    server.stdin.flush()
    found = json.loads(server.stdout.readline())
    for status, _ in found:
        assert status == 0, "see the standard error"
    return [said for _, said in found]


@functools.cache
def _server():
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.kill)
    return server


# In the processes ------------------------------------------------------------


def _names():
    """What the code finds."""
    import ledger_entries

    from keras_fm.kernel import budget, mechanisms
    from keras_fm.kernel.ledger import ledger

    return {
        "BudgetExceededError": ledger.BudgetExceededError,
        "Ledger": ledger.Ledger,
        "PrivacyBudget": budget.PrivacyBudget,
        "entry": ledger_entries.entry,
        "json": json,
        "mechanisms": mechanisms,
        "os": os,
        "pickle": pickle,
    }


def _start(code, arguments, names):
    read, write = os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        return process, read
    os.close(read)

    def say(*values):
        os.write(write, (json.dumps(values) + "\n").encode())

    try:
        exec(code, {**names, "say": say, "arguments": arguments})
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _end(process, pipe):
    with os.fdopen(pipe) as f:
        said = [json.loads(line) for line in f]
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), said


def main():
    names = _names()
    for line in sys.stdin:
        code, arguments, count = json.loads(line)
        started = [_start(code, arguments, names) for _ in range(count)]
        print(json.dumps([_end(*one) for one in started]), flush=True)


if __name__ == "__main__":
    main()
