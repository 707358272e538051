"""What is run on the same records: mechanisms, how often, on which samples."""

import dataclasses
import math
from functools import partial

from keras_fm.composition import settings_file
from keras_fm.kernel import checks
from keras_fm.kernel import mechanisms as mechanisms_lib
from keras_fm.kernel.reads import sampling as sampling_lib

MECHANISMS = ("gaussian", "laplace", "pure", "approximate")

_LARGEST_COUNT = 1_000_000
_MOST_STAGES = 1000
_NOISE = (1e-2, 1e6)
_EPSILON = (1e-6, 500.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """One mechanism, run `count` times on the same records.

    Args:
        mechanism: `"gaussian"`; `"laplace"` (noise on one number, or on one
            coordinate per record); `"pure"` (any epsilon-DP mechanism:
            randomised response is the worst of them; a Laplace mechanism
            on a vector belongs here); `"approximate"` (any (epsilon,
            delta)-DP mechanism).
        noise_multiplier: float in [0.01, 1e6], standard deviation
            (gaussian) or scale (laplace) over the sensitivity under the
            plan's relation.
        epsilon: float in [1e-6, 500], of one run. A laplace stage takes
            this or the noise multiplier, which is one over it.
        delta: float in (0, 1), of one run; approximate only.
        sampling_rate: float in (0, 1], the probability with which a record
            takes part in a run, independently (Poisson sampling).
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
        checks.one_of("mechanism", self.mechanism, MECHANISMS)
        self._check_parameters()
        self._check_number("sampling_rate", 0.0, 1.0, "in (0, 1]")
        checks.count("count", self.count)
        if self.count > _LARGEST_COUNT:
            raise ValueError(
                f"`count` must be at most {_LARGEST_COUNT:,}. Received: "
                f"count={self.count}"
            )

    def _check_parameters(self):
        needed = {
            "gaussian": {"noise_multiplier"},
            "laplace": {"noise_multiplier", "epsilon"},
            "pure": {"epsilon"},
            "approximate": {"epsilon", "delta"},
        }[self.mechanism]
        given = {
            name
            for name in ("noise_multiplier", "epsilon", "delta")
            if getattr(self, name) is not None
        }
        # A laplace stage needs exactly one of its two names.
        if not given <= needed or (
            len(given) != 1 if self.mechanism == "laplace" else given != needed
        ):
            names = sorted(f"`{name}`" for name in needed)
            joint = " or " if self.mechanism == "laplace" else " and "
            article = "An" if self.mechanism == "approximate" else "A"
            raise ValueError(
                f"{article} {self.mechanism} stage needs {joint.join(names)}, "
                "and no other parameter of noise. Received: "
                + (", ".join(sorted(given)) or "none")
            )
        if self.noise_multiplier is not None:
            self._check_number("noise_multiplier", *_NOISE)
        if self.epsilon is not None:
            self._check_number("epsilon", *_EPSILON)
        if self.delta is not None:
            # The largest float below 1.
            self._check_number("delta", 0.0, 1 - 2**-53, "in (0, 1)")

    def _check_number(self, name, low, high, where=None):
        value = getattr(self, name)
        where = where or f"in [{low:g}, {high:g}]"
        # An interval that begins at 0 is open there.
        inside = (
            checks.is_number(value)
            and checks.is_finite(value)
            and (value > low if low == 0 else value >= low)
            and value <= high
        )
        if not inside:
            raise ValueError(
                f"`{name}` of a stage must be a number {where}. Received: "
                f"{name}={value!r}"
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
    """Everything that is run on the same records, in any order.

    Args:
        stages: sequence of `Stage`.
        neighbours: `"add_remove"` or `"replace_one"`. Noise multipliers are
            relative to the sensitivity under it. Sampling is accounted
            under add_remove only.
        overflow_probability: float in [0, 1), the probability that any run
            is not the mechanism stated (a sample that exceeds its buffer);
            every method pays for it.

    Raises:
        ValueError: if there is no stage, or one is sampled under
            replace_one.

    Example:

    >>> plan = Plan([Stage(mechanism="pure", epsilon=0.1, count=100)])
    >>> round(basic(plan, 1e-5).epsilon, 6)
    10.0
    """

    stages: tuple
    neighbours: str = "add_remove"
    overflow_probability: float = 0.0

    def __post_init__(self):
        # Frozen, yet lists are accepted.
        object.__setattr__(self, "stages", tuple(self.stages))
        if not self.stages or not all(
            isinstance(s, Stage) for s in self.stages
        ):
            raise ValueError(
                "A plan needs at least one stage (`Stage`). Received: "
                f"{len(self.stages)} stages"
            )
        if len(self.stages) > _MOST_STAGES:
            raise ValueError(
                f"A plan has at most {_MOST_STAGES} stages. Received: "
                f"{len(self.stages)}"
            )
        if sum(s.count for s in self.stages) > _LARGEST_COUNT:
            raise ValueError(
                f"A plan has at most {_LARGEST_COUNT:,} runs in all."
            )
        checks.fields(
            self,
            overflow_probability=partial(checks.number, at_least=0, below=1),
        )
        for stage in self.stages:
            sampled = "poisson" if stage.sampling_rate < 1 else "full"
            sampling_lib.check_neighbours(sampled, self.neighbours)

    @classmethod
    def of_ledger(cls, ledger):
        """The plan that a `Ledger` was charged with.

        Laplace noise on vectors enters as pure mechanisms, as
        in the ledger's own composition.

        Raises:
            ValueError: if the ledger is empty, or an entry is only claimed
                or not private: such reads compose to infinity.
        """
        stages, overflow = [], 0.0
        for entry in ledger.entries:
            if entry.guarantee != "proven" or not entry.private:
                raise ValueError(
                    f"The ledger's entry {entry.name!r} is not proven "
                    "private: its reads compose to infinity by every method."
                )
            mechanism = entry.build_mechanism()
            stages.append(_stage_of(mechanism))
            overflow += mechanism.overflow_probability
        if not stages:
            raise ValueError("The ledger is empty: nothing was read.")
        return cls(merged(stages), str(ledger.neighbours), overflow)

    @classmethod
    def from_config(cls, config):
        """The plan of a dict `{"neighbours": ..., "stages": [{...}]}`.

        Raises:
            ValueError: if it is not such a dict, or a value is wrong; the
                message names the stage.
        """
        if not isinstance(config, dict):
            raise ValueError("A plan must be a table with `stages`.")
        _refuse_unknown(config, ("stages", "neighbours"), "a plan")
        stages = config.get("stages")
        if not isinstance(stages, list) or not stages:
            raise ValueError("A plan needs `stages`, a list of tables.")
        fields = [f.name for f in dataclasses.fields(Stage)]
        built = []
        for number, stage in enumerate(stages, start=1):
            try:
                if not isinstance(stage, dict):
                    raise ValueError("it must be a table.")
                _refuse_unknown(stage, fields, "a stage")
                if "mechanism" not in stage:
                    raise ValueError("it needs `mechanism`.")
                built.append(Stage(**stage))
            except ValueError as e:
                raise ValueError(f"Stage {number}: {e}") from e
        return cls(built, config.get("neighbours", "add_remove"))

    @classmethod
    def load(cls, path):
        """Reads a plan from a `.json` or `.toml` file (1 MB at most).

        Raises:
            ValueError: if the file is not a plan.
            OSError: if it cannot be read.
        """
        try:
            config = settings_file.load(path)
        except ValueError as e:
            raise ValueError(f"{path} cannot be read as a plan: {e}") from e
        return cls.from_config(config)

    @property
    def is_sampled(self):
        return any(s.sampling_rate < 1 for s in self.stages)

    def at(self, count):
        """A plan of one stage with `count` runs; `count` runs of a longer
        plan."""
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


def _refuse_unknown(config, known, what):
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise ValueError(
            f"{what} has no {', '.join(map(repr, unknown))}; it may have "
            f"{', '.join(known)}."
        )


def _stage_of(mechanism):
    pure = mechanism.pure_epsilon()
    if math.isfinite(pure):
        return Stage(mechanism="pure", epsilon=pure)
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
