"""What is compared: one declarative description of an experiment."""

import dataclasses
import itertools

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks, settings_file
from keras_fm.lab import known
from keras_fm.lab.compare import methods as methods_lib
from keras_fm.lab.engine.job import Job
from keras_fm.public import features as features_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared. Every field is public and fixed in advance.

    Args:
        dataset: name or .npz path, see `keras_fm.datasets.load`.
        features: public feature map, one of `keras_fm.features.FEATURES`.
        hidden: units of the affine layer; 0 leaves it out.
        methods: some of `keras_fm.experiments.METHODS`; default: all that
            the packages at hand can run.
        epsilons: budgets to train at.
        delta: float in [0, 1); with 0 the methods that need one are left
            out.
        neighbours: relation of proven forms and DP-SGD.
        seeds: int, repetitions with seeds 0, 1, ... for the initial weights.
            The noise is always fresh.
        epochs, batch_size, learning_rate: Adam on the exact, truncated and
            published losses.
        dp_sgd: tuple of `DPSGDConfig` keyword dicts to choose from on the
            validation split; empty for the rule of `engine.rival`, whose grid
            is extended until its best rate is not at an end.
        train_records: int, use only the first so many training records; 0
            for all.

    Raises:
        ValueError: if a value is unknown or outside its range.

    Example:

    >>> spec = Comparison(methods=("non_private", "proven"), epsilons=(1.0,))
    >>> [job.method for job in spec.jobs()]
    ['non_private', 'non_private', 'non_private', 'proven', 'proven', 'proven']
    """

    dataset: str = "digits"
    features: str = "pixels"
    hidden: int = 64
    methods: tuple = ()
    epsilons: tuple = (0.5, 2.0, 8.0)
    delta: float = 1e-5
    neighbours: str = "add_remove"
    seeds: int = 3
    epochs: int = 40
    batch_size: int = 64
    learning_rate: float = 3e-3
    dp_sgd: tuple = ()
    train_records: int = 0

    def __post_init__(self):
        def put(name, value):  # Frozen, yet lists and defaults are accepted.
            object.__setattr__(self, name, value)

        for name in ("methods", "epsilons", "dp_sgd"):
            value = getattr(self, name)
            put(
                name,
                tuple(checks.instance(name, value, (list, tuple), "a list")),
            )
        put("methods", self.methods or methods_lib.available())
        names = tuple(methods_lib.METHODS)
        if not set(self.methods) <= set(names):
            checks.refuse("methods", self.methods, f"some of {names}")
        if self.delta == 0 and all(
            methods_lib.METHODS[name].needs_delta for name in self.methods
        ):
            raise ValueError(
                "With delta = 0 none of `methods` is left. Received: "
                f"methods={self.methods}"
            )
        features_lib.check(self.features)
        if not self.epsilons:
            raise ValueError("`epsilons` must name at least one budget.")
        for epsilon in self.epsilons:
            budget_lib.PrivacyBudget(epsilon, self.delta)
        put("epsilons", tuple(float(e) for e in self.epsilons))
        budget_lib.Neighbours.of(self.neighbours)
        checks.text(
            "dataset", self.dataset, "a name or the path of an .npz file"
        )
        if not all(isinstance(config, dict) for config in self.dp_sgd):
            raise ValueError("`dp_sgd` must be a list of tables.")
        for name in ("seeds", "epochs", "batch_size"):
            checks.count(name, getattr(self, name))
        for name in ("hidden", "train_records"):
            checks.natural(name, getattr(self, name))
        checks.positive("learning_rate", self.learning_rate)

    @classmethod
    def from_config(cls, config):
        """The comparison of a dict, such as `dataclasses.asdict` gives.

        Raises:
            ValueError: if it has unknown names or wrong values.
        """
        known.check_compared(config)
        try:
            return cls(**config)
        except TypeError as e:
            raise ValueError(f"A value has the wrong type: {e}") from e

    @classmethod
    def load(cls, path):
        """Reads a comparison from a `.toml` or `.json` file.

        Raises:
            ValueError: if the file is not a comparison.
            OSError: if it cannot be read.
        """
        try:
            config = settings_file.load(path)
        except ValueError as e:
            raise ValueError(f"{path} is no comparison: {e}") from e
        return cls.from_config(config)

    def jobs(self):
        """Every `Job` to run; epsilon is `None` without privacy."""
        for name in self.methods:
            method = methods_lib.METHODS[name]
            if method.needs_delta and self.delta == 0:
                continue
            epsilons = self.epsilons if method.is_private else (None,)
            for epsilon, seed in itertools.product(epsilons, range(self.seeds)):
                yield Job(series=name, epsilon=epsilon, seed=seed)
