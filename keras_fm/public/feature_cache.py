"""Caches features of records on disk, if you ask for it.

Extracting features can take longer than training on them. A `FeatureCache`
keeps them between runs. A file is used again if it is of the same records and
weights, and some records still have the features that it holds.

Features of private records are as private as the records. The library never
makes a cache by itself. Protect and delete the folder like the records.
"""

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_fm.core import batch_statistics
from keras_fm.core.hidden_state import HiddenStateLayer
from keras_fm.kernel import checks
from keras_fm.public import features as features_lib

# Records processed at a time.
_ROWS = 4096
# Records whose features are computed again, and how far these may be off, in
# units of the largest: other processors and batches round otherwise.
_COMPARED, _TOLERANCE = 16, 1e-5
_OURS = re.compile(r"[0-9a-f]{64}\.npy|[\w-]+\.part")


class FeatureCache:
    """Keeps features of records in files, and recomputes them after any change.

    The name of a file is a SHA-256 of the records (bytes, shape, type), the
    classes of the map's layers and their weights. Before a file is used, the
    features of 16 of its records are computed again, so any change of the map,
    its precision or the software that changes features is seen.

    *Privacy.* The files hold unprotected features of every record, and their
    names reveal to anybody with the same records that these were used. No
    guarantee covers them, so they are as private as the records. Only you can
    read the folder (0700) and its files (0600), and keras_fm uses no cache that
    you did not make. `clear` deletes the files, but copies may survive in
    backups, synchronised folders and old disk blocks. Choose the folder as you
    would for the records.

    A file gets its name only when it is complete. This does not protect against
    somebody who can write into the folder.

    Args:
        folder: path of the folder; created, with its parents, if missing.

    Raises:
        ValueError: if other users can enter the folder, or own it.

    Example:

    ```python
    body = fm.features.build("scattering", (28, 28, 1))
    cache = FeatureCache("private/features")
    h = cache.extract(body, x)  # (60000, 800), read when it is used
    private = PrivateModel(epsilon=1.0, delta=1e-5, data=(h, y))
    model.fit(h, y, callbacks=[private])
    cache.clear()
    ```
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self._folder = os.fspath(folder)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        # On other systems the mode does not show access by others.
        if os.name == "posix":
            found = os.stat(self._folder)
            mode = stat.S_IMODE(found.st_mode)
            if mode & 0o077 or found.st_uid != os.geteuid():
                raise ValueError(
                    "`folder` must be yours, and closed to others "
                    "(`chmod 700`): features are as private as the records. "
                    f"Received: folder={self._folder!r} with mode {mode:o}"
                )

    def extract(
        self,
        map_: keras.Model | Callable[[Any], np.ndarray],
        x: np.ndarray | Sequence[str],
        name: str | None = None,
    ) -> np.ndarray:
        """The features of records, from disk if they are cached.

        Memory does not grow with the number of records: they are processed in
        pieces, and the result is a memory map.

        A map that is not a Keras model (ONNX, another library) must be a
        function of *one* record. It is called with one at a time, so no batch
        can mix records; a dynamically quantised network, for instance, may take
        its scale from a whole batch. You declare that the function was made
        without private records and keeps nothing of the records it sees.

        Args:
            map_: a built Keras model from records to features, in which every
                layer is public or was released. Or a function from one record
                to an array of its features.
            x: array `(n, ...)` of numbers; may be an `np.memmap`. For a
                function also a list of texts.
            name: for a function: names what it computes. Under another name
                features are extracted again. A model needs none.

        Returns:
            `(n, ...)` float32, read-only.

        Raises:
            ValueError: if the map uses statistics of batches (unless frozen),
                or holds a private layer without a release; if a function has
                no name, or its features have several shapes or are not finite;
                if `x` is empty, or not of plain numbers (or texts). Nothing is
                written then.
            OSError: if the disk is full or the folder is gone.
        """
        if isinstance(map_, keras.Model):
            _check_map(map_)
            x = _checked_records(x)
            width = map_.output_shape[1:]
        else:
            map_ = _OneByOne(map_, name)
            x = _checked_records(x, text=True)
            width = map_(x[:1]).shape[1:]
        path = os.path.join(self._folder, f"{_key(map_, x)}.npy")
        shape = (len(x), *width)
        found = self._read(path, shape)
        if found is None or not _are_still(found, map_, x):
            self._write(path, shape, map_, x)
            found = self._read(path, shape)
            if found is None:
                raise OSError(f"{path!r} cannot be read again.")
        return found

    def clear(self) -> None:
        """Deletes the files of this cache and nothing else in its folder."""
        for name in os.listdir(self._folder):
            if _OURS.fullmatch(name):
                os.remove(os.path.join(self._folder, name))

    def __repr__(self):
        return f"<FeatureCache in {self._folder!r}>"

    def _read(self, path, shape):
        """The features in a file, or `None` if it is missing."""
        try:
            # A memory map never unpickles objects.
            found = np.lib.format.open_memmap(path, mode="r")
        except (FileNotFoundError, ValueError):
            return None
        if found.shape != shape or found.dtype != np.float32:
            return None
        return found

    def _write(self, path, shape, map_, x):
        """Writes the features to a temporary file, then renames it."""
        # Creates it with mode 0600.
        number, part = tempfile.mkstemp(".part", dir=self._folder)
        try:
            with os.fdopen(number, "wb") as file:
                kind = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, kind)
                for start in range(0, len(x), _ROWS):
                    h = _some(map_, x[start : start + _ROWS], shape[1:])
                    file.write(np.ascontiguousarray(h, "<f4").data.cast("B"))
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            os.remove(part)
            raise


def _are_still(found, map_, x):
    """Whether these are the features of records, as far as some tell."""
    rows = np.unique(np.linspace(0, len(x) - 1, _COMPARED).astype(int))
    given = [x[row] for row in rows]
    now = _some(map_, given, found.shape[1:])
    error = np.abs(found[rows] - now).max(initial=0)
    return error <= _TOLERANCE * np.abs(now).max(initial=0)


def _some(map_, rows, shape):
    """Features of some records, each of this shape."""
    if isinstance(map_, _OneByOne):
        h = map_(rows)
    else:
        rows = np.asarray(rows)
        h = np.asarray(features_lib.extract(map_, rows))
    if h.shape != (len(rows), *shape):
        raise ValueError(
            "`map_` must give one row of features for each record, of shape "
            f"{shape}. Received: {h.shape} for {len(rows)} records"
        )
    return h


class _OneByOne:
    """Applies a function of one record to several."""

    def __init__(self, function, name):
        layer = isinstance(function, keras.layers.Layer)
        if layer or not callable(function):
            raise ValueError(
                "`map_` must be a built Keras model, or a function of one "
                f"record. Received: {type(function).__name__}"
            )
        self._function = function
        self.name = checks.text(
            "name", name, "a text that identifies the function"
        )

    def __call__(self, rows):
        found = [np.asarray(self._function(row), "float32") for row in rows]
        if len({one.shape for one in found}) > 1 or found[0].ndim == 0:
            raise ValueError(
                "`map_` must give an array of one shape for every record. "
                f"Received: shapes {sorted({one.shape for one in found})}"
            )
        found = np.stack(found)
        if not np.isfinite(found).all():
            raise ValueError(
                "`map_` must give finite features. Received: one that is not"
            )
        return found


# What may be kept ---------------------------------------------------------


def _check_map(map_):
    if not map_.built:
        raise ValueError(
            "`map_` must be a built Keras model. Received one that is not"
        )
    for layer in map_._flatten_layers():
        reason = _reason_against(layer)
        if reason:
            raise ValueError(
                f"Features through layer '{layer.name}' "
                f"({type(layer).__name__}) are not kept: {reason}."
            )


def _reason_against(layer):
    if isinstance(layer, HiddenStateLayer) and not getattr(
        layer, "is_released", False
    ):
        return "it is private, and was not released"
    if isinstance(layer, batch_statistics.KINDS) and not (
        batch_statistics.are_constant(layer)
    ):
        return (
            "it holds statistics of the records it was trained on; if these "
            "are public, set `trainable = False`"
        )
    return None


def _checked_records(x, text=False):
    if text and isinstance(x, (list, tuple)) and x:
        if all(isinstance(v, str) for v in x):
            return x
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        x = np.asarray(x)
    kind = np.dtype(x.dtype).kind
    if kind not in "biuf" or len(x.shape) < 1 or not len(x):
        raise ValueError(
            "`x` must be an array (n, ...) of numbers with at least one "
            f"record. Received: shape={tuple(x.shape)}, dtype={x.dtype}"
        )
    return x


# What features depend on --------------------------------------------------


def _key(map_, x):
    """Hexadecimal SHA-256 of records `x` and of what a map consists of."""
    digest = hashlib.sha256()

    def take(data):
        # Lengths first: no two lists of parts give the same bytes.
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)

    if isinstance(map_, _OneByOne):
        take(f"function {map_.name}".encode())
    else:
        for layer in map_._flatten_layers():
            take(type(layer).__name__.encode())
        for weight in map_.weights:
            take(f"{weight.dtype} {tuple(weight.shape)}".encode())
            take(_bytes(keras.ops.convert_to_numpy(weight)))
    if isinstance(x, (list, tuple)):
        take(b"texts")
        for text in x:
            take(text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()
    take(f"{np.dtype(x.dtype).str} {tuple(x.shape)}".encode())
    for start in range(0, len(x), _ROWS):
        take(_bytes(np.asarray(x[start : start + _ROWS])))
    return digest.hexdigest()


def _bytes(array):
    return np.ascontiguousarray(array).tobytes()
