"""A rare class found at epsilon 2, against the model without privacy.

    KERAS_BACKEND=jax python benchmarks/rare_class.py --out=docs/results

Made-up tables of 300 rows of *yes* and 5,000 of *no*: normal numbers in
columns, means apart along one direction. Recall and precision on 53,000 other
rows at the model's own threshold, or where it says so from a probability of
1/6, or from a threshold that a score in sample released; beside them the
precision of a logistic regression without privacy at the threshold where it
has the same recall, and the mean of the differences with two standard errors.
In %. For two normal classes that regression is the best rule, so what a private
model lacks is noise: see epsilon 100. The settings of
`LESS_NOISE` were chosen on tables of other shapes and seeds.
`rare_class.json` has every fit.
"""

import json
import os
import pathlib

import numpy as np
from absl import app, flags

_FITS = flags.DEFINE_integer("fits", 20, "Tables and fits of each row.")
_OUT = flags.DEFINE_string("out", "", "A folder for rare_class.json.")
# Columns, distance of the means, correlation of columns.
TABLES = ((8, 2.5, 0.0), (8, 2.5, 0.5), (4, 3.0, 0.5))
# A clip below the rule's has less noise, and probabilities that are too low.
LESS_NOISE = {"rounds": 60, "clip": 0.1, "averaging": 0.75, "whitening": 0.05}
SETTINGS: dict = {
    "one release": {},
    "one release, from 1/6": {"threshold": 1 / 6},
    "one release, balanced": {"class_weight": "balanced"},
    "60 rounds": {"rounds": 60},
    "60 rounds, no counts 0.2": {"rounds": 60, "class_weight": {"no": 0.2}},
    "60 rounds, balanced": {"rounds": 60, "class_weight": "balanced"},
    "60 rounds, from 1/6": {"rounds": 60, "threshold": 1 / 6},
    "60 rounds, less noise, from 1/6": {
        "rounds": LESS_NOISE,
        "threshold": 1 / 6,
    },
    "60 rounds, released threshold": {
        "rounds": 60,
        "released": 0.8,
    },
    "60 rounds as numbers, released threshold": {
        "numbers": True,
        "released": 0.8,
    },
    "60 rounds, from 1/6, epsilon 100": {
        "rounds": 60,
        "threshold": 1 / 6,
        "epsilon": 100.0,
    },
}


def table(seed, columns, apart, correlation):
    """`(x, y)` of training and of test rows."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky((1 - correlation) * np.eye(columns) + correlation)
    mean = rng.normal(size=columns)
    mean *= apart / np.linalg.norm(np.linalg.solve(root, mean))

    def drawn(times):
        y = np.repeat(["yes", "no"], [300 * times, 5000 * times])
        x = rng.normal(size=(len(y), columns)) @ root.T
        return x + np.where(y == "yes", 1.0, 0.0)[:, None] * mean, y

    return drawn(1), drawn(10)


def precision_at(scores, rare, recall):
    """Of what has the highest scores, as many as give this recall."""
    right = np.cumsum(rare[np.argsort(-scores)])
    count = np.searchsorted(right, recall * rare.sum()) + 1
    return right[min(count, len(right)) - 1] / count


def scored(x, y, epsilon, released, numbers=False, **settings):
    """The score of a fit, and the threshold that reaches the recall `released`
    by bins of scores in sample."""
    import keras_fm as fm

    given = {"bounds": (-4, 4), "evaluation": 0.1 * bool(released)}
    if numbers:
        model = fm.estimators.PrivateRegressor(
            epsilon, 1e-6, target_bounds=(0, 1), rounds=60, **given
        ).fit(x, y == "yes")
        found = model.private_score(x, y == "yes", metrics="auc")
        return model.predict, found.threshold(released)
    model = fm.estimators.PrivateClassifier(
        epsilon, 1e-6, classes=["no", "yes"], **given, **settings
    ).fit(x, y)
    threshold = None
    if released:
        found = model.private_score(x, y, metrics="auc")
        threshold = found.threshold(released)
    return lambda v: model.predict_proba(v)[:, 1], threshold


def measured(
    seed, shape, epsilon=2.0, threshold=0.5, released=None, **settings
):
    """Recall, precision and that of no privacy."""
    from sklearn.linear_model import LogisticRegression

    (x, y), (x_test, y_test) = table(seed, *shape)
    score, found = scored(x, y, epsilon, released, **settings)
    rare = y_test == "yes"
    said = score(x_test) >= (threshold if found is None else found)
    recall = said[rare].mean()
    precision = rare[said].mean() if said.any() else 1.0
    free = LogisticRegression(C=1e4).fit(x, y).decision_function(x_test)
    return recall, precision, precision_at(free, rare, recall)


def main(_):
    rows = []
    for shape in TABLES:
        print("{} columns, {} apart, correlation {}".format(*shape))
        for name, settings in SETTINGS.items():
            found = 100 * np.array(
                [measured(s, shape, **settings) for s in range(_FITS.value)]
            )
            less = found[:, 1] - found[:, 2]
            error = 2 * less.std(ddof=1) / np.sqrt(len(less))
            means = " | ".join(f"{v:.1f}" for v in found.mean(axis=0))
            print(
                f"| {name} | {means} | {less.mean():+.1f} +- {error:.1f} |",
                flush=True,
            )
            fields = ("recall", "precision", "free_precision")
            values = {f: v.round(5).tolist() for f, v in zip(fields, found.T)}
            rows.append({"table": list(shape), "way": name, **values})
    if _OUT.value:
        os.makedirs(_OUT.value, exist_ok=True)
        text = json.dumps(rows, indent=1)
        pathlib.Path(_OUT.value, "rare_class.json").write_text(text)


if __name__ == "__main__":
    app.run(main)
