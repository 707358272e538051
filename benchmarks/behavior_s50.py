"""Next-wave regular sport of 50 real pupils, from their friends and habits.

    KERAS_FM_DATA=... python benchmarks/behavior_s50.py

`s50_sport.npz` (Teenage Friends and Lifestyle Study, the s50 excerpt: 50
pupils, 3 waves, friendship nominations) is written in the schema of
docs/health_network.md and read back by its CSV loader. Wave 1 to 2 trains (50
rows), wave 2 to 3 tests (50 rows). A private model hardly learns from 50
records; this shows how little.
"""

import json
import os
import statistics
import tempfile

import keras
import numpy as np
from absl import app, flags, logging
from sklearn.linear_model import LogisticRegression

import keras_fm as fm
from keras_fm.datasets import health_network

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "behavior_s50", "Name of the file.")
_DRAWS = flags.DEFINE_integer("draws", 10, "Noise draws per epsilon.")
EPSILONS = (1.0, 4.0, 16.0, 64.0, 1000.0)
DELTA = 1e-3
FRIENDS = 3


def load():
    path = os.path.join(os.environ.get("KERAS_FM_DATA", ""), "s50_sport.npz")
    with np.load(path) as data:
        names = ("sport", "alcohol", "smoke")
        network = fm.datasets.HealthNetwork(
            attributes=np.stack([data[n] for n in names], axis=2),
            attribute_names=names,
            groups={"habits": names},
            bounds=np.array([[1.0, 2.0], [1.0, 5.0], [1.0, 3.0]]),
            activity="sport",
            active_threshold=1.5,
            resolution="waves",
            friendships=health_network.symmetrised(data["network"]),
            synthetic=False,
        )
    with tempfile.TemporaryDirectory() as folder:
        network.save_csv(folder)
        return health_network.load_csv(folder)


def private(train, test, epsilon):
    model = fm.models.BehaviorAutoencoder.of(train, hidden=(3,))
    pupil = fm.Unit(owners=train.users, reach=train.reach, words="one pupil")
    guard = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, DELTA),
        data=(train.x, train.y),
        guarantee=fm.Proven(unit=pupil),
        notes=(train.note,),
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    model.fit(train.x, train.y, callbacks=[guard], verbose=0)
    z = model.predict(test.x, verbose=0)[:, 0]
    return float(np.mean((z > 0) == test.y)), guard.ledger.epsilon()


def main(_):
    logging.set_verbosity(logging.ERROR)
    network = load()
    rows = []
    for social in ("public", "friends"):
        friends = FRIENDS if social == "friends" else None
        windows = network.windows(
            history=0, target="active", social=social, max_friends=friends
        )
        train, test = windows.split(0.5)
        scaled = [(w.x - w.low) / (w.high - w.low) for w in (train, test)]
        logistic = LogisticRegression().fit(scaled[0], train.y)
        sport = train.names.index(next(n for n in train.names if "sport" in n))
        same = scaled[1][:, sport] > 0.5
        rows += [
            (
                "always the majority of wave 2",
                None,
                [float(np.mean(test.y == round(np.mean(train.y))))],
                None,
            ),
            (
                "the same as last wave",
                None,
                [float(np.mean(same == test.y))],
                None,
            ),
            (
                f"logistic, no noise, {social}",
                None,
                [float(logistic.score(scaled[1], test.y))],
                None,
            ),
        ]
        for epsilon in EPSILONS:
            runs = []
            for draw in range(_DRAWS.value):
                keras.utils.clear_session()
                keras.utils.set_random_seed(draw)
                runs.append(private(train, test, epsilon))
            rows.append(
                (
                    f"dPAH proven, {social}, reach {train.reach}",
                    epsilon,
                    [r[0] for r in runs],
                    max(r[1] for r in runs),
                )
            )
    found = [
        {
            "method": method,
            "epsilon": epsilon,
            "proven": proven,
            "delta": DELTA,
            "neighbours": "add_remove",
            "unit": "one pupil",
            "accuracy": statistics.fmean(values),
            "spread": statistics.stdev(values) if len(values) > 1 else 0.0,
            "runs": len(values),
        }
        for method, epsilon, values, proven in rows
    ]
    for row in found:
        print(json.dumps(row))
    os.makedirs(_OUT.value, exist_ok=True)
    with open(os.path.join(_OUT.value, f"{_NAME.value}.json"), "w") as f:
        json.dump(found, f, indent=1)


if __name__ == "__main__":
    app.run(main)
