"""What a file of results holds beside them: command line, time, versions."""

import datetime
import importlib.metadata
import math
import platform
import sys

from keras_fm.version import __version__

_PACKAGES = (
    "keras",
    "tensorflow",
    "tensorflow-privacy",
    "jax",
    "jax-privacy",
    "torch",
    "numpy",
    "dp-accounting",
)


def versions():
    """Names and versions of what computes here."""
    found = {
        "keras_fm": __version__,
        "python": platform.python_version(),
    }
    # What needs no Keras is not made to wait for it.
    if "keras" in sys.modules:
        found["backend"] = sys.modules["keras"].backend.backend()
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def record(command=None):
    """`{"command", "when", "versions"}` for a JSON file.

    Args:
        command: `None`, or the command line that does the same.
    """
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "command": command,
        "when": now.isoformat(timespec="seconds"),
        "versions": versions(),
    }


def finite(value):
    """JSON has no infinity: it is written as the string "inf"."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
