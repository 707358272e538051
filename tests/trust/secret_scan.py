"""Looks for numbers in files: as bytes of either precision and as text."""

import io
import re
import zipfile

import h5py
import numpy as np

_NUMBER = re.compile(rb"-?\d+\.\d{6,}(?:e[+-]?\d+)?")
# Eight digits are printed of an array.
_PRINTED = 1e-8


class Secrets:
    """Numbers that no file may hold.

    Args:
        singles: dict from names to arrays of which no single number may be
            found: statistics and noise in double precision.
        rows: dict from names to arrays of which no two neighbours along any
            axis may be found in single precision, and no number as text.
    """

    def __init__(self, singles, rows):
        self._words, self._values = {}, {}
        self._of_rows = set(rows)
        for name, array in {**singles, **rows}.items():
            array = np.asarray(array, np.float64)
            for value in _telling(array.ravel()):
                self._values[float(value)] = name
                self._words[_word(value)] = name
            for axis in range(array.ndim):
                pairs = np.stack(
                    [
                        np.delete(array, -1, axis).ravel(),
                        np.delete(array, 0, axis).ravel(),
                    ],
                    axis=-1,
                )
                kept = _is_telling(pairs).all(axis=-1)
                for pair in pairs[kept].astype("<f4"):
                    self._words[_word(pair)] = name
        self._sorted_words = np.array(sorted(self._words), np.uint64)
        self._sorted = np.array(sorted(self._values))

    def __len__(self):
        return len(self._words)

    def found_in(self, raw):
        """Names of what bytes hold, wherever it begins."""
        found = set()
        for start in range(8):
            end = start + (len(raw) - start) // 8 * 8
            words = np.frombuffer(raw[start:end], "<u8")
            for word in words[np.isin(words, self._sorted_words)]:
                found.add(self._words[int(word)])
        for text in _NUMBER.findall(raw):
            value = float(text)
            at = np.searchsorted(self._sorted, value)
            near = {
                self._values[float(other)]
                for other in self._sorted[max(0, at - 1) : at + 1]
                if abs(other - value) <= _PRINTED * max(1, abs(value))
            }
            # A printed record may lie beside a noise: it is the record.
            found |= near & self._of_rows or near
        return found

    def found_under(self, folder):
        """Dict from paths to names, of all files and what is packed in
        them."""
        found = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                for inner, raw in unpacked(path.name, path.read_bytes()):
                    for name in self.found_in(raw):
                        found.setdefault(inner, set()).add(name)
        return found


def unpacked(name, raw):
    """Yields `(name, bytes)` of a file and of all that is packed in it."""
    yield name, raw
    if raw[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            for inner in archive.namelist():
                yield from unpacked(f"{name}/{inner}", archive.read(inner))
    elif raw[:4] == b"\x89HDF":
        datasets = []
        with h5py.File(io.BytesIO(raw)) as f:
            f.visititems(
                lambda inner, item: (
                    datasets.append((inner, item[()]))
                    if isinstance(item, h5py.Dataset)
                    else None
                )
            )
        for inner, array in datasets:
            yield f"{name}/{inner}", np.asarray(array).tobytes()


def _is_telling(values):
    """Round numbers (sums of ones, zeros of padding) are anywhere."""
    return np.abs(values * 64 - np.round(values * 64)) > 1e-4


def _telling(values):
    return values[_is_telling(values)]


def _word(values):
    return int(np.frombuffer(np.asarray(values).astype(values.dtype), "<u8")[0])
