"""What an experiment is: data, axes, series, two sizes, and how to measure."""

import collections.abc
import dataclasses

from keras_fm.kernel import checks
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.lab import known
from keras_fm.lab.engine.job import Job


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a figure.

    Attributes:
        name: of the x axis: `"epsilon"` (each budget is one point),
            `"epochs"` (each training is a curve), `"category"` (words), or
            the name of the setting that is swept. Of the y axis: the metric.
        label: words, with the unit.
        is_log: whether it is drawn logarithmically.
        scale: what values are multiplied by when shown.
    """

    name: str
    label: str
    is_log: bool = False
    scale: float = 1.0


ACCURACY = Axis(name="accuracy", label="test accuracy, %", scale=100.0)
EPSILON = Axis(name="epsilon", label="epsilon", is_log=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A figure or table of a paper.

    Attributes:
        name: `"paper:figure"`.
        title: of the drawing.
        shows: what the paper shows there, in a sentence.
        dataset: what is measured on here.
        x, y: `Axis`.
        series: tuple of `Series`.
        small, full: dicts of settings: a size for two CPU cores, and the
            paper's. Both hold the same names. `epsilons`, `seeds` and the
            swept setting say what is measured, the others how.
        measure: function `(job, context)` to `Measured`.
        load: function `(name)` to the data, or `None` if there is none.
        needs: the data it needs, `"images"` or `"network"`; `None` for no data.
        facts: tuple of `Fact`.
        facts_dataset: data of the paper, if it is not `dataset`; says why
            the numbers stand beside ours all the same.
        why_no_facts: why `facts` is empty.
        aliases: numbers of the paper's figure, where known.
        minutes: expected on two cores, the small form.
        deviations: what differs from the paper, both forms.
    """

    name: str
    title: str
    shows: str
    dataset: str
    x: Axis
    y: Axis
    series: tuple
    small: dict
    full: dict
    measure: collections.abc.Callable
    load: collections.abc.Callable | None = None
    needs: str | None = None
    facts: tuple = ()
    facts_dataset: str = ""
    why_no_facts: str = ""
    aliases: tuple = ()
    minutes: float = 1.0
    deviations: str = ""

    @property
    def paper(self):
        """Key of the paper."""
        return self.name.split(":")[0]

    @property
    def sweep(self):
        """Name of the swept setting, or `None`."""
        known = ("epsilon", "epochs", "category")
        return None if self.x.name in known else self.x.name

    def find(self, name):
        """The series of that name."""
        return next(s for s in self.series if s.name == name)

    def settings(self, *, full=False, epsilons=None, seeds=None, data=None):
        """Settings of one form, with what a user changes.

        Args:
            full: whether the paper's size is meant.
            epsilons: budgets in the place of its own.
            seeds: int, repetitions.
            data: name of a data set in the place of `dataset`.

        Raises:
            ValueError: if a value is outside its range, or the experiment
                has no such choice.
        """
        made = dict(self.full if full else self.small)
        if epsilons is not None and "epsilons" not in made:
            raise ValueError(f"{self.name} has no epsilons to choose.")
        kind = "network" if data in known.NETWORKS else "images"
        if data is not None and kind != self.needs:
            wanted = {None: "no data", "network": "a health network"}
            raise ValueError(
                f"{self.name} needs {wanted.get(self.needs, 'images')}. "
                f"Received: data={data!r}"
            )
        if epsilons is not None:
            made["epsilons"] = tuple(
                PrivacyBudget(e, 0.0).epsilon for e in epsilons
            )
        if seeds is not None:
            made["seeds"] = checks.count("seeds", seeds)
        if data is not None:
            made["data"] = data
        return made

    def jobs(self, settings):
        """All jobs of these settings, in order."""
        swept = settings[self.sweep] if self.sweep else (None,)
        for series in self.series:
            budgets = settings["epsilons"] if series.is_private else (None,)
            repeats = settings["seeds"] if series.is_random else 1
            for epsilon in budgets:
                for at in swept:
                    for seed in range(repeats):
                        yield Job(
                            series=series.name,
                            epsilon=epsilon,
                            seed=seed,
                            at=at,
                        )

    def how(self, settings):
        """The settings that say how, not what is measured."""
        what = ("epsilons", "seeds", self.sweep)
        return {k: v for k, v in settings.items() if k not in what}


class Context:
    """Settings, data and what several jobs of one run share.

    Args:
        settings: dict.
        data: what the experiment's `load` gave.
    """

    def __init__(self, settings, data=None):
        self.settings, self._data, self._kept = settings, data, {}

    def __getitem__(self, name):
        return self.settings[name]

    @property
    def data(self):
        """The data; loaded when a job first asks for it."""
        if callable(self._data):
            self._data = self._data()
        return self._data

    def once(self, key, make):
        """What `make()` gave when `key` was first asked for."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]
