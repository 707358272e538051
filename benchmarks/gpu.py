"""Keras on JAX with a GPU: a whole job, scattering, and steps of a fit.

    KERAS_BACKEND=jax python benchmarks/gpu.py

Needs keras-fm, `jax[cuda12]` (or newer) with a GPU that it sees, and the MNIST
`.npz` file (`KERAS_FM_DATA`, or a download by Keras). Without a GPU it stops
and says so; `--allow_cpu` runs it anyway, with the device in the result, and
`--images=2000 --repeats=2` makes that short.

1. Seconds from raw MNIST images to weights, features and the one proven read
   included, imports not; the first run compiles, the others do not.
2. Scattering2D: images per second, 28 x 28 x 1 and 32 x 32 x 3.
3. A step of a fit over a plain Keras step, 784-300-25-10, batches of 256 and
   4,096, alternating: the published form, and a proven fit on a release.

Medians; written to `gpu.json`. Statistics are summed on the host in float64:
1 says what that costs beside the features.
"""

import json
import os
import statistics
import sys
import time

import keras
import numpy as np
from absl import app, flags

import keras_fm as fm

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Values per median.")
_IMAGES = flags.DEFINE_integer("images", 60_000, "MNIST images.")
_ALLOW_CPU = flags.DEFINE_bool("allow_cpu", False, "Also without a GPU.")


def device():
    """What computes, in words; ends the program where it is no GPU."""
    if keras.backend.backend() != "jax":
        sys.exit(
            "This measures JAX: set KERAS_BACKEND=jax. Received: "
            f"{keras.backend.backend()}"
        )
    import jax

    found = jax.devices()[0]
    if found.platform != "gpu" and not _ALLOW_CPU.value:
        sys.exit(
            'No GPU. Needed: `pip install "jax[cuda12]"` and a GPU that '
            f"`jax.devices()` shows (it shows {jax.devices()}). "
            "--allow_cpu measures what is there."
        )
    return {
        "platform": found.platform,
        "kind": found.device_kind,
        "jax": jax.__version__,
        "keras": keras.__version__,
    }


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def job(x, y):
    """Raw images to weights: seconds of the features, and of the release."""
    parts = {}

    def whole():
        body = fm.features.build("scattering", x.shape[1:])
        held = []
        parts["features"] = seconds(
            lambda: held.append(fm.features.extract(body, x))
        )
        (h,) = held

        def learn():
            head = fm.layers.PrivateDense(10, use_bias=False)
            model = keras.Sequential([keras.Input(h.shape[1:]), head])
            model.compile("sgd", fm.losses.TaylorCrossEntropy())
            private = fm.callbacks.PrivateModel(
                fm.PrivacyBudget(2.0, 1e-5), data=(h, y)
            )
            model.fit(h, y, batch_size=10_000, callbacks=[private], verbose=0)

        parts["read, noise and weights"] = seconds(learn)

    first = seconds(whole)
    runs = []
    for _ in range(_REPEATS.value):
        runs.append({"all": seconds(whole), **parts})
    return {
        "first run, compiling": round(first, 2),
        **{
            key: round(statistics.median(run[key] for run in runs), 3)
            for key in runs[0]
        },
    }


def scattering():
    found = {}
    for shape in ((28, 28, 1), (32, 32, 3)):
        layer = fm.layers.Scattering2D(data_format="channels_last")
        model = keras.Sequential([keras.Input(shape), layer])
        n = min(8192, _IMAGES.value)
        x = np.random.default_rng(0).random((n, *shape), np.float32)

        def run(model=model, x=x):
            model.predict(x, batch_size=512, verbose=0)

        run()
        median = statistics.median(seconds(run) for _ in range(_REPEATS.value))
        name = " x ".join(map(str, shape))
        found[name] = round(n / median)
    return found


def network(affine, head):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((784,)),
            affine(300, activation="relu"),
            keras.layers.Dense(25, activation="relu"),
            keras.layers.UnitNormalization(),
            head(10),
        ]
    )
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    return model


def steps(batch):
    """Ratios of epochs; the proven model is a head on fixed features."""
    n = min(32_768, _IMAGES.value // batch * batch)
    x = np.random.default_rng(0).random((n, 784), np.float32)
    y = np.arange(n) % 10
    layers = keras.layers
    plain = network(layers.Dense, layers.Dense)
    published = network(fm.layers.PerturbedAffine, fm.layers.PrivateDense)
    perturbed = fm.callbacks.PrivateModel(
        1.0, guarantee=fm.Published(lot=batch)
    )

    def head(layer):
        model = keras.Sequential(
            [keras.Input((784,)), layers.UnitNormalization(), layer(10)]
        )
        model.compile("adam", fm.losses.TaylorCrossEntropy())
        return model

    linear, released = head(layers.Dense), head(fm.layers.PrivateDense)
    proven = fm.callbacks.PrivateModel(fm.PrivacyBudget(1.0, 1e-5), data=(x, y))

    def fit(model, *callbacks):
        return lambda: model.fit(
            x, y, batch_size=batch, verbose=0, callbacks=list(callbacks)
        )

    fits = {
        "plain": fit(plain),
        "published": fit(published, perturbed),
        "plain, linear": fit(linear),
        "proven, on a release": fit(released, proven),
    }
    for run in fits.values():
        run()  # compiling, and the one read
    took = {name: [] for name in fits}
    for _ in range(_REPEATS.value):
        for name, run in fits.items():
            took[name].append(seconds(run))
    medians = {k: statistics.median(v) for k, v in took.items()}
    return {
        "published step / plain step": round(
            medians["published"] / medians["plain"], 3
        ),
        "proven step on a release / plain step": round(
            medians["proven, on a release"] / medians["plain, linear"], 3
        ),
        "milliseconds of a plain step": round(
            1000 * medians["plain"] / (n // batch), 3
        ),
    }


def main(_):
    results = {
        "device": device(),
        "images": _IMAGES.value,
        "repeats": _REPEATS.value,
    }
    print(json.dumps(results["device"]), flush=True)
    (x, y), _ = fm.datasets.load("mnist")
    results["seconds from raw MNIST to weights"] = job(
        x[: _IMAGES.value], y[: _IMAGES.value]
    )
    results["scattering, images per second"] = scattering()
    for batch in (256, 4096):
        if batch <= _IMAGES.value:
            results[f"steps, batch {batch}"] = steps(batch)
    text = json.dumps(results, indent=1)
    print(text)
    os.makedirs(_OUT.value, exist_ok=True)
    with open(os.path.join(_OUT.value, "gpu.json"), "w") as f:
        f.write(text + "\n")


if __name__ == "__main__":
    app.run(main)
