"""Where runs happen: in this process, or in others beside it.

A worker is `python -m keras_fm.lab.compare FOLDER` (`__main__.py`). It may be
of another environment than this process.
"""

import collections
import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading

from keras_fm.lab import provenance

_THREADS = (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


class Here:
    """Answers requests in this process, one after another."""

    def __init__(self, spec, arrays):
        # The methods import Keras models, which a parent of workers need not.
        from keras_fm.lab.compare.task import Task

        self._task = Task(spec, **arrays)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def answers(self, requests):
        for key, request in requests.items():
            yield key, answer(self._task, request)


def answer(task, request):
    """What a request asks for, as JSON can hold it."""
    from keras_fm.lab.compare.comparison import Job

    if request["kind"] == "tune":
        return task.tune(request["method"], request["epsilon"])
    outcome = task.run(
        Job(**request["job"]), request["choice"], request["log_dir"]
    )
    return provenance.finite(dataclasses.asdict(outcome))


class RunFailedError(RuntimeError):
    """A run in a worker failed; those that finished before are kept."""


class Processes:
    """Answers requests in worker processes.

    Args:
        folder: of `spec.json` and the arrays.
        count: int, number of workers.
        isolated: whether every request gets a new worker.
        python: interpreter; `None` for this one.
        environment: dict of variables to set.
    """

    def __init__(self, folder, count, isolated, python=None, environment=None):
        self._command = [
            python or sys.executable,
            "-m",
            "keras_fm.lab.compare",
            str(folder),
        ]
        self._count, self._isolated = count, isolated
        threads = str(max(1, (os.cpu_count() or 1) // count))
        # What the user set stays.
        self._environment = (
            dict.fromkeys(_THREADS, threads)
            | dict(os.environ)
            | {"TF_CPP_MIN_LOG_LEVEL": "3"}
            | (environment or {})
        )
        self._idle = collections.deque()
        self._started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self._started:
            _end(worker)

    def answers(self, requests):
        """Yields (key, answer) as they come.

        Raises:
            RunFailedError: if a request failed; the others are not begun.
        """
        waiting, done = queue.SimpleQueue(), queue.SimpleQueue()
        for item in requests.items():
            waiting.put(item)
        stop = threading.Event()

        def serve():
            worker = None
            while not stop.is_set():
                try:
                    key, request = waiting.get_nowait()
                except queue.Empty:
                    break
                try:
                    if worker is None or self._isolated:
                        worker and _end(worker)
                        worker = self._worker()
                    done.put((key, _ask(worker, request)))
                except (OSError, RuntimeError, ValueError) as e:
                    done.put((key, e))
                    return
            if worker is not None:
                self._idle.append(worker)

        threads = [
            threading.Thread(target=serve, daemon=True)
            for _ in range(min(self._count, len(requests)))
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in requests:
                key, found = done.get()
                if isinstance(found, Exception):
                    raise RunFailedError(f"A run failed: {found}") from found
                yield key, found
        finally:
            stop.set()
        for thread in threads:
            thread.join()

    def _worker(self):
        try:
            return self._idle.popleft()
        except IndexError:
            worker = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self._environment,
            )
            self._started.append(worker)
            return worker


def _ask(worker, request):
    worker.stdin.write(json.dumps(request) + "\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(
            f"the worker ended with status {worker.wait()}; see above."
        )
    found = json.loads(line)
    if "error" in found:
        raise RuntimeError(found["error"])
    return found["answer"]


def _end(worker):
    if worker.poll() is None:
        worker.terminate()
        worker.wait()
    worker.stdin.close()
    worker.stdout.close()
