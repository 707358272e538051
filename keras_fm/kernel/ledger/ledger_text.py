"""A ledger as JSON: its contents, parsed strictly and written whole."""

import dataclasses
import json
import re
import secrets

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks
from keras_fm.kernel.ledger import ledger_entry, strict_json
from keras_fm.kernel.ledger.ledger_entry import LedgerEntry

_FORMAT = 1
# More entries would take minutes to load and compose.
_MOST_ENTRIES = 10_000
# The units that releases are proved for. Any other words are the user's
# declaration.
ONE_RECORD = "one record (one row of the data given)"
ONE_OWNER = "one owner with all its rows (ids given as `owners`)"
SEVERAL = "contents of one owner's rows (which owner has which row is public)"
_PROVED = (ONE_RECORD, ONE_OWNER, SEVERAL)
DECLARED = ", by declaration "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """What a ledger holds.

    Attributes:
        id: str, random and public: which ledger it is.
        budget: a `PrivacyBudget`.
        neighbours: a `Neighbours`.
        unit: the privacy unit in words.
        entries: tuple of `LedgerEntry`.
        audits: tuple of `(when, line)`; these are not composed.
    """

    budget: budget_lib.PrivacyBudget
    neighbours: budget_lib.Neighbours
    unit: str
    id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))
    entries: tuple = ()
    audits: tuple = ()

    def __post_init__(self):
        if not isinstance(self.id, str) or not re.fullmatch(
            "[0-9a-f]{32}", self.id
        ):
            raise ValueError(f"`id` must be 32 hexadecimal digits: {self.id!r}")
        checked_unit(self.unit)
        if len(self.entries) > _MOST_ENTRIES:
            raise ValueError(
                f"A ledger holds at most {_MOST_ENTRIES:,} entries. Begin "
                "another one, which adds to this."
            )
        for entry in self.entries:
            check_relation(entry, self.neighbours)
        for when, line in self.audits:
            ledger_entry.check_line("The time of an audit", when)
            ledger_entry.check_line("The line of an audit", line)
            if not line:
                raise ValueError("The line of an audit must not be empty.")

    def holds(self, other):
        """Whether it holds all of another text: it is the same ledger, and
        its entries begin with the other's."""
        terms = (self.id, self.budget, self.neighbours, self.unit)
        return (
            terms == (other.id, other.budget, other.neighbours, other.unit)
            and self.entries[: len(other.entries)] == other.entries
        )

    def check_terms(self, where, **given):
        """Refuses terms that differ from its own; `None` matches any.

        Raises:
            ValueError: naming the term that differs.
        """
        for name, value in given.items():
            own = getattr(self, name)
            if value is not None and value != own:
                own = str(own) if name == "neighbours" else own
                raise ValueError(
                    f"`{name}` of the ledger at {where!r} is {own!r} and "
                    f"cannot be changed. Received: {name}={value!r}"
                )

    def text(self):
        """The JSON text. It has no noise and no statistic."""
        data = {
            "format": _FORMAT,
            "id": self.id,
            "budget": dataclasses.asdict(self.budget),
            "neighbours": str(self.neighbours),
            "unit": self.unit,
            "entries": [dataclasses.asdict(e) for e in self.entries],
            "audits": self.audits,
        }
        return json.dumps(data, indent=1, allow_nan=False)


def parse(text):
    """The `Contents` of a text.

    Raises:
        ValueError: if the text is not a ledger of this format.
    """
    try:
        data = strict_json.parse(text)
        if data.pop("format") != _FORMAT:
            raise ValueError("unknown format")
        budget = data.pop("budget")
        for name, value in budget.items():
            if isinstance(value, str):
                raise ValueError(f"`{name}` must be a number: {value!r}")
        return Contents(
            budget=budget_lib.PrivacyBudget(**budget),
            neighbours=budget_lib.Neighbours.of(data.pop("neighbours")),
            entries=tuple(_entries(data.pop("entries"))),
            audits=tuple((when, line) for when, line in data.pop("audits")),
            id=data.pop("id"),
            **data,
        )
    except strict_json.MALFORMED as e:
        raise ValueError(f"This is not a keras_fm ledger: {e}") from e


def _entries(data):
    if not isinstance(data, list):
        raise ValueError("`entries` must be a list")
    # Checked before anything is built from them.
    if len(data) > _MOST_ENTRIES:
        raise ValueError(f"it holds more than {_MOST_ENTRIES:,} entries")
    for entry in data:
        if not isinstance(entry["notes"], list):
            raise ValueError("`notes` must be a list")
        yield LedgerEntry(**{**entry, "notes": tuple(entry["notes"])})


def check_relation(entry, neighbours):
    """Refuses an entry whose relation is not that of the ledger."""
    if entry.neighbours != str(neighbours):
        raise ValueError(
            "An entry must refer to the ledger's neighbouring relation "
            f"{str(neighbours)!r}. Received: neighbours={entry.neighbours!r}"
        )


# Units -----------------------------------------------------------------------


def declared_words(unit):
    """The declared words of a unit, or `None`."""
    proved = proved_unit(unit)
    return unit if proved is None else unit.partition(DECLARED)[2] or None


def proved_unit(unit):
    """The part of a unit that releases were proved for: `ONE_RECORD`,
    `ONE_OWNER` or `SEVERAL`, or `None` if the unit is words alone."""
    proved = unit.partition(DECLARED)[0]
    return proved if proved in _PROVED else None


def checked_unit(unit):
    """The privacy unit, which must be text on one line."""
    checks.text("unit", unit, "the privacy unit in words")
    ledger_entry.check_line("`unit`", unit)
    return unit


def shown_unit(unit):
    """A unit as readers see it: declared words are marked as such."""
    return unit if proved_unit(unit) else f"{unit} (by declaration)"
