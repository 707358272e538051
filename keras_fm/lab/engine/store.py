"""Answers by key, each on disk as soon as it is there."""

import functools
import hashlib
import json
import math
import os
import pathlib

import keras

import keras_fm
from keras_fm.lab import provenance
from keras_fm.version import __version__


def key(*content):
    """A hash of all that an answer is a function of, noise aside: what is
    given, the backend, and this package's source."""
    content = [*content, keras.backend.backend(), code()]
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@functools.cache
def code():
    """Fingerprint of this package: other code, other answers."""
    digest = hashlib.sha256(__version__.encode())
    folder = pathlib.Path(keras_fm.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Store:
    """A file with a line of JSON for every answer.

    Args:
        path: of the file, or `None` to keep nothing on disk.
        fields: what an answer must hold to be taken up again.
        is_fresh: whether what is on disk is not taken up.
    """

    def __init__(self, path, fields=(), is_fresh=False):
        self._path, self._fields, self._found = path, set(fields), {}
        if path and os.path.exists(path) and not is_fresh:
            with open(path) as f:
                for line in f:
                    self._read(line)

    def _read(self, line):
        try:
            entry = json.loads(line)
            answer = {k: _number(v) for k, v in entry["row"].items()}
            if self._fields <= set(answer):
                self._found[entry["key"]] = answer
        except (ValueError, KeyError, TypeError, AttributeError):
            # A line that a crash cut short is measured again.
            return

    def __getitem__(self, key):
        return self._found[key]

    def __contains__(self, key):
        return key in self._found

    def kept(self):
        """What becomes of them after this process, in words."""
        if not self._path:
            return "nothing is kept without a folder."
        folder = os.path.dirname(self._path)
        return f"they are kept in {folder}, and the same command goes on."

    def add(self, key, answer):
        self._found[key] = {k: _number(v) for k, v in answer.items()}
        if not self._path:
            return
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        entry = {"key": key, "row": provenance.finite(answer)}
        with open(self._path, "ab+") as f:
            # After a line that was cut short.
            if f.seek(0, os.SEEK_END):
                f.seek(-1, os.SEEK_END)
                if f.read(1) != b"\n":
                    f.write(b"\n")
            f.write((json.dumps(entry) + "\n").encode())


def _number(value):
    """Infinity and NaN travel through JSON as strings."""
    known = {"inf": math.inf, "nan": math.nan}
    return known.get(value, value) if isinstance(value, str) else value
