"""The numbers that the five papers print, as facts with sources."""

import dataclasses
import functools
import importlib.resources
import json

from keras_fm.kernel import checks

METRICS = ("accuracy", "squared_error", "seconds", "epsilon", "sensitivity")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fact:
    """One number of a paper.

    Attributes:
        id: unique name.
        paper: key of `papers()`.
        system: what the paper calls the method.
        dataset: its data, `"none"` for a calculation.
        metric: one of `METRICS`; accuracies are shares, not percent.
        epsilon, delta, epochs: as the paper states them beside the number,
            `None` where it does not. The epsilon is the paper's claim.
        value: the number; `None` if there is only a figure.
        where: place in the paper.
        source: where this package has it from, see `sources()`.
        epsilon_range: `(low, high)` of a mean over budgets.
        setting: public parameters that the number is a function of.
        note: what else must be known to read it.

    Raises:
        ValueError: if a field is not what it should be.
    """

    id: str
    paper: str
    system: str
    dataset: str
    metric: str
    value: float | None
    where: str
    source: str
    epsilon: float | None = None
    delta: float | None = None
    epochs: int | None = None
    epsilon_range: tuple | None = None
    setting: dict | None = None
    note: str = ""

    def __post_init__(self):
        for name in ("id", "paper", "system", "dataset", "where", "source"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                self._refuse(name, value, "a non-empty string")
        if self.metric not in METRICS:
            self._refuse("metric", self.metric, f"one of {METRICS}")
        most = {"value": 1.0 if self.metric == "accuracy" else None}
        for name in ("value", "epsilon", "delta", "epochs"):
            value = getattr(self, name)
            if value is not None:
                checks.number(
                    f"{name}` of the fact `{self.id}",
                    value,
                    at_least=0,
                    at_most=most.get(name, 1.0 if name == "delta" else None),
                )
        if self.epsilon_range is not None:
            low, high = self.epsilon_range
            if not 0 < low <= high:
                self._refuse("epsilon_range", (low, high), "(low, high)")
            object.__setattr__(self, "epsilon_range", (low, high))

    def _refuse(self, name, value, wanted):
        checks.refuse(f"{name}` of the fact `{self.id}", value, wanted)

    @property
    def category(self):
        """The word of a category axis that it stands under."""
        setting = self.setting or {}
        if "sizes" in setting:
            return ", ".join(map(str, setting["sizes"]))
        if "records" in setting:
            return (
                f"{self.dataset}, sigma {setting['noise_multiplier']:g}, "
                f"{setting['epochs']} epochs"
            )
        if "sampling_rate" in setting:
            return f"{self.system} (delta {self.delta:g})"
        return f"{self.system}, {self.dataset}"


def check(document):
    """Facts of a document like `facts.json`, checked.

    Raises:
        ValueError: if a paper or source is unknown, an id comes twice, or a
            fact is not what it should be.
    """
    found = []
    for entry in document["facts"]:
        try:
            fact = Fact(**entry)
        except TypeError as e:
            raise ValueError(f"This is not a fact: {entry}: {e}") from e
        if fact.paper not in document["papers"]:
            raise ValueError(
                f"The fact {fact.id!r} is of an unknown paper {fact.paper!r}."
            )
        if fact.source.split(":")[0] not in document["sources"]:
            raise ValueError(
                f"The fact {fact.id!r} has an unknown source {fact.source!r}."
            )
        found.append(fact)
    ids = [fact.id for fact in found]
    if twice := {i for i in ids if ids.count(i) > 1}:
        raise ValueError(f"Facts come twice: {sorted(twice)}")
    return tuple(found)


@functools.cache
def _document():
    text = importlib.resources.files(__package__).joinpath("facts.json")
    document = json.loads(text.read_text(encoding="utf-8"))
    return document, check(document)


def papers():
    """`{key: {"authors", "title", "venue", "year"}}` of the five papers."""
    return dict(_document()[0]["papers"])


def sources():
    """What the first word of a fact's source means."""
    return dict(_document()[0]["sources"])


def load():
    """All facts, a tuple of `Fact`.

    Example:

    >>> len({fact.paper for fact in load()})
    4
    """
    return _document()[1]


def select(paper, dataset=None, metric=None, prefix=""):
    """Facts of one paper, in the order of the file.

    Args:
        paper: key of `papers()`.
        dataset, metric: which; `None` for any.
        prefix: what ids begin with.

    Example:

    >>> select("adlm", "mnist", "accuracy")[0].value
    0.902
    """
    return tuple(
        fact
        for fact in load()
        if fact.paper == paper
        and dataset in (None, fact.dataset)
        and metric in (None, fact.metric)
        and fact.id.startswith(prefix)
    )
