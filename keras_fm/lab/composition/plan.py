"""The mechanisms that run on the same records, how often, on which samples."""

import dataclasses
import math
from functools import partial

from keras_fm.core import settings_file
from keras_fm.kernel import checks
from keras_fm.kernel import mechanisms as mechanisms_lib
from keras_fm.kernel.noise_mechanisms import BallsInBinsMechanism
from keras_fm.kernel.planning import sampled_noise

# Mechanisms, and the noise parameters that each needs.
_NEEDED = {
    "gaussian": [{"noise_multiplier"}],
    "laplace": [{"noise_multiplier"}, {"epsilon"}],
    "pure": [{"epsilon"}],
    "approximate": [{"epsilon", "delta"}],
}
_LARGEST_COUNT = 1_000_000
_MOST_STAGES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """One mechanism, run `count` times on the same records.

    Args:
        mechanism: `"gaussian"`; `"laplace"` (noise on one number, or on one
            coordinate per record); `"pure"` (any epsilon-DP mechanism,
            accounted as the worst one, randomised response; use it for a
            Laplace mechanism on a vector); `"approximate"` (any (epsilon,
            delta)-DP mechanism).
        noise_multiplier: float in [0.01, 1e6], standard deviation
            (gaussian) or scale (laplace) over the sensitivity under the
            plan's relation.
        epsilon: float in [1e-6, 500], of one run. A laplace stage needs this or
            the noise multiplier, its inverse.
        delta: float in (0, 1), of one run; approximate only.
        sampling_rate: float in (0, 1], the probability that a record takes part
            in a run, independently of all else (Poisson sampling).
        count: int in [1, 1,000,000], number of runs.

    Raises:
        ValueError: if a parameter is missing, not of this mechanism, or
            outside its range (NaN and infinity included).

    Example:

    >>> Stage(mechanism="pure", epsilon=0.1, count=100).epsilon
    0.1
    """

    mechanism: str
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    sampling_rate: float = 1.0
    count: int = 1

    def __post_init__(self):
        checks.one_of("mechanism", self.mechanism, _NEEDED)
        names = "noise_multiplier", "epsilon", "delta"
        given = {name for name in names if getattr(self, name) is not None}
        needed = _NEEDED[self.mechanism]
        if given not in needed:
            words = " or ".join(", ".join(sorted(some)) for some in needed)
            raise ValueError(
                f"A stage of kind {self.mechanism} needs {words}, and no other "
                f"parameter of noise. Received: {sorted(given)}"
            )
        number = partial(checks.optional, checks.number)
        checks.fields(
            self,
            noise_multiplier=partial(number, at_least=1e-2, at_most=1e6),
            epsilon=partial(number, at_least=1e-6, at_most=500),
            delta=partial(number, above=0, below=1),
            sampling_rate=partial(checks.number, above=0, at_most=1),
            count=partial(checks.integer, at_least=1, at_most=_LARGEST_COUNT),
        )

    @property
    def pure_epsilon(self):
        """Epsilon of one run at its own delta; `None` for Gaussian noise."""
        if self.mechanism == "gaussian":
            return None
        if self.epsilon is None:
            return 1 / self.noise_multiplier
        return float(self.epsilon)


@dataclasses.dataclass(frozen=True)
class Plan:
    """All mechanisms that run on the same records, in any order.

    Args:
        stages: sequence of `Stage`.
        neighbours: `"add_remove"` or `"replace_one"`. Noise multipliers are
            relative to the sensitivity under this relation. Sampling is
            accounted under add_remove only.
        overflow_probability: float in [0, 1), the probability that any run
            differs from the stated mechanism (a sample exceeds its buffer).
            Every method counts it.

    Raises:
        ValueError: if there is no stage, or a stage is sampled under
            replace_one.

    Example:

    >>> plan = Plan([Stage(mechanism="pure", epsilon=0.1, count=100)])
    >>> plan.is_sampled
    False
    """

    stages: tuple
    neighbours: str = "add_remove"
    overflow_probability: float = 0.0

    def __post_init__(self):
        # The class is frozen, and lists are accepted.
        object.__setattr__(self, "stages", tuple(self.stages))
        count = sum(s.count for s in self.stages)
        if not 0 < len(self.stages) <= _MOST_STAGES or count > _LARGEST_COUNT:
            raise ValueError(
                f"A plan has 1 to {_MOST_STAGES} stages, and at most "
                f"{_LARGEST_COUNT:,} runs in all. Received: "
                f"{len(self.stages)} stages, {count} runs"
            )
        checks.fields(
            self,
            overflow_probability=partial(checks.number, at_least=0, below=1),
        )
        for stage in self.stages:
            sampled = "poisson" if stage.sampling_rate < 1 else "full"
            sampled_noise.check_neighbours(sampled, self.neighbours)

    @classmethod
    def of_ledger(cls, ledger):
        """The plan of everything that a `Ledger` was charged.

        Laplace noise on vectors counts as pure mechanisms, as in the ledger.

        Raises:
            ValueError: if the ledger is empty, or an entry is only claimed or
                not private: those have an infinite proven epsilon.
        """
        for entry in ledger.entries:
            if entry.guarantee != "proven" or not entry.private:
                raise ValueError(
                    f"The ledger's entry {entry.name!r} is not proven private, "
                    "so every method gives an infinite epsilon."
                )
        if not ledger.entries:
            raise ValueError("The ledger is empty: nothing was released.")
        return cls.of_mechanisms(
            [entry.build_mechanism() for entry in ledger.entries],
            str(ledger.neighbours),
        )

    @classmethod
    def of_mechanisms(cls, mechanisms, neighbours="add_remove"):
        """The plan of several `Mechanism`s."""
        stages = merged(_stage_of(m) for m in mechanisms)
        overflow = sum(m.overflow_probability for m in mechanisms)
        return cls(stages, neighbours, overflow)

    @classmethod
    def from_config(cls, config):
        """The plan of a dict `{"neighbours": ..., "stages": [{...}]}`.

        Raises:
            ValueError: if the dict has another form, or a value is invalid.
        """
        try:
            stages = [Stage(**stage) for stage in config["stages"]]
            return cls(stages, config.get("neighbours", "add_remove"))
        except (AttributeError, KeyError, TypeError) as e:
            raise ValueError(f"This is not a plan with `stages`: {e}") from e

    @classmethod
    def load(cls, path):
        """Loads a plan from a `.json` or `.toml` file (1 MB at most).

        Raises:
            ValueError: if the file is not a plan.
            OSError: if it cannot be read.
        """
        return cls.from_config(settings_file.load(path))

    @property
    def is_sampled(self):
        return any(s.sampling_rate < 1 for s in self.stages)

    def at(self, count):
        """The plan with its one stage run `count` times; a longer plan is
        repeated `count` times."""
        count = checks.count("count", count)
        if len(self.stages) == 1:
            factor = count / self.stages[0].count
            stages = [dataclasses.replace(self.stages[0], count=count)]
        else:
            factor = count
            stages = [
                dataclasses.replace(s, count=s.count * count)
                for s in self.stages
            ]
        overflow = min(self.overflow_probability * factor, 1 - 1e-9)
        return Plan(stages, self.neighbours, overflow)


def _stage_of(mechanism):
    pure = mechanism.pure_epsilon()
    if math.isfinite(pure):
        return Stage(mechanism="pure", epsilon=pure)
    if isinstance(mechanism, BallsInBinsMechanism):
        # An upper bound: the cost if the step of a record is known.
        return Stage(
            mechanism="gaussian",
            noise_multiplier=mechanism.noise_multiplier,
            count=mechanism.steps // mechanism.bins,
        )
    if isinstance(mechanism, mechanisms_lib.SampledGaussianMechanism):
        return Stage(
            mechanism="gaussian",
            noise_multiplier=mechanism.noise_multiplier,
            sampling_rate=mechanism.sampling_rate,
            count=int(mechanism.steps),
        )
    return Stage(
        mechanism="gaussian", noise_multiplier=mechanism.noise_multiplier
    )


def merged(stages):
    """Equal stages become one with more runs."""
    counts = {}
    for stage in stages:
        one = dataclasses.replace(stage, count=1)
        counts[one] = counts.get(one, 0) + stage.count
    return tuple(dataclasses.replace(s, count=n) for s, n in counts.items())
