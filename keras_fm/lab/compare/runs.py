"""Runs a comparison: what is known is read, the rest is trained."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import tempfile

import keras
import numpy as np

from keras_fm import datasets
from keras_fm.kernel import locked_file
from keras_fm.lab.compare import files, workers
from keras_fm.lab.compare.methods import METHODS
from keras_fm.lab.compare.outcome import Outcome
from keras_fm.lab.compare.task import ARRAYS
from keras_fm.public import features as features_lib
from keras_fm.version import __version__


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
        progress: whether a progress bar is shown.
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
        workers.RunFailedError: if a run in a worker fails; those that
            finished before are kept.
        ValueError: if the data are no images.
    """
    if type(processes) is not int or processes < 0:
        raise ValueError(
            "`processes` must be an integer, at least 0. Received: "
            f"processes={processes}"
        )
    if isolated and not processes:
        raise ValueError("`isolated=True` needs `processes` of at least 1.")
    jobs = list(spec.jobs())
    _check_methods(jobs, jax_python)
    data = _load(spec)
    kept = _Kept(spec, data, out, fresh)
    found = {job: kept.read("run", job.method, job) for job in jobs}
    missing = [job for job in jobs if found[job] is None]
    if missing:
        arrays = _features(spec, data)
        bar = _bar(len(jobs), progress, len(jobs) - len(missing))
        with contextlib.ExitStack() as stack:
            pool = _pool(stack, spec, arrays, processes, isolated, jax_python)
            choices = _choices(pool, missing, kept)
            requests = {}
            for job in missing:
                logs = _log_dir(out, job)
                requests[job] = {
                    "kind": "run",
                    "job": dataclasses.asdict(job),
                    "choice": choices.get(_tuning(job)),
                    "log_dir": logs,
                }
            done = len(jobs) - len(missing)
            for job, answer in pool(requests):
                found[job] = answer
                kept.write(answer, "run", job.method, job)
                done += 1
                if bar:
                    bar.update(done, [("accuracy", answer["accuracy"])])
    outcomes = [
        Outcome(**{k: _number(v) for k, v in found[job].items()})
        for job in jobs
    ]
    if out:
        files.write(spec, outcomes, out, command=command)
    return outcomes


def _check_methods(jobs, jax_python):
    for name in dict.fromkeys(job.method for job in jobs):
        method = METHODS[name]
        elsewhere = method.backend == "jax" and jax_python
        if not method.available() and not elsewhere:
            needs = ", ".join(method.packages)
            where = ""
            if method.backend:
                where = f" on the backend {method.backend!r}"
                if method.backend == "jax":
                    where += " (or `jax_python=`, an environment that has them)"
            raise ImportError(f"{name!r} needs {needs}{where}.")


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


def _bar(total, progress, done):
    if not progress:
        return None
    bar = keras.utils.Progbar(total, unit_name="run")
    if done:
        bar.update(done)
    return bar


def _log_dir(out, job):
    if not out or job.seed or not files.can_write_logs():
        return None
    return files.run_folder(out, job.method, job.epsilon)


# Tuning -------------------------------------------------------------------


def _tuning(job):
    """What runs with the same choice have in common; `None` without one."""
    tuned = METHODS[job.method].tuned
    return tuned and (METHODS[job.method].backend, tuned, job.epsilon)


def _choices(pool, missing, kept):
    """The chosen settings of every tuned method and epsilon."""
    wanted = {}
    for job in missing:
        if METHODS[job.method].tuned:
            wanted.setdefault(_tuning(job), job)
    choices = {key: kept.read("tune", *key) for key in wanted}
    requests = {
        key: {"kind": "tune", "method": job.method, "epsilon": job.epsilon}
        for key, job in wanted.items()
        if choices[key] is None
    }
    for key, answer in pool(requests):
        choices[key] = answer
        kept.write(answer, "tune", *key)
    return choices


# Where it runs ------------------------------------------------------------


def _pool(stack, spec, arrays, processes, isolated, jax_python):
    """Function from a dict of requests to (key, answer) as they come."""
    folder = None

    def setup():
        nonlocal folder
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            for name in ARRAYS:
                np.save(os.path.join(folder, f"{name}.npy"), arrays[name])
            path = os.path.join(folder, "spec.json")
            with open(path, "w") as f:
                json.dump(dataclasses.asdict(spec), f)
        return folder

    here = {}

    def of(name):
        elsewhere = METHODS[name].backend == "jax" and jax_python
        elsewhere = elsewhere and not METHODS[name].available()
        place = "jax" if elsewhere else "here"
        if place not in here:
            if elsewhere:
                made = workers.Processes(
                    setup(), 1, isolated, jax_python, {"KERAS_BACKEND": "jax"}
                )
            elif processes:
                made = workers.Processes(setup(), processes, isolated)
            else:
                made = workers.Here(spec, arrays)
            here[place] = stack.enter_context(made)
        return here[place]

    def pool(requests):
        by_place = {}
        for key, request in requests.items():
            name = request.get("method") or request["job"]["method"]
            by_place.setdefault(of(name), {})[key] = request
        for place, part in by_place.items():
            yield from place.answers(part)

    return pool


# What is kept -------------------------------------------------------------


class _Kept:
    """Answers as JSON files, named by the content they depend on."""

    def __init__(self, spec, data, out, fresh):
        self._folder = out and pathlib.Path(out) / "runs"
        self._fresh = fresh
        settings = dataclasses.asdict(spec)
        for name in ("methods", "epsilons", "seeds", "dataset"):
            del settings[name]
        digest = hashlib.sha256()
        for array in data:
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        self._base = [settings, digest.hexdigest(), __version__, _code()]

    def _path(self, what):
        what = [
            dataclasses.astuple(w) if dataclasses.is_dataclass(w) else w
            for w in what
        ]
        text = json.dumps([*self._base, keras.backend.backend(), what])
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        return self._folder / f"{name}.json"

    def read(self, *what):
        if not self._folder or self._fresh:
            return None
        try:
            with open(self._path(what)) as f:
                return json.load(f)
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def write(self, answer, *what):
        if not self._folder:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        locked_file.write_text(self._path(what), json.dumps(answer, indent=1))


def _code():
    """Fingerprint of this package's source: other code, other runs."""
    digest = hashlib.sha256()
    folder = pathlib.Path(__file__).parents[1]
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _number(value):
    """Infinity travels through JSON as a string."""
    return math.inf if value == "inf" else value
