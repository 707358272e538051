"""What is compared: one declarative description of an experiment."""

import dataclasses
import functools
import itertools

from keras_fm.core import settings_file
from keras_fm.kernel import checks
from keras_fm.kernel.budget import Neighbours, PrivacyBudget
from keras_fm.lab.compare import methods as methods_lib
from keras_fm.lab.engine.job import Job
from keras_fm.public.features import FEATURES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared. Every field is public and fixed in advance.

    Args:
        dataset: name or .npz path, see `keras_fm.datasets.load`; or the path
            of a `.csv` or `.parquet` table.
        model: "", or `path/to/script.py:function`, which builds a model of
            yours in the place of the architecture here.
        columns, target: of a table, the path of its schema
            (`keras_fm.estimators.table_schema`), and the column of labels;
            "" for the only one with classes.
        test: of a table, the path of the one that is tested on; "" holds a
            fifth of the rows out.
        features: public feature map, one of `keras_fm.features.FEATURES`.
        hidden: units of the affine layer; 0 leaves it out.
        methods: some of `keras_fm.lab.compare.METHODS`, or `("all",)`;
            default: those that answer in minutes and run here at this delta.
        epsilons: budgets to train at, from 1e-4 to 100.
        delta: 0, or float from 1e-12 to 0.5.
        neighbours: relation of proven forms and DP-SGD.
        seeds: int, repetitions with seeds 0, 1, ... for the initial weights.
            The noise is always fresh.
        epochs, batch_size, learning_rate: Adam on the exact, truncated and
            published losses; 0 epochs are 40, or as many as make a thousand
            steps.
        dp_sgd: tuple of `DPSGDConfig` keyword dicts to choose from on the
            validation split; empty for the rule of `engine.rival`, whose grid
            is extended until its best rate is not at an end.
        train_records: int, use only the first so many training records; 0
            for all.

    Raises:
        ValueError: if a value is unknown, outside its range or given twice.

    Attributes:
        named: whether `methods` were given by their names.

    Example:

    >>> spec = Comparison(methods=("non_private", "rounds"), seeds=1)
    >>> [(job.method, job.epsilon) for job in spec.jobs()]
    [('non_private', None), ('rounds', 1.0), ('rounds', 8.0)]
    """

    dataset: str = "digits"
    model: str = ""
    columns: str = ""
    target: str = ""
    test: str = ""
    features: str = "pixels"
    hidden: int = 64
    methods: tuple = ()
    epsilons: tuple = (1.0, 8.0)
    delta: float = 1e-5
    neighbours: str = "add_remove"
    seeds: int = 1
    epochs: int = 0
    batch_size: int = 64
    learning_rate: float = 3e-3
    dp_sgd: tuple = ()
    train_records: int = 0

    def __post_init__(self):
        def each_once(name, value):
            checks.instance(name, value, (list, tuple), "a list")
            return tuple(dict.fromkeys(value))

        # Beyond these some method finds no noise, after others have trained.
        def budget(epsilon):
            return checks.number("epsilon", epsilon, at_least=1e-4, at_most=100)

        checks.fields(
            self,
            features=functools.partial(checks.one_of, choices=FEATURES),
            epsilons=each_once,
            methods=each_once,
            dp_sgd=lambda _, tables: tuple(map(dict, tables)),
            delta=lambda _, delta: PrivacyBudget(1.0, delta).delta,
            neighbours=lambda _, name: str(Neighbours.of(name)),
            seeds=checks.count,
            epochs=checks.natural,
            batch_size=checks.count,
            hidden=checks.natural,
            train_records=checks.natural,
            learning_rate=checks.positive,
        )
        if not self.epsilons:
            raise ValueError("`epsilons` must name at least one budget.")
        methods = self.methods
        object.__setattr__(self, "named", methods not in ((), ("all",)))
        if methods in ((), ("all",)):
            methods = methods_lib.available(
                self.delta, bool(self.model), whole=bool(methods)
            )
        for name in methods:
            methods_lib.check_name(name)
            if methods_lib.METHODS[name].needs_delta and not self.delta:
                raise ValueError(
                    f"The method {name!r} needs a `delta` greater than 0."
                )
        # Frozen.
        object.__setattr__(self, "methods", methods)
        object.__setattr__(self, "epsilons", tuple(map(budget, self.epsilons)))

    @classmethod
    def from_config(cls, config):
        """The comparison of a dict, such as `dataclasses.asdict` gives.

        Raises:
            ValueError: if it has unknown names or wrong values.
        """
        try:
            return cls(**config)
        except TypeError as e:
            raise ValueError(f"This is not a comparison: {e}") from e

    @classmethod
    def load(cls, path):
        """Reads a comparison from a `.toml` or `.json` file.

        Raises:
            ValueError: if the file is not a comparison.
            OSError: if it cannot be read.
        """
        return cls.from_config(settings_file.load(path))

    def jobs(self):
        """Every `Job` to run; epsilon is `None` without privacy."""
        for name in self.methods:
            method = methods_lib.METHODS[name]
            epsilons = self.epsilons if method.is_private else (None,)
            for epsilon, seed in itertools.product(epsilons, range(self.seeds)):
                yield Job(series=name, epsilon=epsilon, seed=seed)
