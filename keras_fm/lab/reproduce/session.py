"""One run of an experiment: resumed point by point, then written out."""

import dataclasses
import functools
import os
import types

from keras_fm.lab.engine import folder as folders
from keras_fm.lab.engine import measuring, rival, store, workers
from keras_fm.lab.engine.answering import answer_all
from keras_fm.lab.engine.progress import Progress
from keras_fm.lab.reproduce import drawing, report
from keras_fm.lab.reproduce.experiment import Context


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
        progress: whether it says what runs now.
        settings: dict of further settings that replace the form's own.

    Returns:
        an `Outcome`.

    Raises:
        ValueError: if a choice is wrong, data are missing, or the folder
            cannot be written now.
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
    chosen.update(settings or {})
    form = "full" if full else "small"
    substituted = chosen.get("data", experiment.dataset) not in (
        experiment.small.get("data", experiment.dataset),
        experiment.full.get("data", experiment.dataset),
    )
    folder = out and _folder(out, experiment, form, chosen, substituted)
    with folders.held(folder):
        load = None
        if experiment.load is not None:
            load = functools.partial(experiment.load, chosen.get("data"))
        rows, trained, skipped = _rows(
            experiment, Context(chosen, load), folder, progress
        )
        outcome = Outcome(
            experiment=experiment,
            settings=chosen,
            form=form,
            rows=rows,
            facts=() if substituted else experiment.facts,
            skipped=skipped,
            trained=trained,
            folder=folder,
        )
        if folder:
            report.write(outcome, folder)
            drawing.draw(outcome, os.path.join(folder, "figure.png"))
    return outcome


def _rows(experiment, context, folder, progress):
    """All rows, the number of those trained now, and what is left out."""
    chosen = context.settings
    kept = store.Store(
        folder and os.path.join(folder, "points.jsonl"), measuring.FIELDS
    )
    skipped, requests = {}, {}
    for job in experiment.jobs(chosen):
        if experiment.find(job.series).needs_dp_sgd and not rival.available():
            skipped[job.series] = (
                "tensorflow-privacy or the TensorFlow backend is missing"
            )
        else:
            how = experiment.how(chosen)
            key = store.key(experiment.name, how, dataclasses.asdict(job))
            requests[key] = job

    def named(job):
        words = f"{experiment.name}: {experiment.find(job.series).label}"
        if job.epsilon is not None:
            words += f", epsilon {job.epsilon:g}"
        return words

    shown = Progress("points", named, None if progress else "")

    def answer(job):
        return measuring.measure(
            job,
            experiment.find(job.series),
            lambda: experiment.measure(job, context),
        )

    measurer = types.SimpleNamespace(answer=answer)
    here = workers.Here(lambda: measurer, shown.began)
    return *answer_all(requests, kept, here.answers, shown), skipped


def _folder(out, experiment, form, chosen, substituted):
    name = experiment.name.replace(":", "-")
    if form == "full":
        name += "-full"
    if substituted:
        data = os.path.basename(chosen["data"]).removesuffix(".npz")
        name += f"-{data}"
    return os.path.join(out, name)
