"""Runs a comparison: what is known is read, the rest is trained."""

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile

import numpy as np

from keras_fm.core import event_file
from keras_fm.lab.compare import files, records
from keras_fm.lab.compare.methods import METHODS
from keras_fm.lab.compare.outcome import Outcome, Outcomes
from keras_fm.lab.compare.own import OwnModel
from keras_fm.lab.compare.task import ARRAYS, Task
from keras_fm.lab.engine import folder, measuring, store, workers
from keras_fm.lab.engine.answering import answer_all
from keras_fm.lab.engine.progress import Progress
from keras_fm.public import features as features_lib


def run(
    spec,
    out=None,
    progress=True,
    *,
    processes=0,
    isolated=False,
    fresh=False,
    jax_python=None,
    torch_python=None,
    command=None,
    build=None,
    given=None,
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
        jax_python, torch_python: `None`, or the Python interpreter of an
            environment with JAX and jax-privacy, or with PyTorch and Opacus,
            and this package, for the methods that need it.
        command: `None`, or the command line to write down.
        build: `None`, or the function in the place of `spec.model`; it runs
            in this process.
        given: `None`, or the `Records` in the place of `spec.dataset`.

    Returns:
        `Outcomes`: a list of `Outcome`, in the order of `spec.jobs()`, with
        notes of the methods that were left out.

    Raises:
        ImportError: if a method cannot run here; nothing was trained.
        RunFailedError: if a run in a worker fails; those that finished
            before are kept.
        ValueError: if the data are no images, or nothing can be written to
            `out` now.
    """
    pythons = {"jax": jax_python, "torch": torch_python}
    for name in spec.methods:
        method = METHODS[name]
        if not (method.available() or pythons.get(method.backend)):
            raise ImportError(
                f"{name!r} needs {', '.join(method.packages)} on the backend "
                f"{method.backend or 'tensorflow'!r}."
            )
    shown = Progress("runs", _named, None if progress else "")
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.held(out))
        data, own, notes = (given or records.load(spec)), None, []
        data = data.first(spec.train_records)
        if spec.model:
            shape = data.x.shape[1:]
            own = OwnModel(build or spec.model, shape, data.classes)
            spec, notes = _fitting(spec, own)
            shown.say(notes)
        _check_images(spec, data.x)
        jobs = list(spec.jobs())
        key = _keys(spec, data, own)
        kept = _kept(out, "points", measuring.FIELDS, fresh)
        choices = _kept(out, "choices", ("learning_rate",), fresh)
        pool = _pool(
            stack,
            spec,
            data,
            own,
            0 if build else processes,
            isolated,
            pythons,
            shown.began,
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
        outcomes = Outcomes(Outcome.of(row) for row in rows)
        outcomes.notes = notes
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


def _fitting(spec, own):
    """The comparison without the methods that cannot train a model, and notes
    of why they cannot.

    Raises:
        ValueError: if one of them was named.
    """
    found = {name: own.why_not(name) for name in spec.methods}
    kept = tuple(name for name, why in found.items() if not why)
    reasons = {}
    for name, why in found.items():
        if why:
            reasons.setdefault(why, []).append(METHODS[name].label)
    notes = [f"Left out: {'; '.join(v)}: {k}." for k, v in reasons.items()]
    if notes and spec.named or not kept:
        raise ValueError(f"These methods cannot train the model. {notes[0]}")
    notes += [f"Noisy steps train a copy: {made}." for made in own.changes]
    return dataclasses.replace(spec, methods=kept), notes


def _check_images(spec, x):
    needy = [name for name in spec.methods if METHODS[name].on_images]
    if needy and x.ndim != 4:
        raise ValueError(
            f"{', '.join(needy)} read images. Name other `methods`. Received: "
            f"records of shape {x.shape[1:]}"
        )


def _features(spec, data):
    """The arrays of a `Task`."""
    body = features_lib.build(spec.features, data.x.shape[1:])
    return {
        "x": features_lib.extract(body, data.x),
        "y": data.y,
        "x_test": features_lib.extract(body, data.x_test),
        "y_test": data.y_test,
        "images": data.x,
        "images_test": data.x_test,
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


def _keys(spec, data, own):
    """Function from what is asked to its key in the store."""
    settings = dataclasses.asdict(spec)
    for name in ("methods", "epsilons", "seeds", "dataset"):
        del settings[name]
    digest = hashlib.sha256()
    if own:
        digest.update(own.fingerprint().encode())
    for array in (data.x, data.y, data.x_test, data.y_test):
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)

    def key(*what):
        return store.key(settings, digest.hexdigest(), *what)

    return key


# Where it runs ------------------------------------------------------------


def _pool(stack, spec, data, own, processes, isolated, pythons, began):
    """Function from a dict of requests to (key, answer) as they come."""
    folder, arrays, places = None, None, {}

    def task():
        nonlocal arrays
        if arrays is None:
            arrays = _features(spec, data)
        return Task(spec, **arrays, classes=data.classes, own=own)

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
                told = {"spec": dataclasses.asdict(spec)}
                json.dump(told | {"classes": data.classes}, f)
        return "-m", "keras_fm.lab.compare", folder

    def place(name):
        where = METHODS[name].backend
        if METHODS[name].available() or not pythons.get(where):
            where = "here"
        if where not in places:
            if where in pythons:
                made = workers.Processes(
                    arguments(),
                    1,
                    isolated,
                    pythons[where],
                    {"KERAS_BACKEND": where},
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
