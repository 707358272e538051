"""Labels alone as the secret: accuracy against whole records and rivals.

    KERAS_BACKEND=tensorflow python benchmarks/labels.py [--out=DIR]

MNIST through the public scattering map (400 dimensions, random projection),
ten draws of each:

* `record`: one release under replace_one, by the default ridge;
* `label`: one release under replace_label, by the default ridge;
* `label, whitened`: the same on features that are whitened by their own exact
  mean and covariance and brought to length 1, as public features may be;
* `randomised response`: every label is kept with probability
  e^epsilon / (e^epsilon + 9) or replaced by one of the other nine, and a
  linear layer is fitted to them (the Taylor objective): pure epsilon, so a
  delta buys it nothing.

Its ridge is chosen among `RIDGES` on the last 10,000 training images, which is
free: its labels are public.
"""

import math

import numpy as np
from absl import app, flags
from results_file import ResultsFile

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
EPSILONS, DELTAS = (0.5, 1.0, 2.0), (1e-5, 0.0)
DRAWS, UNITS, CLASSES, HELD_OUT = 10, 400, 10, 10_000
# What whitening adds to every variance (features have length 1).
FLOOR = 1e-5
# Of randomised response, in records.
RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def features():
    """`(train, labels, test, labels)` with the constant of a bias."""
    import keras

    import keras_fm as fm

    (x, y), (x_test, y_test) = fm.datasets.load("mnist")
    keras.utils.set_random_seed(0)
    body = fm.features.build("scattering", x.shape[1:], units=UNITS)
    maps = [fm.features.extract(body, a).astype(float) for a in (x, x_test)]
    maps = [np.c_[h, np.full(len(h), 0.1)] for h in maps]
    return maps[0], y, maps[1], y_test


def whitened(h, h_test):
    """By what the features of both neighbours have in common."""
    rows = h[:, :-1]
    mean, covariance = rows.mean(axis=0), np.cov(rows.T)
    values, vectors = np.linalg.eigh(covariance)
    map_ = vectors / np.sqrt(np.maximum(values, 0.0) + FLOOR)
    found = []
    for part in (h, h_test):
        part = (part[:, :-1] - mean) @ map_
        part /= np.linalg.norm(part, axis=1, keepdims=True)
        found.append(np.c_[part, np.full(len(part), 0.1)])
    return found


def released(h, y, epsilon, delta, neighbours):
    from keras_fm.kernel.budget import PrivacyBudget
    from keras_fm.kernel.ledger.ledger import Ledger
    from keras_fm.kernel.mechanisms import NoiseSource
    from keras_fm.kernel.release import calibrate, release
    from keras_fm.queries import CrossEntropyQuery

    ledger = Ledger(PrivacyBudget(epsilon, delta), neighbours=neighbours)
    query = CrossEntropyQuery(
        num_features=h.shape[1],
        num_outputs=CLASSES,
        feature_bound=math.hypot(1.0, 0.1),
        public_features=neighbours == "replace_label",
    )
    found = release(
        query,
        ((h[i : i + 1024], y[i : i + 1024]) for i in range(0, len(h), 1024)),
        mechanism=calibrate(query, ledger.budget, neighbours=neighbours),
        ledger=ledger,
        name="head",
        noise=NoiseSource(),
        clip=True,
    )
    return found, ledger


def ridge_fit(h, s, ridge):
    """The minimum of the Taylor objective."""
    hessian = h.T @ h + ridge * np.eye(h.shape[1])
    return np.linalg.solve(hessian, s - s.mean(axis=1, keepdims=True))


def accuracy(h, y, weights):
    return 100 * float(np.mean((h @ weights).argmax(axis=1) == y))


def chosen(h, s, held, labels):
    """The ridge that is best on held-out records."""
    found = [accuracy(held, labels, ridge_fit(h, s, r)) for r in RIDGES]
    return RIDGES[int(np.argmax(found))]


def responses(y, epsilon, rng):
    keep = math.exp(epsilon) / (math.exp(epsilon) + CLASSES - 1)
    other = (y + rng.integers(1, CLASSES, len(y))) % CLASSES
    return np.where(rng.random(len(y)) < keep, y, other)


def main(_):
    h, y, h_test, y_test = features()
    white, white_test = whitened(h, h_test)
    one_hot, rng = np.eye(CLASSES), np.random.default_rng()
    cut = len(h) - HELD_OUT
    results = ResultsFile(
        _OUT.value, "labels", ("method", "epsilon", "delta_of", "draw")
    )

    def add(method, epsilon, delta, draw, weights, ledger=None, **more):
        mapped = white_test if method == "label, whitened" else h_test
        found = accuracy(mapped, y_test, weights)
        key = method, epsilon, delta, draw
        results.add(key, ledger, accuracy=found, **more)

    for epsilon in EPSILONS:
        for draw in range(DRAWS):
            key = "randomised response", epsilon, 0.0, draw
            if not results.has(*key):
                labels = responses(y, epsilon, rng)
                s = h[:cut].T @ one_hot[labels[:cut]]
                ridge = chosen(h[:cut], s, h[cut:], labels[cut:])
                s = h.T @ one_hot[labels]
                add(*key, ridge_fit(h, s, ridge), ridge=ridge)
            for delta in DELTAS:
                for method, rows, neighbours in (
                    ("record", h, "replace_one"),
                    ("label", h, "replace_label"),
                    ("label, whitened", white, "replace_label"),
                ):
                    key = method, epsilon, delta, draw
                    if not results.has(*key):
                        found, ledger = released(
                            rows, y, epsilon, delta, neighbours
                        )
                        add(*key, found.minimise()[1], ledger)
    results.finish(table(results.rows))


def table(rows):
    lines = ["| method | delta | " + " | ".join(map(str, EPSILONS)) + " |"]
    lines.append("|---" * (2 + len(EPSILONS)) + "|")
    for method, delta in dict.fromkeys(
        (r["method"], r["delta_of"]) for r in rows
    ):
        cells = []
        for epsilon in EPSILONS:
            found = [
                r["accuracy"]
                for r in rows
                if (r["method"], r["delta_of"], r["epsilon"])
                == (method, delta, epsilon)
            ]
            words = f"{np.mean(found):.1f}" if found else "-"
            if len(found) > 1:
                words += f" ± {np.std(found, ddof=1):.1f}"
            cells.append(words)
        lines.append(f"| {method} | {delta:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app.run(main)
