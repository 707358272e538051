"""Folders that commands wrote, as `Run`s."""

import os

from keras_fm.lab.report import (
    audit_run,
    checked,
    comparison_run,
    composition_run,
    reproduction_run,
)


def read(folder):
    """Reads what a command left in a folder.

    Args:
        folder: str, written by `keras-fm compare`, `audit`, `compose` or
            `reproduce`.

    Returns:
        A `Run`.

    Raises:
        ValueError: if the folder holds no such run, or a file of it is
            broken.
    """
    shown = checked.clean(str(folder))
    if not os.path.isdir(folder):
        raise ValueError(f"{shown!r} is no folder.")
    try:
        return _reader(folder)(folder)
    except ValueError as e:
        raise ValueError(f"{shown!r}: {e}") from e


def _reader(folder):
    if checked.has(folder, "summary.json"):
        summary = checked.read_json(folder, "summary.json")
        kind = summary.text("kind")
        if kind == "compare" or (
            not kind and "spec" in summary and "rows" in summary
        ):
            return comparison_run.read
        if kind == "reproduce" or (
            not kind and "experiment" in summary and "points" in summary
        ):
            return reproduction_run.read
    if checked.has(folder, "audit.json"):
        return audit_run.read
    if checked.has(folder, "composition.csv"):
        return composition_run.read
    raise ValueError(
        "it holds no run: no summary.json of `keras-fm compare` or "
        "`reproduce`, no audit.json, no composition.csv."
    )
