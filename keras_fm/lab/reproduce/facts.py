"""The numbers that the five papers print, as facts with sources."""

import dataclasses
import functools
import importlib.resources
import json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fact:
    """One number of a paper.

    Attributes:
        id: unique name.
        paper: key of `papers()`.
        system: what the paper calls the method.
        dataset: its data, `"none"` for a calculation.
        metric: `"accuracy"` (a share, not percent), `"squared_error"`,
            `"seconds"`, `"epsilon"` or `"sensitivity"`.
        epsilon, delta, epochs: as the paper states them beside the number,
            `None` where it does not. The epsilon is the paper's claim.
        value: the number; `None` if there is only a figure.
        where: place in the paper.
        source: where this package has it from, see `sources()`.
        epsilon_range: `(low, high)` of a mean over budgets.
        setting: public parameters that the number is a function of.
        note: what else must be known to read it.

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


@functools.cache
def _document():
    text = importlib.resources.files(__package__).joinpath("facts.json")
    document = json.loads(text.read_text(encoding="utf-8"))
    return document, tuple(Fact(**entry) for entry in document["facts"])


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
