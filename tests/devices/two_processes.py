"""One of two processes that train together; each reads half of the records.

python tests/devices/two_processes.py INDEX PORT OUT

The first process adds up the statistics of both, charges the ledger, draws the
noise and tells the other of the release. Both then train on it.
"""

# ruff: noqa: E402  (devices are set before Keras is imported)

import json
import os
import sys
import time
from multiprocessing import connection

INDEX, PORT, OUT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
BACKEND = os.environ["KERAS_BACKEND"]
if BACKEND == "tensorflow":
    os.environ["TF_CONFIG"] = json.dumps(
        {
            "cluster": {
                "worker": [f"localhost:{PORT + 1}", f"localhost:{PORT + 2}"]
            },
            "task": {"type": "worker", "index": INDEX},
        }
    )
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{PORT + 1}", 2, INDEX)

import contextlib

import keras
import numpy as np

import keras_fm as fm
from keras_fm.kernel.ledger.noisy_statistics import Release
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.release import calibrate, release_statistics
from keras_fm.training import model_check

(X, Y), _ = fm.datasets.load("digits")
X, Y = X[:400], Y[:400]


def share(layer, features):
    """The statistics of this process' records."""
    mine = slice(INDEX, None, 2)
    made = PartialStatistics(layer.objective())
    h = features.predict(X[mine], verbose=0)
    made.add(layer.augment(h), Y[mine])
    return made


def released(layer, partial):
    """The release and its ledger, from the first process to both."""
    address = ("localhost", PORT)
    budget = fm.PrivacyBudget(2.0, 1e-5)
    path = os.path.join(OUT, f"release_{INDEX}.npz")
    if INDEX == 0:
        with connection.Listener(address) as listener:
            open(os.path.join(OUT, "listening"), "w").close()
            with listener.accept() as other:
                partial.merge(
                    PartialStatistics.from_bytes(
                        other.recv_bytes(), layer.objective()
                    )
                )
                ledger = fm.Ledger(budget, neighbours="add_remove")
                release_statistics(
                    partial,
                    mechanism=calibrate(
                        layer.objective(), budget, neighbours="add_remove"
                    ),
                    ledger=ledger,
                    name=layer.name,
                    noise=NoiseSource(0),
                ).save(path)
                with open(path, "rb") as f:
                    other.send_bytes(f.read())
                other.send_bytes(ledger.to_json().encode())
    else:
        while not os.path.exists(os.path.join(OUT, "listening")):
            time.sleep(0.05)
        with connection.Client(address) as first:
            first.send_bytes(partial.to_bytes())
            with open(path, "wb") as f:
                f.write(first.recv_bytes())
            ledger = fm.Ledger.from_json(first.recv_bytes().decode())
    return Release.load(path), ledger


def build():
    keras.utils.set_random_seed(0)
    layer = fm.layers.PrivateDense(10, name="head")
    model = keras.Sequential([keras.Input((64,)), layer])
    model.compile(keras.optimizers.SGD(0.5), fm.losses.TaylorCrossEntropy())
    return model, layer


def main():
    flat = np.zeros((400, 64), "float32")
    refusal = ""
    scope = contextlib.nullcontext()
    if BACKEND == "tensorflow":
        scope = strategy.scope()
    with scope:
        model, _ = build()
    try:
        if BACKEND == "tensorflow":
            # Keras itself cannot fit such a model from arrays.
            model_check.check_one_process(model)
        else:
            private = fm.callbacks.PrivateModel(2.0, 0.0, data=(flat, Y))
            model.fit(flat, Y, callbacks=[private], verbose=0)
    except ValueError as e:
        refusal = str(e)

    # Features of both are the same: public, and without variables.
    features = keras.Sequential(
        [
            keras.Input(X.shape[1:]),
            keras.layers.Flatten(),
            fm.layers.NormalizationLayer(),
        ]
    )
    model, layer = build()
    release, ledger = released(layer, share(layer, features))
    layer.learn(release, ledger, start="current")
    # No record is needed, so neither is a strategy. With the callback, which
    # finds the release and reads, draws and charges nothing.
    private = fm.callbacks.PrivateModel(ledger, data=(flat, Y))
    model.fit(flat, Y, batch_size=100, epochs=3, callbacks=[private], verbose=0)
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    text = {
        "refusal": refusal,
        "entries": len(ledger.entries),
        "kernel": kernel.tolist(),
        "statement": private.report(),
        "quadratic": release.quadratic.tolist(),
    }
    with open(os.path.join(OUT, f"found_{INDEX}.json"), "w") as f:
        json.dump(text, f)


if __name__ == "__main__":
    main()
