"""One audit, of a subject or of a user's script, and its files."""

import json
import os

from keras_fm import datasets
from keras_fm.core import event_file
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.lab import provenance, script_functions
from keras_fm.lab.auditing.training_audit import audit
from keras_fm.lab.engine import files, folder


def load(dataset, records=0):
    """Flat records in [0, 1], their labels and the number of classes.

    Args:
        dataset: see `keras_fm.datasets.load`.
        records: int, only the first so many; 0 for all.

    Returns:
        tuple `(x, y, classes)`; the number of classes is that of the public
        data set.

    Raises:
        ValueError: if it is not a data set of images.
    """
    (x, y), classes = _images(dataset)
    x = x.reshape(len(x), -1)
    return (x[:records], y[:records], classes) if records else (x, y, classes)


def run(
    subject,
    dataset="digits",
    *,
    train_records=0,
    canaries=None,
    design="swap",
    kind="labels",
    score="loss",
    seeds=(0, 1, 2),
    out=None,
    tensorboard=None,
    progress=True,
    command=None,
):
    """Audits a subject on a data set and writes what was found.

    Args:
        subject: a `Subject`.
        dataset: see `keras_fm.datasets.load`.
        train_records: int, only the first so many; 0 for all.
        canaries, design, kind, score, seeds, progress: see `keras_fm.audit`.
            `"noise"` canaries are uniform in
            [0, 1], `"unit"` ones have one pixel of 1.
        out: folder for `audit.json`, `audit.txt` and `audit.png`; `None`
            writes nothing.
        tensorboard: `None`, or a TensorBoard folder.
        command: `None`, or the command line to write down.

    Returns:
        An `AuditReport`.

    Raises:
        ValueError: if an argument is invalid.
        ImportError: if `tensorboard` is given without that package; before
            anything is trained.
    """
    if tensorboard:
        event_file.check_installed("`--out` writes the report as text.")
    x, y, classes = load(dataset, train_records)
    bounds = {
        "noise": {"low": 0.0, "high": 1.0},
        "unit": {"bound": 1.0},
    }.get(kind, {})
    fit, control = subject.functions(classes)
    with folder.held(out):
        report = audit(
            fit,
            (x, y),
            control=control,
            classes=classes,
            canaries=canaries,
            design=design,
            kind=kind,
            score=score,
            seeds=seeds,
            progress=progress,
            **bounds,
        )
        _write(report, out, tensorboard, command)
    return report


def run_script(
    fit,
    control,
    dataset,
    claim=None,
    *,
    score="loss",
    classes=None,
    train_records=0,
    out=None,
    tensorboard=None,
    command=None,
    **arguments,
):
    """Audits a training of the user's own and writes what was found.

    Args:
        fit, control: `path/to/script.py:function`, functions as
            `keras_fm.audit` takes them.
        dataset: the same, a function without arguments that returns the
            records, as `keras_fm.audit` takes them; or see
            `keras_fm.datasets.load`, whose training part keeps its shape.
        claim: `None` for that of the ledger, or `(epsilon, delta)`.
        arguments: of `keras_fm.audit`.
        score: of `keras_fm.audit`, or `path/to/script.py:function`.
        classes: int, the public number of classes; `None` for that of an
            image data set, or of records without labels.
        train_records, out, tensorboard, command: see `run`.

    Returns:
        An `AuditReport`.

    Raises:
        ValueError: if an argument is invalid.
        ImportError: if `tensorboard` is given without that package.
    """
    if tensorboard:
        event_file.check_installed("`--out` writes the report as text.")
    named = {"fit": fit, "control": control, "dataset": dataset, "score": score}
    functions = script_functions.load(
        {k: v for k, v in named.items() if script_functions.is_named(v)}
    )
    if "dataset" in functions:
        data = functions["dataset"]()
    else:
        (x, y), known_classes = _images(dataset)
        last = train_records or len(x)
        data = x[:last], y[:last]
        classes = known_classes if classes is None else classes
    with folder.held(out):
        report = audit(
            functions.get("fit", fit),
            data,
            claim and PrivacyBudget(*claim),
            control=functions.get("control", control),
            score=functions.get("score", score),
            classes=classes,
            **arguments,
        )
        _write(report, out, tensorboard, command)
    return report


def _images(dataset):
    """`((x, y), classes)`; the number of classes is that of the public data
    set."""
    loaded = datasets.load(dataset)
    if not isinstance(loaded, tuple):
        raise ValueError(f"{dataset!r} is not a data set of images.")
    (x, y), (_, y_test) = loaded
    return (x, y), int(max(y.max(), y_test.max())) + 1


def _write(report, out, tensorboard, command):
    if out:
        data = json.loads(report.to_json()) | provenance.record(command)
        files.write_text(out, "audit.txt", report.text())
        files.write_json(out, "audit.json", data)
        report.plot(os.path.join(out, "audit.png"))
    if tensorboard:
        report.tensorboard(tensorboard)
