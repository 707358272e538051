"""Where runs happen: in this process, or in others beside it.

A worker reads one request in JSON per line of standard input and writes one
answer per line of standard output (`serve`). It may be of another environment
than this process.
"""

import collections
import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading

from keras_fm.lab import provenance

_THREADS = (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
_MOST_SAID = 2000


class Here:
    """Answers requests in this process, one after another.

    Args:
        make: function that gives an object whose `answer` takes a request;
            asked once, when the first request comes.
        began: `None`, or function that is told of a request as it begins.
    """

    def __init__(self, make, began=None):
        self._make, self._task, self._began = make, None, began

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def answers(self, requests):
        """Yields (key, answer) in order."""
        for key, request in requests.items():
            if self._task is None:
                self._task = self._make()
            if self._began:
                self._began(request)
            yield key, self._task.answer(request)


def serve(make):
    """Serves requests from standard input until it ends.

    Args:
        make: function that gives an object whose `answer` takes a request.
    """
    # Answers go where standard output went; what libraries print does not.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    task = make()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"answer": provenance.finite(task.answer(request))}
        except Exception as e:  # To the parent, which knows what to do.
            job = request.get("job") or request
            name = job.get("series") or job.get("method")
            reply = {"error": f"{name}: {type(e).__name__}: {e}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


class RunFailedError(RuntimeError):
    """A run in a worker failed; those that finished before are kept."""


class Processes:
    """Answers requests in worker processes.

    Args:
        arguments: of the Python that serves: `-m`, a module, what it needs.
        count: int, number of workers.
        isolated: whether every request gets a new worker.
        python: interpreter; `None` for this one.
        environment: dict of variables to set.
        began: `None`, or function that is told of a request as it begins.
    """

    def __init__(
        self,
        arguments,
        count,
        isolated,
        python=None,
        environment=None,
        began=None,
    ):
        self._began = began
        self._command = [python or sys.executable, *map(str, arguments)]
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
                    if self._began:
                        self._began(request)
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
            # What libraries say is shown only with a failure.
            said = tempfile.TemporaryFile()
            worker = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env=self._environment,
                # Ctrl-C is for this process, which ends its workers.
                start_new_session=True,
            )
            worker.said = said
            self._started.append(worker)
            return worker


def _ask(worker, request):
    worker.stdin.write(json.dumps(request) + "\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(
            f"the worker ended with status {worker.wait()}: {_last(worker)}"
        )
    found = json.loads(line)
    if "error" in found:
        raise RuntimeError(found["error"])
    return found["answer"]


def _last(worker):
    """The end of what a worker wrote to its standard error."""
    worker.said.seek(max(0, worker.said.seek(0, os.SEEK_END) - _MOST_SAID))
    return worker.said.read().decode(errors="replace").strip()


def _end(worker):
    if worker.poll() is None:
        worker.terminate()
        worker.wait()
    worker.stdin.close()
    worker.stdout.close()
    worker.said.close()
