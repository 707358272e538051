"""The facts that a ledger relies on: proven by the library, or declared."""

import re

from keras_fm.kernel.ledger import ledger_text

_PROVEN, _DECLARED = "proven", "declared"
# The subject of a ledger entry's note, by how the note begins. All others are
# about what was done to records before they were used.
_ABOUT = (
    ("the number of ", "n"),
    ("weights of classes", "weights"),
    ("weights of rows", "weights"),
    ("validation: ", "validation"),
    ("first weights: ", "start"),
    ("initial weights of ", "start"),
)
# Notes of facts that the library ensured itself.
_SEEN_TO = re.compile(
    "the number of records n is not used|weights of classes: released|"
    "weights of layer .*: from its own release|features: record by record .*|"
    "scales of layer .*: from the released relevance"
)
# The facts that hold unless a note states otherwise.
_ELSE = {
    "n": ("no entry uses a number of records", _PROVEN),
    "weights": ("every row counts alike", _PROVEN),
    "validation": ("no validation data enter a release", _PROVEN),
    "start": ("all trained weights come from a release", _PROVEN),
}
_BEFORE = ("earlier processing of the rows is not covered", _DECLARED)


def of(ledger):
    """The facts that a ledger relies on, line by line.

    Args:
        ledger: a `keras_fm.Ledger`.

    Returns:
        list of lists of three str: the subject, words, and `"proven"` if the
        library ensured it, or `"declared"`.
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
        ValueError: if one has words that are reserved for proven facts.
    """
    notes = (notes,) if isinstance(notes, str) else tuple(notes)
    for note in notes:
        if isinstance(note, str) and _SEEN_TO.fullmatch(note):
            raise ValueError(
                "`notes` must be in other words: these are reserved for facts "
                f"that the library proved. Received: {note!r}"
            )
    return notes


def _subject(note):
    about = (name for start, name in _ABOUT if note.startswith(start))
    return next(about, "preprocessing")


def _standing(note):
    return _PROVEN if _SEEN_TO.fullmatch(note) else _DECLARED
