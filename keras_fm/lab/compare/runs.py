"""Runs a comparison: what is known is read, the rest is trained."""

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile

import numpy as np

from keras_fm import datasets
from keras_fm.core import event_file
from keras_fm.lab.compare import files
from keras_fm.lab.compare.methods import METHODS
from keras_fm.lab.compare.outcome import Outcome
from keras_fm.lab.compare.task import ARRAYS, Task
from keras_fm.lab.engine import folder, measuring, store, workers
from keras_fm.lab.engine.answering import answer_all
from keras_fm.lab.engine.progress import Progress
from keras_fm.public import features as features_lib

_FEWEST = 10


def run(
    spec,
    out=None,
    progress=True,
    *,
    processes=0,
    isolated=False,
    fresh=False,
    jax_python=None,
    command=None,
):
    """Runs a comparison and writes what it found.

    Every finished run is kept in `out/runs`, by the content of data,
    settings and code: a second call goes on where the first stopped, and
    repeats nothing.

    Args:
        spec: a `Comparison`.
        out: folder for `runs.csv`, `summary.json`, `accuracy.png`,
            `table.txt`, `tensorboard/` and `runs/`; `None` writes nothing.
        progress: whether it says what runs now.
        processes: int, number of processes that train side by side, each
            with its share of the cores; 0 trains in this one.
        isolated: whether every run gets a process of its own, which makes
            its memory figure exact; needs `processes`.
        fresh: whether runs that are kept are trained again.
        jax_python: `None`, or the Python interpreter of an environment with
            JAX, jax-privacy and this package, for the methods that need it.
        command: `None`, or the command line to write down.

    Returns:
        list of `Outcome`, in the order of `spec.jobs()`.

    Raises:
        ImportError: if a method cannot run here; nothing was trained.
        RunFailedError: if a run in a worker fails; those that finished
            before are kept.
        ValueError: if the data are no images, or nothing can be written to
            `out` now.
    """
    for name in spec.methods:
        method = METHODS[name]
        if not (method.available() or (method.backend and jax_python)):
            raise ImportError(
                f"{name!r} needs {', '.join(method.packages)} on the backend "
                f"{method.backend or 'tensorflow'!r}."
            )
    jobs = list(spec.jobs())
    shown = Progress("runs", _named, None if progress else "")
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.held(out))
        data = _load(spec)
        key = _keys(spec, data)
        kept = _kept(out, "points", measuring.FIELDS, fresh)
        choices = _kept(out, "choices", ("learning_rate",), fresh)
        pool = _pool(
            stack, spec, data, processes, isolated, jax_python, shown.began
        )
        requests = {
            key("run", dataclasses.asdict(job)): {
                "kind": "run",
                "job": dataclasses.asdict(job),
                "log_dir": _log_dir(out, job),
            }
            for job in jobs
        }

        def trained(missing):
            tuned = {}
            for name, request in missing.items():
                tuned[name] = _tuning(key, request["job"])
            needed = {k: r for k, r in tuned.values() if r}
            answer_all(needed, choices, pool)
            for name, request in missing.items():
                choice, _ = tuned[name]
                request["choice"] = choices[choice] if choice else None
            return pool(missing)

        rows, _ = answer_all(
            requests,
            kept,
            trained,
            shown,
        )
        outcomes = [Outcome.of(row) for row in rows]
        if out:
            files.write(spec, outcomes, out, command=command)
    return outcomes


def _named(request):
    """What a request is, for a reader."""
    job = request.get("job") or request
    words = METHODS[job.get("series") or job["method"]].label
    if job["epsilon"] is not None:
        words += f", epsilon {job['epsilon']:g}"
    return words if request["kind"] == "run" else f"{words}: tuning"


def _load(spec):
    loaded = datasets.load(spec.dataset)
    if not isinstance(loaded, tuple):
        raise ValueError(
            f"{spec.dataset!r} is no data set of images. Behaviour prediction "
            "is compared by `keras-fm reproduce`; see docs/dpa.md."
        )
    (x, y), test = loaded
    if spec.train_records:
        x, y = x[: spec.train_records], y[: spec.train_records]
    if len(x) < _FEWEST:
        raise ValueError(
            f"A comparison needs at least {_FEWEST} training records, of which "
            f"a fifth tunes the rivals. Received: {len(x)}"
        )
    needy = [name for name in spec.methods if METHODS[name].on_images]
    if needy and x.ndim != 4:
        raise ValueError(
            f"{', '.join(needy)} read images. Name other `methods`. Received: "
            f"records of shape {x.shape[1:]}"
        )
    return x, y, *test


def _features(spec, data):
    """The arrays of a `Task`."""
    x, y, x_test, y_test = data
    body = features_lib.build(spec.features, x.shape[1:])
    return {
        "x": features_lib.extract(body, x),
        "y": y,
        "x_test": features_lib.extract(body, x_test),
        "y_test": y_test,
        "images": x,
        "images_test": x_test,
    }


def _log_dir(out, job):
    if not out or job.seed or not event_file.can_be_written():
        return None
    return files.run_folder(out, job.series, job.epsilon)


def _tuning(key, job):
    """Key and request of the choice that a job shares with others of the
    same name and epsilon; `(None, None)` without one."""
    method = METHODS[job["series"]]
    if not method.tuned:
        return None, None
    epsilon = job["epsilon"]
    return key("tune", method.backend, method.tuned, epsilon), {
        "kind": "tune",
        "method": method.name,
        "epsilon": epsilon,
    }


# What is kept -------------------------------------------------------------


def _kept(out, name, fields, fresh):
    path = out and os.path.join(out, "runs", f"{name}.jsonl")
    return store.Store(path, fields, fresh)


def _keys(spec, data):
    """Function from what is asked to its key in the store."""
    settings = dataclasses.asdict(spec)
    for name in ("methods", "epsilons", "seeds", "dataset"):
        del settings[name]
    digest = hashlib.sha256()
    for array in data:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)

    def key(*what):
        return store.key(settings, digest.hexdigest(), *what)

    return key


# Where it runs ------------------------------------------------------------


def _pool(stack, spec, data, processes, isolated, jax_python, began):
    """Function from a dict of requests to (key, answer) as they come."""
    folder, arrays, places = None, None, {}

    def task():
        nonlocal arrays
        if arrays is None:
            arrays = _features(spec, data)
        return Task(spec, **arrays)

    def arguments():
        """Of a worker: what it reads is written once."""
        nonlocal folder, arrays
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            made = task()
            for name in ARRAYS:
                path = os.path.join(folder, f"{name}.npy")
                np.save(path, getattr(made, name))
            if processes:
                # Workers have their own, and need the memory.
                arrays = None
            with open(os.path.join(folder, "spec.json"), "w") as f:
                json.dump(dataclasses.asdict(spec), f)
        return "-m", "keras_fm.lab.compare", folder

    def place(name):
        elsewhere = METHODS[name].backend == "jax" and jax_python
        elsewhere = elsewhere and not METHODS[name].available()
        where = "jax" if elsewhere else "here"
        if where not in places:
            if elsewhere:
                made = workers.Processes(
                    arguments(),
                    1,
                    isolated,
                    jax_python,
                    {"KERAS_BACKEND": "jax"},
                    began=began,
                )
            elif processes:
                made = workers.Processes(
                    arguments(), processes, isolated, began=began
                )
            else:
                made = workers.Here(task, began)
            places[where] = stack.enter_context(made)
        return places[where]

    def pool(requests):
        by_place = {}
        for key, request in requests.items():
            name = request.get("method") or request["job"]["series"]
            by_place.setdefault(place(name), {})[key] = request
        for where, part in by_place.items():
            yield from where.answers(part)

    return pool
