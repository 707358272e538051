"""What predicts the label of the synthetic health network.

    KERAS_BACKEND=jax python benchmarks/health_network.py

Accuracy of a logistic regression without privacy on the last 20 % of the
steps, in %, with each part of a window left out in turn. `own` is `present`
and `history`. The simulator's parameters were chosen by these numbers at
seed 0. Rows are in docs/results/health_network.json.
"""

import itertools

import numpy as np
from results_file import ResultsFile
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from keras_fm.datasets import health_simulator


def ablation(network, rate=1.0, **arguments):
    """Accuracies in %, `{"majority": ..., "without PART": ...}`."""
    train, test = network.windows(history=3, **arguments).split(train=0.8)
    train = train.sample(rate)
    parts = {k: np.r_[v] for k, v in train.columns.items()}
    parts["own"] = np.r_[parts["present"], parts["history"]]
    accuracy = {"majority": 100 * max(test.y.mean(), 1 - test.y.mean())}
    for part in ("nothing", "own", "history", "social", "events"):
        left_out = parts.get(part, [])
        kept = np.setdiff1d(np.arange(len(train.names)), left_out)
        model = make_pipeline(
            StandardScaler(), LogisticRegression(max_iter=300)
        )
        model.fit(train.x[:, kept], train.y)
        accuracy[f"without {part}"] = 100 * model.score(test.x[:, kept], test.y)
    return {k: round(v, 1) for k, v in accuracy.items()}


def main():
    keys = ("resolution", "target", "seed")
    rows = ResultsFile("docs/results", "health_network", keys)
    for key in itertools.product(
        ("daily", "weekly"), ("increase", "active"), range(4)
    ):
        if not rows.has(*key):
            resolution, target, seed = key
            network = health_simulator.simulate(resolution, seed)
            rows.add(key, None, **ablation(network, target=target))


if __name__ == "__main__":
    main()
