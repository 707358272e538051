"""What this Python has, told without importing it."""

import importlib.util
import json
import os
import pathlib


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


def has(module):
    """Whether it is installed."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
