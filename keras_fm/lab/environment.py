"""What this Python has, told without importing it."""

import contextlib
import importlib.util
import json
import os
import pathlib
import sys


def backend():
    """The backend that Keras will take, and who chose it."""
    if name := os.environ.get("KERAS_BACKEND"):
        return name, "KERAS_BACKEND"
    home = pathlib.Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    try:
        text = (home / "keras.json").read_text(encoding="utf-8")
        return json.loads(text)["backend"], str(home / "keras.json")
    except (OSError, ValueError, KeyError, TypeError):
        return "tensorflow", "the default of Keras"


@contextlib.contextmanager
def quiet():
    """Without what libraries write to the standard error as they are
    imported; what fails raises."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def has(module):
    """Whether it is installed."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
