"""Values of files that anybody may have written: checked, never trusted.

A missing field is `None`; a field of the wrong type is a `ValueError` that
names it. Text is made harmless to read; the page escapes it.
"""

import csv
import io
import json
import math
import os
import re
import struct
import types

_LARGEST_FILE = 32 * 2**20
_MOST_ROWS = 20_000
_MOST_PIXELS = 20_000
_LONGEST_TEXT = 100_000
# Control characters, halves of surrogate pairs, and marks that reverse the
# order of what is read ("proven" may be spelt backwards with them).
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


class Fields:
    """A table of JSON, read field by field.

    Args:
        data: a dict.
        where: str, what messages call it.

    Raises:
        ValueError: if it is not a dict.
    """

    def __init__(self, data, where):
        if not isinstance(data, dict):
            raise ValueError(f"{where} is no table of fields.")
        self._data, self.where = data, where

    def __contains__(self, name):
        return self._data.get(name) is not None

    def _wrong(self, name, what):
        shown = repr(self._data.get(name))
        shown = shown if len(shown) < 60 else shown[:57] + "..."
        return ValueError(
            f"`{name}` of {self.where} must be {what}. Received: {clean(shown)}"
        )

    def text(self, name, default=""):
        """A string."""
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        return clean(value)

    def number(self, name, least=None):
        """A float or `None`; NaN and infinities may be written as text."""
        value = self._data.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise self._wrong(name, "a number")
        try:
            value = float(value)
        except (OverflowError, ValueError):
            raise self._wrong(name, "a number") from None
        if least is not None and value < least:
            raise self._wrong(name, f"at least {least:g}")
        return value

    def numbers(self, **least):
        """Several numbers by name, each at least what is given (`None`: any),
        as attributes."""
        found = {name: self.number(name, low) for name, low in least.items()}
        return types.SimpleNamespace(**found)

    def finite_numbers(self, *names):
        """Several numbers, at least 0, none of which may be missing."""
        for name in names:
            if not finite(self.number(name, 0)):
                raise ValueError(f"`{name}` of {self.where} is missing.")

    def fields(self, name):
        """A table inside this one; empty if it is missing."""
        value = self._data.get(name)
        return Fields(
            {} if value is None else value, f"`{name}` of {self.where}"
        )

    def list_of_fields(self, name):
        """A list of tables; empty if it is missing."""
        value = self._data.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        if len(value) > _MOST_ROWS:
            raise ValueError(
                f"`{name}` of {self.where} has {len(value)} entries; a page "
                f"shows at most {_MOST_ROWS}."
            )
        return [
            Fields(v, f"entry {i} of `{name}` of {self.where}")
            for i, v in enumerate(value)
        ]

    def words(self):
        """All fields as (name, value in words)."""
        return tuple(
            (clean(str(k)), in_words(v)) for k, v in self._data.items()
        )


def clean(text):
    """Text without characters that mislead or that HTML forbids."""
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + " [cut]"
    return _HARMFUL.sub("\ufffd", text.replace("\r\n", "\n"))


def in_words(value):
    """Any value of JSON as a short text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, str):
        return clean(value) or "none"
    if isinstance(value, list) and not any(
        isinstance(v, (list, dict)) for v in value
    ):
        return ", ".join(map(in_words, value)) or "none"
    return clean(json.dumps(value, ensure_ascii=False))


# Files ----------------------------------------------------------------------


def has(folder, name):
    """Whether the folder holds that file."""
    return os.path.isfile(os.path.join(folder, name))


def read_bytes(folder, name):
    """Bytes of a file of limited size.

    Raises:
        ValueError: if it cannot be read or is too large.
    """
    path = os.path.join(folder, name)
    try:
        with open(path, "rb") as f:
            found = f.read(_LARGEST_FILE + 1)
    except OSError as e:
        raise ValueError(f"{name} cannot be read: {e.strerror}.") from e
    if len(found) > _LARGEST_FILE:
        raise ValueError(f"{name} is larger than {_LARGEST_FILE >> 20} MiB.")
    return found


def read_text(folder, name):
    """Text of a file in UTF-8."""
    try:
        return read_bytes(folder, name).decode("utf-8")
    except UnicodeDecodeError as e:
        raise ValueError(f"{name} is no text: {e.reason}.") from e


def read_json(folder, name):
    """`Fields` of a JSON file."""
    try:
        data = json.loads(read_text(folder, name))
    except RecursionError as e:
        raise ValueError(f"{name} is nested too deeply.") from e
    except json.JSONDecodeError as e:
        raise ValueError(f"{name} is no JSON: {e}.") from e
    except ValueError as e:
        # Such as an integer of more digits than Python reads.
        raise ValueError(f"{name} cannot be read: {e}") from e
    return Fields(data, name)


def read_csv(folder, name):
    """List of `Fields`, one for each row; empty if there is no such file."""
    if not has(folder, name):
        return []
    rows = []
    try:
        reader = csv.DictReader(io.StringIO(read_text(folder, name)))
        for row in reader:
            row.pop(None, None)
            rows.append(Fields(row, f"row {len(rows) + 1} of {name}"))
            if len(rows) > _MOST_ROWS:
                raise ValueError(f"{name} has more than {_MOST_ROWS} rows.")
    except csv.Error as e:
        raise ValueError(f"{name} is no CSV: {e}.") from e
    return rows


def png_size(content, name):
    """Width and height of a PNG.

    Raises:
        ValueError: if it is no PNG.
    """
    head = content[:24]
    if len(head) < 24 or head[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError(f"{name} is no PNG.")
    width, height = struct.unpack(">II", head[16:])
    if not (0 < width <= _MOST_PIXELS and 0 < height <= _MOST_PIXELS):
        raise ValueError(f"{name} is no PNG of a size that can be shown.")
    return width, height


def finite(value):
    """Whether it is a number that can be drawn."""
    return value is not None and math.isfinite(value)
