"""A ledger as JSON: what it holds, read strictly and written whole."""

import collections
import dataclasses
import functools
import hashlib
import json
import re
import secrets

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel.ledger import ledger_entry, strict_json
from keras_fm.kernel.ledger.ledger_entry import LedgerEntry

# Of ledgers in which steps of one name differ the second: programs that know
# the first alone would take one for another.
_FORMATS = 1, 2
_LARGEST_COUNT = 10**18
# What the unit is where a release was proved for it; other words are their
# writer's.
ONE_RECORD = "one record (one row of the data given)"
ONE_OWNER = "one owner with all its rows (ids given as `owners`)"
_DECLARED = ", by declaration "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """What a ledger holds.

    Attributes:
        id: str, random and public: which ledger it is, in every copy.
        budget: a `PrivacyBudget`.
        neighbours: a `Neighbours`.
        unit: the privacy unit in words.
        entries: tuple of `LedgerEntry`.
        audits: tuple of `(when, line)`; no part of what is composed.
        used: dict from kinds of steps (`kinds`) to how many of those that
            were paid for are used or reserved.
        returned: dict from kinds to how many were reserved and given back,
            ever. Only with it can `used` fall, so that an older text is told
            from a newer one.
        is_old: whether it was written before steps were counted.
    """

    id: str
    budget: budget_lib.PrivacyBudget
    neighbours: budget_lib.Neighbours
    unit: str
    entries: tuple = ()
    audits: tuple = ()
    used: dict = dataclasses.field(default_factory=dict)
    returned: dict = dataclasses.field(default_factory=dict)
    is_old: bool = False

    @functools.cached_property
    def kinds(self):
        """Of each entry what its steps are counted under, or `None`: its
        name; of steps that are not like the first of the name (other noise,
        other samples) its name and a number, on two lines as no name is."""
        known, found = {}, []
        for entry in self.entries:
            if not entry.steps:
                found.append(None)
                continue
            own = known.setdefault(entry.name, {})
            number = own.setdefault(entry.kind, len(own) + 1)
            found.append(_kind(entry.name, number))
        return tuple(found)

    def kinds_of(self, name):
        """The kinds of steps of a name, in order; of a `LedgerEntry` in its
        place that of its own."""
        like = name if isinstance(name, LedgerEntry) else None
        found = {
            kind: None
            for kind, entry in zip(self.kinds, self.entries)
            if kind is not None
            and (entry.kind == like.kind if like else entry.name == name)
        }
        return list(found)

    @functools.cached_property
    def paid(self):
        """Dict from kinds to the steps that entries pay for."""
        found = collections.Counter()
        for kind, entry in zip(self.kinds, self.entries):
            if kind is not None:
                found[kind] += entry.steps
        return dict(found)

    @property
    def _has_kinds(self):
        """Whether steps of one name differ."""
        return any("\n" in kind for kind in self.paid)

    def begins_with(self, entries):
        """Whether `entries` are the first of its own."""
        own = self.entries[: len(entries)]
        # Equal texts: a tuple in a mechanism is a list after JSON.
        return own == tuple(entries) or [e.plain() for e in own] == [
            e.plain() for e in entries
        ]

    def holds(self, other):
        """Whether nothing of another ledger's entries is lost with it."""
        same = other.is_old or other.id == self.id or not other.entries
        return same and self.begins_with(other.entries)

    def with_counts_of(self, other):
        """Itself, with the steps that another text, too, calls used."""

        def larger(one, two):
            return {
                k: max(one.get(k, 0), two.get(k, 0)) for k in {**one, **two}
            }

        return dataclasses.replace(
            self,
            used=larger(self.used, other.used),
            returned=larger(self.returned, other.returned),
        )

    def check_terms(self, where, budget, neighbours, unit):
        """Refuses other terms than its own; `None` is any.

        Raises:
            ValueError: which one differs.
        """
        for name, given in (
            ("budget", budget),
            ("neighbours", neighbours),
            ("unit", unit),
        ):
            own = getattr(self, name)
            if given is not None and given != own:
                own = str(own) if name == "neighbours" else own
                raise ValueError(
                    f"`{name}` of the ledger{where} is {own!r} and cannot be "
                    f"changed. Received: {name}={given!r}"
                )

    def text(self):
        """As JSON (no noise, no statistic)."""
        data = {
            "format": _FORMATS[self._has_kinds],
            "id": self.id,
            "budget": dataclasses.asdict(self.budget),
            "neighbours": str(self.neighbours),
            "unit": self.unit,
            "entries": [dataclasses.asdict(e) for e in self.entries],
        }
        if self.audits:
            data["audits"] = [[when, line] for when, line in self.audits]
        for key, counts in (
            ("progress", self.used),
            ("given_back", self.returned),
        ):
            counts = {name: count for name, count in counts.items() if count}
            if counts:
                data[key] = counts
        return json.dumps(data, indent=1, allow_nan=False)


def new_id():
    """An id that no other ledger has."""
    return secrets.token_hex(16)


def parse(text):
    """The `Contents` of a text.

    A text without an id was written before there were any. Its id is derived
    from its terms and its first entry, so that its copies are one ledger, and
    all of its steps count as used: nothing says that they are not.

    Raises:
        ValueError: if the text is not a ledger of a known format.
    """
    try:
        return _parse(strict_json.parse(text))
    except strict_json.MALFORMED as e:
        raise ValueError(f"This is not a keras_fm ledger: {e}") from e


def _parse(data):
    if data["format"] not in _FORMATS:
        raise ValueError(f"unknown format {data['format']!r}")
    for name, value in data["budget"].items():
        if isinstance(value, str):
            raise ValueError(f"`{name}` must be a number: {value!r}")
    found = Contents(
        id=data.get("id", ""),
        budget=budget_lib.PrivacyBudget(**data["budget"]),
        neighbours=budget_lib.Neighbours.of(data["neighbours"]),
        unit=checked_unit(data.get("unit", ONE_RECORD)),
        entries=tuple(_entries(data["entries"])),
        audits=tuple(_audits(data.get("audits", []))),
    )
    for entry in found.entries:
        check_relation(entry, found.neighbours)
    paid = found.paid
    if "id" not in data:
        return dataclasses.replace(
            found, id=_derived_id(found), used=paid, is_old=True
        )
    if not isinstance(found.id, str) or not re.fullmatch(
        "[0-9a-f]{32}", found.id
    ):
        raise ValueError(f"`id` must be 32 hexadecimal digits: {found.id!r}")
    used = _counts(data, "progress", paid)
    returned = _counts(data, "given_back", paid)
    if data["format"] == 1 and found._has_kinds:
        # They were counted together, whatever their noise.
        mixed = {kind.split("\n")[0] for kind in paid if "\n" in kind}
        several = {k: v for k, v in paid.items() if k.split("\n")[0] in mixed}
        used = {**used, **several}
    for name, count in used.items():
        if count > paid[name]:
            raise ValueError(
                f"`progress` of {name!r} is {count} steps of {paid[name]}"
            )
    return dataclasses.replace(found, used=used, returned=returned)


def _kind(name, number):
    return name if number == 1 else f"{name}\n{number}"


def _entries(data):
    if not isinstance(data, list):
        raise ValueError("`entries` must be a list")
    for entry in data:
        if not isinstance(entry["notes"], list):
            raise ValueError("`notes` must be a list")
        entry["notes"] = tuple(entry["notes"])
        yield LedgerEntry(**entry)


def _audits(data):
    for when, line in data:
        ledger_entry.check_line("The time of an audit", when)
        check_audit(line)
        yield when, line


def _counts(data, key, names):
    counts = data.get(key, {})
    if not isinstance(counts, dict):
        raise ValueError(f"`{key}` must be counts by name")
    for name, count in counts.items():
        whole = type(count) is int and 0 <= count <= _LARGEST_COUNT
        if not whole or name not in names:
            raise ValueError(
                f"`{key}` must count the steps of an entry: {name!r}"
            )
    return counts


def _derived_id(contents):
    if not contents.entries:
        return new_id()
    known = json.dumps(
        [
            dataclasses.asdict(contents.budget),
            str(contents.neighbours),
            contents.unit,
            contents.entries[0].plain(),
        ],
        sort_keys=True,
    )
    return hashlib.sha256(known.encode()).hexdigest()[:32]


# Validation ------------------------------------------------------------------


def unit_of(proved, words=None):
    """The privacy unit of a release.

    Args:
        proved: `ONE_RECORD` or `ONE_OWNER`.
        words: `None`, or what somebody says that this is.
    """
    return proved if words is None else f"{proved}{_DECLARED}{words}"


def declared_words(unit):
    """What somebody says that a unit is, or `None`."""
    if unit in (ONE_RECORD, ONE_OWNER):
        return None
    return unit.split(_DECLARED, 1)[1] if proved_unit(unit) else unit


def proved_unit(unit):
    """`ONE_RECORD` or `ONE_OWNER`, or `None` if words are all there is."""
    for proved in (ONE_RECORD, ONE_OWNER):
        if unit == proved or unit.startswith(f"{proved}{_DECLARED}"):
            return proved
    return None


def shown_unit(unit):
    """A unit as everybody reads it: words that nobody proved say so."""
    return unit if proved_unit(unit) else f"{unit} (by declaration)"


def checked_unit(unit):
    """The privacy unit, which must be words on one line."""
    if not isinstance(unit, str) or not unit:
        raise ValueError(
            "`unit` must say in words what the privacy unit is. "
            f"Received: unit={unit!r}"
        )
    ledger_entry.check_line("`unit`", unit)
    return unit


def check_relation(entry, neighbours):
    """Refuses an entry of another relation than the ledger's."""
    if entry.neighbours != str(neighbours):
        raise ValueError(
            "An entry must refer to the ledger's neighbouring relation "
            f"{str(neighbours)!r}. Received: neighbours={entry.neighbours!r}"
        )


def check_audit(line):
    """Refuses what is no line of an audit."""
    ledger_entry.check_line("The line of an audit", line)
    if not line:
        raise ValueError("The line of an audit must not be empty.")
