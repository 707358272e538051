"""Does more budget ever hurt? Rounds and one release, from epsilon 0.5 to 100.

    python benchmarks/more_budget.py --out=docs/results   # more_budget.json
    python benchmarks/more_budget.py --out=docs/results --show   # violations

Every draw has a table of its own and noise of its own, and one table for all
epsilons, so that differences between epsilons are taken within a draw. Tables
are made up; each is measured with 60 rounds and with one release. A
*violation* is a pair of epsilons of which the larger is worse by more than two
standard errors of the mean difference. The tables on which the rule was chosen
have other shapes and seeds.
"""

import itertools
import json
import os

import numpy as np
from absl import app, flags
from scipy import special

_OUT = flags.DEFINE_string("out", "more_budget", "Folder of more_budget.json.")
_SHOW = flags.DEFINE_boolean("show", False, "Only print what is there.")
_DRAWS = flags.DEFINE_integer("draws", 20, "Draws of every table.")
_TABLES = flags.DEFINE_list("tables", None, "Names; all.")

EPSILONS, DELTA, TEST = (0.5, 1, 2, 4, 8, 20, 100), 1e-5, 2000
SEED = 20_000


def logistic(rng, z):
    return (rng.random(len(z)) < special.expit(z)).astype(int)


def balanced(rng, n):
    x = rng.uniform(-1, 1, (n, 8))
    return x, logistic(rng, 3 * x[:, 0] - 2 * x[:, 1] + x[:, 2] * 1.5)


def skew(rng, n):
    x = np.minimum(rng.gamma(0.5, 1.0, (n, 10)), 8)
    return x, logistic(rng, 1.2 * (x[:, 0] - x[:, 1]) + 0.4 * x[:, 2])


def dominant(rng, n):
    x = rng.uniform(-1, 1, (n, 20))
    return x, logistic(rng, 6 * x[:, 0] + 0.5 * x[:, 1])


def words(rng, n):
    weights = 1 / np.arange(1, 16)
    x = rng.choice(15, (n, 3), p=weights / weights.sum())
    effects = np.random.default_rng(SEED).normal(0, 1.2, (3, 15))
    return x, logistic(rng, sum(effects[j, x[:, j]] for j in range(3)))


def few_rows(rng, n):
    y = rng.integers(0, 3, n)
    x = rng.normal(0, 1, (n, 12))
    x[np.arange(n), y] += 2
    return np.clip(x, -4, 4), y


def imbalance(rng, n):
    y = (rng.random(n) < 0.06).astype(int)
    x = rng.normal(0, 1, (n, 12)) + 0.8 * y[:, None] * (np.arange(12) < 5)
    return np.clip(x, -4, 4), y


def counts(rng, n):
    x = rng.uniform(0, 1, (n, 6))
    mean = np.exp(0.3 + 1.4 * x[:, 0] - x[:, 1])
    return x, np.minimum(rng.poisson(mean * rng.gamma(2, 0.5, n)), 25)


def one_explains(rng, n):
    x = rng.uniform(-1, 1, (n, 16))
    return x, 3 * x[:, 0] + 0.4 * x[:, 1] + rng.normal(0, 0.8, n)


def skewed_numbers(rng, n):
    x = np.minimum(rng.gamma(0.5, 1.0, (n, 10)), 8)
    y = 2 * x[:, 0] - x[:, 1] + 0.5 * x[:, 2] + rng.normal(0, 1, n)
    return x, np.clip(y, -10, 20)


def wide_column(rng, n):
    x = rng.uniform(-1, 1, (n, 12)) * np.r_[1, np.full(11, 0.1)]
    y = x[:, 0] + 8 * x[:, 1] - 8 * x[:, 2] + rng.normal(0, 0.5, n)
    return x, np.clip(y, -5, 5)


def few_numbers(rng, n):
    x = rng.normal(0, 1, (n, 10)) + rng.normal(0, 0.7, (n, 1))
    y = x[:, 0] + 0.5 * x[:, 1] - 0.5 * x[:, 2] + rng.normal(0, 1, n)
    return np.clip(x, -4, 4), np.clip(y, -6, 6)


def rare_flags(rng, n):
    x = (rng.random((n, 12)) < 0.06).astype(float)
    y = 3 * x[:, 0] - 2 * x[:, 1] + x[:, 2] + rng.normal(0, 0.5, n)
    return x, np.clip(y, -4, 6)


RANGES = {"skew": (0, 8), "few rows": (-4, 4), "imbalance": (-4, 4)}
RANGES |= {"skewed numbers": (0, 8), "few numbers": (-4, 4)}
RANGES |= {"counts": (0, 1), "rare flags": (0, 1)}
# How it is made, rows, and the classes or the range of the numbers.
TABLES: dict = {
    "balanced": (balanced, 4000, [0, 1]),
    "skew": (skew, 4000, [0, 1]),
    "dominant": (dominant, 3000, [0, 1]),
    "words": (words, 4000, [0, 1]),
    "few rows": (few_rows, 1200, [0, 1, 2]),
    "imbalance": (imbalance, 5000, [0, 1]),
    "counts": (counts, 4000, (0, 25)),
    "one explains": (one_explains, 1200, (-7, 7)),
    "skewed numbers": (skewed_numbers, 4000, (-10, 20)),
    "wide column": (wide_column, 3000, (-5, 5)),
    "few numbers": (few_numbers, 500, (-6, 6)),
    "rare flags": (rare_flags, 5000, (-4, 6)),
}
METHODS: dict = {"60 rounds": {"rounds": 60}, "one release": {}}


def scores(name, y, found):
    """Accuracy and log-loss of probabilities, or R² of numbers."""
    if found.ndim == 1:
        return [1 - np.mean((y - found) ** 2) / np.var(y)]
    likely = np.maximum(found[np.arange(len(y)), y], 1e-300)
    return [np.mean(found.argmax(axis=1) == y), -np.mean(np.log(likely))]


def columns(name, width):
    if name == "words":
        return {"columns": [list(range(15))] * width}
    return {"bounds": RANGES.get(name, (-1, 1))}


def ours(name, method, epsilon, seed, x, y):
    from keras_fm.estimators import PrivateClassifier, PrivateRegressor

    known, of = TABLES[name][2], columns(name, x.shape[1])
    common = {"reproducible_noise": seed, **METHODS[method], **of}
    if isinstance(known, tuple):
        return PrivateRegressor(
            epsilon, DELTA, target_bounds=known, **common
        ).fit(x, y)
    return PrivateClassifier(epsilon, DELTA, classes=known, **common).fit(x, y)


def no_privacy(name, x, y, test):
    """The same linear model, and the base rate."""
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.preprocessing import OneHotEncoder

    if name == "words":
        code = OneHotEncoder(categories=[list(range(15))] * 3).fit(x)
        x, test = code.transform(x), code.transform(test)
    if isinstance(TABLES[name][2], tuple):
        found = LinearRegression().fit(x, y).predict(test)
        return found, np.full(len(found), np.mean(y))
    found = LogisticRegression(C=100.0, max_iter=2000).fit(x, y)
    rate = np.bincount(y) / len(y)
    return found.predict_proba(test), np.tile(rate, (test.shape[0], 1))


def measure(name, method):
    """All draws of a table and a method: scores by epsilon, of no privacy, and
    of the base rate."""
    make, n, _ = TABLES[name]
    rows: dict = {key: [] for key in (*EPSILONS, "free", "base")}
    for draw in range(_DRAWS.value):
        rng = np.random.default_rng([SEED, draw])
        x, y = make(rng, n + TEST)
        test, truth = x[n:], y[n:]
        free = no_privacy(name, x[:n], y[:n], test)
        for key, found in zip(("free", "base"), free):
            rows[key].append(scores(name, truth, found))
        for place, epsilon in enumerate(EPSILONS):
            seed = 1000 * draw + place
            model = ours(name, method, epsilon, seed, x[:n], y[:n])
            predict = getattr(model, "predict_proba", model.predict)
            rows[epsilon].append(scores(name, truth, predict(test)))
    return list(records(name, method, rows))


def records(name, method, rows):
    """A record for each epsilon, the draws in lists."""
    named = ("score", "log_loss")
    given: dict = {}
    for key in ("free", "base"):
        for field, values in zip(named, zip(*rows[key])):
            given[f"{key}_{field}"] = [round(float(v), 5) for v in values]
    for epsilon in EPSILONS:
        found: dict = {"table": name, "method": method, "epsilon": epsilon}
        for field, values in zip(named, zip(*rows[epsilon])):
            found[field] = [round(float(v), 5) for v in values]
        yield found | given


def worse(before, after, sign):
    """By how much a larger epsilon is worse, 0 within two standard errors."""
    lost = sign * (np.asarray(before) - np.asarray(after))
    error = np.std(lost, ddof=1) / len(lost) ** 0.5
    return float(np.mean(lost)) if np.mean(lost) > 2 * error else 0.0


def show(found, method):
    """Prints what is worse than it was, and how far from no privacy."""
    found = [row for row in found if row["method"] == method]
    violations, comparisons, gaps = [], 0, []
    by = {(row["table"], row["epsilon"]): row for row in found}
    for name, (field, sign) in itertools.product(
        dict.fromkeys(row["table"] for row in found),
        (("score", 1), ("log_loss", -1)),
    ):
        last = by[name, EPSILONS[-1]]
        if field not in last:
            continue
        pairs = [
            (f"{low} to {high}", by[name, low][field], by[name, high][field])
            for low, high in itertools.combinations(EPSILONS, 2)
        ]
        if sign < 0:
            pairs += [
                (f"base rate to {e}", last["base_log_loss"], by[name, e][field])
                for e in EPSILONS
            ]
        for what, before, after in pairs:
            comparisons += 1
            lost = worse(before, after, sign)
            if lost:
                violations.append(f"{name}, {field}: {what}, by {lost:.5f}")
        gap = sign * (np.mean(last[f"free_{field}"]) - np.mean(last[field]))
        gaps.append((gap, f"{name}, {field}"))
    print(f"{method}: {len(violations)} violations in {comparisons}")
    print("\n".join(violations))
    print(f"farther than 0.01 from no privacy at {EPSILONS[-1]}:")
    print("\n".join(f"{what}: {gap:.4f}" for gap, what in gaps if gap > 0.01))


def main(_):
    path = os.path.join(_OUT.value, "more_budget.json")
    found = []
    if os.path.exists(path):
        with open(path) as f:
            found = json.load(f)
    have = {(row["table"], row["method"]) for row in found}
    for key in itertools.product(_TABLES.value or TABLES, METHODS):
        if _SHOW.value or key in have:
            continue
        found += measure(*key)
        os.makedirs(_OUT.value, exist_ok=True)
        with open(path, "w") as f:
            json.dump(found, f, indent=1)
    for method in METHODS:
        show(found, method)


if __name__ == "__main__":
    app.run(main)
