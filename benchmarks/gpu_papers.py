"""AdLM's and pCDBN's published forms at the papers' size, on a GPU.

    KERAS_BACKEND=jax python benchmarks/gpu_papers.py --training=adlm:mnist

One training: `adlm`, `ilm` or `twin` (AdLM's network without noise) of `mnist`
or `cifar10`; or `pcdbn_code`, `pcdbn_printed` or `pcdbn_cdbn` (without noise)
of `mnist`. What `keras-fm reproduce --full` trains of `adlm:mnist-epochs`,
`adlm:cifar10` and `pcdbn:mnist-epochs`, with two differences: AdLM's images
stay on the device and a lot that is not full is left out (batches of 600 and
7,200 would wait for the host); and a line of `gpu_papers.jsonl` is written
whenever test images are looked at, so a training that ends early, after
`--seconds`, leaves its curve. Noise does not depend on the number of epochs.

Of CIFAR-10 let XLA choose convolutions without trying them
(`XLA_FLAGS=--xla_gpu_autotune_level=0`): it tried for seven minutes.
"""

import json
import os
import time

import keras
import numpy as np
from absl import app, flags

import keras_fm as fm
from keras_fm.lab import reproduce
from keras_fm.lab.engine.job import Job
from keras_fm.lab.engine.training import Curve, taylor
from keras_fm.lab.reproduce import pcdbn as pcdbn_reproduction
from keras_fm.lab.reproduce.experiment import Context
from keras_fm.papers.adlm import recipe as adlm

_EXPERIMENTS = {"mnist": "adlm:mnist-epochs", "cifar10": "adlm:cifar10"}
_EPSILONS = {"mnist": 0.5, "cifar10": 8.0}
_TWIN_LOT = 600

_TRAINING = flags.DEFINE_enum(
    "training",
    None,
    [f"{a}:{b}" for a in ("adlm", "ilm", "twin") for b in _EPSILONS]
    + [f"pcdbn_{a}:mnist" for a in ("code", "printed", "cdbn")],
    "Which.",
    required=True,
)
_EPSILON = flags.DEFINE_float("epsilon", None, "Claimed; the paper's here.")
_WIDTH = flags.DEFINE_float("width", 1.0, "Of AdLM's maps; 1: the paper's.")
_EPOCHS = flags.DEFINE_integer("epochs", None, "The paper's here.")
_SECONDS = flags.DEFINE_float("seconds", 1e9, "Ends after these.")
_RECORDS = flags.DEFINE_integer("records", 60_000, "Fewer for a trial.")
_POLICY = flags.DEFINE_enum(
    "policy", "float32", ["float32", "mixed_bfloat16"], "Of AdLM's layers."
)
_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")

_BEGAN = time.perf_counter()


def write(**row):
    row = {
        "training": _TRAINING.value,
        "seconds": round(time.perf_counter() - _BEGAN, 1),
        **row,
    }
    print(json.dumps(row), flush=True)
    os.makedirs(_OUT.value, exist_ok=True)
    with open(os.path.join(_OUT.value, "gpu_papers.jsonl"), "a") as f:
        f.write(json.dumps(row) + "\n")


class Written(Curve):
    """A curve of which every point is on disk, and that knows an end."""

    def on_epoch_end(self, epoch, logs=None):
        is_over = time.perf_counter() - _BEGAN > _SECONDS.value
        if is_over:
            self._at.add(epoch + 1)
            self.model.stop_training = True
        known = len(self.points)
        super().on_epoch_end(epoch, logs)
        for last, accuracy in self.points[known:]:
            write(epoch=last, accuracy=round(100 * accuracy, 2))


def batches(x, y, lot):
    """Shuffled lots for ever, of images on the device."""
    import jax

    x, y = jax.device_put(x.astype("float32")), jax.device_put(y)
    take = jax.jit(lambda x, y, rows: (x[rows], y[rows]))
    draw = np.random.default_rng(0)
    while True:
        order = draw.permutation(len(x))
        for start in range(0, len(x) // lot * lot, lot):
            yield take(x, y, order[start : start + lot])


def full_settings(name):
    """Those of the paper's size, and as many epochs as were asked for."""
    (experiment,) = reproduce.find([name])
    settings = experiment.settings(full=True)
    if _EPOCHS.value:
        settings["epochs"] = _EPOCHS.value
    return settings


def fit(model, train, test, lot, epochs, rate, callbacks=()):
    model.compile(keras.optimizers.Adam(rate), taylor())
    model.fit(
        batches(*train, lot),
        steps_per_epoch=len(train[0]) // lot,
        epochs=epochs,
        callbacks=[*callbacks, Written(*test, epochs)],
        verbose=0,
    )


def train_adlm(kind, dataset, epsilon):
    keras.mixed_precision.set_global_policy(_POLICY.value)
    settings = full_settings(_EXPERIMENTS[dataset])
    train, test = (
        tuple(part[: _RECORDS.value] for part in parts)
        for parts in fm.datasets.load(dataset)
    )
    rate = settings["learning_rate"]
    lot = min(settings["lot"], len(train[0]) // 4)
    given = {"architecture": dataset, "form": "code", "width": _WIDTH.value}
    twin = None
    if kind != "ilm":
        keras.utils.set_random_seed(0)
        twin = adlm.network(train, 10, unprotected=True, **given)
        if kind == "twin":
            fit(twin, train, test, lot, settings["epochs"], rate)
            return
        write(what="the network whose relevance is taken")
        lot_of_twin = min(_TWIN_LOT, lot)
        epochs = settings["pretraining_epochs"]
        fit(twin, train, test, lot_of_twin, epochs, rate)
        write(what=kind)
    keras.utils.set_random_seed(0)
    model = adlm.network(train, 10, adaptive=kind == "adlm", **given)
    guarantee = model.guarantee(lot=lot, relevance_of=twin)
    private = fm.callbacks.PrivateModel(
        epsilon, 0.0, data=train, guarantee=guarantee
    )
    fit(model, train, test, lot, settings["epochs"], rate, [private])


def train_pcdbn(series, epsilon):
    pcdbn_reproduction.Curve = Written
    settings = full_settings("pcdbn:mnist-epochs")
    settings["records"] = min(settings["records"], _RECORDS.value)
    context = Context(settings, lambda: fm.datasets.load("mnist"))
    keras.utils.set_random_seed(0)
    job = Job(series=series, epsilon=epsilon)
    pcdbn_reproduction.digits_curve(job, context)


def main(_):
    kind, dataset = _TRAINING.value.split(":")
    epsilon = _EPSILON.value or _EPSILONS[dataset]
    if kind in ("twin", "pcdbn_cdbn"):
        epsilon = None
    write(
        claimed_epsilon=epsilon,
        policy=_POLICY.value,
        device=device_kind(),
        width=_WIDTH.value,
    )
    if kind.startswith("pcdbn"):
        train_pcdbn(kind.removeprefix("pcdbn_"), epsilon)
    else:
        train_adlm(kind, dataset, epsilon)
    write(what="end")


def device_kind():
    import jax

    return jax.devices()[0].device_kind


if __name__ == "__main__":
    app.run(main)
