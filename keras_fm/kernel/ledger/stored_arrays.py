"""Arrays of an `.npz` file from an untrusted source.

`numpy.load(allow_pickle=False)` runs no code. But it allocates whatever shape
a header states, and unpacks whatever was packed. Here both are checked before
anything of that size is allocated.
"""

import contextlib
import io
import math
import os
import struct
import zipfile
import zlib

import numpy as np

_LARGEST = 1 << 30
_LARGEST_RATIO = 100
_MOST_ARRAYS = 1000
_MOST_AXES = 32
# Booleans, integers and floats of up to 8 bytes; nothing that holds objects.
_KINDS = "biuf"
_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@contextlib.contextmanager
def opened(path):
    """Gives the `StoredArrays` of the `.npz` file at `path`.

    Raises:
        ValueError: here or in the body of `with`, if the file is not a valid
            one.
        OSError: if it cannot be opened.
    """
    with open(path, "rb") as f:
        with _unzipped(f, os.fstat(f.fileno()).st_size) as arrays:
            yield arrays


@contextlib.contextmanager
def unpacked(data):
    """The same for bytes from another process."""
    with _unzipped(io.BytesIO(data), len(data)) as arrays:
        yield arrays


@contextlib.contextmanager
def _unzipped(f, size):
    try:
        with zipfile.ZipFile(f) as archive:
            yield StoredArrays(archive, size)
    except (
        EOFError,
        NotImplementedError,
        OSError,
        RuntimeError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ) as e:
        raise ValueError(f"not a readable .npz file: {e}") from e


class StoredArrays:
    """Arrays of numbers by their names, loaded on demand.

    Args:
        archive: a `zipfile.ZipFile`.
        size: of its file in bytes. At most 1 GB is unpacked, or a hundred
            times this size if that is more.

    Raises:
        ValueError: if too much is packed in it, or a name occurs twice.
    """

    def __init__(self, archive, size):
        members = archive.infolist()
        names = [m.filename for m in members]
        if len(names) > _MOST_ARRAYS or len(set(names)) < len(names):
            raise ValueError("it holds too many arrays, or one of them twice")
        most = max(_LARGEST, _LARGEST_RATIO * size)
        if sum(m.file_size for m in members) > most:
            raise ValueError(f"it unpacks to more than {most / 1e9:.2g} GB")
        self._archive = archive
        self._members = {
            m.filename.removesuffix(".npy"): m
            for m in members
            if m.filename.endswith(".npy")
        }

    def read(self, name, shape=None):
        """An array of booleans, integers or floats.

        Args:
            name: its name.
            shape: `None`, or the shape that it must have.

        Raises:
            ValueError: if no array has this name and shape, or the array
                holds anything but numbers, or is cut off.
        """
        member = self._members.get(name)
        if member is None:
            raise ValueError(f"it lacks the array {name!r}")
        if member.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise ValueError(f"{name!r} is packed in an unknown way")
        with self._archive.open(member) as f:
            found, fortran, dtype = _header(f, name)
            if shape is not None and found != tuple(shape):
                raise ValueError(
                    f"{name!r} must have shape {tuple(shape)}, not {found}"
                )
            if dtype.kind not in _KINDS or dtype.itemsize > 8:
                raise ValueError(f"{name!r} holds {dtype}, not plain numbers")
            size = math.prod(found) * dtype.itemsize
            # Checked before memory is allocated for it.
            if size > member.file_size:
                raise ValueError(f"{name!r} is shorter than its shape {found}")
            raw = f.read(size)
            if len(raw) != size or f.read(1):
                raise ValueError(f"{name!r} is not as long as its shape")
        array = np.frombuffer(raw, dtype)
        array = array.reshape(found, order="F" if fortran else "C")
        return array.astype(dtype.newbyteorder("="))


def _header(f, name):
    """`(shape, Fortran order, dtype)` as an array's header states them."""
    reader = _READERS.get(np.lib.format.read_magic(f))
    if reader is None:
        raise ValueError(f"{name!r} has a header of an unknown version")
    try:
        # NumPy parses it as a literal of at most 10,000 characters.
        shape, fortran, dtype = reader(f)
    except Exception as e:
        # Any error that Python or NumPy raises for a damaged header.
        raise ValueError(f"{name!r} has an invalid header: {e}") from e
    whole = all(type(n) is int and n >= 0 for n in shape)
    if not whole or len(shape) > _MOST_AXES:
        raise ValueError(f"{name!r} states an impossible shape")
    return shape, fortran, dtype
