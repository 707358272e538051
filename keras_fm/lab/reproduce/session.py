"""One run of an experiment: resumed point by point, then written out."""

import dataclasses
import datetime
import hashlib
import json
import logging
import math
import os
import time

import keras

from keras_fm.lab import provenance
from keras_fm.lab.reproduce import drawing, report, training
from keras_fm.lab.reproduce.experiment import Context
from keras_fm.version import __version__

_TOLERANCE = 1e-6
# What a row must hold to be taken up again.
_ROW = {
    "series",
    "epsilon",
    "seed",
    "at",
    "curve",
    "claimed",
    "proven",
    "delta",
    "neighbours",
    "statement",
    "seconds",
    "cpu_seconds",
    "when",
    "notes",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run found.

    Attributes:
        experiment: the `Experiment`.
        settings: dict.
        form: `"small"` or `"full"`.
        rows: list of dicts, one for each job.
        facts: facts that stand beside them; none where other data were
            substituted.
        skipped: `{series: why}`.
        trained: number of jobs that were not on disk.
        folder: where files were written, or `None`.
    """

    experiment: object
    settings: dict
    form: str
    rows: list
    facts: tuple
    skipped: dict
    trained: int
    folder: str | None


def run(
    experiment,
    *,
    full=False,
    epsilons=None,
    seeds=None,
    data=None,
    out=None,
    progress=False,
    settings=None,
):
    """Runs an experiment, or what is missing of it.

    Args:
        experiment: an `Experiment`.
        full, epsilons, seeds, data: see `Experiment.settings`.
        out: folder; the experiment gets one of its own below it, with
            `points.jsonl` (a line for every job, as soon as it is measured),
            `points.csv`, `figure.png`, `summary.json` and `table.txt`.
            `None` writes nothing.
        progress: whether a progress bar is shown.
        settings: dict of further settings that replace the form's own.

    Returns:
        an `Outcome`.

    Raises:
        ValueError: if a choice is wrong, or data are missing.
        RuntimeError: if a ledger does not hold what the series says.

    Example:

    ```python
    [experiment] = reproductions.find(["dpmac:accounting"])
    outcome = reproductions.run(experiment, out="runs/reproduce")
    print(reproductions.table(outcome))
    ```
    """
    chosen = experiment.settings(
        full=full, epsilons=epsilons, seeds=seeds, data=data
    )
    if unknown := set(settings or {}) - set(chosen):
        raise ValueError(
            f"{experiment.name} has no settings {sorted(unknown)}. It has "
            f"{sorted(chosen)}"
        )
    chosen.update(settings or {})
    form = "full" if full else "small"
    substituted = chosen.get("data", experiment.dataset) not in (
        experiment.small.get("data", experiment.dataset),
        experiment.full.get("data", experiment.dataset),
    )
    folder = out and _folder(out, experiment, form, chosen, substituted)
    points = _Points(folder and os.path.join(folder, "points.jsonl"))
    load = None
    if experiment.load is not None:
        load = lambda: experiment.load(chosen["data"])  # noqa: E731
    context = Context(chosen, load)
    skipped, jobs = {}, []
    for job in experiment.jobs(chosen):
        if experiment.find(job.series).needs_dp_sgd and (
            not training.has_dp_sgd()
        ):
            skipped[job.series] = (
                "tensorflow-privacy or the TensorFlow backend is missing"
            )
        else:
            jobs.append((job, _key(experiment, chosen, job)))
    missing = sum(key not in points.rows for _, key in jobs)
    bar = None
    if progress and missing:
        bar = keras.utils.Progbar(missing, unit_name=experiment.name)
    # Every job builds its own model, which TensorFlow reports as retracing;
    # dp_accounting warns of every order that it leaves out.
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    trained = 0
    for job, key in jobs:
        if key in points.rows:
            continue
        points.add(key, _measure(experiment, job, context))
        trained += 1
        if bar:
            bar.update(trained)
    outcome = Outcome(
        experiment=experiment,
        settings=chosen,
        form=form,
        rows=[points.rows[key] for _, key in jobs],
        facts=() if substituted else experiment.facts,
        skipped=skipped,
        trained=trained,
        folder=folder,
    )
    if folder:
        report.write(outcome, folder)
        drawing.draw(outcome, os.path.join(folder, "figure.png"))
    return outcome


def _folder(out, experiment, form, chosen, substituted):
    name = experiment.name.replace(":", "-")
    if form == "full":
        name += "-full"
    if substituted:
        data = os.path.basename(chosen["data"]).removesuffix(".npz")
        name += f"-{data}"
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    return folder


def _key(experiment, chosen, job):
    """A hash of all that a job's result is a function of, noise aside."""
    text = json.dumps(
        [
            experiment.name,
            experiment.how(chosen),
            dataclasses.asdict(job),
            __version__,
            keras.backend.backend(),
        ],
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _measure(experiment, job, context):
    """One job as a row, checked against what its series says."""
    series = experiment.find(job.series)
    keras.utils.set_random_seed(job.seed)
    begin, cpu = time.perf_counter(), time.process_time()
    made = experiment.measure(job, context)
    seconds = time.perf_counter() - begin
    cpu_seconds = time.process_time() - cpu
    claimed = proven = delta = None
    neighbours = statement = ""
    if made.ledger is not None:
        ledger = made.ledger
        claimed, proven = ledger.claimed_epsilon(), ledger.epsilon()
        delta, neighbours = ledger.budget.delta, str(ledger.neighbours)
        statement = ledger.statement()
    _check(experiment, series, job, claimed, proven)
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        **dataclasses.asdict(job),
        "curve": [[_plain(v) for v in point] for point in made.curve],
        "claimed": claimed,
        "proven": proven,
        "delta": delta,
        "neighbours": neighbours,
        "statement": statement,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "when": now.isoformat(timespec="seconds"),
        "notes": made.notes,
    }


def _check(experiment, series, job, claimed, proven):
    """What is drawn as proven is proven, and only that."""
    if series.kind == "proven":
        right = proven is not None and proven <= job.epsilon * (1 + _TOLERANCE)
    elif series.kind == "claimed":
        right = proven == math.inf and claimed <= job.epsilon * (1 + _TOLERANCE)
    else:
        right = proven is None
    if not right:
        raise RuntimeError(
            f"{experiment.name}: the series {series.name!r} is {series.kind} "
            f"at {job.epsilon}, but its ledger says claimed {claimed}, "
            f"proven {proven}."
        )


def _plain(value):
    if value is None or isinstance(value, str):
        return value
    return float(value)


class _Points:
    """Rows by key, each on disk as soon as it is measured."""

    def __init__(self, path):
        self._path, self.rows = path, {}
        if path and os.path.exists(path):
            with open(path) as f:
                for line in f:
                    try:
                        entry = json.loads(line)
                        row = report.read(entry["row"])
                    except (ValueError, KeyError, TypeError, AttributeError):
                        # A line that a crash cut short is measured again.
                        continue
                    if _ROW <= set(row):
                        self.rows[entry["key"]] = row

    def add(self, key, row):
        self.rows[key] = row
        if not self._path:
            return
        entry = {"key": key, "row": provenance.finite(row)}
        with open(self._path, "a+") as f:
            f.seek(0, os.SEEK_END)
            if f.tell() and not _ends_with_newline(self._path):
                f.write("\n")
            f.write(json.dumps(entry) + "\n")


def _ends_with_newline(path):
    with open(path, "rb") as f:
        f.seek(-1, os.SEEK_END)
        return f.read(1) == b"\n"
