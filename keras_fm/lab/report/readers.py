"""Folders that commands wrote, as `Run`s."""

import importlib
import os

from keras_fm.lab.report import checked


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
        # What the others stand on is not imported, nor waited for.
        made_by = importlib.import_module(f"{__package__}.{_kind(folder)}_run")
        return made_by.read(folder)
    except ValueError as e:
        raise ValueError(f"{shown!r}: {e}") from e


def _kind(folder):
    if checked.has(folder, "summary.json"):
        summary = checked.read_json(folder, "summary.json")
        kind = summary.text("kind")
        if kind == "compare" or (
            not kind and "spec" in summary and "rows" in summary
        ):
            return "comparison"
        if kind == "reproduce" or (
            not kind and "experiment" in summary and "points" in summary
        ):
            return "reproduction"
    if checked.has(folder, "audit.json"):
        return "audit"
    if checked.has(folder, "composition.csv"):
        return "composition"
    raise ValueError(
        "it holds no run: no summary.json of `keras-fm compare` or "
        "`reproduce`, no audit.json, no composition.csv."
    )
