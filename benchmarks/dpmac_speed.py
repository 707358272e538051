"""What a step of DP-MAC costs beside a plain Keras step and DP-SGD.

    python benchmarks/dpmac_speed.py

Random records of 60 features, 60-300-10 (the paper's classifier after its
PCA), batches of 250 to 4,000. Every measurement runs in a process of its own
(so that peak memory is its own); seconds for a step are the slope between a
short and a long training, median of `--repeats`, tracing excluded. Rows of a
DP-MAC batch include the padding of Poisson samples. All methods of one batch
size follow each other, so a ratio compares what ran side by side.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

from absl import app, flags

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_BATCHES = flags.DEFINE_list("batches", ["250", "1000", "4000"], "")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Slopes for a median.")
_ONE = flags.DEFINE_string("one", None, "One measurement: method,batch.")
METHODS = {
    "plain": "plain Keras step",
    "mac_1": "DP-MAC, 1 Z-step",
    "mac_30": "DP-MAC, 30 Z-steps (Adam)",
    "fast_clipping": "tensorflow-privacy, fast clipping",
    "vectorized": "tensorflow-privacy, vectorised",
}
# Steps of an epoch; a slope is taken over two epochs or as many steps.
EPOCH = 50
INPUTS, HIDDEN, CLASSES = 60, 300, 10


def one(method, batch):
    import keras
    import numpy as np

    import keras_fm as fm
    from keras_fm.baselines import dp_sgd

    rng = np.random.default_rng(0)
    n = EPOCH * batch
    x = rng.normal(size=(n, INPUTS)).astype("float32")
    y = rng.integers(0, CLASSES, n)

    def layers():
        return [
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]

    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if method == "plain":
        model = keras.Sequential([keras.Input((INPUTS,)), *layers()])
        model.compile(
            "adam",
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        data = {"x": x, "y": y, "batch_size": batch}
    elif method.startswith("mac"):
        steps = int(method.split("_")[1])
        model = fm.models.DPMAC(
            (INPUTS,), layers(), clip=0.1, z_steps=steps, unprotected=True
        )
        model.compile("adam")
        model.perturb(1.0, batch, steps=10**6)
        data = {"x": fm.datasets.PoissonBatches(x, y, batch_size=batch)}
    else:

        def train(steps):
            config = dp_sgd.DPSGDConfig(
                learning_rate=0.1,
                l2_norm_clip=0.1,
                batch_size=batch,
                steps=steps,
                form=method,
            )
            model = keras.Sequential([keras.Input((INPUTS,)), *layers()])
            rival = dp_sgd.DPSGDClassifier(model, config, 8.0, 1e-5)
            return rival.fit(x, y).report()["seconds"]

    if not method.startswith(("plain", "mac")):
        train(2)
        slopes = [
            (train(3 * EPOCH) - train(EPOCH)) / (2 * EPOCH)
            for _ in range(_REPEATS.value)
        ]
    else:

        def train(epochs):
            start = time.perf_counter()
            model.fit(**data, epochs=epochs, verbose=0)
            return time.perf_counter() - start

        train(2)
        slopes = [
            (train(3) - train(1)) / (2 * EPOCH) for _ in range(_REPEATS.value)
        ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps(
            {
                "method": method,
                "batch": batch,
                "milliseconds": round(1e3 * statistics.median(slopes), 2),
                "megabytes": round((peak - base) / 1024),
            }
        )
    )


def main(_):
    if _ONE.value:
        method, batch = _ONE.value.split(",")
        return one(method, int(batch))
    rows = []
    for batch in map(int, _BATCHES.value):
        for method in METHODS:
            found = subprocess.run(
                [
                    sys.executable,
                    __file__,
                    f"--one={method},{batch}",
                    f"--repeats={_REPEATS.value}",
                ],
                capture_output=True,
                text=True,
                check=True,
            )
            rows.append(json.loads(found.stdout.strip().splitlines()[-1]))
            print(rows[-1], flush=True)
    os.makedirs(_OUT.value, exist_ok=True)
    base = os.path.join(_OUT.value, "dpmac_speed")
    with open(f"{base}.json", "w") as f:
        json.dump(rows, f, indent=1)
    sizes = sorted({r["batch"] for r in rows})
    lines = ["| | " + " | ".join(map(str, sizes)) + " |"]
    lines.append("|---" * (len(sizes) + 1) + "|")
    for method, label in METHODS.items():
        cells = []
        for size in sizes:
            at = {r["method"]: r for r in rows if r["batch"] == size}
            mine, plain = at[method], at["plain"]
            ratio = mine["milliseconds"] / plain["milliseconds"]
            cells.append(
                f"{mine['milliseconds']} ms ({ratio:.1f}), "
                f"{mine['megabytes']} MB"
            )
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    with open(f"{base}_table.md", "w") as f:
        f.write(text)
    print(text)


if __name__ == "__main__":
    app.run(main)
