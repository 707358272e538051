"""What a ledger takes for granted: proven by the library, or declared."""

import re

from keras_fm.kernel.ledger import ledger_text

_PROVEN, _DECLARED = "proven", "declared"
# What a note of a ledger entry is about, by how it begins; all others are
# about what was done to records before they were read.
_ABOUT = (
    ("the number of ", "n"),
    ("weights of classes", "weights"),
    ("weights of rows", "weights"),
    ("validation: ", "validation"),
    ("first weights: ", "start"),
    ("initial weights of ", "start"),
)
# Notes of what the library saw to itself.
_SEEN_TO = re.compile(
    "the number of records n is not used|weights of classes: released|"
    "weights of layer .*: from its own release|features: record by record .*|"
    "scales of layer .*: from the released relevance"
)
# What holds where no note says otherwise.
_ELSE = {
    "n": ("no entry uses a number of records", _PROVEN),
    "weights": ("every row counts alike", _PROVEN),
    "validation": ("no validation data enter a release", _PROVEN),
    "start": ("all that learned was set from its release", _PROVEN),
}
_BEFORE = ("what was done to the rows before is not covered", _DECLARED)


def of(ledger):
    """What a ledger takes for granted, line by line.

    Args:
        ledger: a `keras_fm.Ledger`.

    Returns:
        list of lists of three str: what it is about, words, and `"proven"` if
        the library saw to it or `"declared"`.
    """
    unit = ledger.unit
    proved = ledger_text.proved_unit(unit)
    found = [["unit", unit, _PROVEN if proved == unit else _DECLARED]]
    notes = dict.fromkeys(n for e in ledger.entries for n in e.notes)
    about = [(_subject(note), note) for note in notes]
    for name, otherwise in (*_ELSE.items(), ("preprocessing", _BEFORE)):
        lines = [(n, _standing(n)) for subject, n in about if subject == name]
        if not lines or name == "preprocessing":
            lines.append(otherwise)
        found += [[name, *line] for line in lines]
    return found


def declared(notes):
    """A caller's notes, a text or several, as a tuple.

    Raises:
        ValueError: if one is in words that stand for what is proven.
    """
    notes = (notes,) if isinstance(notes, str) else tuple(notes)
    for note in notes:
        if isinstance(note, str) and _SEEN_TO.fullmatch(note):
            raise ValueError(
                "`notes` are your declarations, and these words stand for "
                f"what is proven. Word it otherwise. Received: {note!r}"
            )
    return notes


def _subject(note):
    about = (name for start, name in _ABOUT if note.startswith(start))
    return next(about, "preprocessing")


def _standing(note):
    return _PROVEN if _SEEN_TO.fullmatch(note) else _DECLARED
