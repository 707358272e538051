"""Linear regression on real tables that packages ship, beside its rivals.

    pip install statsmodels diffprivlib
    python benchmarks/regression.py --out=docs/results

Tables: scikit-learn's diabetes (442 rows), statsmodels' fair (6,366) and
randhie (20,190). Bounds are constants of this file, from the codebooks. Every
method has the same records in the same public box, centred, and its own
default settings on every table and at every epsilon. A few minutes; NumPy.
"""

import dataclasses
import itertools
import math
import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from absl import app, flags
from results_file import ResultsFile
from sklearn import datasets, linear_model

from keras_fm.baselines.functional_regression import FunctionalLinearRegression
from keras_fm.heads.rounds import Rounds
from keras_fm.kernel import sampling
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.gradient_reads import GradientReads
from keras_fm.kernel.ledger import Ledger
from keras_fm.kernel.mechanisms import GaussianMechanism, NoiseSource
from keras_fm.kernel.release import calibrate, release
from keras_fm.queries import GradientQuery, SquaredErrorQuery

_OUT = flags.DEFINE_string("out", "regression", "Folder of the results.")
_REPEATS = flags.DEFINE_integer("repeats", 20, "Splits, noise fresh in each.")

EPSILONS, DELTA = (0.1, 0.5, 1.0, 4.0), 1e-6
# What `PrivateDense` takes for numbers: a constant as long as the features.
CONSTANT = 1.0
BOUND = math.hypot(1.0, CONSTANT)


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns and numbers to predict, with public bounds."""

    load: Callable
    low: tuple
    high: tuple
    target: tuple


def diabetes():
    return datasets.load_diabetes(return_X_y=True, scaled=False)


def of_statsmodels(name, target):
    """Its file alone: the package asks for pandas."""
    (folder,) = find_spec("statsmodels").submodule_search_locations
    path = os.path.join(folder, "datasets", name, f"{name}.csv")
    found = np.genfromtxt(path, delimiter=",", names=True)
    columns = [found[c] for c in found.dtype.names if c != target]
    return np.stack(columns, axis=1), found[target]


TABLES = {
    "diabetes": Table(
        diabetes,
        (18, 1, 15, 50, 90, 40, 20, 1, 3, 50),
        (80, 2, 45, 140, 310, 250, 100, 10, 6.5, 130),
        (0, 350),
    ),
    "fair": Table(
        lambda: of_statsmodels("fair", "affairs"),
        (1, 17.5, 0.5, 0, 1, 9, 1, 1),
        (5, 42, 23, 5.5, 4, 20, 6, 6),
        (0, 60),
    ),
    "randhie": Table(
        lambda: of_statsmodels("randhie", "mdvis"),
        (0, 0, 0, 0, 0, 0, 0, 0, 0),
        (5, 1, 7.2, 8.3, 1, 60, 1, 1, 1),
        (0, 80),
    ),
}


@dataclasses.dataclass(frozen=True)
class Task:
    """Features in the unit ball, y, and the bounds of y."""

    x: np.ndarray
    y: np.ndarray
    target: tuple
    epsilon: float
    delta: float = DELTA

    @property
    def rows(self):
        """With the constant entry, a hair inside the bound."""
        constant = np.full((len(self.x), 1), CONSTANT)
        return np.hstack([self.x, constant]) * (1 - 1e-12)

    def ledger(self):
        budget = PrivacyBudget(self.epsilon, self.delta)
        return Ledger(budget, neighbours="add_remove")

    def function(self, weights):
        """Predictions from weights on the scale [-1, 1]."""
        low, high = self.target
        w = (high - low) / 2 * np.ravel(weights)
        return lambda x: (low + high) / 2 + x @ w[:-1] + CONSTANT * w[-1]


def one_read(task):
    query = SquaredErrorQuery(
        num_features=task.x.shape[1] + 1,
        feature_bound=BOUND,
        target_bounds=task.target,
    )
    ledger = task.ledger()
    made = release(
        query,
        [(task.rows, task.y)],
        mechanism=calibrate(query, ledger.budget, neighbours="add_remove"),
        ledger=ledger,
        name="head",
        noise=NoiseSource(),
    )
    return task.function(made.minimise()[1]), ledger


def one_read_pure(task):
    return one_read(dataclasses.replace(task, delta=0.0))


def rounds(task):
    """`PrivateDense(rounds=Rounds(reads=60, clip=0.3))`."""
    settings = Rounds(reads=60, clip=0.3, loss="squared_error")
    query = GradientQuery(
        num_features=task.x.shape[1] + 1,
        num_outputs=1,
        feature_bound=BOUND,
        clip=settings.clip,
        loss="squared_error",
        target_bounds=task.target,
    )
    ledger, n = task.ledger(), len(task.x)
    plan = sampling.SamplingPlan(
        n=n,
        sampling="full",
        expected_batch_size=n,
        capacity=n,
        sampling_rate=1.0,
        steps=settings.reads,
    )
    multiplier = sampling.noise_multiplier(
        plan, ledger.budget, neighbours="add_remove"
    )
    mechanism = plan.mechanism(multiplier, settings.clip)
    reads = GradientReads(
        query,
        lambda: [(task.rows, task.y)],
        mechanism=mechanism,
        ledger=ledger,
        name="head",
        noise=NoiseSource(),
        keep=True,
    )
    stddev = math.sqrt(mechanism.coordinate_variance(query.size))
    weights = settings.descend(
        reads, np.zeros(query.shapes[0]), n, stddev, query.steepest
    )
    return task.function(weights), ledger


def adassp(task):
    """AdaSSP (Wang 2018, algorithm 2), the three Gaussians composed exactly
    instead of by thirds of epsilon and delta, which is less noise."""
    low, high = task.target
    h, t = task.rows, 2 * (task.y - low) / (high - low) - 1
    ledger, d = task.ledger(), h.shape[1]
    one = calibrate(
        SquaredErrorQuery(num_features=1, target_bounds=(0, 1)),
        ledger.budget,
        neighbours="add_remove",
    )
    assert isinstance(one, GaussianMechanism)
    sigma, rng = one.noise_multiplier * math.sqrt(3), np.random.default_rng()
    square, second = BOUND**2, h.T @ h
    least = np.linalg.eigvalsh(second)[0] + sigma * square * rng.normal()
    least -= sigma * square * math.sqrt(2 * math.log(6 / DELTA))
    wigner = np.triu(rng.normal(size=(d, d)))
    noise = sigma * square * (wigner + np.triu(wigner, 1).T)
    edge = math.sqrt(d * math.log(2 * d**2 / 0.05)) * sigma * square
    ridge = max(0.0, edge - max(least, 0.0))
    linear = h.T @ t + sigma * BOUND * rng.normal(size=d)
    weights = np.linalg.solve(second + noise + ridge * np.eye(d), linear)
    return task.function(weights), None


def functional(task):
    """Zhang et al. (2012), pure, with our exact sensitivity."""
    model = FunctionalLinearRegression(
        task.epsilon,
        low=-1 / math.sqrt(task.x.shape[1]),
        high=1 / math.sqrt(task.x.shape[1]),
        target_low=task.target[0],
        target_high=task.target[1],
        neighbours="add_remove",
        sensitivity="tight",
    )
    model.fit(task.x, task.y)
    return model.predict, model.ledger


def diffprivlib(task):
    """Pure; its own implementation of Zhang et al. (2012)."""
    from diffprivlib import models

    high = 1 / math.sqrt(task.x.shape[1])
    model = models.LinearRegression(
        epsilon=task.epsilon, bounds_X=(-high, high), bounds_y=task.target
    )
    return model.fit(task.x, task.y).predict, None


def least_squares(task):
    """Without privacy."""
    return linear_model.LinearRegression().fit(task.x, task.y).predict, None


METHODS = {
    "one read": one_read,
    "60 reads": rounds,
    "AdaSSP": adassp,
    "one read, pure": one_read_pure,
    "functional mechanism, pure": functional,
    "diffprivlib, pure": diffprivlib,
    "no privacy": least_squares,
}


def measure(name, method, epsilon, repeats):
    """R^2 on a fifth of the rows, in each of some splits."""
    table, found, ledger = TABLES[name], [], None
    x, y = table.load()
    low, high = np.array(table.low, float), np.array(table.high, float)
    x = 2 * (np.clip(x, low, high) - low) / (high - low) - 1
    x, y = x / math.sqrt(x.shape[1]), np.clip(y, *table.target)
    for seed in range(repeats):
        order = np.random.default_rng(seed).permutation(len(x))
        test, train = np.split(order, [len(x) // 5])
        task = Task(x[train], y[train], table.target, epsilon)
        predict, ledger = METHODS[method](task)
        missed = np.mean((predict(x[test]) - y[test]) ** 2)
        found.append(1 - missed / np.mean((y[test] - y[test].mean()) ** 2))
    return found, ledger


def cell(r2):
    low, middle, high = 100 * np.quantile(r2, (0.25, 0.5, 0.75))
    if middle < -1000:
        return "< -1000"
    return f"{middle:.1f} ({low:.1f}, {high:.1f})"


def table_of(rows):
    """Median R^2 in %, and the quartiles."""
    text = "| table | method | " + " | ".join(map(str, EPSILONS)) + " |\n"
    text += "|---|---|" + "---|" * len(EPSILONS) + "\n"
    for name, method in itertools.product(TABLES, METHODS):
        cells = [
            cell(r["r2"])
            for r in rows
            if (r["table"], r["method"]) == (name, method)
        ]
        text += f"| {name} | {method} | " + " | ".join(cells) + " |\n"
    return text


def main(_):
    warnings.simplefilter("ignore")
    file = ResultsFile(_OUT.value, "regression", ("table", "method", "epsilon"))
    for key in itertools.product(TABLES, METHODS, EPSILONS):
        if not file.has(*key):
            found, ledger = measure(*key, _REPEATS.value)
            file.add(key, ledger, r2=[round(v, 5) for v in found])
    file.finish(table_of(file.rows))


if __name__ == "__main__":
    app.run(main)
